"""Keeping house: what the plan does not keep goes, every hour or when an operator says so, and forecasts are kept."""

from __future__ import annotations

from training.fleet.queue.forecasts import keep, untold
from training.fleet.receiver.http.context import Context
from training.fleet.receiver.http.steps import carry_out
from training.fleet.scheduling.job import Host
from training.fleet.scheduling.retention import Kind, Removal


async def keep_house(context: Context) -> None:
    """Let go what the plan's [retention] lets go, and note what an older copy of the database does not know."""
    if context.halted is not None:
        return
    await let_go(context)
    await context.call(context.incidents.forget_old)
    if await carry_out(context, None, context.retention.learn()):
        await context.repair_index()


async def let_go(context: Context, most: int = 2**62) -> list[Removal]:
    """Let go at most so many; returns what went."""
    async with context.letting_go:
        gone = await carry_out(context, None, context.retention.collect(most))
    if any(each.kind is Kind.BUNDLE for each in gone):
        context.delivery.index_stale = True
        await context.repair_index()
    return gone


class ForecastKeeper:
    """Keeps what is foretold of jobs that are new or have begun, for the review.

    A forecast of a long queue is work for seconds, and some jobs it can never name: they fit no host, or stand behind
    too many others. It is made again for jobs that it was not asked about before, and when other hosts are there.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asked: set[tuple[str, int, int]] = set()  # job, generation and attempt that no forecast named
        self._hosts: list[tuple[Host, bool]] = []

    async def look(self) -> None:
        """Make a forecast if it may tell something new."""
        context = self._context
        service = context.service
        # The memory that is free at this moment is another in each ask, and makes no other host of it.
        hosts = [(service.host_of(known).at_best(), service.alive(known)) for known in service.known_hosts()]
        if context.halted is not None or not hosts:
            return
        if hosts != self._hosts:
            self._hosts, self._asked = hosts, set()
        missing = await context.look(lambda: untold(context.reader))
        asked = {(job_id, *of) for job_id, of in missing.items()}
        if asked <= self._asked:
            return
        told = await context.foretell(lambda forecasts: forecasts.to_keep())
        self._asked = asked - {(each.job_id, each.generation, each.attempt) for each in told}
        if told:
            await context.call(lambda: keep(service.queue.db, told))
