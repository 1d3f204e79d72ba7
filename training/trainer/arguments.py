"""A trainer's command line: the flags of the trainer contract, and one model's hyperparameters from
`training.families`.

Like `training.families`, the module imports only the standard library, and modules of this project that need nothing
else.
"""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from training.command_line import add_version, parser_of
from training.contract import FEATURES_FILE, SCHEMA_FILE, TENSORS_FOLDER, VALIDATION_FILE, Mode, Recipe
from training.families import FAMILIES, describe
from training.hyper import FEWEST_RESAMPLES, HyperValues, Value
from training.hyper import whole as whole_flag
from training.installed import typed

STATE_VARIABLE = "CIS490_STATE_DIR"


@dataclass(frozen=True, kw_only=True)
class TrainerArgs:
    """A trainer's checked command line."""

    model: str
    mode: Mode
    validation: Path
    summary: Path
    schema: Path
    tensors: Path
    out_dir: Path
    reports_dir: Path
    state_dir: Path
    split_recipe: Recipe
    train_hosts: tuple[str, ...]
    test_hosts: tuple[str, ...] = ()  # empty: every other host is tested
    n_resamples: int
    seed: int
    split_seed: int | None = None  # by which the split is drawn; None: by the seed
    threads: int
    device: str
    hyper: HyperValues


class _Parser(argparse.ArgumentParser):
    """A parser that ends the program with one sentence and exit code 2 for a mistake, without argparse's usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see --help)\n")


def parse(argv: Sequence[str], *, program: str, models: Sequence[str]) -> TrainerArgs:
    """Parse and check the command line of ``program``, which trains the families ``models``.

    Ends the process like argparse: with code 0 after ``--help`` and ``--describe``, with code 2 and one sentence on
    stderr for a mistake.
    """
    if "--describe" in argv:
        print(json.dumps(describe(program, models)))
        sys.exit(0)
    chooser = _Parser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--model")
    chosen = chooser.parse_known_args(argv)[0].model
    model = chosen if chosen in models else models[0]
    parser = _parser(program, models, model if chosen or len(models) == 1 else None)
    names, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(_unknown(unknown[0], parser, model))
    return _arguments(names, model)


def _unknown(flag: str, parser: argparse.ArgumentParser, model: str) -> str:
    known = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001
    nearest = difflib.get_close_matches(flag.partition("=")[0], known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{model} has no argument {flag}{hint}"


def _parser(program: str, models: Sequence[str], model: str | None) -> _Parser:
    """Build the parser of one model's command line; with ``None`` it knows only the flags that all models share."""
    parser = _Parser(
        prog=typed(program),
        allow_abbrev=False,
        usage="%(prog)s --mode MODE … (every argument is listed below)",
        description="Train one model. Progress is printed as one JSON object a line.",
        epilog=None if model else "Add --model NAME to see that model's hyperparameters.",
    )
    add_version(parser)
    single = len(models) == 1
    parser.add_argument(
        "--model",
        choices=list(models),
        required=not single,
        default=models[0] if single else None,
        help="model family to train",
    )
    _add_contract(parser, full=not single)
    parser.add_argument("--describe", action="store_true", help="print every hyperparameter as JSON and stop")
    group = parser.add_argument_group(f"hyperparameters of {model}" if model else "hyperparameters")
    for hyper in FAMILIES[model].hyper if model else ():
        group.add_argument(
            hyper.flag,
            dest="hyper_" + hyper.key,
            type=hyper.parse,
            default=hyper.default,
            metavar=hyper.type.value,
            help=f"{hyper.help}: {hyper.allowed} (default {hyper.default})",
        )
    return parser


def model_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Build a parser for a program that uses a trained model, with two arguments: the checkpoint and the number of
    threads."""
    parser = parser_of(program, description=description)
    parser.add_argument("checkpoint", type=Path, help="file <model>_<mode>.ckpt.json of a trained model")
    add_threads(parser)
    return parser


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=_whole(1, 1024), default=1, help="number of CPU threads (default 1)")


def _whole(low: int, high: int) -> Callable[[str], Value]:
    return whole_flag("number", low, low, high, "").parse


def _add_contract(parser: _Parser, *, full: bool) -> None:
    """Add the flags of the trainer contract; with ``full`` the user must name the summary."""
    beside = "" if full else " (default: beside --tensors)"
    add = parser.add_argument
    add("--mode", choices=[m.value for m in Mode], required=True, help="channels that the model may see")
    add("--validation", type=Path, required=True, help=f"file {VALIDATION_FILE}")
    add("--summary", type=Path, required=full, help=f"file {FEATURES_FILE}{beside}")
    add("--schema", type=Path, help=f"file {SCHEMA_FILE} (default: beside the summary)")
    add("--tensors", type=Path, required=True, help=f"folder {TENSORS_FOLDER}")
    add("--out-dir", type=Path, required=True, help="folder for the checkpoint")
    add("--reports-dir", type=Path, required=True, help="folder for the report")
    # A worker names it in the environment: attempts have folders of their own, what they share lies elsewhere.
    add(
        "--state-dir",
        type=Path,
        default=os.environ.get(STATE_VARIABLE),
        help=f"folder for the state of an interrupted run (default: ${STATE_VARIABLE}, else --out-dir)",
    )
    recipe = (
        "host: test on other hosts; sample: on random episodes (default); time: on the latest ones; behaviour: like "
        "host, and train again without each malicious-like behaviour, to measure how much of it is then caught"
    )
    add("--split-recipe", choices=[r.value for r in Recipe], default="sample", help=recipe)
    left_out = "host to test on, other hosts are left out (default: every host that does not train)"
    for flag, text in (
        ("--train-hosts", "host to train on, with --split-recipe host or behaviour"),
        ("--test-hosts", left_out),
    ):
        add(flag, action="append", default=[], metavar="HOST", help=f"{text}; may be repeated")
    few = f"number of bootstrap resamples (default 1000); fewer than {FEWEST_RESAMPLES} give intervals of rates only"
    add("--n-resamples", type=_whole(0, 1_000_000), default=1000, help=few)
    add("--seed", type=_whole(0, 2**31 - 1), default=0, help="seed of all random choices (default 0)")
    add("--split-seed", type=_whole(0, 2**31 - 1), help="seed of the split alone (default: --seed)")
    add_threads(parser)
    add(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="device that trains (default auto: CUDA, if there is one, for families that gain by it)",
    )


def _arguments(names: argparse.Namespace, model: str) -> TrainerArgs:
    given = vars(names)
    hyper = {each.key: given.pop("hyper_" + each.key) for each in FAMILIES[model].hyper}
    del given["describe"]
    given["summary"] = names.summary or names.tensors.parent / FEATURES_FILE
    given["schema"] = names.schema or names.summary.parent / SCHEMA_FILE
    given["state_dir"] = names.state_dir or names.out_dir
    given |= {key: tuple(sorted(set(given[key]))) for key in ("train_hosts", "test_hosts")}
    given |= {"mode": Mode(names.mode), "split_recipe": Recipe(names.split_recipe)}
    return TrainerArgs(**given, hyper=hyper)
