"""The operator's manifest: read it, check it key by key, and turn it into jobs.

``load_manifest`` returns a plan without a mistake, or raises :class:`ManifestError` with the mistakes found, each with
file, key and, where known, line and suggestion. ``python -m training.fleet.manifest FILE [--json]`` prints the plan's
jobs, or the mistakes.
"""

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

from training.command_line import parser_of
from training.fleet.capability.describe import (
    PROGRAMS,
    DescribeError,
    Describer,
    HyperFlag,
    ProcessDescriber,
    describe_command,
)
from training.fleet.manifest.checks import Trainers, check_plan, check_trainers
from training.fleet.manifest.notes import notes
from training.fleet.manifest.reader import TomlTable, UnplacedMistake, path_text
from training.fleet.manifest.toml import UnreadableError, parse, read_source
from training.fleet.manifest.types import JobSpec, Manifest, ManifestError, Mistake, TrainerSpec
from training.fleet.wire.dataset_listing import ID as DATASET_ID
from training.fleet.wire.dataset_listing import Catalogue
from training.printable import counted, say
from training.streams import complain, replace_unprintable
from training.strict_json import Json, JsonObject

MISTAKES_MAX = 1000  # mistakes reported: a file that is no manifest has many, and the answer must fit into a message
_SAYS_NOTHING = "says nothing, as a file that an editor or a sync has not finished writing"


@cache
def default_describer() -> Describer:
    """Return the object that asks the installed trainers for their flags; this process has only one, which caches the
    answers."""
    return ProcessDescriber()


def load_manifest(
    path: str | Path, *, describer: Describer | None = None, datasets: Catalogue | None = None
) -> Manifest:
    """Read and check the file ``path`` and return the plan. Raises :class:`ManifestError` with the mistakes that were
    found.

    Without ``datasets`` the plan's references to data sets stay as written.
    """
    path = Path(path)
    return parse_manifest(read_manifest(path), path=path, describer=describer or default_describer(), datasets=datasets)


def read_manifest(path: Path) -> str:
    """Return the text of the file ``path``. Raises :class:`ManifestError` if it cannot be read."""
    try:
        return read_source(path)
    except UnreadableError as error:
        raise ManifestError(_located([error.problem], path, "")) from None


def parse_manifest(source: str, *, path: Path, describer: Describer, datasets: Catalogue | None = None) -> Manifest:
    """Check the text ``source`` and return the plan. Raises :class:`ManifestError` with the mistakes that were found,
    in which the file is called ``path``."""
    problems: list[UnplacedMistake] = []
    try:
        with ThreadPoolExecutor(1) as beside:  # they start while a long plan is read
            asked = beside.submit(_builtin, describer)
            document = parse(source)
            root = TomlTable(document.values, (), problems)
            builtin = asked.result()
    except DescribeError as error:
        hint = "run the command by hand to see why"
        unknown = UnplacedMistake((), f"the trainers' flags are not known: {error}", hint)
        raise ManifestError(_located([*document.problems, unknown], path, source)) from None
    if not document.values and not document.problems:  # perhaps the file is being written
        nothing = UnplacedMistake((), _SAYS_NOTHING, "a plan without jobs has the line: jobs = []")
        raise ManifestError(_located([nothing], path, source))
    own = check_trainers(root, builtin.flags)
    trainers = _with_own(builtin, own, describer, problems)
    plan = check_plan(root, trainers, datasets, stem=path.stem.removesuffix(".toml"))
    if document.partial:  # a missing key may be in an unreadable line
        problems = [problem for problem in problems if not problem.missing]
    problems = document.problems + problems
    if problems:
        raise ManifestError(_located(problems, path, source))
    return plan


def check_values(values: Json, *, path: Path, describer: Describer, datasets: Catalogue | None = None) -> Manifest:
    """Check a plan that was read on another machine; raises :class:`ManifestError` with the mistakes that were found,
    without lines.

    Only built-in trainers are asked for their flags, so the hyperparameters of custom trainers are checked only in
    their form. Channels are not checked, because they name files on the other machine.
    """
    problems = [
        UnplacedMistake(("jobs", index, key), "cannot be sent", "send each of its jobs separately")
        for index, job in enumerate(values.get("jobs", ()))
        for key in ("matrix", "rotate")
        if key in job
    ]
    if problems:  # which would be as many jobs as it says
        raise ManifestError(_located(problems, path, ""))
    root = TomlTable({key: value for key, value in values.items() if key != "notify"}, (), problems)
    try:
        builtin = _builtin(describer)
    except DescribeError as error:
        raise ManifestError([Mistake(str(path), None, "", f"the trainers' flags are not known: {error}")]) from None
    own = check_trainers(root, builtin.flags)
    trainers = replace(builtin, flags={**dict.fromkeys(own), **builtin.flags}, own=own)
    plan = check_plan(root, trainers, datasets, stem=path.stem)
    if problems:
        raise ManifestError(_located(problems, path, ""))
    return plan


