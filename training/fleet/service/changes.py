"""The reply to a reload: what the reload changed, or in a preview, what it would change."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from training.fleet.manifest.channels import digests
from training.fleet.queue.plan_diff import Synced
from training.fleet.scheduling.edits import channel_edits, first, host_edits, trainer_edits
from training.fleet.service.hosts import HostRegistry, Plan
from training.fleet.wire.messages import EditView, ReloadReply

# Another edit cannot restore files that retention deletes.
_RETENTION = "[retention] has changed: `cis490-jobs gc --dry-run` shows what goes within the hour after a reload"


def told(
    synced: Synced,
    before: Plan | None,
    after: HostRegistry,
    held: Mapping[str, list[str]],
    channels: Mapping[str, str] | None = None,
) -> ReloadReply:
    """Return the reply that describes the changes from the plan ``before`` (None: there is no earlier plan) to the plan
    of ``after``.

    ``held`` maps each host to the jobs that train there. ``channels`` are the digests of the new notice channels, if
    the plan itself lacks them.
    """
    plan, counts = after.plan, dict[str, Any](synced.counts)
    channels = digests(plan.channels) if channels is None or before is None else channels
    before = before or plan
    hosts, trainers = host_edits(before.hosts, plan.hosts, held), trainer_edits(before.trainers, plan.trainers)
    notify = channel_edits(digests(before.channels), channels)
    retention, scheduling = before.retention != plan.retention, before.scheduling is not plan.scheduling
    return ReloadReply(
        **counts,
        hosts=len(hosts),
        trainers=len(trainers),
        retention=int(retention),
        scheduling=int(scheduling),
        notify=len(notify),
        cancelled=synced.cancelled,
        notes=[
            *([_RETENTION] if retention else []),
            *([f"scheduling is {plan.scheduling} from now on, {before.scheduling} before"] if scheduling else []),
            *notes(after),
        ],
        edits=msgspec.convert(
            [asdict(edit) for edit in first([*synced.edits, *hosts, *trainers, *notify])], list[EditView]
        ),
    )


def notes(registry: HostRegistry) -> list[str]:
    """Return warnings about the plan: entries that are valid but probably not meant, hosts that never asked for work,
    and missing data sets."""
    found = [*registry.plan.notes, *(f"host {name}: {said}" for name, said in registry.never_asked().items())]
    return found + [f"data set {name}: {said}" for name, said in registry.missing_datasets().items()]
