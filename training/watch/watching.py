"""Watch one host with a model: find incidents and changes in its samples, store them, and deliver them to hooks."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

from training.clock import Clock, SystemClock
from training.data.values import Floats, Json, JsonDict
from training.files import only_line_of
from training.locking import LockedError, exclusive
from training.printable import counted
from training.streams import complain
from training.trainer.changes import ToldChange, Values
from training.trainer.checkpoint import read, schema_of
from training.trainer.contract import BadArguments, Stop
from training.trainer.incident_rule import Incident
from training.trainer.judging import open_model
from training.trainer.own_references import own_references
from training.trainer.reasons import named, together
from training.trainer.streams import Streams, leave_note, rule_of, take_note
from training.trainer.summary import doubts_of_host
from training.watch import calls
from training.watch.detector import HostDetector, ScoredWindow, require_watchable
from training.watch.recording.collect import Collector
from training.watch.recording.record import choose_collector
from training.watch.recording.stage import RecordError

KEEP_EVERY_S = 30.0  # the state of an open incident is kept; a raised or ended one at once
ALIVE_EVERY_S = 900.0  # the fleet hears so often that a host is watched
KEEP_EVERY_STRETCHES = 10  # of how the host is: what a crash may forget
MANY_LOST, LOST = 30, 0.1  # windows, and their share of those seen, from which it is said before the end
LAST_CALLS_S = 5.0  # that hooks have at the end
MOST_SHARES = 500  # alarms whose channels are kept for an incident's reasons
JUMP_S = 5.0  # between the clocks: the host's time was set, and windows begin on a clock of their own


def state_path(document: Json, host: str) -> Path:
    """Return the default path of the state file: below ``$STATE_DIRECTORY``, else ``$XDG_STATE_HOME``, else
    ``~/.local/state``."""
    home = os.environ.get("STATE_DIRECTORY") or os.environ.get("XDG_STATE_HOME")
    folder = Path(home) if home else Path.home() / ".local" / "state"
    return folder / "cis490-watch" / f"{document['model']}_{document['mode']}-{host}.json"


def confirm(names: argparse.Namespace) -> str:
    """Leave a note that makes the watch with the same state file confirm the host's change; return the sentence that
    reports this.

    Raises ``BadData`` for a checkpoint that cannot be used, and ``TrainerError`` if no change was reported or the state
    file cannot be used.
    """

    document = read(names.checkpoint).document
    kept_in = names.state or state_path(document, names.host)
    told = leave_note(kept_in, Streams(str(document["digest"]), rule_of(document)), names.host)
    return f"confirmed: {names.host} {told.words}. Its thresholds are still those of its reference"


def prepare(names: argparse.Namespace, held: contextlib.ExitStack) -> tuple[HostWatch, Collector, float]:
    """Open the model, the references and the state file, and begin the watch; return the watch, the collector of
    samples, and the number of samples a second.

    The context ``held`` keeps the state file locked for this process. Raises ``TrainerError`` or ``BadData`` for flags,
    a model, references or a state file with which this host cannot be watched.
    """

    if names.for_s is not None and not names.for_s > 0:
        raise BadArguments(f"--for {names.for_s:g} must be more than 0 seconds")
    model = open_model(names.checkpoint, threads=max(names.threads, 1))
    schema = schema_of(model.checkpoint)
    try:
        hooks = [calls.command_hook(names.command)] if names.command else []
        address = only_line_of(names.webhook_file) if names.webhook_file else names.webhook
        hooks += [calls.webhook(address)] if address else []
        hooks += [calls.fleet_hook(names.receiver_url, names.host, names.tls_dir)] if names.receiver_url else []
        collector = choose_collector(names.view)
    except (ValueError, RecordError) as error:
        raise BadArguments(str(error)) from None
    clock = SystemClock()
    require_watchable(schema, model)  # before anything is said of its references
    own = own_references(names.reference, names.host, str(collector.view), schema)
    detector = HostDetector(model, own, host=names.host, view=str(collector.view), began_at=clock.now())
    try:
        streams = Streams(str(model.document["digest"]), rule_of(model.document))
        kept_in = names.state or state_path(model.document, names.host)
        kept_in.parent.mkdir(parents=True, exist_ok=True)
        held.enter_context(exclusive(kept_in.with_name(f"{kept_in.name}.lock")))
        note = streams.load(kept_in)
    except LockedError as error:
        raise BadArguments(
            f"{kept_in} is used by another watch ({error.holder}), or cannot be locked: end it, or name another --state"
        ) from None

    def say(text: str) -> None:
        complain(f"note: {text}")

    if note is not None:
        say(note)
    courier = calls.Courier(hooks, streams.undelivered, say)
    if courier.unnamed:
        say(f"{courier.unnamed} earlier calls wait for a hook that was not named: --exec, --webhook or --receiver-url")
    watch = HostWatch(
        detector=detector,
        streams=streams,
        courier=courier,
        kept_in=kept_in,
        host=names.host,
        model=f"{model.document['model']} {model.document['mode']}",
        as_json=names.json,
        say=say,
    )
    watch.keep()  # what cannot be written is refused now, not when somebody is to be called
    watch.begin()
    return watch, collector, schema.sample_hz


def samples(
    watch: HostWatch,
    collector: Collector,
    *,
    hz: float,
    clock: Clock,
    sleep: Callable[[float], None],
    stop: Stop,
    for_s: float | None,
) -> None:
    """Feed samples to the watch until a stop is requested or the recording has lasted ``for_s`` seconds (None: no
    limit); then finish the watch. Samples whose moment has passed are skipped.

    If the host's clock was set by more than ``JUMP_S`` seconds, a new recording begins at the new time, and ``for_s``
    counts from there.
    """

    def begin() -> float:
        watch.detector.began_at = clock.now()
        watch.forget_the_future(clock.now())
        return clock.monotonic()

    begun, tick = begin(), 0
    while not stop.requested and (for_s is None or clock.monotonic() - begun < for_s):
        taken = clock.monotonic() - begun
        watch.take(taken, collector.sample())
        if abs(clock.now() - (watch.detector.began_at + clock.monotonic() - begun)) > JUMP_S:
            watch.say("the host's clock was set: windows start over")
            watch.detector.restart()
            begun, tick = begin(), 0
        tick = max(tick + 1, int((clock.monotonic() - begun) * hz))
        sleep(max(0.0, tick / hz - (clock.monotonic() - begun)))
    watch.finish()


@dataclass
class HostWatch:
    """Watches one host with one model: finds incidents and changes in scored windows; stores, prints and delivers
    them."""

    detector: HostDetector
    streams: Streams
    courier: calls.Courier
    kept_in: Path
    host: str
    model: str
    as_json: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    say: Callable[[str], None] = lambda _text: None
    windows: int = 0
    alarms: int = 0
    raised: int = 0
    _shares: list[tuple[float, Floats]] = field(default_factory=list)  # start and channels of late alarms
    _kept_at: float = 0.0
    _alive_at: float = -math.inf
    _doubted: bool = False
    _lost_said: bool = False

    def begin(self) -> None:
        """Print the rule for incidents and what the last watch left open, as notes; compare the host with its reference
        from now on.

        An earlier change of the host that no person has confirmed is delivered again as ``changed``; if the reference
        is a new one, the change is delivered as ``referenced``.
        """
        rule = self.streams.rule
        what = f"an incident is {rule.words}, until {rule.quiet_s:g} s are quiet"
        self.say(f"watching {self.host} with {self.model}: {what}")
        record = self.streams.record(self.host)
        fresh = self.streams.hosts[self.host] = record.beside(self.detector.usual)
        if fresh is not record and record.windows:
            self.say(f"the reference is a new one: {self.host} is compared with it from now on")
            if record.told is not None:
                self._carry_change(record.told, "referenced")
        self._take_up()
        if (told := self.streams.record(self.host).told) is not None:
            self.say(f"{self.host} {told.words}; confirm it with --confirm-change, or record a new reference")
            self._carry_change(told, "changed")  # again: a hook may be new, and the same change keeps its id
        if (known := self.streams.states.get(self.host)) is not None and known.open is not None:
            self.say(f"incident {self.streams.identity(self.host, known.open)} was open when the last watch ended")

    def _take_up(self) -> None:
        """Confirm the host's change if a person has left a note that confirms it (``--confirm-change``)."""
        carry = partial(self._carry_change, event="confirmed")
        if (told := take_note(self.kept_in, self.streams, self.host, keep=carry)) is not None:
            self.say(f"confirmed: {self.host} {told.words}; it is held against that from now on")

    def forget_the_future(self, now: float) -> None:
        """Delete the host's whole incident state, with any open incident, if its last window starts after ``now``.

        A window after ``now`` was scored while the host's clock was ahead; with the state kept, all windows until then
        would count as already seen.
        """
        known = self.streams.states.get(self.host)
        if known is not None and known.last is not None and known.last.t_start > now:
            self.say("the stored state is of a time that has not come yet, so it was dropped")
            del self.streams.states[self.host]
            self._shares.clear()

    def take(self, t: float, sample: Mapping[str, float | None]) -> None:
        self._show_life(self.detector.began_at + t)
        self._feed(self.detector.push(t, sample))
        if not self._lost_said and self.detector.lost >= MANY_LOST and self.detector.lost >= LOST * self.windows:
            self._lost_said = True
            self._say_lost()
        if not self._doubted and self.detector.judged is not None:
            self._doubted = True
            for doubt in doubts_of_host(self.detector.judged):
                self.say(doubt)

    def _show_life(self, now: float) -> None:
        """Report to the hooks that take the event ``watching`` that this host is watched; do nothing if the last report
        is less than ``ALIVE_EVERY_S`` seconds old."""
        if 0 <= now - self._alive_at < ALIVE_EVERY_S:
            return
        self._alive_at = now
        self.courier.put({**self._about(calls.WATCHING), "every_s": ALIVE_EVERY_S})

    def finish(self) -> None:
        """End the recording, process its last windows, and print a note of the numbers of windows, alarms and
        incidents, and of lost windows if there are any."""
        self._feed(self.detector.end())
        self.say(f"{self.windows:,} windows, {self.alarms:,} above the threshold, {counted(self.raised, 'incidents')}")
        self._say_lost()

    def _say_lost(self) -> None:
        lost, of = self.detector.lost, self.windows + self.detector.lost
        if lost:
            self.say(
                f"{lost:,} of {of:,} windows ({100 * (lost / of):.0f} %) were lost, as samples came late or not at "
                "all: what this host did then was not looked at. If it is many, the host is too busy for its watch: "
                "let it have more (a lower nice value, CPUWeight of its unit, fewer other programs)"
            )

    def close(self) -> None:
        """Let the hooks deliver waiting calls for at most ``LAST_CALLS_S`` seconds, then save the state."""
        self.courier.end(LAST_CALLS_S)
        self.keep()

    def keep(self) -> None:
        self.streams.undelivered = self.courier.waiting
        self.streams.save(self.kept_in)

    def _feed(self, seen: Iterable[ScoredWindow]) -> None:
        for one in seen:
            self.windows += 1
            self.alarms += one.window.margin > 0
            if one.share is not None:
                self._shares = [*self._shares[1 - MOST_SHARES :], (one.window.t_start, one.share)]
            known = self.streams.knows(self.host, one.window)
            found = self.streams.feed(self.host, one.window)
            if not known and one.measures is not None:
                self._hold_against_the_usual(one, one.measures)
            if found.over is not None:
                self._tell(found.over, "over", one)
            if found.raised is not None:
                self.raised += 1
                self._tell(found.raised, "raised", one)
            elif found.state.open is not None and one.window.t_end - self._kept_at >= KEEP_EVERY_S:
                self.keep()
                self._kept_at = one.window.t_end

    def _hold_against_the_usual(self, seen: ScoredWindow, measures: Values) -> None:
        """Add a window's measures to the host's record; if the record then shows a change of the host, print and
        deliver it."""
        self._take_up()
        record, window, piece = self.streams.record(self.host), seen.window, f"{self.detector.began_at:.3f}"
        closed = record.closed
        if record.take(piece, window.t_start, window.t_end, measures, self.detector.measures):
            assert record.told is not None
            self._print(self._carry_change(record.told, "changed"))
        elif record.closed != closed and record.closed % KEEP_EVERY_STRETCHES == 0:
            self.keep()

    def _about(self, event: str, **named: str) -> JsonDict:
        """Return the fields with which each document begins: the event, ``named``, the host, model and checkpoint."""
        mine = {"host": self.host, "model": self.model, "checkpoint": self.streams.checkpoint}
        return {"event": event, **named, **mine}

    def _print(self, said: Json) -> None:
        print(json.dumps(said) if self.as_json else calls.line(said), file=self.out, flush=True)

    def _carry_change(self, told: ToldChange, event: str) -> JsonDict:
        """Save the state, and give a change to the hooks that take ``event``; return the change's document."""
        said = calls.change_document(self._about(event, id=self.streams.name_of(self.host, told)), told)
        self._keep_and_put(said)
        return said

    def _keep_and_put(self, said: Json) -> None:
        """Save the state with the calls for the document ``said``, then give these calls to the hooks.

        The state is saved first, so that after a crash the next watch knows the incident or change and the calls still
        to deliver.
        """
        self.streams.undelivered = [*self.courier.waiting, *self.courier.asked(said)]
        self.streams.save(self.kept_in)
        self.courier.put(said)

    def _tell(self, incident: Incident, event: str, seen: ScoredWindow) -> None:
        """Save, deliver and print an incident that was raised or is over.

        Times are epoch seconds; ``peak`` is the largest difference between a window's score and the threshold.
        """
        seconds = self.detector.moments(incident.began, incident.last) if event == "raised" else ()
        changed = self.streams.record(self.host).told
        told = {
            **self._about(event, id=self.streams.identity(self.host, incident)),
            "began_at": incident.began,
            "raised_at": incident.raised,
            "last_alarm_at": incident.last,
            "alarms": incident.alarms,
            "peak": incident.peak,
            "threshold": seen.threshold,
            "rule": self.streams.rule.words,
            "why": [{"channel": channel, "share": round(share, 4)} for channel, share in self._why(incident)],
            "seconds": [[round(start, 3), round(end, 3)] for start, end in seconds],
            "changed_since": None if changed is None else changed.since,
        }
        self._kept_at = seen.window.t_end
        self._keep_and_put(told)
        self._print(told)

    def _why(self, incident: Incident) -> list[tuple[str, float]]:
        """Return the channels that contributed most to the incident's alarms, with their shares; only the latest
        ``MOST_SHARES`` alarms since the program was started count."""
        mine = [share for start, share in self._shares if incident.began <= start < incident.last]
        return named(self.detector.channels, together(mine)) if mine else []
