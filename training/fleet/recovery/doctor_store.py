"""The doctor's checks of the store, which report missing or damaged bundles that a row names, stray files, and
differences between index and rows.

The checks change no file, so the receiver may be running meanwhile. The rows are read before the files, because a
bundle is published before its row is committed. Of the bundles that rows of attempts name, only retention deletes any,
with a row and a note in the bundle's folder. All others that such rows name must be there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from training.files import Fs, file_sha256
from training.fleet.recovery.findings import Finding, Gravity
from training.fleet.store.artifacts import BUNDLE, INCOMING, INDEX, PROVENANCE, Artifact, read_removed, report_path
from training.fleet.store.errors import BadName
from training.fleet.store.incoming import PART_SUFFIX
from training.fleet.store.index import IndexRow
from training.fleet.store.provenance import BrokenSeal, unsealed
from training.fleet.wire.words import Json, day, typed
from training.frozen import frozen

_DAY_S = 86_400.0
_IN_FLIGHT_S = 120.0  # a file may be written so much later than the rows were read, and its row follow
_UNFINISHED_S = 7200.0  # a removal that a crash cut short is finished within an hour
_OLD_PART_S = 8 * _DAY_S  # the receiver removes parts after seven days
LOST = (
    "if a backup in FOLDER has it, `cis490-jobs backup FOLDER` and, with the receiver stopped, `cis490-jobs restore "
    "FOLDER --force` bring it back and forget nothing; without one, `cis490-jobs requeue {name}` trains it again"
)
DENIED = "run the doctor as the receiver's user or root; if it cannot be read then, look at the disk"
_INDEX_REMEDY = "restart the receiver, which rewrites the index from the database"


@frozen
class StoredBundle:
    """A bundle as the database describes it, and the attempt that delivered it."""

    artifact: Artifact
    job_id: str
    attempt: int
    name: str  # of the job
    accepted: bool  # it completed its attempt, so it has provenance
    stored_at: float
    current: bool = True  # its job is completed by it
    gone: tuple[float, str] | None = None  # when retention took it away, and why
    settled: bool = True  # its file is said to be gone
    # of its attempt, as in its provenance
    grant: Json = field(default_factory=dict)
    report: str | None = None  # SHA-256 of the report beside it
    report_bytes: int = 0
    in_manifest: bool = True

    @property
    def what(self) -> str:
        return f"bundle {self.artifact.artifact_id[:12]} of job {self.name}"

    @property
    def remedy(self) -> str:
        return LOST.format(name=typed({"name": self.name, "job_id": self.job_id, "in_manifest": self.in_manifest}))


def fault(fs: Fs, path: Path, size: int, sha256: str | None) -> str | None:
    """Return what is wrong with a file that should have this size and, if given, this digest; None if nothing is.
    Without a digest the file's bytes are not read."""
    try:
        found = fs.size(path)
        if found is None:
            return f"is not at {path}"
        if found != size:
            return f"has {found} bytes instead of {size}"
        if sha256 is not None and file_sha256(path, fs) != sha256:
            return "is damaged: its bytes are not those that were stored"
    except OSError as error:
        return f"cannot be read at {path}: {error.strerror}"
    return None


