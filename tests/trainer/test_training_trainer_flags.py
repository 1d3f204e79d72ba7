"""The flag table: what it accepts, refuses and tells about itself."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from training import contract, families
from training import hyper as flags
from training.fleet.wire import reports
from training.trainer import arguments

pytestmark = pytest.mark.usefixtures("one_anomaly_method")

NEEDED = [
    *("--mode", "oracle", "--validation", "v", "--summary", "folder/s", "--tensors", "t"),
    *("--out-dir", "o", "--reports-dir", "r"),
]
EVERY = [(model, hyper) for model, table in families.FAMILIES.items() for hyper in table.hyper]


def parse(*argv):
    models = families.RUN_MODELS if "--model" in argv else families.SSL_MODELS
    return arguments.parse([*NEEDED, *argv], program="p", models=models)


def described(program, models):
    return families.describe(program, models)["models"]


@pytest.mark.parametrize("program", ["run", "run_ssl"])
def test_describe_needs_no_ml_library(program):
    probe = (
        "import sys, runpy; sys.argv[1:] = ['--describe']\n"
        f"try: runpy.run_module('training.trainer.{program}', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'numpy', 'xgboost', 'polars', 'sklearn', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=True, text=True)
    said = json.loads(done.stdout)
    hyper = {model: {"hyper": one["hyper"]} for model, one in said["models"].items()}
    canonical = json.dumps(hyper, sort_keys=True, separators=(",", ":"))
    assert said["digest"] == hashlib.sha256(canonical.encode()).hexdigest()
    assert said["describe_version"] == 1
    assert said["program"] == f"training.trainer.{program}"


@pytest.mark.parametrize("model", families.FAMILIES)
def test_the_code_of_each_family_is_there(model):
    family = families.FAMILIES[model]
    module = importlib.import_module(family.module)
    assert callable(module.fit)
    assert callable(module.load)
    name, _, body = family.body.partition(":")
    assert not body or callable(getattr(importlib.import_module(name), body))
    assert importlib.util.find_spec(families.preloads(model)[-1]) is not None
    assert contract.file_name(model, "oracle", family.sidecar) in contract.bundled(model, "oracle")
    for page in ("README.md", "docs/manifest.md"):
        assert f"`{model}`" in (ROOT / page).read_text(encoding="utf-8")


def test_every_family_is_described_once():
    run, ssl = described("run", families.RUN_MODELS), described("ssl", families.SSL_MODELS)
    assert sorted([*run, *ssl]) == sorted(families.FAMILIES)
    for model, told in (run | ssl).items():
        assert [*told["hyper"]] == [each.key for each in families.FAMILIES[model].hyper]
        assert "target_fpr" in told["hyper"]


def test_each_module_that_fits_and_loads_belongs_to_a_family():
    files = (ROOT / "training/trainer").glob("*.py")
    kept = re.compile(r"^def (fit\(task|load\()", re.MULTILINE)
    found = {path.stem for path in files if kept.search(path.read_text(encoding="utf-8"))}
    assert {f"training.trainer.{name}" for name in found} == {family.module for family in families.FAMILIES.values()}


@pytest.mark.parametrize(("model", "hyper"), EVERY, ids=lambda value: getattr(value, "key", value))
def test_a_default_is_a_permitted_value(model, hyper):
    text = str(hyper.default).lower() if isinstance(hyper.default, bool) else str(hyper.default)
    assert hyper.parse(text) == hyper.default
    assert type(hyper.parse(text)) is type(hyper.default)
    assert hyper.flag == "--" + hyper.key.replace("_", "-")


@given(
    st.sampled_from([hyper for _, hyper in EVERY if hyper.type in (flags.FlagType.INT, flags.FlagType.FLOAT)]),
    st.floats() | st.integers(-(10**6), 10**6).map(float),
)
def test_a_number_is_taken_exactly_when_the_description_permits_it(hyper, value):
    told = hyper.describe()
    text = str(int(value)) if value == value // 1 and abs(value) < 1e15 else repr(value)
    whole = "." not in text and "e" not in text and "n" not in text
    fits = value == value and abs(value) != float("inf")
    fits &= told["type"] == "float" or whole
    if fits and told["min"] is not None:
        fits = value > told["min"] if told["min_open"] else value >= told["min"]
    if fits and told["max"] is not None:
        fits = value < told["max"] if told["max_open"] else value <= told["max"]
    if fits:
        assert hyper.parse(text) == value
    else:
        with pytest.raises(flags.argparse.ArgumentTypeError, match="is not a"):
            hyper.parse(text)


def test_values_reach_the_trainer_by_name():
    args = parse("--model", "mlp", "--lr", "0.5", "--train-hosts", "b", "--train-hosts", "a")
    assert args.hyper["lr"] == 0.5
    assert args.train_hosts == ("a", "b")
    assert args.schema == Path("folder/feature_schema_v1.json")
    assert args.state_dir == args.out_dir
    assert parse().model == "transformer_ssl"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--model", "mlp", "--epoch", "3"], "mlp has no argument --epoch; did you mean --epochs?"),
        (["--model", "mlp", "--n-estimators", "3"], "mlp has no argument --n-estimators"),
        (["--model", "mlp", "--lr", "-1"], "'-1' is not a number above 0 and at most 10"),
        (["--model", "mlp", "--batch-size", "big"], "'big' is not a whole number at least 1"),
        (["--model", "mlp", "--lr", "nan"], "'nan' is not a number"),
        (["--model", "svm"], "invalid choice: 'svm'"),
        (["--model", "gbt", "--mode", "clairvoyant"], "invalid choice: 'clairvoyant'"),
        (["--mod", "gbt"], "has no argument --mod"),
        (["--seed", "-1"], "'-1' is not a whole number at least 0"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(argv, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        parse(*argv)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_word_is_one_of_the_choices():
    word = flags.Hyper(key="w", type=flags.FlagType.STR, default="a", choices=("a", "b"), help="")
    assert word.parse("b") == "b"
    with pytest.raises(flags.argparse.ArgumentTypeError, match="one of a, b"):
        word.parse("c")


def test_help_shows_every_flag_with_its_range(capsys):
    with pytest.raises(SystemExit) as end:
        parse("--model", "gbt", "--help")
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert all(hyper.flag in said for hyper in families.FAMILIES["gbt"].hyper)


def test_the_documentation_shows_the_table():
    page = ROOT / "docs" / "trainer-contract.md"
    assert page.read_text(encoding="utf-8").endswith(families.markdown())


def test_the_trainer_of_ones_own_keeps_the_contract(tmp_path):
    from trainer_builders import arguments as command_line
    from trainer_builders import make_data

    script = ROOT / "examples" / "own-trainer" / "centroid.py"
    describe = [sys.executable, str(script), "--describe"]
    told = subprocess.run(describe, capture_output=True, check=True, text=True)
    assert set(json.loads(told.stdout)["models"]["centroid"]["hyper"]) == {"shrink"}
    data = make_data(tmp_path / "data")
    argv = command_line("centroid", data, tmp_path, "--shrink", "0.2", "--schema")
    argv.append(str(data / "feature_schema_v1.json"))
    done = subprocess.run([sys.executable, str(script), *argv], capture_output=True, check=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "epoch"
    made = json.loads((tmp_path / "artifacts" / "centroid_oracle.json").read_text())
    assert made["accuracy"] > 0.6
    has_figures(tmp_path, "centroid")


def has_figures(folder, model):
    """The model's report ranks it: a test that is known, and an AUROC with an interval."""
    (report,) = folder.rglob(f"{model}_oracle_train.json")
    found = reports.read(report.read_bytes()).result
    assert found.auroc.value > 0.6
    assert found.auroc.low is not None
    assert found.test


def test_the_example_of_the_page_trains_and_leaves_a_report_that_is_ranked(tmp_path):
    from trainer_builders import arguments as command_line
    from trainer_builders import make_data

    page = (ROOT / "docs" / "trainer-contract.md").read_text(encoding="utf-8")
    script = tmp_path / "forest.py"
    script.write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    data = make_data(tmp_path / "data")
    argv = command_line("forest", data, tmp_path, "--trees", "20", "--schema", str(data / "feature_schema_v1.json"))
    for folder in ("artifacts", "reports"):
        (tmp_path / folder).mkdir(exist_ok=True)
    subprocess.run([sys.executable, str(script), *argv], capture_output=True, check=True, text=True, cwd=ROOT)
    has_figures(tmp_path, "forest")
    assert list(tmp_path.rglob("forest_oracle.pkl"))
