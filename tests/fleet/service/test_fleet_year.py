"""A year of 14 jobs a night on 5 hosts: how large the receiver's database and the bookkeeping of its store become."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from builders import a_beat, a_worker_claim, some_lines
from fakes import FakeClock
from retention_running import DAY_S, House

from training.fleet.manifest.checks import check_retention
from training.fleet.manifest.reader import TomlTable
from training.fleet.manifest.toml import parse
from training.fleet.scheduling.retention import RemovalKind
from training.fleet.wire.attempts import Usage

NIGHTS, JOBS, HOSTS = 365, 14, 5
EPOCHS, LINES, BEATS = 60, 100, 60
MIB = 1024**2
PAGE = Path(__file__).parents[3] / "docs" / "manifest.md"
MODELS = ("gbt", "mlp", "cnn", "gru", "lstm", "transformer", "transformer_ssl")


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path / "state", FakeClock())
    yield made
    made.close()


def a_night_s_job(house):
    """One job through the production code: half an hour, an epoch, some lines and a sample with each heartbeat."""
    house.enter("template", hyper={"epochs": EPOCHS}, dataset="d" * 64)
    claim = house.service.claim(a_worker_claim("pi"))
    job_id, claim_id = str(claim.job_id), str(claim.claim_id)
    line = 0
    for beat in range(BEATS):
        house.clock.advance(30.0)
        progress = {
            "event": "epoch",
            "epoch": beat,
            "epochs": EPOCHS,
            "loss": 0.1234,
            "metric": 0.8765,
            "seconds": 30.0,
        }
        said = [json.dumps(progress), f"[I 2026-01-01 03:00:{beat:02}] a line as a trainer prints it"]
        lines = some_lines(*said[: 2 if beat < LINES - BEATS else 1], first=line)
        usage = {"cpu": 3.5, "memory_bytes": 10**9, "gpu": 0.5, "gpu_memory_bytes": 10**9}
        beat_of = a_beat(claim_id, seq=beat + 1, host_id="pi", log=lines, progress=progress, usage=Usage(**usage))
        house.service.heartbeat(job_id, beat_of)
        line += len(lines.lines)
    house.deliver(job_id, claim_id, b"bundle")


def a_year(house):
    """Copy that job's rows, with ids and times of their own, to every night of the year."""
    connection = house.queue._conn
    each = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {NIGHTS * JOBS})"
    later = f"i / {JOBS} * {DAY_S} + i % {JOBS} * 60.0"
    connection.execute(f"CREATE TEMP TABLE nights AS {each} SELECT i, {later} AS later FROM n")
    model = "CASE i % 7 " + " ".join(f"WHEN {n} THEN '{name}'" for n, name in enumerate(MODELS)) + " END"
    mode = "CASE i / 7 % 2 WHEN 0 THEN 'realistic' ELSE 'oracle' END"
    fresh = {
        "job_id": "printf('%064x', i + 1)",
        "artifact_id": "printf('%064x', i + 1000000)",
        "claim_id": "CASE WHEN claim_id IS NULL THEN NULL ELSE printf('%032x', i + 1) END",
        "request_id": "printf('%032x', i + 1)",
        "name": "printf('transformer-realistic-%06d', i)",
        "host": f"'host-' || (i % {HOSTS})",
        "worker_hostname": f"'host-' || (i % {HOSTS})",
        "model": model,
        "mode": mode,
    }
    connection.execute("BEGIN")
    for trigger in [row[0] for row in connection.execute("SELECT name FROM sqlite_temp_schema WHERE type = 'trigger'")]:
        connection.execute(f"DROP TRIGGER {trigger}")  # their checksums: any number is as long
    for table in ("jobs", "attempts", "events", "artifacts", "log_chunks", "curve_points", "usage_samples"):
        names = [(row[1], row[5]) for row in connection.execute(f"PRAGMA table_info({table})")]
        alone = [name for name, key in names if key] == ["seq"]
        values = [
            "NULL" if name == "seq" and alone else fresh.get(name, f"{name} + later" if name.endswith("at") else name)
            for name, _ in names
        ]
        connection.execute(f"INSERT INTO {table} SELECT {', '.join(values)} FROM {table}, nights WHERE "
            "job_id = 'id-template' ORDER BY i")  # fmt: skip
    connection.execute("COMMIT")


class Shelf:
    """The store as retention uses it, without five thousand folders."""

    noted = 0

    def note_removed(self, _removed):
        self.noted += 1

    def remove(self, _artifact):
        pass

    settle_removed = remove


def used(house):
    """Bytes of the pages in use; the file itself does not shrink, and they are used again."""
    pages, free, size = (
        house.queue._conn.execute(f"PRAGMA {each}").fetchone()[0]
        for each in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


@pytest.mark.thorough
def test_a_year_stays_as_small_as_the_page_says(house):
    text = PAGE.read_text(encoding="utf-8")
    example = re.search(r"```toml\n(\[retention\].*?)```", text, re.DOTALL)
    stated = re.search(r"the database is below\s+(\d+)\s+MiB;\s+without\s+it\s+(\d+)\s+MiB", text)
    a_night_s_job(house)
    a_year(house)
    everything = used(house)
    problems = []
    rules = check_retention(TomlTable(parse(example[1]).values, (), problems))
    assert problems == []
    house.clock.advance(NIGHTS * DAY_S)
    house.service.host_registry.plan = type(house.service.plan)(retention=rules)
    shelf = house.retention._store = Shelf()
    gone = house.run(house.retention.collect())
    kept = used(house)
    kinds = {kind: sum(each.kind is kind for each in gone) for kind in RemovalKind}
    assert shelf.noted == kinds[RemovalKind.BUNDLE]
    print(f"{everything / MIB:.1f} MiB, after retention {kept / MIB:.1f}; gone: {kinds}")
    assert kinds[RemovalKind.BUNDLE] > (NIGHTS - 7) * JOBS - (4 + HOSTS) * JOBS
    assert kept < int(stated[1]) * MIB
    assert everything < int(stated[2]) * MIB
    assert kept < 0.8 * everything
    assert house.run(house.retention.collect()) == []
