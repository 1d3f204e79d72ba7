"""``cis490-jobs wait``: wait until jobs have ended; the exit code says how they ended."""

from collections.abc import Iterable, Sequence

from training.fleet.cli.context import CommandContext
from training.fleet.client.client import FleetClient, Unavailable, Unreachable
from training.fleet.wire.constants import DONE
from training.fleet.wire.words import Json
from training.printable import printable

_LOOK_S = 5.0
_EACH_MAX = 20  # up to so many jobs are asked for one by one
FAILED, CANCELLED = 3, 4  # exit codes, beside those of every command
OVER = ("completed", "failed", "cancelled")


def outcome(statuses: Iterable[str]) -> int:
    """Return the exit code for ended jobs: 3 if any failed, else 4 if any was cancelled, else 0."""
    seen = set(statuses)
    return FAILED if "failed" in seen else CANCELLED if "cancelled" in seen else DONE


def wait(context: CommandContext, client: FleetClient, refs: Sequence[str], *, quiet: bool) -> list[Json]:
    """Poll until every job has ended (without ``refs``, every job of the plan), and return the jobs.

    A job is looked up by its name once, and then by its id. After the first look, the wait continues while the receiver
    does not answer.
    """
    views = [client.job(ref)["job"] for ref in dict.fromkeys(refs)]
    if not refs:
        views = [view for view in client.all_jobs() if view["in_manifest"]]
    left = dict.fromkeys(view["job_id"] for view in views)
    over: list[Json] = []
    told: set[str] = set()
    while True:
        for view in views:
            if view["status"] in OVER and view["job_id"] in left:
                del left[view["job_id"]]
                over.append(view)
                if not quiet:
                    line = f"{printable(view['name'])} is {printable(view['status'])}"
                    print(line, file=context.out, flush=True)
            elif view["held_by"] and view["status"] == "pending" and view["job_id"] not in told:
                told.add(view["job_id"])
                context.complain(f"{view['name']} is held by {view['held_by']}: unhold it")
            elif view["obstacle"] and view["job_id"] not in told:
                told.add(view["job_id"])
                context.complain(f"{view['name']} cannot run anywhere: {view['obstacle']}")
        if not left:
            return over
        context.sleep(_LOOK_S)
        views = _look(context, client, list(left), told)


def _look(context: CommandContext, client: FleetClient, ids: Sequence[str], told: set[str]) -> list[Json]:
    """Return these jobs as they are now; empty while the receiver does not answer, which is reported once."""
    try:
        if len(ids) <= _EACH_MAX:
            views = [client.job(job_id)["job"] for job_id in ids]
        else:
            views = [view for view in client.all_jobs() if view["job_id"] in ids]
    except (Unreachable, Unavailable) as error:
        if "" not in told:
            context.complain(f"{error}; waiting for it")
        told.add("")
        return []
    told.discard("")
    return views
