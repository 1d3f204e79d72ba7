"""PURE: fetching a data set ahead, for the job that will probably come, while others train.

The receiver names it with a heartbeat's answer. One is fetched at a time, and only while nothing else matters more:

======================  =========================================================================================
it is fetched           while a job is in hand, no halt or order keeps this host from jobs, the worker is not
                        leaving, and no job in hand lacks data
it is stopped           as soon as one of these is over, but that it goes on while the last job is delivered; or
                        when another data set is named. What has arrived is kept: a job that lacks the same data
                        goes on from there
it is fetched again     not before a job in hand has lacked data, which may have made room for them; nor is what
                        failed, which costs nobody anything but a line in the log
======================  =========================================================================================

What was named binds nobody: a data set that was fetched and is not needed is one in the cache like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from training.fleet.worker.state import events as t

OVER_KEPT = 20  # data sets, the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The data set that is fetched ahead, and those that were."""

    named: t.NextData | None = None  # by the receiver, last
    fetching: t.NextData | None = None  # on its way …
    stopping: bool = False  # … and told to stop
    over: tuple[t.NextData, ...] = ()  # here, or failed


def named(ahead: Ahead, data: t.NextData | None) -> Ahead:
    """Hear what the receiver names; None is nothing new."""
    return ahead if data is None else replace(ahead, named=data)


def ended(ahead: Ahead, event: t.FetchedAhead) -> Ahead:
    """Note the end of a fetch: what was stopped may begin again."""
    over = ahead.over if event.stopped else (*ahead.over, event.data)[-OVER_KEPT:]
    return replace(ahead, fetching=None, stopping=False, over=over)


def lacked(ahead: Ahead) -> Ahead:
    """Note that a job in hand lacks data: its fetch may remove what was fetched ahead."""
    return replace(ahead, over=())


def decide(ahead: Ahead, *, may: bool, in_hand: bool) -> tuple[Ahead, t.FetchAhead | t.StopAhead | None]:
    """Begin or stop a fetch. ``may``: nothing matters more; ``in_hand``: a job trains or is delivered."""
    wanted, fetching = ahead.named, ahead.fetching
    if fetching is not None:
        goes_on = may and wanted is not None and wanted.dataset_id == fetching.dataset_id
        if goes_on or ahead.stopping:
            return ahead, None
        return replace(ahead, stopping=True), t.StopAhead()
    if wanted is None or wanted in ahead.over or not (may and in_hand):
        return ahead, None
    return replace(ahead, fetching=wanted), t.FetchAhead(data=wanted)
