"""Acts from pages: a question first, with the number and what is lost, then the act, if the answer still holds."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.database.writer import Database
from training.fleet.queue.orders import orders
from training.fleet.queue.quarantine import quarantines
from training.fleet.queue.rows import jobs_by_host
from training.fleet.receiver.http import html
from training.fleet.receiver.http.bodies import acting, read_form, read_json
from training.fleet.receiver.http.context import Context
from training.fleet.receiver.http.problems import reply
from training.fleet.service import acts
from training.fleet.service.acts import Acted, Doing, Done, Forecast, Selection
from training.fleet.service.audit import Act
from training.fleet.service.guards import check_known, check_release
from training.fleet.service.out import taken_out
from training.fleet.service.preview import Previews
from training.fleet.service.views import JobFilter
from training.fleet.wire.messages import ActReply, ActRequest, HostOrderReply, ProblemType, Refusal, ReloadReply

if TYPE_CHECKING:
    from training.fleet.pages.act import Outcome, Question
    from training.fleet.pages.rendering import Frame

logger = logging.getLogger(__name__)

_ORDERS = {str(act): act for act in (Act.PAUSE, Act.DRAIN, Act.RESUME)}  # of a host
Fields = Mapping[str, Sequence[str]]
NAMES_MAX = 50  # told in one answer
_CHANGED = "What you were asked about has changed meanwhile, and nothing was done. It would be this now:"


async def act_page(context: Context, request: Request) -> Response:
    """Ask before an act."""
    asked = request.query_params
    return await _ask(context, request, {key: asked.getlist(key) for key in asked})


async def act(context: Context, request: Request) -> Response:
    """Act as it was asked, or ask again when that would be another act now."""
    form = await read_form(context, request)
    what, mark, who = _first(form, "what"), _first(form, "mark"), acting(context, request)
    if (order := _ORDERS.get(what)) is not None:
        tell = await _order(context, request, order, _first(form, "host"), mark)
    elif what == "release":
        tell = await _release(context, request, _first(form, "host"), mark)
    elif what == "reload":
        tell = await _reload(context, request, mark)
    else:
        tell = await _jobs(context, request, _doing(what), _selection(form, who), mark)
    if tell is None:
        return await _ask(context, request, form, _CHANGED)

    def make(frame: Frame) -> str:
        from training.fleet.pages import act as pages

        return pages.outcome_page(tell(), frame)

    return await html.page(context, request, make)


async def _ask(context: Context, request: Request, fields: Fields, changed: str | None = None) -> Response:
    what, who = _first(fields, "what"), acting(context, request)
    if (order := _ORDERS.get(what)) is not None:
        ask = await _order_question(context, order, _first(fields, "host"))
    elif what == "release":
        ask = await _release_question(context, _first(fields, "host"))
    elif what == "reload":
        ask = await _reload_question(context)
    else:
        doing, selection = _doing(what), _selection(fields, who)
        ask = await _jobs_question(context, doing, selection)

    def make(frame: Frame) -> str:
        from training.fleet.pages import act as pages

        return pages.question_page(ask(), frame, changed=changed)

    return await html.page(context, request, make, 200 if changed is None else ProblemType.WRONG_STATE.status)


# -- jobs -------------------------------------------------------------------------------------------------------


def forecast_in(context: Context, database: Database, doing: Doing, selection: Selection) -> Forecast:
    return acts.forecast_of(doing, acts.chosen(database, selection), context.clock.now())


async def act_on_jobs(context: Context, request: Request) -> Response:
    """Say what it would do or, to whom agrees to that, do it."""
    asked = await read_json(context, request, ActRequest)
    doing, wanted = Doing(asked.what), JobFilter(asked.status, asked.model, asked.mode, asked.host, asked.q)
    if wanted == JobFilter():  # who names none means none, and never all
        return reply(_told(acts.forecast_of(doing, [], context.clock.now()), None))
    forecast = await context.look(lambda: forecast_in(context, context.reader, doing, Selection(wanted)))
    if asked.mark is None:
        return reply(_told(forecast, None))
    done = await _done(context, request, doing, Selection(wanted), asked.mark)
    if done is None:
        now = f"it would be now: {acts.in_words(forecast)}"
        raise Refusal(ProblemType.WRONG_STATE, f"these jobs have changed meanwhile, and nothing was done; {now}")
    return reply(_told(forecast, done))


def _told(forecast: Forecast, done: Done | None) -> ActReply:
    return ActReply(
        what=forecast.doing,
        says=acts.in_words(forecast),
        jobs=len(forecast.targets),
        names=[each.name for each in forecast.targets[:NAMES_MAX]],
        left_alone=forecast.left_alone,
        lost_s=forecast.lost_s,
        for_good=acts.for_good(forecast),
        whole=forecast.whole,
        mark=forecast.mark,
        moved=None if done is None else done.moved,
        changed=0 if done is None else done.changed,
    )


async def _done(context: Context, request: Request, doing: Doing, selection: Selection, mark: str) -> Done | None:
    """Move the jobs meant, in portions; None when that would be another act than the one that ``mark`` stands for."""
    who = acting(context, request)

    def begin() -> tuple[Forecast, Done] | None:
        forecast = forecast_in(context, context.service.queue.db, doing, selection)
        first = next(iter(acts.portions(forecast)), ())
        same = forecast.mark == mark
        return (forecast, acts.carry_out(context.service, context.audit, doing, first, who)) if same else None

    begun = await context.act(request, begin)
    if begun is None:
        return None
    forecast, done = begun
    for portion in [*acts.portions(forecast)][1:]:
        more = partial(acts.carry_out, context.service, context.audit, doing, portion, who)
        done = done.and_then(await context.act(request, more))
    logger.info("%s: %d jobs, by %s", doing, done.moved, who)
    return done


async def _jobs_question(context: Context, doing: Doing, selection: Selection) -> Callable[[], Question]:
    forecast = await context.look(lambda: forecast_in(context, context.reader, doing, selection))

    def ask() -> Question:
        from training.fleet.pages import act as pages

        return pages.jobs_question(forecast, selection)

    return ask


async def _jobs(
    context: Context, request: Request, doing: Doing, selection: Selection, mark: str
) -> Callable[[], Outcome] | None:
    done, who = await _done(context, request, doing, selection, mark), acting(context, request)
    if done is None:
        return None

    def tell() -> Outcome:
        from training.fleet.pages import act as pages

        return pages.jobs_outcome(doing, done, who)

    return tell


def _doing(what: str) -> Doing:
    try:
        return Doing(what)
    except ValueError:
        raise Refusal(
            ProblemType.BAD_REQUEST, f"what: expected one of {', '.join([*Doing, *_ORDERS])}, release, reload"
        ) from None


def _selection(fields: Fields, who: str) -> Selection:
    """Read which jobs are meant; an address that names none means none, and never all."""
    if acted := _first(fields, "acted"):
        doing, _, rows = acted.partition(",")
        first, _, last = rows.partition(",")
        if not all(each.isascii() and each.isdigit() and len(each) <= 15 for each in (first, last)):
            raise Refusal(ProblemType.BAD_REQUEST, "acted: expected an act and two numbers of audit rows")
        return Selection(acted=Acted(who, _doing(doing), int(first), int(last)))
    if job_ids := tuple(filter(None, fields.get("jobs", ()))):
        return Selection(job_ids=job_ids)
    if _first(fields, "all"):
        return Selection(JobFilter(*(_first(fields, name) for name in ("status", "model", "mode", "host", "q"))))
    raise Refusal(ProblemType.BAD_REQUEST, "no job is chosen; tick some on the page of jobs first")


def _first(fields: Fields, name: str) -> str:
    return next(iter(fields.get(name, ())), "")


# -- a host -----------------------------------------------------------------------------------------------------


def _quarantined(context: Context, database: Database, host: str) -> tuple[str, str]:
    """Return why a host is out, and a mark of that; refuse one that cannot be released."""
    held = quarantines(database).get(host)
    reason = check_release(host, held, context.service.host_registry.known)
    assert held is not None
    return held.sentence(), hashlib.sha256(f"{host} {held.since} {reason}".encode()).hexdigest()[:32]


async def _release_question(context: Context, host: str) -> Callable[[], Question]:
    reason, mark = await context.look(lambda: _quarantined(context, context.reader, host))

    def ask() -> Question:
        from training.fleet.pages import act as pages

        return pages.release_question(host, reason, mark)

    return ask


async def _release(context: Context, request: Request, host: str, mark: str) -> Callable[[], Outcome] | None:
    who = acting(context, request)

    def decide() -> bool:
        same = _quarantined(context, context.service.queue.db, host)[1] == mark
        if same:
            acts.release(context.service, context.audit, host, who)
        return same

    if not await context.act(request, decide):
        return None
    context.room.wake()

    def tell() -> Outcome:
        from training.fleet.pages import act as pages

        return pages.release_outcome(host)

    return tell


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A host before an order: why it gets no jobs already, the jobs that it holds, and a mark of its order."""

    now: str | None
    jobs: list[str]
    mark: str


