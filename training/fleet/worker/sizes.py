"""The folders on a worker's disk that grow: the size and limit of each, and the command that makes room if there is
one."""

from collections.abc import Iterator
from pathlib import Path

from training.fleet.worker import outbox, saved_states, set_aside, state_folder
from training.fleet.worker.options import Options
from training.printable import size
from training.sizes import Grown, measured, walk


def grown(options: Options) -> Iterator[Grown]:
    """Yield, for each kind of file that accumulates on this worker's disk, number, size, limit and, if there is one,
    the command that makes room; links are not followed."""
    own, state = options.places, options.state_dir
    ended = f"what is delivered goes; the rest of the newest {state_folder.KEPT_ATTEMPTS} attempts"
    yield _below("files that trainers made, in", own.artifacts, ended, without=state)
    yield _below("files that trainers reported, in", own.reports, f"the newest {state_folder.KEPT_ATTEMPTS} attempts")
    yield _below(
        "files that trainers saved to resume from, in",
        options.resume,
        f"{saved_states.KEPT_MAX} jobs, {size(saved_states.BYTES_MAX)} besides the newest, two weeks; until jobs end",
    )
    output = f"{outbox.ATTEMPTS_KEPT} attempts, {size(outbox.BYTES_KEPT)}"
    yield _below("files of output, also undelivered, in", options.outbox, output)
    yield _below(
        "files of finished work that was refused, in",
        options.aside,
        f"{set_aside.KEPT_MAX} trainings and {size(set_aside.BYTES_MAX)}",
        options.typed("--deliver", "JOB"),
    )
    yield _below(
        "files of data sets, in",
        options.cache_dir,
        f"--cache-gib, {size(options.cache_bytes)}; the least recently used goes first",
    )


def _below(what: str, root: Path, bound: str, verb: str = "", *, without: Path | None = None) -> Grown:
    paths = (Path(each.path) for each in walk(root))
    return measured(f"{what} {root}:", (each for each in paths if without not in each.parents), bound, verb)
