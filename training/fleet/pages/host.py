"""The page of a host: what it does and may do, what its trainers used of it, its jobs, speeds and watch."""

from training.fleet.pages.curves import POINTS_DRAWN, Use, usage_of_host
from training.fleet.pages.fleet import folded, notices, row
from training.fleet.pages.job import flat
from training.fleet.pages.page_request import PageRequest
from training.fleet.pages.rendering import Frame, render, when
from training.fleet.pages.timeline import MOVES_MAX, Day, ahead, day
from training.fleet.service.guards import check_known, refuse_host
from training.fleet.service.job_views import JobFilter, ListPlace
from training.fleet.service.views import Views
from training.fleet.wire import words
from training.printable import one_line
from training.strict_json import Json

JOBS_SHOWN = 20
KINDS_SHOWN = 12
INCIDENTS_SHOWN = 5
ATTEMPTS_DRAWN = 50


def page(asked: PageRequest, frame: Frame) -> str:
    """Render the page of a host that has asked for work or is watched. A training host gets only its own."""
    name, views = asked.query["host_id"], asked.views
    if asked.host != name:
        refuse_host(asked.host, f"host {one_line(name, 64)}")
    assert asked.health is not None
    told = views.incidents.incidents(host=name, limit=INCIDENTS_SHOWN).to_dict()
    found = [each.to_dict() for each in views.workers(host=name).workers]
    if not (found or told["watches"] or told["incidents"]):
        check_known(name, [known.hostname for known in views.workers().workers])
    live = [job for job in (each.to_dict() for each in views.live()) if job["host"] == name]
    hours = day(views.events(host=name, limit=MOVES_MAX), live, 0, frame.now)
    to_come, names = ahead(asked.forecast), {name, *(words.called(job, 60) for job in live)}
    one = row(found[0], live, hours, to_come) if found else None
    jobs, _ = views.found(JobFilter(host=name), "newest", ListPlace(), JOBS_SHOWN)
    return render(
        "host.html",
        frame,
        name=name,
        one=one,
        sentence=sentence(name, one, frame.now),
        notices=folded(one for one in notices(asked.health, found, live) if names & dict(one.about).keys()),
        ahead=to_come,
        day=hours,
        figures=usage_of_host(_uses(views, name, hours), hours.begin, frame.now),
        jobs=[each.to_dict() for each in jobs],
        speeds=views.durations.speeds(KINDS_SHOWN).to_dict()["kinds"] if one else [],
        watches=told["watches"],
        incidents=told["incidents"],
        in_plan=[*flat(one["declared"])] if one and one["declared"] else [],
        reported=[*flat(one["capability"])] if one else [],
    )


def sentence(name: str, one: Json | None, now: float) -> str:
    """Say in one line what a host does and what it may train; ``one`` is None of a host without a worker."""
    called = one_line(name, 64)
    if one is None:
        return f"{called} is watched; its worker has never asked for work."
    *names, last = ["", *(one_line(job["name"], 60) for job in one["now"])]
    doing = [f"trains {' and '.join(filter(None, (', '.join(names[1:]), last)))}"] if last else []
    if one["quarantine"] or one["resting"]:
        doing.append("gets no jobs")
    elif not doing:
        doing.append("is idle" if one["alive"] else f"is asleep or away since {when(one['last_seen'], now)}")
    with_what = f", with {one['can']}" if one["can"] else ""
    return f"{called} {' and '.join(doing)}; it may train {_allowed(one['declared'] or {})}{with_what}."


def _allowed(declared: Json) -> str:
    allowed, denied = ([one_line(each, 40) for each in declared.get(key) or []] for key in ("allow_jobs", "deny_jobs"))
    only = ", ".join(allowed) or "every model"
    return f"{only} except {', '.join(denied)}" if denied else only


def _uses(views: Views, host: str, hours: Day) -> list[Use]:
    """Return the samples of the newest attempts of a host."""
    found = list[Use]()
    for each in sorted(hours.hosts.get(host, ()), key=lambda segment: segment.finish)[-ATTEMPTS_DRAWN:]:
        samples = views.samples(each.job_id, each.attempt or 0, POINTS_DRAWN)
        # The grant of an attempt that began before the drawn time is known from its last sample alone.
        cut = each.begin <= hours.begin and samples
        found.append((each.finish - samples[-1].seconds if cut else each.begin, each.finish, samples))
    return found