def _under_order(context: Context, database: Database, act: Act, host: str) -> _Ordered:
    """Look at the host that an order is for; refuse an unknown one, and to resume one that is under no order."""
    given = orders(database)
    check_known(host, {*context.service.host_registry.known, *given})
    known = given.get(host)
    if known is None and act is Act.RESUME:
        raise Refusal(ProblemType.WRONG_STATE, f"host {host} is neither paused nor drained")
    out = taken_out(database, context.service.host_registry).get(host)
    jobs = jobs_by_host(database.all("live_jobs_by_host")).get(host, [])
    mark = hashlib.sha256(f"{host} {known and (known.order, known.since)}".encode()).hexdigest()[:32]
    return _Ordered(None if out is None else out.sentence(), jobs, mark)


async def _order_question(context: Context, act: Act, host: str) -> Callable[[], Question]:
    found = await context.look(lambda: _under_order(context, context.reader, act, host))

    def ask() -> Question:
        from training.fleet.pages import act as pages

        return pages.order_question(act, host, found.now, found.jobs, found.mark)

    return ask


async def _order(context: Context, request: Request, act: Act, host: str, mark: str) -> Callable[[], Outcome] | None:
    who = acting(context, request)

    def decide() -> HostOrderReply | None:
        if _under_order(context, context.service.queue.db, act, host).mark != mark:
            return None
        return acts.order(context.service, context.audit, act, host, who)

    answer = await context.act(request, decide)
    if answer is None:
        return None
    context.room.wake()

    def tell() -> Outcome:
        from training.fleet.pages import act as pages

        return pages.order_outcome(act, host, answer.note)

    return tell


# -- the plan ---------------------------------------------------------------------------------------------------


async def _reload_question(context: Context) -> Callable[[], Question]:
    would = await context.preview(Previews.own)

    def ask() -> Question:
        from training.fleet.pages import act as pages

        return pages.reload_question(would.reload, would.mark or "", would.file or "the manifest")

    return ask


async def _reload(context: Context, request: Request, mark: str) -> Callable[[], Outcome] | None:
    would = await context.preview(Previews.own)
    if (would.mark or "") != mark:
        return None
    answer: ReloadReply = await context.reload(acting(context, request))

    def tell() -> Outcome:
        from training.fleet.pages import act as pages

        return pages.reload_outcome(answer)

    return tell
