"""Views of the learned durations: the speeds of hosts, and what looks wrong compared with these.

An attempt that outlasts all that was learned may never end; a host far slower than its calibration may report more than
it can do. The views only show a sentence about such an attempt or host; nothing here stops it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from training.fleet.database.writer import Database
from training.fleet.queue.durations import Learned, OfKind
from training.fleet.scheduling.durations import Speeds
from training.fleet.scheduling.job import Job
from training.fleet.scheduling.workload import Workload
from training.fleet.service.hosts import KnownHost
from training.fleet.service.service import Service
from training.fleet.wire.messages import SpeedOnHost, SpeedsOfKind, SpeedsReply
from training.fleet.wire.words import Json, number, typed
from training.printable import duration, one_line

KINDS_MOST = 200  # of jobs in one answer
LONG = 3.0  # times as long as nine of ten such jobs take is too long, …
LONG_LEAST_S = 300.0  # … but no sooner: what is learned counts no fetching of data
FAR_OFF = 4.0  # times as slow as measured is worth a sentence; what is learned of four jobs is surer than that


@dataclass
class SpeedViews:
    """Queries about durations, on the last committed state. Only one thread may use it."""

    database: Database
    service: Service
    _learned: Learned = field(init=False)

    def __post_init__(self) -> None:
        self._learned = self.service.learned(self.database)

    def speeds(self, most: int = KINDS_MOST) -> SpeedsReply:
        """Return the predicted durations of each kind of job on each known host. Only kinds of completed attempts are
        listed, the newest first, at most ``most``."""
        learned, hosts = self._learned, self.service.known_hosts()
        speeds, kinds, machines = learned.speeds(), [*learned.kinds().values()], [known.name for known in hosts]
        return SpeedsReply(
            kinds=[
                _of_kind(speeds, of_kind, learned.workload(of_kind.spec), machines)
                for of_kind in reversed(kinds[-min(most, KINDS_MOST) :])
            ],
            attempts=learned.attempts,
            doubts=self.doubts(hosts),
            now=self.service.queue.clock.now(),
        )

    def doubts(self, hosts: Iterable[KnownHost]) -> dict[str, str]:
        """Map to the reason each host that could not measure its speed and has trained nothing yet, and each host that
        trains far slower than its calibration."""
        speeds = self._learned.speeds()
        slower = speeds.slower_than_measured()
        told = {}
        for known in hosts:
            measured = known.capability.get("calibration")
            failed = measured.get("failed") if isinstance(measured, Mapping) else _unmeasured(known.capability)
            times = slower.get(known.name, 1.0)
            if failed and not speeds.trained(known.name):
                told[known.name] = f"{one_line(failed, 200)}; until it has trained it is taken for one of middle speed"
            elif times >= FAR_OFF:
                told[known.name] = _far_off(times, number(known.capability.get("cpu_cores")))
        return told

    def overdue(self, job: Job) -> str | None:
        """Return a sentence if a live job has been on its host far longer than expected; else None."""
        known = self.service.host_registry.known.get(job.worker_hostname or "")
        since_s = self.service.queue.clock.now() - (job.claimed_at or self.service.queue.clock.now())
        if known is None or since_s < LONG_LEAST_S:
            return None
        work = self._learned.workload(job.spec)
        most_s = self._learned.speeds().predict(work, known.name).at(0.9)
        if since_s < LONG * most_s:
            return None
        named = typed({"name": job.name, "job_id": job.job_id})
        return (
            f"{known.name} has had it for {duration(since_s)}, and nine of ten such jobs are expected to take "
            f"{duration(most_s)} there at most: `cis490-jobs logs {named}` shows what it does, `cis490-jobs cancel "
            f"{named}` ends it, and max_run_s in the manifest bounds it"
        )


def _unmeasured(capability: Json) -> str | None:
    """Return a sentence if a host reports that it has no torch, without which it cannot measure its speed; else
    None."""
    if "torch_version" not in capability or capability["torch_version"] is not None:
        return None
    return "torch is not installed there, so it did not measure its own speed"


def _far_off(times: float, cores: float | None) -> str:
    shown = "than it shows" if cores is None else f"than the {cores:.0f} that it shows"
    return (
        f"compared with the other hosts it trains about {times:.0f} times as slowly as it measured when it joined: "
        f"it lends fewer cores {shown}, is throttled, or the others were busy when they measured themselves; "
        "forecasts rest on completed jobs"
    )


def _of_kind(learned: Speeds, of_kind: OfKind, work: Workload, machines: Sequence[str]) -> SpeedsOfKind:
    """Return the predicted durations of one kind of job on each host, the fastest host first."""
    spec: Json = of_kind.spec
    told = {on: learned.predict(work, on) for on in machines}
    hosts = [SpeedOnHost.of(each, host=host, low=each.at(0.1), high=each.at(0.9)) for host, each in told.items()]
    return SpeedsOfKind(
        model=str(spec.get("model") or ""),
        mode=str(spec.get("mode") or ""),
        dataset=spec.get("dataset"),
        hyper=dict(spec.get("hyper") or {}),
        jobs=of_kind.attempts,
        ram_gib=of_kind.ram_gib,
        hosts=sorted(hosts, key=lambda each: each.seconds),
    )
