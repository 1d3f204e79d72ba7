"""``python -m training.trainer.score CKPT DATA``: what a trained model says of new windows.

``DATA`` is a processed data set (a folder like ``data/processed``) of the schema that the model was
trained on; anything else is refused before a weight is read. Each window gets its score, the
probability of each class where the model has classes, and whether it raises an alarm.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.streams import replace_unprintable
from training.trainer.contract import BadArguments, BadData, Progress, Stop, limit_threads, perform

if TYPE_CHECKING:
    from training.trainer.inputs import Inputs
    from training.trainer.scored import Classes, Scored

FORMATS = (".csv", ".parquet", ".json")
PROGRAM = "training.trainer.score"
# What the libraries raise for bytes that are not the weights they should be; a pickle that wants to
# run code is among them, and never runs.
_NOT_WEIGHTS = (
    RuntimeError,
    ValueError,
    LookupError,
    ArithmeticError,
    TypeError,
    AttributeError,
    EOFError,
    OSError,
)


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", allow_abbrev=False, description=__doc__.split("\n")[0]
    )
    parser.add_argument("checkpoint", type=Path, help="<model>_<mode>.ckpt.json")
    parser.add_argument("data", type=Path, help="folder of a processed data set")
    parser.add_argument("--out", type=Path, help="file ending in .csv, .parquet or .json")
    parser.add_argument("--format", choices=["csv", "json"], default="csv", help="on stdout")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    names = parser.parse_args(argv)
    limit_threads(max(names.threads, 1))

    def work(_progress: Progress, _stop: Stop) -> None:
        if names.out is not None and names.out.suffix not in FORMATS:
            raise BadArguments(f"--out {names.out} must end in {', '.join(FORMATS)}")
        write(score(names.checkpoint, names.data, threads=max(names.threads, 1)), names)

    return perform(work, out=sys.stderr)


@dataclass(frozen=True, slots=True)
class Judged:
    """What a checkpoint says of every window of a data set; ``inputs`` and ``scored`` are in its order."""

    document: Mapping[str, Any]
    inputs: Inputs
    scored: Scored
    classes: Classes


def judge(checkpoint: Path, data: Path, *, threads: int = 1) -> Judged:
    """Verify the checkpoint, refuse data of another schema, and score. Raises ``BadData``."""
    import numpy as np

    from training.data.dataset import FEATURES_FILE, TENSOR_FOLDER, load_processed
    from training.data.errors import DataError
    from training.data.schema import SCHEMA_FILE
    from training.trainer import families, machine
    from training.trainer.checkpoint import read, require_schema
    from training.trainer.flags import MODELS
    from training.trainer.inputs import from_dataset
    from training.trainer.levels import Levels, baseline_scores
    from training.trainer.scored import Classes, Scored

    found = read(checkpoint)
    if found.model not in MODELS:
        raise BadData(
            f"{checkpoint} was made by {found.model!r}, which is not one of these trainers"
        )
    try:
        loaded = load_processed(
            data / FEATURES_FILE, data / TENSOR_FOLDER, data / SCHEMA_FILE, found.mode
        )
    except DataError as error:
        raise BadData(str(error)) from None
    require_schema(found, loaded.schema)
    family = families.find(found.model)
    if "torch" in family.libraries:
        machine.settle_torch(threads)
    inputs = from_dataset(loaded, takes=family.takes)
    document = found.document
    labels = document["label_map"]
    try:
        fitted = family.load(document["facts"], found.sidecar, len(labels), document["hyper"])
    except pickle.UnpicklingError:  # PyTorch's own words would tell the reader how to run it
        raise BadData(
            f"{checkpoint} holds something other than weights of {found.model}, which was not run: "
            "fetch the model anew with `cis490-jobs get`, and do not trust this file"
        ) from None
    except _NOT_WEIGHTS as error:
        cause = str(error).partition("\n")[0][:200]
        raise BadData(f"{checkpoint} holds no weights of {found.model} ({cause})") from None
    outputs = fitted.predict(inputs.X, np.arange(len(loaded)), features=inputs.features)
    if outputs.proba is not None and outputs.proba.shape[1] != len(labels):
        raise BadData(
            f"{checkpoint} names {len(labels)} classes and knows {outputs.proba.shape[1]}"
        )
    said, recorded = outputs.score, document.get("levels")
    if said is not None and recorded is not None:
        quiet = baseline_scores(fitted, inputs)
        said = Levels.elsewhere(quiet, inputs.baseline_host, recorded).applied(said, inputs.host)
    try:
        classes = Classes.of(labels, loaded.benign)
        scored = Scored.build(
            y=inputs.y,
            episode=inputs.episode,
            host=inputs.host,
            t_start=inputs.t_start,
            t_end=inputs.t_end,
            proba=outputs.proba,
            score=said,
            classes=classes,
        )
    except ValueError as error:
        raise BadData(f"{checkpoint} does not fit {data}: {error}") from None
    return Judged(document, inputs, scored, classes)


def score(checkpoint: Path, data: Path, *, threads: int = 1) -> Any:
    """A polars frame with a row a window; raises ``BadData`` for a bad checkpoint or other data."""
    import polars as pl

    judged = judge(checkpoint, data, threads=threads)
    inputs, scored, document = judged.inputs, judged.scored, judged.document
    columns: dict[str, Any] = {
        "window_id": inputs.window_id,
        "episode_id": inputs.episode_id,
        "host": inputs.host,
        "t_start": inputs.t_start,
        "t_end": inputs.t_end,
        "score": scored.score,
    }
    labels = document["label_map"]
    if scored.proba is not None:
        by_number = sorted(labels, key=lambda name: labels[name])
        columns |= {f"p_{name}": scored.proba[:, labels[name]] for name in by_number}
        columns["class"] = [by_number[k] for k in scored.proba.argmax(axis=1)]
    threshold = (document.get("threshold") or {}).get("threshold")
    columns["alarm"] = [None] * scored.y.size if threshold is None else scored.score > threshold
    return pl.DataFrame(columns, schema_overrides={"alarm": pl.Boolean})


def write(frame: Any, names: argparse.Namespace) -> None:
    if names.out is None:
        text = frame.write_json() + "\n" if names.format == "json" else frame.write_csv()
        sys.stdout.write(text)
        return
    try:
        match names.out.suffix:
            case ".csv":
                frame.write_csv(names.out)
            case ".parquet":
                frame.write_parquet(names.out)
            case _:
                frame.write_json(names.out)
    except OSError as error:
        raise BadArguments(f"{names.out} cannot be written: {error.strerror or error}") from None


if __name__ == "__main__":
    sys.exit(main())