@dataclass(frozen=True)
class StoreCheck:
    """The checks of a store's folder: its bundles, parts of uploads and index, against what the database names."""

    root: Path
    fs: Fs
    now: float  # when the rows were read

    def look(
        self,
        deliveries: Sequence[StoredBundle],
        claims: frozenset[str],
        unconfirmed: frozenset[str] = frozenset(),
        *,
        deep: bool,
        progress: Callable[[int, int], object] = lambda *_: None,
    ) -> Iterator[Finding]:
        """Report every problem, also those that are mere notes; with ``deep``, read every byte of bundles and reports.
        ``progress`` gets the bytes done and the bytes in all."""
        if not self.root.is_dir():
            yield Finding(
                "store",
                f"there is no store at {self.root}",
                "name the right place with --models-dir, or `cis490-jobs restore FOLDER --force` a backup",
            )
            return
        yield from self._bundles(deliveries, deep, progress)
        yield from self._unnamed({each.artifact.path for each in deliveries} | unconfirmed)
        yield from self._incoming(claims)
        yield from self._index(deliveries)

    # -- bundles of rows ----------------------------------------------------------------------------------------

    def _bundles(
        self, deliveries: Sequence[StoredBundle], deep: bool, progress: Callable[[int, int], object]
    ) -> Iterator[Finding]:
        whole = sum({each.artifact.path: each.artifact.size for each in deliveries}.values())
        done, seen = 0, set[str]()
        for delivery in deliveries:
            if delivery.artifact.path not in seen:
                seen.add(delivery.artifact.path)
                yield from self._bundle(delivery, deep)
                done += delivery.artifact.size
                progress(done, whole)
            if delivery.accepted:
                yield from self._provenance(delivery)
            if delivery.report is not None:
                yield from self._report(delivery, delivery.report, deep)

    def _bundle(self, delivery: StoredBundle, deep: bool) -> Iterator[Finding]:
        artifact, path = delivery.artifact, self.root / delivery.artifact.path
        problem = fault(self.fs, path, artifact.size, artifact.artifact_id if deep else None)
        missing = problem == f"is not at {path}"
        note = read_removed(self.fs, self.root, artifact) if missing and delivery.gone is None else None
        if delivery.gone is not None:
            yield from self._removed(delivery, there=not missing)
        elif note is not None:
            if note.at < self.now - _IN_FLIGHT_S:  # else it went after the rows were read
                what = f"{delivery.what} was removed on {day(note.at)} ({note.why}), and this database, an older "
                remedy = "a running receiver notes it within the hour; nothing that is kept was lost"
                yield Finding("removed", f"{what}copy, does not know it", remedy, Gravity.NOTE)
        elif problem is not None:
            remedy = DENIED if problem.startswith("cannot be read") else delivery.remedy
            yield Finding("bundles", f"{delivery.what} {problem}", remedy)

    def _report(self, delivery: StoredBundle, digest: str, deep: bool) -> Iterator[Finding]:
        remedy = "a backup brings it back as it does bundles; the bundle holds it, too (`cis490-jobs get`)"
        try:
            path = self.root / report_path(delivery.artifact, digest)
            problem = fault(self.fs, path, delivery.report_bytes, digest if deep else None)
        except BadName:
            problem = "has no name that a report can have"
        if problem is not None:
            remedy = DENIED if problem.startswith("cannot be read") else remedy
            yield Finding("reports", f"the report beside {delivery.what} {problem}", remedy, Gravity.WARNING)

    def _removed(self, delivery: StoredBundle, *, there: bool) -> Iterator[Finding]:
        """Report a bundle that retention deleted more than two hours ago and whose file is still there."""
        assert delivery.gone is not None
        at, why = delivery.gone
        if there and at < self.now - _UNFINISHED_S:
            remedy = "a running receiver removes it within the hour"
            if delivery.settled:
                remedy = "it is harmless and no longer used: remove the file, or keep it"
            what = f"{delivery.what} was removed on {day(at)} ({why}), and is in the store"
            yield Finding("removed", what, remedy, Gravity.NOTE)

    def _provenance(self, delivery: StoredBundle) -> Iterator[Finding]:
        name = f"{delivery.job_id}-{delivery.attempt}.json"
        path = (self.root / delivery.artifact.path).parent / PROVENANCE / name
        problem, remedy = None, f"{delivery.remedy}; until then a rebuild would not find this job"
        if not delivery.current:
            remedy = "it is harmless: the job has continued since"
        try:
            said = unsealed(b"".join(self.fs.read(path)))
            wanted = {
                "artifact_id": delivery.artifact.artifact_id,
                "size": delivery.artifact.size,
                "job_id": delivery.job_id,
                "attempt": delivery.attempt,
            }
            if any(said.get(key) != value for key, value in wanted.items()):
                problem = "names another bundle"
            elif any(said.get(key) != value for key, value in delivery.grant.items()):
                problem = "names another grant than the database"
        except FileNotFoundError:
            problem = "is gone"
        except OSError as error:
            problem, remedy = f"cannot be read ({error.strerror})", DENIED
        except BrokenSeal:
            problem = "is damaged"
        if problem is not None:
            yield Finding(
                "provenance",
                f"the provenance of {delivery.what} (attempt {delivery.attempt}) {problem}",
                remedy,
                Gravity.FAULT if delivery.current else Gravity.NOTE,
            )

    # -- stray files --------------------------------------------------------------------------------------------

    def _unnamed(self, named: set[str]) -> Iterator[Finding]:
        for kind in self.fs.names(self.root):
            model, _, mode = kind.rpartition("_")
            if not model or kind == INCOMING:
                continue
            for sha256 in self.fs.names(self.root / kind):
                folder = self.root / kind / sha256
                try:
                    path = Artifact(sha256, model, mode, 0).path
                except BadName:
                    continue
                yield from self._aside(folder)
                if path not in named and self.old(folder / BUNDLE):
                    yield Finding(
                        "unnamed",
                        f"bundle {kind}/{sha256[:12]} is in the store and no row names it",
                        "it is harmless: an upload whose claim had ended, or a job that the database forgot "
                        "(`cis490-jobs restore` and `rebuild` take such work back)",
                        Gravity.NOTE,
                    )

    def _aside(self, folder: Path) -> Iterator[Finding]:
        if self.fs.size(folder / f"{BUNDLE}.damaged") is not None:
            whole = self.fs.size(folder / BUNDLE) is not None
            yield Finding(
                "aside",
                f"a damaged bundle was renamed to {folder / BUNDLE}.damaged",
                "look at the disk, then remove the file"
                if whole
                else "look at the disk; a repeated upload, a restore or a requeue brings a sound one",
                Gravity.WARNING,
            )

    def _incoming(self, claims: frozenset[str]) -> Iterator[Finding]:
        for name in self.fs.names(self.root / INCOMING):
            path = self.root / INCOMING / name
            try:
                age_s = self.now - self.fs.modified_at(path)
            except OSError:
                continue  # it was published a moment ago
            claim = name.removesuffix(PART_SUFFIX).rpartition("-")[0]
            upload = name.endswith(PART_SUFFIX) and not name.endswith(f".json{PART_SUFFIX}")
            if age_s > _OLD_PART_S:
                what = f"part {name} was last written {age_s / _DAY_S:.0f} days ago"
                remedy = "keep the receiver running: it removes such parts every hour"
            elif upload and claim and claims and claim not in claims and age_s > _IN_FLIGHT_S:
                what = f"part {name} belongs to no attempt that is known"
                remedy = "it is removed after seven days; an older database was restored, or files were copied here"
            else:
                continue
            yield Finding("parts", what, remedy, Gravity.WARNING)

    def old(self, path: Path) -> bool:
        """Return True if a file was last written more than two minutes before the rows were read, so that the rows must
        name it; False if the file cannot be found."""
        try:
            return self.fs.modified_at(path) < self.now - _IN_FLIGHT_S
        except OSError:
            return False

    # -- the index ----------------------------------------------------------------------------------------------

    def _index(self, deliveries: Sequence[StoredBundle]) -> Iterator[Finding]:
        expected: dict[bytes, float] = {}
        seen: set[str] = set()
        late: dict[bytes, bytes] = {}
        for delivery in deliveries:
            if delivery.artifact.artifact_id not in seen:
                seen.add(delivery.artifact.artifact_id)
                of = delivery.job_id, delivery.attempt, delivery.stored_at
                line = delivery.artifact.index_row(*of, delivery.gone).line()
                expected[line] = delivery.stored_at
                if delivery.gone is not None and delivery.gone[0] >= self.now - _IN_FLIGHT_S:
                    late[line] = delivery.artifact.index_row(*of).line()  # the file is rewritten after the removal
        try:
            data = b"".join(self.fs.read(self.root / INDEX))
        except FileNotFoundError:
            data = b""
        except OSError as error:
            yield Finding("index", f"{INDEX} cannot be read: {error.strerror}", _INDEX_REMEDY)
            return
        lines = data.splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            yield Finding("index", f"the last line of {INDEX} is torn", _INDEX_REMEDY)
            lines.pop()
        found = set(lines)
        missing = [
            line
            for line, stored_at in expected.items()
            if line not in found and late.get(line) not in found and stored_at < self.now - _IN_FLIGHT_S
        ]
        if missing:
            what = f"{INDEX} lacks {len(missing)} of {len(expected)} artifacts"
            yield Finding("index", what, _INDEX_REMEDY)
        known = expected.keys() | set(late.values())
        strange = [line for line in found - known if not self._to_come(line)]
        if strange or len(lines) != len(found):
            what = f"{INDEX} has {len(strange) + len(lines) - len(found)} lines that the database does not"
            yield Finding("index", what, _INDEX_REMEDY)

    def _to_come(self, line: bytes) -> bool:
        """Return True if a line of the index may have been written after the rows were read."""
        try:
            row = msgspec.json.decode(line, type=IndexRow)
            return max(row.stored_at, row.removed_at or 0.0) >= self.now - _IN_FLIGHT_S
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
