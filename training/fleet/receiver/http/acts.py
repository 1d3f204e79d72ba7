"""The endpoints of acts, on pages and for programs: a first call shows what an act would change, a second call acts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.queue.rows import jobs_by_host
from training.fleet.queue.unavailable import orders, quarantines
from training.fleet.receiver.http import html
from training.fleet.receiver.http.bodies import acting, read_form, read_json
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import Answer
from training.fleet.receiver.http.steps import carry_out
from training.fleet.service import acts, unconfirmed
from training.fleet.service.acts import ActOutlook, Done, Selection
from training.fleet.service.audit import Act
from training.fleet.service.guards import check_known, check_release
from training.fleet.service.job_views import JobFilter
from training.fleet.service.preview import Previews
from training.fleet.wire.constants import JobAct, ProblemType, Refusal
from training.fleet.wire.messages import ActReply, ActRequest, DecisionReply

if TYPE_CHECKING:  # loaded with the first page
    from training.fleet.pages.act import Outcome, Question

logger = logging.getLogger(__name__)

_ORDERS = {str(act): act for act in (Act.PAUSE, Act.DRAIN, Act.RESUME)}  # of a host
_WORDS = {str(act): act for act in (Act.ACCEPT, Act.REFUSE)}  # of a host's unconfirmed work
Fields = Mapping[str, Sequence[str]]
NAMES_MAX = 50  # in one answer
_CHANGED = "This has changed meanwhile, and nothing was done. It would now be:"


async def act_page(context: ReceiverContext, request: Request) -> Response:
    """Show the page that asks for confirmation of an act."""
    asked = request.query_params
    return await _ask(context, request, {key: asked.getlist(key) for key in asked})


async def act(context: ReceiverContext, request: Request) -> Response:
    """Act as the form says. Ask again, without acting, if the number of jobs, the unconfirmed work or the plan has
    changed since the form was shown."""
    form = await read_form(context, request)
    outcome = await _outcome(context, request, form)
    if outcome is None:
        return await _ask(context, request, form, _CHANGED)
    return await html.shown(context, request, "acted.html", outcome=outcome)


async def _ask(context: ReceiverContext, request: Request, fields: Fields, changed: str | None = None) -> Response:
    question = await _question(context, request, fields)
    status = 200 if changed is None else ProblemType.WRONG_STATE.status
    return await html.shown(context, request, "act.html", status, question=question, changed=changed)


async def _question(context: ReceiverContext, request: Request, fields: Fields) -> Question:
    from training.fleet.pages import act as pages

    what, host = _first(fields, "what"), _first(fields, "host")
    if (order := _ORDERS.get(what)) is not None:
        now, jobs = await context.look(lambda: _under_order(context, order, host))
        return pages.order_question(order, host, now, jobs)
    if (word := _WORDS.get(what)) is not None:
        rows = await context.look(lambda: unconfirmed.waiting(context.reader, host))
        return pages.decision_question(word, host, [row["name"] for row in rows], unconfirmed.mark_of(rows))
    if what == "release":
        reason = await context.look(lambda: _quarantined(context, host))
        return pages.release_question(host, reason)
    if what == "reload":
        would = await context.preview(request, Previews.own)
        return pages.reload_question(would.reload, would.mark or "", would.file or "the manifest")
    doing, selection = _doing(what), _selection(fields)
    forecast = await context.look(lambda: _forecast(context, doing, selection))
    return pages.jobs_question(forecast, selection)


async def _outcome(context: ReceiverContext, request: Request, form: Fields) -> Outcome | None:
    """Act as the form says, and return the result; None, without acting, if the number of jobs, the unconfirmed work or
    the plan has changed since the form was shown."""
    from training.fleet.pages import act as pages

    what, host, who = _first(form, "what"), _first(form, "host"), acting(context, request)
    if (order := _ORDERS.get(what)) is not None:
        given = await context.act(request, lambda: acts.order(context.service, context.audit, order, host, who))
        context.room.wake()
        return pages.order_outcome(order, host, given.note)
    if (word := _WORDS.get(what)) is not None:
        answer = await decided(word, context, request, host, mark=_first(form, "mark"))
        return None if answer is None else pages.decision_outcome(word, answer)
    if what == "release":
        await context.act(request, lambda: acts.release(context.service, context.audit, host, who))
        context.room.wake()
        return pages.release_outcome(host)
    if what == "reload":
        would = await context.preview(request, Previews.own)
        if (would.mark or "") != _first(form, "mark"):
            return None
        return pages.reload_outcome(await context.reload(who))
    doing, number = _doing(what), _first(form, "number")
    agreed = int(number) if number.isascii() and number.isdigit() and len(number) <= 6 else -1
    done = await _done(context, request, doing, _selection(form), agreed)
    return None if done is None else pages.jobs_outcome(doing, done)


async def decided(
    act: Act, context: ReceiverContext, request: Request, host: str, *, every: bool = False, mark: str | None = None
) -> DecisionReply | None:
    """Accept or refuse unconfirmed work, as :func:`acts.decide` selects it. Return None, without acting, if ``mark`` is
    given and is not the work's."""
    decide = partial(acts.decide, context.service, context.audit, act, host, acting(context, request))
    rows = await context.act(request, lambda: decide(every=every, mark=mark))
    if rows is None:
        return None
    left = await carry_out(context, request, context.delivery.accept(rows)) if act is Act.ACCEPT else []
    return DecisionReply(host=host, jobs=[row["name"] for row in rows], left=left)


