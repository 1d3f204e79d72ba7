"""The use of data sets by jobs: what changes when a name gets another data set, which host may fetch a data set, and
when one may be removed.

Each function runs inside one transaction of the writer.
"""

from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import FINAL, Host, Job
from training.fleet.service.service import Service
from training.fleet.wire.constants import ProblemType, Refusal
from training.frozen import frozen
from training.printable import counted

_NAMED = 3  # jobs in a sentence


@frozen
class NameMoved:
    """The numbers of jobs concerned when a name that the plan uses gets another data set."""

    jobs_anew: int = 0  # jobs that the next reload makes, because data is part of a job's identity
    jobs_waiting: int = 0  # unfinished jobs that they replace: these still train on the old data


def name_moved(service: Service, name: str | None, dataset_id: str) -> NameMoved:
    """Count the plan's jobs that change at the next reload because ``name`` now means this data set."""
    planned = service.plan.dataset_names.get(name or "", dataset_id)
    if planned == dataset_id:
        return NameMoved()
    jobs = [job for job in service.queue.plan.trained_on(planned) if job.in_manifest]
    return NameMoved(len(jobs), len(_unfinished(jobs)))


def check_unused(service: Service, dataset_id: str) -> None:
    """Raise Refusal while this data set is named by a job of the plan, finished or not, or by another unfinished
    job."""
    if dataset_id in service.plan.datasets:
        raise Refusal(ProblemType.WRONG_STATE, "jobs of the plan name this data set; change the plan and reload first")
    left = _unfinished(service.queue.plan.trained_on(dataset_id))
    if left:
        names = ", ".join(job.name for job in left[:_NAMED]) + (", …" if len(left) > _NAMED else "")
        raise Refusal(
            ProblemType.WRONG_STATE,
            f"{counted(len(left), 'jobs')} that the plan no longer names would still train on this data set ({names}); "
            "`cis490-jobs cancel --removed` takes such jobs out",
        )


def check_name_unused(service: Service, name: str) -> None:
    """Raise Refusal while jobs of the plan name a data set by ``name``."""
    if name in service.plan.dataset_names:
        raise Refusal(
            ProblemType.WRONG_STATE, f"jobs of the plan name the data set {name}; change the plan and reload first"
        )


def check_fetch(service: Service, dataset_id: str, host_id: str) -> None:
    """Raise Refusal unless this host trains on the data set, or the plan's lists of models and hosts would let it. The
    host's capability is not read. A host for which the plan reserves cores or RAM passes only while it trains on the
    data set."""
    host = Host.of(host_id, {}, service.plan.declared(host_id))
    if any(rules.fits(needs, host) is None for needs in service.plan.datasets.get(dataset_id, ())):
        return
    live = service.queue.attempts.live_on(host_id)
    if all(service.job(attempt.job_id).spec.get("dataset") != dataset_id for attempt in live):
        raise Refusal(
            ProblemType.NOT_YOURS, f"no job that host {host_id} may be given trains on data set {dataset_id[:12]}"
        )


def _unfinished(jobs: list[Job]) -> list[Job]:
    return [job for job in jobs if job.status not in FINAL]
