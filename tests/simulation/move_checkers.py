"""The promises about work that moves: from which state a run goes on, who is said to have done what, what is lost."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulation.coordinator import STATES
from simulation.moves import Bringing, Course, Ran, Saved, digest
from simulation.witness import Checker, Observation
from training.fleet.service.states import OVER
from training.fleet.worker.saved_states import KEPT_MAX
from training.fleet.worker.state import events as t
from training.trainer.machine import RunKey
from training.trainer.state_file import PROCESSOR

if TYPE_CHECKING:
    from simulation.host import Host

SLACK_S = 10.0  # until what a trainer does is seen
_TINY = 1e-6  # of a step


class ResumesItsOwn(Checker):
    """A run goes on only from a state that a run of its own job saved, with its own code, whole."""

    def prepare(self) -> None:
        self._saved: dict[str, Saved] = {}  # by digest

    def saved(self, host: Host, assignment: t.Assignment, content: bytes, truth: Saved) -> None:
        self._saved[digest(content)] = truth

    def resumed(self, host: Host, assignment: t.Assignment, course: Course, found: bytes | None) -> None:
        if found is not None:
            self.demand(digest(found) in self._saved, f"{host.machine} was given a state that nobody saved")
        if course.state is None or found is None:
            self.world.tally["runs that began anew"] += 1
            return
        truth, job = self._saved[digest(found)], assignment.job_id
        self.demand(truth.job_id == job, f"{job[:8]} goes on from a state of {truth.job_id[:8]} on {host.machine}")
        self.demand(truth.fits(course.facts), f"{job[:8]} goes on from a state of other code on {host.machine}")
        elsewhere = truth.ran[-1].host != host.name
        self.world.tally["runs that went on elsewhere" if elsewhere else "runs that went on"] += 1


class StepsAreCountedOnce(Checker):
    """A result tells of its stretches as they happened: each step by one host, none missing, none twice."""

    def prepare(self) -> None:
        self._ran: dict[str, tuple[tuple[Ran, ...], int]] = {}  # claim → runs that its result holds, steps of the job

    def ran(self, host: Host, assignment: t.Assignment, course: Course, work_s: float, *, well: bool) -> None:
        if well:
            self._ran[assignment.claim_id] = course.ran, course.steps

    def at_end(self) -> None:
        sql = "SELECT claim_id, host, record FROM attempts WHERE end_reason = 'completed'"
        for claim, host, record in self.witness.rows(sql):
            if claim not in self._ran:
                continue
            runs, steps = self._ran[claim]
            truth = _by_host((each.host, each.begins, each.ends) for each in runs)
            told = json.loads(record or "{}").get("stretches")
            if told is None:
                said = [(host, 0, steps)]
            else:
                said = _by_host((each["host"], each["begins"], each["ends"]) for each in told)
                self.world.tally["results that tell of their stretches"] += 1
            self.demand(said == truth, f"the result of {claim[:8]} claims {said}, and {truth} happened")
            whole = [end for _, _, end in said] == [begin for _, begin, _ in said[1:]] + [steps]
            self.demand(whole and said[0][1] == 0, f"the steps of {claim[:8]} are not those of its job: {said}")
            self.world.tally["results of several hosts"] += len({each for each, _, _ in said}) > 1


def _by_host(parts: Any) -> list[tuple[str, int, int]]:
    """Join what one host did in a row, and leave out where nothing was done."""
    done = [part for part in parts if part[2] not in (None, part[1])]  # None: it printed no epoch
    joined = []
    for host, group in itertools.groupby(done, key=lambda part: part[0]):
        all_of = list(group)
        joined.append((host, all_of[0][1], all_of[-1][2]))
    return joined


class MixedIsMarked(Checker):
    """A run on unlike processors says so, in their order, and never has the run key of one of them."""

    def ran(self, host: Host, assignment: t.Assignment, course: Course, work_s: float, *, well: bool) -> None:
        if not well:
            return
        processors = list(dict.fromkeys(each.processor for each in course.ran))
        own = json.dumps({name: course.facts[name] for name in sorted(PROCESSOR)})
        unlike = [each for each in processors if each != own]
        told = [json.dumps({name: each[name] for name in sorted(PROCESSOR)}) for each in course.mixed]
        expected = [*unlike, own] if unlike else []
        self.demand(sorted(told) == sorted(expected), f"{assignment.claim_id[:8]} was trained on {processors}: {told}")
        key = RunKey(course.facts)
        plain = key.with_processors(course.mixed).digest == key.digest
        self.demand(plain == (not unlike), f"{assignment.claim_id[:8]} of unlike processors passes for one of them")
        self.world.tally["results of unlike processors"] += bool(unlike)


@dataclass
class _Known:
    """A job's state as it is known to be kept at the receiver, and the run that brought it."""

    truth: Saved
    progress: float  # of the run that brought it, at its end or at last sight
    step_s: float
    took_s: float
    whole: bool  # each state that its run was to bring arrived


