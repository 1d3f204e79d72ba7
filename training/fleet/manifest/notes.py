"""Pure: write warnings about a manifest that is valid, but probably does not say what its author means."""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from training.contract import Recipe
from training.fleet.capability.describe import HyperValue
from training.fleet.manifest.reader import closest
from training.fleet.manifest.types import JobSpec, Manifest

_HOSTS_LISTED = 8  # of a data set, in a sentence


def notes(plan: Manifest, recorded: Mapping[str, Sequence[str]] = MappingProxyType({})) -> list[str]:
    """Return warnings about a valid plan: jobs of custom trainers without ``describe`` that differ only in how a number
    is written, no list of jobs, seeds that are tested on different episodes, and hosts that a job's data set lacks.

    ``recorded``: data set → the hosts that it was recorded on, where that is known.
    """
    unasked = {name for name, own in plan.trainers.items() if not own.describe}
    found = list(_written_twice(job for job in plan.jobs if job.model in unasked))
    if not plan.names_jobs:
        found.append(
            "the plan has no jobs: if the file is whole and that is meant, add the line `jobs = []` above its tables"
        )
    return found + list(_tested_apart(plan.jobs)) + list(_not_recorded(plan.jobs, recorded))


def _tested_apart(jobs: Sequence[JobSpec]) -> Iterable[str]:
    """Warn once of jobs that differ only in the seed, if each seed also draws the episodes of its test."""
    drawn = [job for job in jobs if job.split_recipe == Recipe.SAMPLE and job.split_seed is None]
    if len({job.seed for job in drawn}) < 2:  # nearly all plans; and the rest takes a while in a long one
        return
    first: dict[Any, JobSpec] = {}
    for job in drawn:
        twin = first.setdefault((job.model, job.mode, job.dataset, json.dumps(job.hyper, sort_keys=True)), job)
        if twin.seed != job.seed:
            yield (
                f'jobs "{twin.name}" and "{job.name}" differ only in seed, which under split_recipe "sample" also '
                "draws the test: their figures cannot be compared; to test both on the same episodes, add the line "
                "`split_seed = 0` to their entry, or to [defaults]"
            )
            return


def _not_recorded(jobs: Iterable[JobSpec], recorded: Mapping[str, Sequence[str]]) -> Iterable[str]:
    """Warn of each host that a job names but its data set lacks, once for each data set: the trainer would refuse such
    a host."""
    said = set()
    for job in jobs:
        hosts = recorded.get(job.dataset or "", ())
        named = [("train_hosts", name) for name in job.train_hosts] + [("test_hosts", name) for name in job.test_hosts]
        strange = [(key, name) for key, name in named if hosts and name not in hosts]
        for key, name in strange:
            if (job.dataset, name) in said:
                continue
            said.add((job.dataset, name))
            near = closest(name, hosts)
            listed = ", ".join(hosts[:_HOSTS_LISTED]) + (", …" if len(hosts) > _HOSTS_LISTED else "")
            yield (
                f'{key} of job "{job.name}" names "{name}", which its data set lacks; known: {listed}'
                + (f"; did you mean {near}?" if near else "")
            )


def _written_twice(jobs: Iterable[JobSpec]) -> Iterable[str]:
    """Warn of jobs that differ only in how a number is written, such as 1, 1.0 and "1"."""
    first: dict[Any, JobSpec] = {}
    for job in jobs:
        plain = {key: _plain(value) for key, value in job.hyper.items()}
        rest = (job.model, job.mode, job.split_recipe, job.train_hosts, job.test_hosts, job.seed, job.dataset)
        twin = first.setdefault((*rest, json.dumps(plain, sort_keys=True)), job)
        if twin is not job:
            key = next(key for key in sorted(job.hyper) if not _same(job.hyper[key], twin.hyper[key]))
            yield (
                f'jobs "{twin.name}" and "{job.name}" differ only in how hyper.{key} is written '
                f"({_shown(twin.hyper[key])} and {_shown(job.hyper[key])}), and both are trained; write it alike, or "
                "say with `describe` which type it has"
            )


def _plain(value: HyperValue) -> object:
    """Return a value that can be read as a number below 2**53 as a float, so that 1, 1.0 and "1" are equal; other
    values unchanged."""
    if isinstance(value, bool):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return number if abs(number) < 2**53 else value


def _same(one: HyperValue, other: HyperValue) -> bool:
    return type(one) is type(other) and one == other


def _shown(value: HyperValue) -> str:
    return json.dumps(value, ensure_ascii=False)
