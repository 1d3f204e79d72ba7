"""The page of executors shows what the last run on real engines recorded, of which nothing failed."""

from __future__ import annotations

import importlib.util
import json

from places import ROOT, TESTS


def test_the_page_shows_the_record_of_every_engine():
    spec = importlib.util.spec_from_file_location("engines_main", TESTS / "engines" / "__main__.py")
    engines = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engines)
    record = json.loads((ROOT / "docs" / "engines.json").read_text(encoding="utf-8"))
    page = engines.PAGE.read_text(encoding="utf-8")
    assert engines.rendered(page, record) == page, "run `python -m tests.engines --show`"
    assert [name for name, run in record.items() if run["failed"] or not run["passed"]] == []
    for engine in engines.ENGINES:
        assert (TESTS / "engines" / f"on_{engine}.py").exists()
