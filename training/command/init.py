"""``cis490 init``: write a first plan, and show what comes next."""

import sys
from collections.abc import Sequence
from pathlib import Path

from training.checkout import INSTALLED, ROOT, SAMPLE, shipped
from training.command_line import parser_of
from training.files import cause_of
from training.printable import printable
from training.streams import complain, replace_unprintable

SAMPLES = f"demo/{SAMPLE}, from `cis490 demo`" if INSTALLED else str(ROOT / SAMPLE)
NEXT = """Written: {plan}. Next, all in this folder:
  cis490 check {plan}
  cis490 build RECORDINGS        # makes data/processed; for tables: cis490 ingest
         # to try it: {samples}
  export CIS490_OPERATOR_TOKEN=$(openssl rand -hex 32)
  cis490 receiver --manifest {plan} --db var/training_jobs.db \\
         --models-dir var/models &
  cis490 worker --receiver-url http://127.0.0.1:8445 &
  cis490 jobs watch              # cis490 jobs apply takes edits of the plan"""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the plan; return 0, or 1 if the file exists or cannot be written."""
    replace_unprintable()
    parser = parser_of("training.command.init", description="Write a first plan, and show what comes next.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("plan.toml"), help="the plan (default plan.toml)")
    parser.add_argument("--example", action="store_true", help="write the annotated example of fourteen jobs instead")
    names = parser.parse_args(argv)
    plan = shipped("etc/training_manifest.toml.example" if names.example else "examples/first_plan.toml")
    try:
        with names.file.open("xb") as file:
            file.write(plan.read_bytes())
    except OSError as error:
        complain(f"init: {names.file} cannot be written ({cause_of(error, names.file)}); name another")
        return 1
    print(NEXT.format(plan=printable(str(names.file)), samples=SAMPLES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
