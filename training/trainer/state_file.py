"""The saved state of an interrupted training run, from which the run resumes on this or another machine."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from training.clock import Clock
from training.data.values import Json, JsonDict
from training.files import write_whole

# The facts of a run key as a person calls them, in the order of interest.
FACTS = {
    "data": "the data",
    "validation": "the validation table",
    "behaviours": "the scenarios of the validation table",
    "schema": "the schema",
    "spec": "what was asked for",
    "code": "the trainers' sources",
    "versions": "a library's version",
    "threads": "the number of threads",
    "cpu": "the processor",
    "device": "the device",
}
PROCESSOR = frozenset({"cpu", "threads"})  # facts that change how sums are rounded, and nothing else


class _Header(msgspec.Struct):
    """The first line of the file, as JSON."""

    run_key: str
    facts: JsonDict
    sha256: str
    processors: list[JsonDict] = []  # of the runs before this one, unlike its own


class StateFile:
    """Saves a run's state in a file. Only a run whose key is the same, or differs in ``PROCESSOR`` facts alone, resumes
    from the state.

    The file has one line of JSON, then the state. ``tick``, called at each safe point, saves if ``EVERY_S`` seconds
    have passed since the start or the last save, so that a power cut costs about a minute. ``save`` saves at once;
    ``discard`` removes the file when the run is done.

    A run that resumed on another processor, which rounds differently, lists all its processors in :attr:`mixed`.
    """

    EVERY_S = 60.0

    def __init__(self, path: Path, run_key: str, clock: Clock, *, facts: Json | None = None) -> None:
        self._path = path
        self._facts = dict(facts or {})
        self._run_key = run_key
        self._clock = clock
        self._snapshot: Callable[[], bytes] | None = None
        self._saved_at = clock.monotonic()
        self._processors: list[JsonDict] = []  # as in the header
        self.ignored = False  # what is in the file, until it is replaced
        self.resumed = self.saved = False

    @property
    def mixed(self) -> list[JsonDict]:
        """The processors on which this run was trained, each once and the present one last; empty if there was only
        one."""
        return [*self._processors, self._processor(self._facts)] if self._processors else []

    def load(self) -> bytes | None:
        """Return the saved state of this run; None if there is none, or if the file is ignored, damaged or of another
        run."""
        header, state = self._read()
        if self.ignored or header is None or self._unlike(header):
            return None
        before = header.processors
        if header.run_key != self._run_key:
            before.append(self._processor(header.facts))
        own = self._processor(self._facts)
        self._processors = [each for place, each in enumerate(before) if each != own and each not in before[:place]]
        self.resumed = True
        return state

    def stranger(self) -> str | None:
        """Return the reason why the file's state is another run's, so that this run starts from the beginning.

        Return None if the state is this run's, or if the file is missing or damaged.
        """
        header, _ = self._read()
        if header is None or not (odd := self._unlike(header)):
            return None
        named = ", ".join(words for name, words in FACTS.items() if name in odd)
        return f"a run that was interrupted here cannot resume: {named or 'something'} changed since"

    def _unlike(self, header: _Header) -> set[str]:
        """Return the names of the facts, except the ``PROCESSOR`` facts, in which a stored state differs from this run.

        The set holds one empty name if the facts of the stored state are unknown.
        """
        if header.run_key == self._run_key:
            return set()
        theirs, names = header.facts, {*header.facts, *self._facts}
        return {name for name in names if theirs.get(name) != self._facts.get(name)} - PROCESSOR if theirs else {""}

    @staticmethod
    def _processor(facts: Json) -> JsonDict:
        return {name: facts.get(name) for name in sorted(PROCESSOR)}

    def _read(self) -> tuple[_Header | None, bytes]:
        """Return the file's header and state; None and no bytes if there is no file, or a damaged one."""
        try:
            line, _, state = self._path.read_bytes().partition(b"\n")
            header = msgspec.json.decode(line, type=_Header)
        except (OSError, ValueError, RecursionError):
            return None, b""
        return (header, state) if header.sha256 == hashlib.sha256(state).hexdigest() else (None, b"")

    def watch(self, snapshot: Callable[[], bytes]) -> None:
        self._snapshot = snapshot

    def tick(self) -> None:
        if self._clock.monotonic() - self._saved_at >= self.EVERY_S:
            self.save()

    def save(self) -> None:
        """Save what the watched run needs to resume; nothing if the run has not begun."""
        if self._snapshot is None:
            return
        state = self._snapshot()
        header = _Header(self._run_key, self._facts, hashlib.sha256(state).hexdigest(), self._processors)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, msgspec.json.encode(header) + b"\n" + state)
        self._saved_at, self.saved = self._clock.monotonic(), True

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)
