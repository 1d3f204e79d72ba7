"""``cis490 VERB``: start a program of this project by its short name.

Only the program that the verb names is imported, so that each verb starts as fast as its module by itself.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from training.streams import complain, replace_unprintable

COMMAND = "cis490"
# Verb → its module, the extras that it needs, and its help.
GROUPS = {
    "Begin": {
        "demo": ("training.command.demo", "receiver,worker,trainer", "train 14 models of recorded telemetry here"),
        "init": ("training.command.init", "", "write a first plan, which can run on this machine"),
        "docs": ("training.command.docs", "", "list the pages of the documentation, or show one"),
    },
    "Data": {
        "record": ("training.watch.recording.record", "worker", "record telemetry of this machine"),
        "ingest": ("training.data.ingest", "trainer", "bring tables or windows of your own into a data set"),
        "build": ("training.data.build", "watch", "build a data set from recordings"),
    },
    "Models": {
        "check": ("training.fleet.manifest", "", "check a plan, and show every mistake at once"),
        "train": ("training.trainer.run", "trainer", "train one model here, without a fleet"),
        "score": ("training.trainer.score", "watch", "score a data set with a trained model"),
        "compare": ("training.trainer.compare", "watch", "compare trained models on the same windows"),
        "watch": ("training.watch.__main__", "watch", "watch this machine with a trained model"),
    },
    "Fleet": {
        "receiver": ("training.fleet.receiver", "receiver", "hand out a plan's jobs, and keep the models"),
        "worker": ("training.fleet.worker", "worker", "train a receiver's jobs on this machine"),
        "join": ("training.fleet.join", "worker", "get this machine's certificate"),
        "jobs": ("training.fleet.cli", "", "show the fleet, and change it"),
    },
}
VERBS = {verb: about for group in GROUPS.values() for verb, about in group.items()}
# A package by which an extra's presence is seen.
SIGNS = {"receiver": "uvicorn", "worker": "psutil", "watch": "polars", "trainer": "duckdb"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program that the verb names, and return its exit code; 1 if its extra is not installed, 2 for a verb that
    does not exist."""
    replace_unprintable()
    verb, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if verb in ("--help", "-h", "help"):
        print(usage())
        return 0
    if verb == "--version":
        from training.installed import build_of

        print(build_of(COMMAND))
        return 0
    if verb not in VERBS:
        from difflib import get_close_matches

        from training.fleet.cli.program import HELP

        meant = {each: f"{COMMAND} jobs {each}" for each in " ".join(HELP.values()).split()}
        meant |= {each: f"{COMMAND} {each}" for each in VERBS}
        nearest = get_close_matches(verb, meant, 1)
        hint = f"did you mean {meant[nearest[0]]}?" if nearest else f"see {COMMAND} --help"
        return _complain(f"no such verb: {verb}; {hint}", 2)
    module, extra, _ = VERBS[verb]
    if any(find_spec(SIGNS[each]) is None for each in extra.split(",") if each):
        from training.checkout import to_install

        return _complain(f"{verb} needs packages that are not here; run\n{to_install(extra)}", 1)
    if verb == "train" and "--model transformer_ssl" in " ".join(rest).replace("=", " "):
        module = "training.trainer.run_ssl"
    sys.argv = [f"{COMMAND} {verb}", *rest]
    code: int = import_module(module).main()
    if verb == "train":
        from training.leaving import leave

        leave(code)
    return code


def usage() -> str:
    """Return the verbs in their groups."""
    lines = [f"Usage: {COMMAND} VERB …, {COMMAND} VERB --help, {COMMAND} --version"]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {verb:10}{words}" for verb, (_, _, words) in verbs.items())]
    return "\n".join(lines)


def _complain(sentence: str, code: int) -> int:
    complain(f"{COMMAND}: {sentence}")
    return code


if __name__ == "__main__":
    sys.exit(main())