# -- jobs -------------------------------------------------------------------------------------------------------


def _forecast(context: ReceiverContext, doing: JobAct, selection: Selection) -> ActOutlook:
    return acts.forecast_of(doing, acts.chosen(context.reader, selection), context.clock.now())


async def act_on_jobs(context: ReceiverContext, request: Request) -> Answer:
    """Answer what an act on all jobs that match a filter would do; act if the request names their number. Raises
    Refusal if the request names another number. A request without a filter selects no job."""
    asked = await read_json(context, request, ActRequest)
    doing, wanted = asked.what, JobFilter.of(asked.to_dict())
    if wanted == JobFilter():  # no filter means no job, and never all
        return _answer(acts.forecast_of(doing, [], context.clock.now()), None)
    forecast = await context.look(lambda: _forecast(context, doing, Selection(wanted)))
    if asked.jobs is None:
        return _answer(forecast, None)
    done = await _done(context, request, doing, Selection(wanted), asked.jobs)
    if done is None:
        now = f"it would be now: {acts.in_words(forecast)}"
        raise Refusal(ProblemType.WRONG_STATE, f"the number of jobs has changed meanwhile; nothing was done; {now}")
    return _answer(forecast, done)


def _answer(forecast: ActOutlook, done: Done | None) -> ActReply:
    return ActReply.of(
        forecast,
        what=forecast.doing,
        says=acts.in_words(forecast),
        jobs=len(forecast.targets),
        names=[each.name for each in forecast.targets[:NAMES_MAX]],
        for_good=acts.for_good(forecast),
        moved=None if done is None else done.moved,
        skipped=0 if done is None else done.skipped,
    )


async def _done(
    context: ReceiverContext, request: Request, doing: JobAct, selection: Selection, number: int
) -> Done | None:
    """Change the selected jobs, part by part; return None, without a change, if their number is not ``number``, to
    which the operator agreed."""
    who = acting(context, request)
    forecast = await context.look(lambda: _forecast(context, doing, selection))
    if len(forecast.targets) != number:
        return None
    moved = skipped = 0
    for portion in acts.portions(forecast):
        done = await context.act(request, partial(acts.carry_out, context.service, context.audit, doing, portion, who))
        moved, skipped = moved + done.moved, skipped + done.skipped
    logger.info("%s: %d jobs, by %s", doing, moved, who)
    return Done(moved, skipped)


def _doing(what: str) -> JobAct:
    try:
        return JobAct(what)
    except ValueError:
        raise Refusal(
            ProblemType.BAD_REQUEST, f"what: expected one of {', '.join([*JobAct, *_ORDERS, *_WORDS])}, release, reload"
        ) from None


def _selection(fields: Fields) -> Selection:
    """Read which jobs a form or an address selects. Raises Refusal if it selects none, so that an empty selection never
    means all jobs."""
    if job_ids := tuple(filter(None, fields.get("jobs", ()))):
        return Selection(job_ids=job_ids)
    if _first(fields, "all"):
        return Selection(JobFilter.of({name: _first(fields, name) for name in fields}))
    raise Refusal(ProblemType.BAD_REQUEST, "no job is chosen; tick some on the page of jobs first")


def _first(fields: Fields, name: str) -> str:
    return next(iter(fields.get(name, ())), "")


# -- a host -----------------------------------------------------------------------------------------------------


def _quarantined(context: ReceiverContext, host: str) -> str:
    """Return why a host is in quarantine; raises Refusal for a host that cannot be released."""
    held = quarantines(context.reader).get(host)
    check_release(host, held, context.service.host_registry.known)
    assert held is not None
    return held.sentence()


def _under_order(context: ReceiverContext, act: Act, host: str) -> tuple[str | None, list[str]]:
    """Return why a host already gets no jobs (None if it may get some), and the names of the jobs that it trains.
    Raises Refusal for an unknown host, or a resume of one without an order."""
    database = context.reader
    given = orders(database)
    check_known(host, {*context.service.host_registry.known, *given})
    if host not in given and act is Act.RESUME:
        raise Refusal(ProblemType.WRONG_STATE, f"host {host} is neither paused nor drained")
    out = context.service.taken_out(database).get(host)
    return None if out is None else out.sentence(), jobs_by_host(database).get(host, [])
