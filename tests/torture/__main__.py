"""``python -m tests.torture``: the long runs, part by part, and the record they leave."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # one name for these modules: `torture`

import places  # noqa: F401 - puts the folders of tests on the module path

from torture.parts import PARTS
from torture.runner import run_part


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__, allow_abbrev=False)
    names = [part.name for part in PARTS]
    parser.add_argument("--part", action="append", choices=names, help="only this one; may be repeated")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", default=True, help="hours (default)")
    size.add_argument("--quick", dest="full", action="store_false", help="minutes")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--out", type=Path, default=Path("torture.json"), help="the record; parts are added to what it holds"
    )
    parser.add_argument("--resume", action="store_true", help="go on with what the record lacks of each part")
    return parser


def main() -> int:
    """0 when nothing was broken."""
    options = _parser().parse_args()
    record: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    bad = False
    for part in PARTS:
        if options.part and part.name not in options.part:
            continue
        before = record.get(part.name) if options.resume else None
        for found in run_part(part, full=options.full, jobs=options.jobs, before=before):
            record[part.name] = found
            options.out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        found = record.get(part.name, {"counts": {}, "seconds": 0, "broken": []})
        bad |= bool(found["broken"])
        print(f"{part.name}: {found['counts']} in {found['seconds']} s, {len(found['broken'])} broken")
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
