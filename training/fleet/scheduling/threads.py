"""The number of threads that a trainer gets, from how well its family of models uses several threads. Pure.

No family of models uses threads without loss, so several jobs with one thread each end sooner than one after another
with several. Unless the plan asks for more, a job gets one core while there are jobs for the other cores, and more when
few jobs are left. A saved state of this project's trainers can be continued only with the number of threads with which
its training was begun. Unless the plan says otherwise, a job gets its earlier attempt's number of threads again if so
many cores are free.
"""

from training.families import FAMILIES, family_of
from training.fleet.scheduling.booking import free_cores, uses_gpu
from training.fleet.scheduling.job import Host, Needs
from training.fleet.scheduling.resources import Booking

LEAST_GAIN = 0.5  # of a core, that the last thread must bring


def speedup(model: str, booked: Booking) -> float:
    """Return how many times faster a family trains with its booked threads than with one; 1 on a GPU."""
    if booked.gpu is not None:
        return 1.0
    return _amdahl(family_of(model).parallel, booked.cores)


def _amdahl(part: float, threads: int) -> float:
    return 1.0 / (1.0 - part + part / threads)


def useful(model: str, most: int) -> int:
    """Return the largest number of threads, from 1 to ``most``, of which the last still gains :data:`LEAST_GAIN`.

    A custom trainer gets ``most``, because its gain is unknown.
    """
    if model not in FAMILIES:
        return most
    part, threads = FAMILIES[model].parallel, 1
    while threads < most and _amdahl(part, threads + 1) - _amdahl(part, threads) >= LEAST_GAIN:
        threads += 1
    return threads


def threads_for(needs: Needs, wanted: Booking, host: Host, *, jobs: int, before: int = 0) -> int:
    """Return the number of threads that a job gets on this host. A number in the plan decides; else an earlier
    attempt's number, if so many cores are free. Else a job on a GPU gets the cores of ``wanted``; any other gets as
    many of its share of the free cores as are :func:`useful`.

    ``wanted`` is the least that the job books; the result is at least its cores. ``jobs`` is the number of jobs meant
    for this host, this one included. ``before`` is the number of threads of an earlier attempt, or 0.
    """
    if needs.threads:
        return wanted.cores
    free = max(wanted.cores, free_cores(host))
    if 0 < before <= free:
        return before
    share = max(wanted.cores, free // min(jobs, free))
    if uses_gpu(needs, host):  # the GPU computes
        return wanted.cores
    return max(wanted.cores, min(share, useful(needs.model, share)))
