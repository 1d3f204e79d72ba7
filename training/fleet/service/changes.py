"""The answer to a reload: what it changed, or would change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from training.fleet.manifest.channels import digests
from training.fleet.queue.plan_diff import Synced
from training.fleet.scheduling.edits import channel_edits, first, host_edits, trainer_edits
from training.fleet.service.hosts import HostRegistry, Plan
from training.fleet.wire.messages import EditView, ReloadReply


def told(
    synced: Synced,
    before: Plan | None,
    after: HostRegistry,
    held: Mapping[str, list[str]],
    channels: Mapping[str, str] | None = None,
) -> ReloadReply:
    """Describe the changes from the plan ``before`` (None: there is no earlier plan) to the plan that ``after`` has.

    ``held`` says which jobs train on which host. ``channels`` are the digests of the new channels, if the plan itself
    lacks them.
    """
    counts: dict[str, Any] = {**synced.counts}
    hosts = [] if before is None else host_edits(before.hosts, after.plan.hosts, held)
    trainers = [] if before is None else trainer_edits(before.trainers, after.plan.trainers)
    channels = digests(after.plan.channels) if channels is None else channels
    notify = [] if before is None else channel_edits(digests(before.channels), channels)
    return ReloadReply(
        **counts,
        hosts=len(hosts),
        trainers=len(trainers),
        retention=int(before is not None and before.retention != after.plan.retention),
        scheduling=int(before is not None and before.scheduling is not after.plan.scheduling),
        notify=len(notify),
        cancelled=synced.cancelled,
        notes=[*_retention(before, after.plan), *_scheduling(before, after.plan), *notes(after)],
        edits=msgspec.convert(
            [asdict(edit) for edit in first([*synced.edits, *hosts, *trainers, *notify])], list[EditView]
        ),
    )


def _retention(before: Plan | None, after: Plan) -> list[str]:
    """State once that the retention rules change: what they delete cannot be restored by another edit."""
    if before is None or before.retention == after.retention:
        return []
    return ["[retention] has changed: `cis490-jobs gc --dry-run` shows what goes within the hour after a reload"]


def _scheduling(before: Plan | None, after: Plan) -> list[str]:
    if before is None or before.scheduling is after.scheduling:
        return []
    return [f"scheduling is {after.scheduling} from now on, {before.scheduling} before"]


def notes(registry: HostRegistry) -> list[str]:
    """Return the warnings about the plan: things that are valid but probably not meant."""
    found = [*registry.plan.notes, *(f"host {name}: {said}" for name, said in registry.never_asked().items())]
    return found + [f"data set {name}: {said}" for name, said in registry.missing_datasets().items()]
