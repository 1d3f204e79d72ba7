"""The front page of the dashboard: whether anything needs the operator, and when all is done."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from training.fleet.pages.page_request import PageRequest
from training.fleet.pages.rendering import Frame, host_path, job_path, page_address, path_part, render, when
from training.fleet.pages.timeline import MOVES_MAX, Day, UpcomingTime, ahead, day
from training.fleet.scheduling.job import NOT_IN_PLAN
from training.fleet.service.job_views import JobFilter, ListPlace, Waiting
from training.fleet.wire import words
from training.fleet.wire.views import HealthReply
from training.printable import counted, duration, one_line
from training.strict_json import Json, JsonObject

FAILED_MAX = 50  # jobs whose causes are compared
CAUSES_SHOWN = 3
HOSTS_SHOWN = 100
INCIDENTS_SHOWN = 5  # hosts
GLYPHS = {"failed": "✕", "quarantine": "⚠", "look": "⚠", "remark": "·"}  # by severity, the worst first


class Attention(NamedTuple):
    """Something that the operator should know, with the act or command that helps, if there is one. Its sentence is the
    names in ``about``, each with the address of its page (empty: it has none), and then ``text``; ``parts`` are its
    details."""

    severity: str  # a key of GLYPHS
    text: str
    about: tuple[tuple[str, str], ...] = ()
    command: str | None = None
    act: str | None = None  # the address that asks before it does the same
    act_title: str = ""
    parts: tuple["Attention", ...] = ()

    @property
    def glyph(self) -> str:
        return GLYPHS[self.severity]


def page(asked: PageRequest, frame: Frame) -> str:
    """Render the front page from the last committed state of the database, and from a forecast if there is one."""
    views, health, to_come = asked.views, asked.health, ahead(asked.forecast)
    assert health is not None
    watched = views.incidents  # a training host sees its own alone
    incidents = {host: found for host, found in watched.open().items() if asked.host in (None, host)}
    changed = {host: found for host, found in watched.changed().items() if asked.host in (None, host)}
    workers = views.workers(limit=HOSTS_SHOWN)
    live = [each.to_dict() for each in views.live()]
    waiting, held = views.waiting(), views.held()
    counts = views.counts()
    failed: list[JsonObject] = []
    if counts["failed"]:
        found, _ = views.found(JobFilter(status="failed"), "newest", ListPlace(), FAILED_MAX)
        failed = [each.to_dict() for each in found if each.in_manifest]
    pending = counts["pending"] + views.counts(in_manifest=False)["pending"]  # the events are of all jobs
    today = day(views.events(limit=MOVES_MAX), live, pending, frame.now)
    hosts = [each.to_dict() for each in workers.workers]
    return render(
        "fleet.html",
        frame,
        sentence=sentence(counts, live, waiting, held, to_come),
        notices=folded(
            [
                *of_watched({host: of_incidents(*one, frame.now) for host, one in incidents.items()}, "open incidents"),
                *of_watched({host: words.changed(one.to_dict()) for host, one in changed.items()}, "changed"),
                *failures(failed, counts["failed"]),
                *notices(health, hosts, [*(each.to_dict() for each in views.asked()), *live]),
            ]
        ),
        plan_notes=health.plan_notes,
        counts=counts,
        held=held,
        hosts=[
            {**row(host, live, today, to_come), "incidents": incidents.get(host["hostname"], (0, 0.0))[0]}
            for host in hosts
        ],
        ahead=to_come,
        more_hosts=workers.next_after is not None,
        live=live,
        waiting=waiting,
        day=today,
    )


def sentence(
    counts: Mapping[str, int],
    live: Sequence[Json],
    waiting: Sequence[Waiting],
    held: int = 0,
    to_come: UpcomingTime | None = None,
) -> str:
    """Say in one line how many jobs are trained, are training, wait and have failed; and, if it can be estimated, when
    all will be done."""
    total, trained = sum(counts.values()) - counts["cancelled"], counts["completed"]
    if not total:
        return "There are no jobs yet."
    if trained == total:
        return "The one job is trained." if total == 1 else f"All {total} jobs are trained."
    parts = []
    training = counts["running"] + counts["claimed"]
    if training:
        done_in = _done_in(counts, live) if to_come is None else ""
        parts.append(f"{training} {'is' if training == 1 else 'are'} training{done_in}")
    if pending := counts["pending"]:
        parts.append(f"{pending} {'waits' if pending == 1 else 'wait'}{_stuck(pending, waiting, held)}")
    if counts["failed"]:
        parts.append(f"{counts['failed']} failed")
    return (
        f"{trained} of {counted(total, 'jobs')} {'is' if 1 in (trained, total) else 'are'} trained; {', '.join(parts)}."
        f"{_done_at(to_come)}"
    )


def _done_at(to_come: UpcomingTime | None) -> str:
    """Say when all jobs are expected to be done, with the 80 % interval; empty without a forecast."""
    if to_come is None:
        return ""
    done, low, high = (when(at, to_come.begin) for at in to_come.done)
    return f" {'All that can be is done' if to_come.partly else 'Done'} about {done} (80 %: {low} to {high})."


def _done_in(counts: Mapping[str, int], live: Sequence[Json]) -> str:
    """Say in how long all jobs are done; empty if a job waits, or a trainer does not report its remaining time."""
    left = [words.left_s(job) for job in live]
    known = [each for each in left if each is not None]
    if counts["pending"] or not known or len(known) < len(left):
        return ""
    return f" (done in about {duration(max(known))})"


def _stuck(pending: int, waiting: Sequence[Waiting], held: int) -> str:
    stuck = sum(group.count for group in waiting if group.reason not in (None, NOT_IN_PLAN))
    causes = [(stuck, "for what no host offers now"), (held, "to be unheld")]
    parts = [cause if number >= pending else f"{number} of them {cause}" for number, cause in causes if number]
    if not parts:
        return ""
    return f" {parts[0]}" if max(stuck, held) >= pending else f" ({', '.join(parts)})"


def folded(found: Iterable[Attention]) -> list[Attention]:
    """Order notices by severity, and make one of those that differ only in what they are about."""
    by_text: dict[tuple[object, ...], Attention] = {}
    for each in sorted(found, key=lambda notice: [*GLYPHS].index(notice.severity)):
        key = each._replace(about=())
        known = by_text.get(key)
        by_text[key] = each if known is None else known._replace(about=(*known.about, *each.about))
    return [*by_text.values()]


def failures(failed: Sequence[JsonObject], number: int) -> Iterator[Attention]:
    """Yield one notice about the plan's ``number`` failed jobs, if there are any; those in ``failed`` are named by
    cause, the most frequent cause first."""
    causes: dict[str, list[JsonObject]] = {}
    for job in failed:
        cause = one_line(job.get("error") or job.get("ended_by") or "no reason was given", 200)
        causes.setdefault(cause, []).append(job)
    parts = [
        Attention(
            "failed",
            f"failed: {cause}",
            tuple((words.called(job, 60), job_path(job)) for job in jobs),
            f"cis490-jobs requeue {' '.join(map(words.typed, jobs[:CAUSES_SHOWN]))}",
            page_address("/act", what="requeue", jobs=[job["job_id"] for job in jobs]),
            "Requeue",
        )
        for cause, jobs in sorted(causes.items(), key=lambda each: -len(each[1]))
    ]
    if number == 1:
        yield from parts
    elif number:
        most = max((len(each.about) for each in parts), default=0)
        same = f" ({'all' if most == number else most} of the same cause)" if most > 1 else ""
        more = None if len(parts) <= CAUSES_SHOWN else "cis490-jobs status"
        yield Attention("failed", f"{number} jobs failed{same}", command=more, parts=tuple(parts[:CAUSES_SHOWN]))


def notices(health: HealthReply, hosts: Sequence[JsonObject], jobs: Sequence[JsonObject]) -> Iterator[Attention]:
    """Yield notices of all that the operator should know of the receiver, the hosts and these jobs."""
    if health.detail:
        yield Attention("failed", health.detail)
    for name, why in sorted(health.quarantined.items()):
        act = f"/act?what=release&host={path_part(name)}"
        yield Attention("quarantine", f"gets no jobs: {why}", _host(name), None, act, "Release")
    for job in jobs:
        if job["note"]:
            yield Attention("look", f": {job['note']}", ((words.called(job, 60), job_path(job)),))
    for name, why in sorted(health.refused.items()):
        yield Attention("look", f": {why}", _host(name))
    for name, why in sorted(health.missing_datasets.items()):
        yield Attention("look", f"data set {name}: {why}")
    for host in hosts:
        about = _host(host["hostname"])
        if host["order"] and host["alive"]:
            act = f"/act?what=resume&host={path_part(host['hostname'])}"
            yield Attention("remark", f"gets no jobs: it is {host['resting']}", about, None, act, "Resume")
        if host["obstacle"]:
            yield Attention("look", f": {host['obstacle']}", about)
        if host["doubt"]:
            yield Attention("remark", f": {host['doubt']}", about)
        if host["set_aside"]:
            kept = ", ".join(map(str, host["set_aside"]))
            deliver = "cis490-trainer-worker --deliver JOB"
            yield Attention("look", f"keeps finished work that was refused: {kept}", about, deliver)
        if host["unconfirmed"]:
            for word in ("accept", "refuse"):
                act = f"/act?what={word}&host={path_part(host['hostname'])}"
                told = words.unconfirmed(host).removeprefix(f"{host['hostname']} ")
                yield Attention("look", told, about, None, act, word.capitalize())
    for name, why in sorted(health.never_asked.items()):
        yield Attention("remark", f": {why.replace(f'[hosts.{name}]', '[hosts]')}", ((name, ""),))


def _host(name: str) -> tuple[tuple[str, str]]:
    return ((name, host_path(name)),)


def of_incidents(number: int, since: float, now: float) -> str:
    """Return words that follow a host's name: how many of its incidents are open, and when the first of them was
    raised."""
    said = f": {counted(number, 'incidents')} {'is' if number == 1 else 'are'} open"
    return f"{said}, the first raised at {when(since, now)}"


def of_watched(said: Mapping[str, str], what: str) -> Iterator[Attention]:
    """Yield a notice for each of the first ``INCIDENTS_SHOWN`` hosts, by name, in ``said`` (host to text). A last
    notice counts the further hosts; ``what`` ends its sentence."""
    for host, text in sorted(said.items())[:INCIDENTS_SHOWN]:
        yield Attention("look", text, ((host, page_address("/incidents", host=host)),))
    if len(said) > INCIDENTS_SHOWN:
        number = f"{len(said) - INCIDENTS_SHOWN} further hosts"
        yield Attention("look", f"have {what}", ((number, "/incidents"),))


def row(host: JsonObject, live: Sequence[Json], today: Day, to_come: UpcomingTime | None) -> JsonObject:
    """Return a host's view for the template, with its running jobs, past and expected attempts, declined job and
    hardware."""
    name = host["hostname"]
    return {
        **host,
        "now": [job for job in live if job["host"] == name],
        "segments": today.hosts.get(name, ()),
        "to_come": () if to_come is None else to_come.hosts.get(name, ()),
        "declined": _declined(name, to_come),
        "can": _can(host["capability"]),
    }


def _declined(name: str, to_come: UpcomingTime | None) -> str | None:
    """Say which job a host leaves to another, and why; None if the forecast has no such job."""
    if to_come is None or name not in to_come.declined:
        return None
    return one_line(words.declined(to_come.declined[name].to_dict(), to_come.begin, when), 400)


def _can(capability: Json) -> str:
    """Describe a host's hardware in a few words."""
    cores = words.number(capability.get("cpu_cores"))
    ram = words.number(capability.get("ram_total_gib"))
    said = [f"{cores:.0f} cores" if cores else "", f"{ram:.0f} GiB" if ram else ""]
    devices = capability.get("cuda_devices")
    if capability.get("cuda_available") and isinstance(devices, list):
        said += [one_line(device.get("name"), 30) for device in devices[:2] if isinstance(device, Mapping)]
    return ", ".join(filter(None, said))