def _builtin(describer: Describer) -> Trainers:
    """Ask the programs of the built-in trainers for their flags, and return the answers as :class:`Trainers`. Raises
    DescribeError."""
    told = {program: describer(describe_command(program)) for program in PROGRAMS}
    return Trainers(
        flags={model: hyper for each in told.values() for model, hyper in each.models.items()},
        programs=told,
        bound_by={model: sort for each in told.values() for model, sort in each.bound_by.items()},
    )


def _with_own(
    builtin: Trainers, own: Mapping[str, TrainerSpec], describer: Describer, problems: list[UnplacedMistake]
) -> Trainers:
    """Return the built-in trainers and the custom ones, ``own``, which are asked for their flags. Flags are None for a
    trainer without ``describe``, or if that command fails; the failure is added to ``problems``."""
    flags: dict[str, Mapping[str, HyperFlag] | None] = dict.fromkeys(own)
    bound_by = dict(builtin.bound_by)
    for name, trainer in own.items():
        if trainer.describe:
            try:
                description = describer(trainer.describe)
                described = _described(name, description.models)
                flags[name] = description.models[described]
                if described in description.bound_by:
                    bound_by[name] = description.bound_by[described]
            except DescribeError as error:
                hint = "fix the command, or leave `describe` out to skip the check"
                problems.append(UnplacedMistake(("trainers", name, "describe"), str(error), hint))
    return replace(builtin, flags=flags | dict(builtin.flags), own=own, bound_by=bound_by)


def _described(name: str, models: Collection[str]) -> str:
    """Return the described model that belongs to the custom trainer ``name``: the model of that name, or else the only
    model. Raises DescribeError if there is neither."""
    if name not in models and len(models) != 1:
        raise DescribeError(f"the description has no model `{name}`")
    return name if name in models else next(iter(models))


def _located(problems: Sequence[UnplacedMistake], path: Path, source: str) -> list[Mistake]:
    """Return the problems as mistakes with file and line, sorted by line; beyond MISTAKES_MAX only their number."""
    from training.fleet.manifest.positions import Positions

    positions = Positions(source)
    mistakes = [
        Mistake(
            file=str(path),
            line=problem.line or positions.line(problem.path),
            key=path_text(problem.path),
            message=problem.message,
            suggestion=problem.suggestion,
        )
        for problem in problems
    ]
    mistakes.sort(key=lambda mistake: (mistake.line or 0, mistake.key))
    if len(mistakes) > MISTAKES_MAX:
        rest = f"and {len(mistakes) - MISTAKES_MAX} more mistakes"
        mistakes[MISTAKES_MAX:] = [Mistake(str(path), None, "", rest)]
    return mistakes


def main(argv: Sequence[str] | None = None) -> int:
    """Check a manifest and print how many jobs it has, or its mistakes; return exit code 0, or 2 if it has mistakes."""
    replace_unprintable()
    parser = parser_of(
        "training.fleet.manifest",
        description="Check a manifest and count its jobs; if it has mistakes, print these, and end with exit code 2.",
    )
    parser.add_argument("file", type=Path, help="the manifest (TOML)")
    parser.add_argument("--json", action="store_true", help="print the jobs, or the mistakes, as JSON")
    args = parser.parse_args(argv)
    try:
        plan = load_manifest(args.file)
    except ManifestError as error:
        if args.json:
            say(json.dumps({"mistakes": [m.to_dict() for m in error.mistakes]}, indent=2))
        else:
            complain(error)
        return 2
    for note in notes(plan):
        complain(f"note: {note}")
    say(json.dumps(_offline(plan), indent=2) if args.json else f"{counted(len(plan.jobs), 'jobs')}, no mistakes")
    return 0


def _is_known(job: JobSpec) -> bool:
    """Tell whether the job's id can be computed on this machine, because its data set is absent or given as an id. Only
    the receiver can resolve a data set's name."""
    return job.dataset is None or DATASET_ID.fullmatch(job.dataset) is not None


def _offline(plan: Manifest) -> JsonObject:
    """Return the plan as JSON values, with None for the ids of jobs that only the receiver can compute."""
    whole = plan.to_dict()
    for job, spec in zip(plan.jobs, whole["jobs"], strict=True):
        spec["job_id"] = spec["job_id"] if _is_known(job) else None
    return whole


if __name__ == "__main__":
    sys.exit(main())
