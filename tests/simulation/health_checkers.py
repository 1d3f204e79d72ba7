"""The promises about sick hosts, jobs that crash hosts, and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simulation.faults import Fault
from simulation.grant_checkers import known_capabilities, misfit, offered
from simulation.illness import has
from simulation.memory import at_best
from simulation.witness import Checker, Event, Observation
from training.fleet.worker.state import events as t

if TYPE_CHECKING:
    from simulation.host import Host

_KINDS = {"ram": Fault.OUT_OF_RAM, "vram": Fault.OUT_OF_VRAM}


class Death(NamedTuple):
    """A trainer that died at once."""

    claim: str
    job: str
    generation: int
    reason: str
    refused: bool = False  # by exit code 2 or 65, and no other host has said so


class SickHostsAreTakenOut(Checker):
    """A host on which different jobs die at once, one after the other, is taken out and gets nothing until it is
    released; none of these deaths counts, and no other does not. One that says it is well again is let in at once, and
    so is one of which other hosts said what it had said."""

    def prepare(self) -> None:
        self._row: dict[str, list[Death]] = {}  # by host
        self._kept: dict[str, list[Death]] = {}  # of hosts that are taken out
        self._believed: set[tuple[str, int]] = set()  # jobs and generations that were pardoned
        self._pardoned: set[str] = set()

    def see(self, seen: Observation) -> None:
        if seen.error is not None or seen.call.name not in ("claim", "fail", "complete", "release"):
            return
        for event in seen.events:
            if event.transition == "claim":
                self.demand(event.host not in seen.after.out, f"{event.host} was given work although it is taken out")
        if any(event.transition in ("complete", "adopt") for event in seen.events):
            self._row.pop(seen.call.message.host_id, None)
        elif seen.call.name == "fail":
            self._failed(seen)
        elif seen.call.name == "claim":
            self._asked(seen)
        for host in seen.before.out.keys() - seen.after.out.keys():
            self._kept.pop(host, None)

    def _asked(self, seen: Observation) -> None:
        host, well = seen.call.message.host_id, seen.call.message.capability.get("healthy", True)
        sent_away = (seen.result.reason or "").startswith("this host is ")
        ill = seen.after.out.get(host) == "self_test"
        self.demand(not (well and sent_away and ill), f"{host} is well again and stays out")

    def _failed(self, seen: Observation) -> None:
        message = seen.call.message
        live, host = seen.before.live.get(message.claim_id), message.host_id
        if live is None:
            return
        refused = message.reason == "trainer_failed" and message.exit_code in (2, 65)
        waits = refused and seen.after.jobs[live.job_id].status == "pending"
        death = Death(live.claim_id, live.job_id, live.generation, message.reason, refused)
        if refused and not waits:
            self._agreed(seen, death)
        known = (message.record or {}).get("train_s") is not None
        if not known and message.reason in ("interrupted", "worker_shutdown"):
            return  # it never began
        if not known and message.reason != "spawn_failed":
            self._believe(host)  # its worker began anew meanwhile: the receiver guesses how long it ran
            if seen.after.out.get(host) == "deaths":
                self._kept[host] = self._row.pop(host)
            return
        ((lived_s,),) = self.witness.rows("SELECT coalesce(lived_s, 0.0) FROM attempts WHERE claim_id = ?", death.claim)
        failed = message.reason == "trainer_failed" and message.out_of_memory is None and not refused
        odd = failed or message.reason == "spawn_failed"
        if not waits and (not odd or lived_s >= self.policy.odd_death_s):
            if lived_s >= self.policy.odd_death_s:
                self._row.pop(host, None)
            return
        if host in seen.before.out:
            self._forgiven([death])
            return
        row = self._row.setdefault(host, [])
        if death.claim not in {known.claim for known in row}:  # believed before, of the same commit
            row.append(death)
        if self._speaks_against_host(row):
            found = seen.after.out.get(host) == "deaths"
            self.demand(found, f"{host} is sick and was not taken out")
            self._kept[host] = self._row.pop(host)
            self._forgiven(self._kept[host])
        else:
            self.demand(host not in seen.after.out, f"{host} was taken out for nothing")

    def _believe(self, host: str) -> None:
        """Take the receiver's word for what died there."""
        self._row[host] = [
            Death(*row)
            for row in self.witness.rows(
                "SELECT a.claim_id, a.job_id, a.generation, a.end_reason, coalesce(a.exit_code, 0) IN (2, 65) "
                "FROM deaths AS d "
                "JOIN attempts AS a ON a.job_id = d.job_id AND a.attempt = d.attempt "
                "WHERE d.host = ? ORDER BY d.seq",
                host,
            )
        ]
        for claim, job_id, generation in self.witness.rows(
            "SELECT claim_id, job_id, generation FROM attempts "
            "WHERE pardoned = 1 AND end_reason <> 'host_lost' AND host = ?",
            host,
        ):
            self._pardoned.add(claim)
            self._believed.add((job_id, generation))

    def _agreed(self, seen: Observation, death: Death) -> None:
        """Demand that what two hosts said of a job speaks against neither."""
        asking = "SELECT host FROM attempts WHERE job_id = ? AND generation = ? AND end_reason = 'trainer_failed' "
        hosts = {row[0] for row in self.witness.rows(asking + "AND exit_code IN (2, 65)", death.job, death.generation)}
        if len(hosts) < 2:
            return
        for row in (*self._row.values(), *self._kept.values()):
            row[:] = [each for each in row if not (each.refused and each.job == death.job)]
        for host in hosts:
            if seen.before.out.get(host) == "deaths":
                stays = self._speaks_against_host(self._kept.get(host, []), set())
                self.demand((host in seen.after.out) == stays, f"{host} is out: {not stays}, and should be {stays}")
                self.world.tally["hosts let in again by what others said"] += not stays

    def _speaks_against_host(self, row: list[Death], believed: set[tuple[str, int]] | None = None) -> bool:
        believed = self._believed if believed is None else believed
        enough = self.policy.odd_deaths
        if not enough:
            return False
        jobs = {death.job for death in row if (death.job, death.generation) not in believed}
        unstarted = [death.reason for death in row[-enough:]] == ["spawn_failed"] * enough
        return unstarted or len(jobs) >= enough

    def _forgiven(self, row: list[Death]) -> None:
        for death in row:
            self._pardoned.add(death.claim)
            self._believed.add((death.job, death.generation))

    def at_end(self) -> None:
        asking = "SELECT claim_id FROM attempts WHERE pardoned = 1 AND end_reason <> 'host_lost'"
        found = {row[0] for row in self.witness.rows(asking)}  # of the others: see CopiesAreTold
        self.demand(found <= self._pardoned, "an attempt was pardoned that its job has to pay for")
        self.demand(self._pardoned <= found, "a job pays for what a sick host did")


