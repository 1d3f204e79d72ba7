"""Views of hosts: pages of hosts, and which ones get no jobs."""

from dataclasses import dataclass, field

from training.checkout import own_commit
from training.fleet.database.writer import Database
from training.fleet.queue.rows import jobs_by_host, set_aside_of
from training.fleet.queue.unavailable import orders, quarantines
from training.fleet.scheduling.job import Host
from training.fleet.service.service import Service
from training.fleet.service.speeds import SpeedViews
from training.fleet.wire.views import WorkersReply, WorkerView
from training.installed import own_version
from training.strict_json import Json

PAGE_MAX = 1000  # hosts in one answer
WORKERS_PAGE = 200  # … unless more are asked for


@dataclass
class HostViews:
    """Queries about hosts, on the last committed state of the database and the service's memory."""

    _db: Database
    _service: Service
    _durations: SpeedViews
    _build: tuple[str, str | None] = field(default_factory=lambda: (own_version(), own_commit()))

    def quarantined(self) -> dict[str, str]:
        """Map each host that is in quarantine, or that a copy of its disk imitates, to the reason with its remedy."""
        out = {host: held.sentence() for host, held in quarantines(self._db).items()}
        for known in self._service.known_hosts():
            if sentence := self._service.copied(known):
                out[known.name] = sentence
        return out

    def resting(self) -> dict[str, str]:
        """Map each host that gets no jobs because of an order or its owner's conditions to words that continue "the
        host is …": the reason, and what ends it."""
        return {host: rest.sentence() for host, rest in self._service.at_rest(self._db).items()}

    def refused(self) -> dict[str, str]:
        """Map each host under whose name, ignoring case, another worker was refused within the last lease to a sentence
        with the remedy."""
        told = {known.name: self._service.refused(known) for known in self._service.known_hosts()}
        return {host: sentence for host, sentence in told.items() if sentence is not None}

    def workers(self, *, after: str = "", limit: int = WORKERS_PAGE, host: str = "") -> WorkersReply:
        """Return a page of hosts in the order of their names, those after the name ``after``, or only ``host``.
        ``next_after`` is null on the last page."""
        most = max(1, min(limit, PAGE_MAX))
        hosts = [known for known in self._service.known_hosts() if known.name > after and host in ("", known.name)]
        out, resting, given = quarantines(self._db), self.resting(), orders(self._db)
        held = jobs_by_host(self._db)
        doubts = self._durations.doubts(hosts[:most])
        aside = {
            row["host"]: [each["name"] or each["job_id"] for each in set_aside_of(row)]
            for row in self._db.all("hosts_aside")
        }
        waiting: dict[str, list[str]] = {}
        for row in self._db.all("unconfirmed_work", host=None, before_restore=False):
            waiting.setdefault(row["host"], []).append(row["name"])
        return WorkersReply(
            workers=[
                WorkerView.of(
                    known,
                    hostname=known.name,
                    capability=dict(known.capability),
                    declared=self._service.plan.declared(known.name),
                    alive=self._service.alive(known),
                    jobs=held.get(known.name, []),
                    conflict=self._service.copied(known) or self._service.refused(known),
                    obstacle=_outdated(self._service.host_of(known)),
                    quarantine=out[known.name].sentence() if known.name in out else None,
                    resting=resting.get(known.name),
                    order=given[known.name].order.value if known.name in given else None,
                    set_aside=aside.get(known.name, []),
                    unconfirmed=waiting.get(known.name, []),
                    doubt=doubts.get(known.name),
                    unlike=self._unlike(known.capability),
                )
                for known in hosts[:most]
            ],
            now=self._service.clock.now(),
            next_after=hosts[most - 1].name if len(hosts) > most else None,
            build=_words(*self._build),
        )

    def _unlike(self, capability: Json) -> str | None:
        """Return a host's version and commit if either differs from the receiver's; one that is not known does not
        count."""
        theirs = capability.get("version"), capability.get("training_commit")
        same = all(one == other for one, other in zip(theirs, self._build, strict=True) if one and other)
        return None if same else _words(*theirs)


def _words(version: object, commit: object) -> str:
    return f"{version or 'unknown'} of commit {str(commit or 'unknown')[:12]}"


def _outdated(host: Host) -> str | None:
    if not host.outdated:
        return None
    models = ", ".join(sorted(host.outdated))
    return f"other trainer flags than the plan's for {models}; update the checkout on {host.name}"
