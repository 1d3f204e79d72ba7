"""A wheel of this checkout, installed where no checkout is: it runs whole, and trains as the checkout does."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from places import ROOT
from process_fleet import ProcessFleet

from training import checkout, leaving
from training.command import program
from training.contract import FEATURES_FILE, TENSORS_FOLDER, VALIDATION_FILE
from training.installed import build_of, torch_build

EPISODES = 16  # of the sample's
MOST_BYTES = 2 * 1024**2
DATA = {"validation": VALIDATION_FILE, "summary": FEATURES_FILE, "tensors": TENSORS_FOLDER}
PLAN = """
schema_version = 1
name = "tiny"
[[jobs]]
name = "small"
model = "gbt"
mode = "realistic"
n_resamples = 0
hyper.n_estimators = 4
"""
pytestmark = pytest.mark.skipif(os.name != "posix", reason="scripts of a virtual environment of POSIX")


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the wheel, which `make wheel` builds in the checkout itself, and with the archive of the sample."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    for name in ("training", "docs", "etc", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    git = ROOT / ".git"
    (copy / ".git").write_text(git.read_text() if git.is_file() else f"gitdir: {git}\n")
    (copy / "build" / "lib" / "training").mkdir(parents=True)
    (copy / "build" / "lib" / "training" / "gone.py").write_text("of an earlier build")
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder / "dist", copy], check=True)
    archive = folder / "dist" / "cis490-telemetry-sample"
    shutil.make_archive(str(archive), "zip", ROOT, checkout.SAMPLE)
    return folder / "dist"


@pytest.fixture(scope="module")
def cis490(dist):
    """The command in an environment that has this one's packages, and of this project the wheel alone."""
    venv.create(dist / "venv", with_pip=False)
    python = dist / "venv" / "bin" / "python"
    (wheel,) = dist.glob("*.whl")
    assert wheel.stat().st_size < MOST_BYTES
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", python]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True)
    (packages,) = dist.glob("venv/lib/*/site-packages")
    (packages / "packages.pth").write_text(str(Path(msgspec.__file__).parents[1]))
    return python.with_name("cis490")


@pytest.mark.parametrize("verb", program.VERBS)
def test_every_verb_starts_its_program_or_names_what_it_lacks(verb, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    with contextlib.suppress(SystemExit):
        program.main([verb, "--version"])
    assert capsys.readouterr().out == f"{build_of(f'cis490 {verb}')}\n"
    monkeypatch.setattr(program, "find_spec", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    extras = program.VERBS[verb][1]
    if extras:
        assert program.main([verb]) == 1
        said = capsys.readouterr().err
        assert f"[{extras}]" in said
        assert f" -c {checkout.shipped('constraints.txt')} " in said
    assert torch_build() == "without torch"


@pytest.mark.parametrize(
    ("words", "module"),
    [("--model gbt", "run"), ("--model transformer_ssl", "run_ssl"), ("--seed=1 --model=transformer_ssl", "run_ssl")],
)
def test_the_verb_train_starts_the_program_of_the_family(words, module, monkeypatch):
    started = []
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(leaving, "leave", started.append)
    monkeypatch.setattr(program, "import_module", lambda name: SimpleNamespace(main=lambda: started.append(name)))
    program.main(["train", *words.split()])
    assert started == [f"training.trainer.{module}", None]


def test_a_wheel_trains_where_no_checkout_is(cis490, dist, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "executable", str(cis490.with_name("python")))

    def run(*words, code=0):
        done = subprocess.run([cis490, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    commit = checkout.checkout_commit(ROOT)
    said = run("--version")
    assert f"commit {commit[:12]}, torch " in said
    assert run("train", "--version") == run("jobs", "--version").replace("jobs", "train") == f"cis490 train{said[6:]}"
    assert "a model" in run("docs", "watch")
    assert "did you mean cis490 record?" in run("recrod", code=2)
    assert "did you mean cis490 jobs status?" in run("statsu", code=2)
    assert "Written: plan.toml" in run("init")
    assert "exists" in run("init", code=1)
    assert [job["name"] for job in json.loads(run("check", "plan.toml", "--json"))["jobs"]]

    install = [sys.executable, "-m", "training.fleet.install", "receiver", "--dry-run"]
    said = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "write /etc/systemd/system/cis490-trainer-receiver.service" in said
    assert "whole checkout" not in said

    shown = "from pathlib import Path; from training.command.sample import sample; print(sample(Path('demo'), None))"
    fetched = subprocess.check_output([sys.executable, "-c", shown], cwd=tmp_path, text=True).strip()
    for archive in sorted((tmp_path / fetched).glob("*.zst"))[:EPISODES]:
        (tmp_path / "few").mkdir(exist_ok=True)
        shutil.copy(archive, tmp_path / "few")
    run("build", "few")
    data = [f"--{name}=data/processed/{file}" for name, file in DATA.items()]
    run("train", "--model", "gbt", "--mode", "realistic", "--n-resamples", "0", "--n-estimators", "4", *data,
        "--out-dir", "alone", "--reports-dir", "alone")  # fmt: skip
    trained = json.loads((tmp_path / "alone" / "gbt_realistic.ckpt.json").read_text())
    assert trained["run_key"]["code"] == checkout.code_digest()

    fleet = ProcessFleet(tmp_path)
    try:
        monkeypatch.setenv("CIS490_OPERATOR_TOKEN", "only-for-this-test")
        fleet.serve(str(cis490), "receiver", "--db", "jobs.db", "--models-dir", "models")
        (tmp_path / "tiny.toml").write_text(PLAN)
        assert "small" in run("jobs", "--receiver-url", fleet.url, "apply", "tiny.toml", "--yes")
        fleet.run(str(cis490), "worker", "--receiver-url", fleet.url, "--host-id", "here", log="worker.log")
        run("jobs", "--receiver-url", fleet.url, "wait", "small")
        job = fleet.job("small")["job"]
        (worker,) = fleet.client.workers()["workers"]
    finally:
        fleet.close()
    assert job["status"] == "completed"
    assert worker["capability"]["training_commit"] == commit