class SuspectsAreTrue(Checker):
    """A job is failed as one that crashes hosts only after so many different hosts did crash with it in hand."""

    def prepare(self) -> None:
        self._crashed: set[str] = set()  # claims in the hands of workers that crashed

    def event(self, host: Host, event: t.Event) -> None:
        if isinstance(event, t.Begin):
            self._crashed |= host.crashed_with

    def see(self, seen: Observation) -> None:
        for event in seen.events:
            if event.transition == "exhaust":
                ended_by = seen.after.jobs[event.job_id].ended_by or ""
                if ended_by.startswith("suspect_job"):
                    self._judge(seen, event, ended_by)

    def _judge(self, seen: Observation, event: Event, ended_by: str) -> None:
        generation = seen.after.jobs[event.job_id].generation
        rows = self.witness.rows(
            "SELECT host, claim_id FROM attempts WHERE job_id = ? AND generation = ?", event.job_id, generation
        )
        hosts = {host for host, claim in rows if claim in self._crashed}
        enough = self.policy.suspect_crashes
        self.demand(
            len(hosts) >= enough > 0, f"{event.job_id[:8]} was failed as a suspect after crashes of {sorted(hosts)}"
        )
        self.demand(sum(host in ended_by for host in hosts) >= enough, f"{ended_by!r} names other hosts")
        self.world.tally["jobs failed as suspects"] += 1


class MoreMemoryOrNone(Checker):
    """A job that ran out of memory goes only to a host with more. When none is known that has, it fails, once the other
    hosts that it fits had their turn."""

    def prepare(self) -> None:
        self._lacked: dict[str, list[tuple[str, float]]] = {}  # job → kind, GiB
        self._heard: set[str] = set()  # hosts that asked before the call that is looked at

    def see(self, seen: Observation) -> None:
        if seen.error is None and seen.call.name == "fail":
            self._failed(seen)
        if seen.call.name == "claim":
            self._heard.add(seen.call.message.host_id)
        for event in seen.events:
            if event.transition == "requeue":
                self._lacked.pop(event.job_id, None)
            elif event.transition == "claim" and event.job_id in self._lacked:
                capability = at_best(seen.call.message.capability)
                for kind, gib in self._lacked[event.job_id]:
                    here = has(_KINDS[kind], offered(capability, self.declared(event.host or "")))
                    self.demand(here > gib, f"ran out of {gib} GiB of {kind}, was given {here}")
                self.world.tally["jobs sent where there is more memory"] += 1

    def _failed(self, seen: Observation) -> None:
        message = seen.call.message
        live = seen.before.live.get(message.claim_id)
        if live is None or message.out_of_memory is None:
            return
        hosts = known_capabilities(self.witness)
        gib = has(_KINDS[message.out_of_memory], offered(hosts[live.host], self.declared(live.host)))
        self._lacked.setdefault(live.job_id, []).append((message.out_of_memory, gib))
        after = seen.after.jobs[live.job_id]
        if (after.ended_by or "").startswith("out_of_memory"):
            self.world.tally["jobs failed for want of memory"] += 1
        spec = after.wants()
        spec.pop("min_ram_gib", None)  # free memory is a matter of the moment
        spec.pop("min_vram_gib", None)
        larger = [
            name
            for name, capability in hosts.items()
            if misfit(spec, name, capability, self.declared(name)) is None
            and all(has(_KINDS[k], offered(capability, self.declared(name))) > g for k, g in self._lacked[live.job_id])
        ]
        if (after.ended_by or "").startswith("out_of_memory"):
            known = [name for name in larger if name in self._heard]
            self.demand(not known, f"{known} have more memory, and the job was failed")
        if not larger and after.status != "failed":  # one host's word: others may try it, smaller ones too
            self._lacked[live.job_id].pop()
            self.demand((after.ended_by or "").startswith("out_of_memory"), "nobody has more, and the job waits")