class LittleWorkIsLost(Checker):
    """A state that arrived is kept, and the next run goes on from there if it can be fetched: of a polite end
    nothing is lost, of a crash no more than ``state_every_s``, the keeper's time, and the bringing."""

    def prepare(self) -> None:
        self._saved: dict[str, Saved] = {}
        self._known: dict[str, _Known] = {}  # by job
        self._runs: dict[str, Course] = {}  # by claim
        self._kept: dict[str, Saved] = {}  # by claim: what it has brought
        self._over: set[str] = set()  # claims on jobs that were over since: what they brought went
        self._troubled: set[str] = set()  # claims: something was not brought, or not fetched
        self._machines: dict[str, set[str]] = {}  # by host id

    def lost_state(self) -> None:
        self._known.clear()

    def saved(self, host: Host, assignment: t.Assignment, content: bytes, truth: Saved) -> None:
        self._saved[digest(content)] = truth

    def see(self, seen: Observation) -> None:
        for event in seen.events:
            if event.target in OVER:
                self._known.pop(event.job_id, None)
                self._over |= {claim for claim, course in self._runs.items() if course.facts["spec"] == event.job_id}

    def bringing(self, host: Host, assignment: t.Assignment) -> None:
        if known := self._known.get(assignment.job_id):
            known.whole = False  # until it has arrived

    def brought(self, host: Host, assignment: t.Assignment, content: bytes, how: Bringing) -> None:
        claim, job = assignment.claim_id, assignment.job_id
        if how.troubled:
            self._troubled.add(claim)
        if how.troubled or (how.changed and not how.kept):  # nobody can bring what is no longer there
            self.world.tally["states that were not brought"] += 1
            return
        course, truth, known = self._runs[claim], self._saved[digest(content)], self._known.get(job)
        if not how.kept and self._kept.get(claim) is truth:  # nothing new
            if known is not None and known.truth is truth:
                known.whole = claim not in self._troubled
            return
        self.world.tally["states brought"] += 1
        self._kept[claim] = truth
        if claim in self._over:
            return
        self._known[job] = _Known(truth, truth.progress, course.step_s, how.took_s, claim not in self._troubled)

    def fetched(self, host: Host, assignment: t.Assignment, *, troubled: bool) -> None:
        if troubled:
            self._troubled.add(assignment.claim_id)

    def resumed(self, host: Host, assignment: t.Assignment, course: Course, found: bytes | None) -> None:
        claim, job = assignment.claim_id, assignment.job_id
        self._runs[claim] = course
        machines = self._machines.setdefault(host.name, set())
        machines.add(host.machine)
        known = self._known.get(job)
        if known is None or claim in self._troubled or len(machines) > 1 or not known.truth.fits(course.facts):
            self._known.pop(job, None)
            return
        begins = course.begins + course.part
        kept = known.truth.progress
        self.demand(begins >= kept - _TINY, f"{job[:8]} goes on from {begins:.2f}, and {kept:.2f} was kept")
        if known.whole:
            lost_s = (known.progress - begins) * known.step_s
            most_s = self.policy.state_every_s + course.keeper.EVERY_S + known.step_s + known.took_s + SLACK_S
            self.demand(lost_s <= most_s, f"{lost_s:.0f} s of {job[:8]} are lost, of {most_s:.0f} s at most")
            self.world.tally["seconds of work lost where states were kept"] += max(0, int(lost_s))

    def ran(self, host: Host, assignment: t.Assignment, course: Course, work_s: float, *, well: bool) -> None:
        known = self._known.get(assignment.job_id)
        if known is not None and known.truth.ran and known.truth.ran[-1].claim == assignment.claim_id:
            known.progress = course.progress(work_s)


class NothingIsLeft(Checker):
    """States of jobs that are over go, at the receiver and on the hosts, and disks hold no more than they should."""

    def discarded(self, host: Host, root: Path, in_hand: int) -> None:
        found = list(root.iterdir()) if root.exists() else []  # a copied machine has trained nothing yet
        folders = [each for each in found if each.is_dir()]
        self.demand(len(folders) <= KEPT_MAX + in_hand, f"{host.machine} keeps the states of {len(folders)} jobs")
        notes = {each.name.partition(".")[0] for each in found if not each.is_dir()}
        stray = notes - {each.name for each in folders}
        self.demand(not stray, f"{host.machine} keeps notes of states that are gone: {sorted(stray)[:2]}")

    def at_end(self) -> None:
        receiver = self.witness.receiver
        receiver.forget_states_now()
        statuses = {job_id: facts.status for job_id, facts in self.witness.now.jobs.items()}
        kept = receiver.states.jobs()
        over = [job_id for job_id in kept if statuses.get(job_id) in OVER]
        self.demand(not over, f"the receiver keeps the states of {len(over)} jobs that are over")
        receiver.states.sweep(2 * receiver.clock.now())
        named = {state.state_id for job_id in kept if (state := receiver.states.of(job_id)) is not None}
        disk = receiver.disk
        found = {name.removesuffix(".json") for name in disk.names(STATES / "sets")}
        self.demand(found == named, f"{len(found ^ named)} states at the receiver are nobody's, or lost")
        chunks = [name for folder in disk.names(STATES / "pieces") for name in disk.names(STATES / "pieces" / folder)]
        self.demand(bool(named) or not chunks, f"{len(chunks)} chunks of states are left that nobody needs")
        self.world.tally["states kept of jobs that failed"] += len(kept)
