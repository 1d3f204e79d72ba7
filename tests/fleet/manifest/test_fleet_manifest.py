"""The manifest: what loads, what is refused and in which words, and what a job's id depends on."""

import contextlib
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from builders import a_job
from hypothesis import given
from hypothesis import strategies as st
from places import CHILDREN, ROOT

from training import families
from training.contract import spec_hash
from training.fleet.capability import describe
from training.fleet.capability.describe import (
    DescribeError,
    Description,
    FlagType,
    HyperFlag,
    ProcessDescriber,
    describe_command,
    parse_description,
)
from training.fleet.manifest import load as manifest
from training.fleet.manifest import toml as manifest_syntax
from training.fleet.manifest.load import ManifestError, load_manifest
from training.locking import exclusive

EXAMPLE = ROOT / "etc" / "training_manifest.toml.example"
HEAD = 'schema_version = 1\nname = "plan"\n'


class TableDescriber:
    """Answers from the trainers' table itself, without a process; further commands are given."""

    def __init__(self, **further):
        self.further = further

    def __call__(self, command):
        if tuple(command) == describe_command("training.trainer.run"):
            models = families.RUN_MODELS
        elif tuple(command) == describe_command("training.trainer.run_ssl"):
            models = families.SSL_MODELS
        elif command[0] in self.further:
            return self.further[command[0]]
        else:
            raise DescribeError(f"`{command[0]}` cannot be started: no such file")
        return parse_description(json.dumps(families.describe(command[2], models)))


def load(text, **further):
    return manifest.parse_manifest(text, path=Path("plan.toml"), describer=TableDescriber(**further))


def mistakes(text, **further):
    with pytest.raises(ManifestError) as caught:
        load(text, **further)
    return caught.value.mistakes


def only(text, **further):
    (mistake,) = mistakes(text, **further)
    return mistake


def job(more="", *, model="cnn", name="a"):
    return f'[[jobs]]\nname = "{name}"\nmodel = "{model}"\nmode = "oracle"\n{more}\n'


def job_id(more="", *, head=HEAD, model="cnn", name="a"):
    return load(head + job(more, model=model, name=name)).jobs[0].job_id


# --- what loads --------------------------------------------------------------------------------------


def test_the_example_has_fourteen_jobs_with_fourteen_ids():
    plan = load_manifest(EXAMPLE, describer=TableDescriber())
    assert len(plan.jobs) == 14
    assert len({job.job_id for job in plan.jobs}) == 14
    assert {job.model for job in plan.jobs} <= set(families.FAMILIES)
    assert set(plan.hosts) == {"office-print", "spectral-desktop"}
    assert plan.hosts["office-print"].allow_jobs == ("gbt", "mlp")
    assert plan.hosts["spectral-desktop"].priority == 100
    cuda = {job.model: (job.require_cuda, job.prefer_cuda) for job in plan.jobs}
    assert cuda.pop("gbt") == cuda.pop("mlp") == (False, False)
    assert cuda.pop("cnn") == (False, True)
    assert set(cuda.values()) == {(True, False)}
    by_model = {job.model: job.priority for job in plan.jobs}
    assert (by_model["gbt"], by_model["transformer_ssl"]) == (100, 40)


def test_a_job_dict_has_every_key_in_plain_values():
    text = HEAD + job('hyper.epochs = 60\nallowed_hosts = ["x"]\nmin_vram_gib = 4')
    spec = load(text).jobs[0].to_dict()
    assert json.loads(json.dumps(spec)) == spec
    assert spec.keys() >= a_job().keys()
    assert spec["hyper"] == {"epochs": 60}
    assert spec["allowed_hosts"] == ["x"]
    assert spec["job_id"] == spec_hash(spec)
    assert isinstance(spec["min_vram_gib"], float)


def test_optional_keys_have_documented_defaults():
    plan = load(job())
    only_job = plan.jobs[0]
    assert plan.name == "plan"
    assert (only_job.split_recipe, only_job.train_hosts) == ("sample", ())
    assert (only_job.seed, only_job.n_resamples, only_job.priority) == (0, 1000, 0)
    assert load("jobs = []").jobs == ()


def test_limits_on_trainers_are_inherited_and_told_only_where_they_are_set():
    head = f"{HEAD}[defaults]\nmax_run_s = 7200\nmax_silence_s = 600\n"
    inherits, says = load(head + job() + job("max_run_s = 0\nseed = 1", name="b")).jobs
    assert (inherits.to_dict()["max_run_s"], inherits.to_dict()["max_silence_s"]) == (7200, 600)
    assert (says.to_dict()["max_run_s"], says.to_dict()["max_silence_s"]) == (0, 600)
    assert not {"max_run_s", "max_silence_s", "dataset"} & load(HEAD + job()).jobs[0].to_dict().keys()


def test_the_users_own_style_loads():
    plan = load(
        HEAD
        + """
        [defaults]
        split_recipe = "host"
        train_hosts = ["lab-b", "lab-a", "lab-b"]
        [hosts.pi]
        allow_jobs = []
        deny_jobs = []
        cuda = false
        max_cores = 3
        [[jobs]]
        name = "ssl, the large one"
        model = "transformer_ssl"
        mode = "realistic"
        allowed_hosts = []
        train_hosts = []
        hyper.target_fpr = 0.01
        hyper.epochs = 60
        [[jobs]]
        name = "by time"
        model = "gbt"
        mode = "oracle"
        split_recipe = "time"
        [jobs.hyper]
        max_depth = 3
        """
    )
    first, second = plan.jobs
    assert first.hyper == {"target_fpr": 0.01, "epochs": 60}
    assert first.train_hosts == ("lab-a", "lab-b")
    assert (second.split_recipe, second.train_hosts) == ("time", ())
    assert plan.hosts["pi"].to_dict() == {"name": "pi", "cuda": False, "max_cores": 3}


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xef\xbb\xbf" + (HEAD + job()).replace("\n", "\r\n").encode())
    assert load_manifest(path, describer=TableDescriber()).jobs[0].name == "a"


# --- ids ---------------------------------------------------------------------------------------------


def test_the_ids_of_jobs_never_change():
    jobs = {
        'model = "gbt"\nhyper = { max_depth = 4.0, lr = 1e-2 }\nmode = "realistic"': "e3d4c3fe95174706",
        'model = "cnn"\ntest_hosts = ["desk"]\nmin_ram_gib = 2\nallowed_hosts = ["pi"]': "5d8e7cc021d85ec3",
        'model = "transformer_ssl"\nsplit_recipe = "sample"\nseed = 0\nmax_run_s = 60\nthreads = 2\n'
        f'dataset = "{"ab" * 32}"': "cd9f48bd89dd11fe",
        'model = "mine"\nmode = "realistic"\nhyper.speed = "x"\nn_resamples = 0': "57b927c8059ab1a6",
    }
    head = """
        [defaults]
        split_recipe = "host"
        train_hosts = ["rack", "attic-pi"]
        seed = 3
        [trainers.mine]
        command = ["python3", "-m", "mine"]
        """
    for number, (text, begins) in enumerate(jobs.items()):
        mode = "" if "mode =" in text else 'mode = "oracle"\n'
        (made,) = load(f'{HEAD}{head}\n[[jobs]]\nname = "{number}"\n{mode}{text}').jobs
        assert made.job_id.startswith(begins)


BASE = "hyper.epochs = 60\nhyper.lr = 0.01\nseed = 3"


@pytest.mark.parametrize(
    "same",
    [
        "seed   =   3\nhyper = { lr = 1e-2, epochs = 60 }",
        "hyper.epochs = 60.0\nhyper.lr = 0.010\nseed = 3.0",
        BASE + '\npriority = 9\nmin_ram_gib = 2\nn_resamples = 500\nallowed_hosts = ["x"]',
        BASE + "\nmax_run_s = 3600\nmax_silence_s = 60",
    ],
)
def test_an_id_does_not_depend_on_spelling_or_constraints(same):
    assert job_id(same, name="other") == job_id(BASE)


@pytest.mark.parametrize(
    ("value", "in_job", "in_defaults"),
    [
        ("seed", "seed = 5", "seed = 5"),
        ("split_seed", "split_seed = 0", "split_seed = 0"),
        ("hosts", 'split_recipe = "host"\ntrain_hosts = ["b", "a"]', 'split_recipe = "host"\ntrain_hosts = ["a", "b"]'),
        ("recipe", 'split_recipe = "time"', 'split_recipe = "time"\ntrain_hosts = ["a"]'),
    ],
)
def test_an_id_does_not_depend_on_where_a_value_stands(value, in_job, in_defaults):
    assert job_id(in_job) == job_id(head=f"{HEAD}[defaults]\n{in_defaults}\n")
    assert job_id(in_job) != job_id()


@pytest.mark.parametrize("other", ["hyper.epochs = 61", "seed = 4", 'split_recipe = "time"'])
def test_an_id_depends_on_what_determines_the_model(other):
    assert len({job_id(), job_id(other), job_id(model="gru")}) == 3


def test_an_id_depends_on_every_training_host_and_not_on_their_order():
    recipe = 'split_recipe = "host"\ntrain_hosts = '
    assert job_id(recipe + '["a", "b"]') == job_id(recipe + '["b", "a", "b"]')
    assert len({job_id(recipe + hosts) for hosts in ('["a"]', '["a", "b"]', '["a", "c"]')}) == 3


def test_zero_has_one_id_whatever_its_sign():
    assert job_id("hyper.dropout = -0.0") == job_id("hyper.dropout = 0")


@given(st.permutations(["epochs = 5", "lr = 0.5", "dropout = 0", "batch_size = 8"]), st.booleans())
def test_the_order_of_hyper_keys_never_matters(order, inline):
    text = "hyper = {" + ", ".join(order) + "}" if inline else "[jobs.hyper]\n" + "\n".join(order)
    expected = "hyper.batch_size = 8\nhyper.dropout = 0.0\nhyper.epochs = 5\nhyper.lr = 0.5"
    assert job_id(text) == job_id(expected)


# --- what is refused, and in which words ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "key", "message", "suggestion"),
    [
        ("hyper.epoch = 3", "hyper.epoch", "cnn has no hyperparameter `epoch`", "`epochs`"),
        ("hyper.out_dir = '/etc'", "hyper.out_dir", "no hyperparameter `out_dir`", "known: "),
        ("hyper.batch-size = 3", "hyper.batch-size", "has no hyperparameter", "`batch_size`"),
        ('hyper.batch_size = "big"', "hyper.batch_size", "whole number of at least 1", ""),
        ('hyper.batch_size = "64"', "hyper.batch_size", 'not the text "64"', ""),
        ("hyper.epochs = 1.5", "hyper.epochs", "not 1.5", ""),
        ("hyper.epochs = true", "hyper.epochs", "not true", ""),
        ("hyper.epochs = 10001", "hyper.epochs", "at most 10000, not 10001", ""),
        ("hyper.lr = -1", "hyper.lr", "above 0 and at most 10, not -1", ""),
        ("hyper.lr = 0", "hyper.lr", "above 0", ""),
        ("hyper.lr = nan", "hyper.lr", "not nan", ""),
        ("hyper.lr = inf", "hyper.lr", "not inf", ""),
        ("hyper.lr = false", "hyper.lr", "not false", ""),
        ("hyper.lr = [1]", "hyper.lr", "not a list", ""),
        ("hyper.lr = 2026-01-01", "hyper.lr", "not a date or time", ""),
        ("hyper.dropout = 1.0", "hyper.dropout", "below 1", ""),
        ("hyper.epochs.x = 1", "hyper.epochs", "not a table", ""),
        ("hyper = 3", "hyper", "must be a table, not 3", ""),
        ("require_cuda = 1", "require_cuda", "must be true or false, not 1", ""),
        ("requires_cuda = true", "requires_cuda", "no key `requires_cuda`", "`require_cuda`"),
        ("priority = 1.5", "priority", "must be a whole number", ""),
        ("priority = true", "priority", "not true", ""),
        ("min_vram_gib = -1", "min_vram_gib", "must be a number from 0", ""),
        ("min_vram_gib = inf", "min_vram_gib", "not inf", ""),
        ("min_ram_gib = nan", "min_ram_gib", "not nan", ""),
        ("min_cores = 0.5", "min_cores", "must be a whole number", ""),
        ("seed = -1", "seed", "from 0 to 2147483647", ""),
        ("n_resamples = 1e9", "n_resamples", "from 0 to 1000000", ""),
        ("n_resamples = 199", "n_resamples", "must be 0 (no intervals) or from 200", ""),
        ("n_resamples = 1", "n_resamples", "not 1: fewer draws", ""),
        ("max_run_s = -1", "max_run_s", "must be a number from 0", ""),
        ('max_silence_s = "1h"', "max_silence_s", "must be a number from 0", ""),
        ('allowed_hosts = "pi"', "allowed_hosts", "must be a list", '["pi"]'),
        ('allowed_hosts = ["ok", "-x"]', "allowed_hosts[1]", "host's name", ""),
        ('split_recipe = "hosts"', "split_recipe", "no split recipe `hosts`", "`host`"),
        ("split_recipe = 3", "split_recipe", "must be a split recipe, not 3", "host"),
        ('split_recipe = "host"', "split_recipe", "needs train_hosts", "train_hosts"),
        ('split_recipe = "behaviour"', "split_recipe", '"behaviour" needs train_hosts', "train_hosts"),
        ('train_hosts = ["a"]', "train_hosts", 'no effect under split_recipe "sample"', "host"),
        ('job_id = "x"', "job_id", "no key `job_id`", ""),
    ],
)
def test_a_wrong_line_is_one_mistake_with_its_place(line, key, message, suggestion):
    mistake = only(HEAD + job(line))
    assert (mistake.file, mistake.line, mistake.key) == ("plan.toml", 7, f"jobs[0].{key}")
    assert message in mistake.message
    assert suggestion in mistake.suggestion
    assert str(mistake).startswith(f"plan.toml:7: jobs[0].{key}: ")
    assert "\n" not in str(mistake)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("schema_version = 2", "schema_version", "reads schema_version 1, not 2"),
        ("nmae = 'x'", "nmae", "no key `nmae`"),
        ("defaults = 3", "defaults", "must be a table"),
        ("[defaults]\nhyper.epochs = 3", "defaults.hyper", "no key `hyper`"),
        ("[hosts.'a b']", 'hosts."a b"', "must be a host's name"),
        ("[hosts.a]\nallow_jobs = ['gbt', 'mpl']", "hosts.a.allow_jobs[1]", "no model `mpl`"),
        ("[hosts.a]\ndeny_jobs = [3]", "hosts.a.deny_jobs[0]", "must be a model, not 3"),
        ("[hosts.a]\nprio = 3", "hosts.a.prio", "a host has no key `prio`"),
        ("[hosts]\na = 3", "hosts.a", "must be a table"),
        ("[jobs]\nname = 'x'", "jobs", "must be a list of tables"),
        ("jobs = [3]", "jobs[0]", "must be a table, not 3"),
        ("[[jobs]]\nname='a'\nmode='oracle'", "jobs[0]", "`model` is missing"),
        ("[[jobs]]\nname='a'\nmode='oracle'\nmodel='ctn'", "jobs[0].model", "no model `ctn`"),
        ("[[jobs]]\nname='a'\nmode='real'\nmodel='cnn'", "jobs[0].mode", "no mode `real`"),
        ("[[jobs]]\nname=' '\nmode='oracle'\nmodel='cnn'", "jobs[0].name", "printable"),
        ('[[jobs]]\nname="\\u202e"\nmode="oracle"\nmodel="cnn"', "jobs[0].name", "\\u202e"),
        ("[trainers.gbt]\ncommand=['x']", "trainers.gbt", "built-in"),
        ("[trainers.a]\ncommand=[]", "trainers.a.command", "1 to 100"),
        ("[trainers.a]", "trainers.a", "`command` is missing"),
        ("[trainers.a]\ncommand=['x']\noutputs=['../y']", "trainers.a.outputs[0]", "without folders"),
    ],
)
def test_a_wrong_table_is_one_mistake(text, key, message):
    mistake = only(text)
    assert mistake.key == key
    assert message in mistake.message
    assert mistake.line is not None


def test_every_mistake_is_reported_at_once_in_the_order_of_the_file():
    found = mistakes(
        'nam = "x"\n[defaults]\nseed = -1\n'
        + job("hyper.epoch = 3\nhyper.lr = -1\nhyper.epochs = 1\nhyper.epochs = 2")
        + job("mdoe = 3\npriority = urgent", name="b")
        + job(name="c", model="gtb")
    )
    assert [(m.line, m.key) for m in found] == [
        (1, "nam"),
        (3, "defaults.seed"),
        (8, "jobs[0].hyper.epoch"),
        (9, "jobs[0].hyper.lr"),
        (11, ""),
        (16, "jobs[1].mdoe"),
        (17, ""),
        (20, "jobs[2].model"),
    ]
    assert "`hyper.epochs` is set a second time" in found[4].message


def test_two_jobs_that_would_train_the_same_model_are_refused_by_name():
    mistake = only(HEAD + job("priority = 1", name="first") + job(name="second"))
    assert '"first" and "second" would train the same model' in mistake.message
    assert mistake.line == 8


def test_name_given_twice_is_reported_beside_a_jobs_other_mistakes():
    found = mistakes(HEAD + job("hyper.epoch = 3") + job("mdoe = 3"))
    assert [m.key for m in found] == ["jobs[0].hyper.epoch", "jobs[1].name", "jobs[1].mdoe"]


def test_two_jobs_of_one_name_are_refused():
    mistake = only(HEAD + job() + job("seed = 1"))
    assert (mistake.key, mistake.line) == ("jobs[1].name", 9)


def test_a_wrong_job_is_not_also_called_a_twin():
    found = mistakes(HEAD + job("seed = -1") + job("seed = -2", name="b") + job(name="c"))
    assert [mistake.key for mistake in found] == ["jobs[0].seed", "jobs[1].seed"]


def test_what_all_jobs_inherit_is_reported_once():
    head = '[defaults]\nsplit_recipe = "host"\n'
    assert only(head + job() + job("seed = 1", name="b")).key == "defaults"
    wrong = '[defaults]\nsplit_recipe = "hots"\ntrain_hosts = ["a"]\n'
    assert only(wrong + job('train_hosts = ["b"]')).key == "defaults.split_recipe"


# --- files that cannot be read -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "line", "message"),
    [
        (b"a = 1\nname = \xff\n", 2, "is not UTF-8 text"),
        (b"a = " + b"[" * 600 + b"]" * 600, None, "nested too deeply"),
        (b"a = " + b"{a = " * 600 + b"1" + b"}" * 600, None, "nested too deeply"),
        (b"\n" + b"a." * 400_000 + b"a = 1", 2, "more than 100 dots in one line"),
        (b"[a" + b".a" * 400_000 + b"]", 1, "more than 100 dots in one line"),
        (b"#" * (1024 * 1024 + 1), None, "is larger than 1024 KiB"),
        (b"[[jobs]\n", 1, "this is not TOML"),
        (b"\n\nname = [1,\n", None, "this is not TOML"),
        (b"seed = 2026-13-40\n", 1, "this is not TOML"),
        (b"[defaults]\n[defaults]\n", 2, "this is not TOML: Cannot declare"),
    ],
    ids=range(10),
)
def test_a_file_that_cannot_be_read_is_one_mistake(tmp_path, raw, line, message):
    path = tmp_path / "plan.toml"
    path.write_bytes(raw)
    with pytest.raises(ManifestError) as caught:
        load_manifest(path, describer=TableDescriber())
    (mistake,) = caught.value.mistakes
    assert message in mistake.message
    assert line is None or mistake.line == line


@pytest.mark.parametrize("name", ["missing.toml", ".", "a\0b"])
def test_a_path_that_is_no_file_is_one_mistake(tmp_path, name):
    with pytest.raises(ManifestError) as caught:
        load_manifest(tmp_path / name, describer=TableDescriber())
    assert len(caught.value.mistakes) == 1


def test_an_integer_of_thousands_of_digits_is_a_mistake():
    assert "this is not TOML" in only("seed = " + "9" * 5000).message


def test_an_open_bracket_is_not_blamed_on_the_lines_after_it():
    assert len(mistakes('name = "x"\n[defaults]\ntrain_hosts = [\nseed = 3\nn_resamples = 4\n')) == 1


@given(st.text(alphabet="ab.[]{}=\"'\\#\n, 01_-\t", max_size=60))
def test_no_text_is_a_traceback(text):
    found = ()
    try:
        load(text)
    except ManifestError as error:
        found = error.mistakes
    assert all(str(mistake).isprintable() for mistake in found)


@given(
    st.recursive(
        st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    ),
    st.sampled_from(["name", "model", "mode", "hyper", "seed", "train_hosts", "min_ram_gib", "require_cuda"]),
)
def test_no_value_is_a_traceback(value, key):
    problems = []
    root = manifest.TomlTable({"jobs": [{key: value}]}, (), problems)
    manifest.check_plan(root, manifest.Trainers({"cnn": {}, "own": None}))
    assert problems


def test_without_the_position_parser_mistakes_have_no_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tree_sitter_toml", None)
    assert only(HEAD + job("seed = -1")).line is None


def test_a_good_manifest_loads_no_position_parser():
    code = (
        "import sys; from training.fleet.manifest import load_manifest;"
        f"load_manifest({str(EXAMPLE)!r});"
        "bad = {'tree_sitter', 'torch', 'numpy', 'xgboost', 'polars', 'rich', 'training.trainer'};"
        "sys.exit(str(bad & set(sys.modules)) if bad & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- trainers of one's own ------------------------------------------------------------------------------

OWN = '[trainers.mine]\ncommand = ["python", "mine.py"]\noutputs = ["{model}_{mode}.pt"]\n'
MINE = Description("mine", {}, {"mine": {"depth": HyperFlag(key="depth", type=FlagType.INT, min=1)}})


def test_a_trainer_of_ones_own_is_a_model():
    plan = load(OWN + job("hyper.depth = 3", model="mine") + "[hosts.a]\nallow_jobs = ['mine']")
    assert plan.jobs[0].hyper == {"depth": 3}
    assert plan.trainers["mine"].to_dict() == {
        "name": "mine",
        "command": ["python", "mine.py"],
        "outputs": ["{model}_{mode}.pt"],
        "describe": [],
    }
    other = OWN.replace("mine.py", "theirs.py")
    assert load(other + job("hyper.depth = 3", model="mine")).jobs[0].job_id != plan.jobs[0].job_id


def test_its_flags_are_checked_when_it_can_be_asked():
    asked = OWN + 'describe = ["ask-mine"]\n'
    wrong = only(asked + job("hyper.dept = 3", model="mine"), **{"ask-mine": MINE})
    assert "did you mean `depth`?" in wrong.suggestion
    right = load(asked + job("hyper.depth = 3.0", model="mine"), **{"ask-mine": MINE})
    assert right.jobs[0].hyper == {"depth": 3}
    assert only(asked + job(model="mine")).key == "trainers.mine.describe"


def test_what_bounds_a_model_is_what_its_trainer_declares():
    asked = OWN + 'describe = ["ask-mine"]\n' + job("hyper.depth = 3", model="mine")
    for bound_by, known in (({"mine": "matrices"}, "matrices"), ({"theirs": "matrices"}, None), ({}, None)):
        plan = load(asked, **{"ask-mine": replace(MINE, bound_by=bound_by)})
        assert plan.bound_by.get("mine") == known
        assert plan.bound_by["gbt"] == "branches"


@pytest.mark.parametrize("line", ["hyper.out_dir = 'x'", "hyper.a = '--out-dir=/etc'", "hyper.a = [1]"])
def test_unchecked_hyper_values_still_cannot_be_flags_of_the_contract(line):
    assert only(OWN + job(line, model="mine")).key.startswith("jobs[0].hyper.")


# --- asking trainers -------------------------------------------------------------------------------------


def test_our_trainers_answer_without_an_ml_library():
    describer = ProcessDescriber()
    for program in describe.PROGRAMS:
        description = describer(describe_command(program))
        assert description.program == program
        assert all("target_fpr" in hyper for hyper in description.models.values())


def test_an_answer_is_kept_until_the_trainers_change(monkeypatch):
    asked = []
    answer = json.dumps(families.describe("p", ["gbt"])).encode()
    monkeypatch.setattr(describe, "_run", lambda command, _: asked.append(command) or answer)
    monkeypatch.setattr(describe, "stamps", lambda _: len(asked) < 2)
    describer = ProcessDescriber()
    command = describe_command(describe.PROGRAMS[0])
    describer(command)
    describer(command)
    assert len(asked) == 1
    monkeypatch.setattr(describe, "stamps", lambda _: "updated")
    describer(command)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["/no/such/program"], "cannot be started: "),
        ([sys.executable, "-c", "print('boom'); raise SystemExit(3)"], "exit code 3"),
        ([sys.executable, "-c", "print('hello')"], "not JSON"),
        (["python", "-c", "import sys; sys.exit(sys.executable)"], re.escape(sys.executable)),
        (["a\0b"], "cannot be started"),
    ],
)
def test_a_trainer_that_does_not_answer_is_one_sentence(command, message):
    with pytest.raises(DescribeError, match=message):
        ProcessDescriber()(command)


def test_the_folder_of_a_killed_question_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(describe.tempfile, "tempdir", str(tmp_path))
    abandoned, asking = (tmp_path / f"{describe.FOLDER}{name}" for name in ("abandoned", "asking"))
    for folder in (abandoned, asking):
        folder.mkdir()
        (folder / describe.LOCK).touch()
    with exclusive(asking / describe.LOCK), ExitStack() as stack:
        own = describe._own_folder(stack)
        assert {each.name for each in tmp_path.iterdir()} == {asking.name, own.name}
    assert [each.name for each in tmp_path.iterdir()] == [asking.name]


@pytest.mark.skipif(os.name != "posix", reason="signals and groups of POSIX")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["yes"], "printed more than 1 MiB;"),
        (["sh", "-c", "yes >&2"], "more than 1 MiB on standard error"),
        (["sleep", "1000"], "did not answer within 1 s"),
    ],
)
def test_a_trainer_that_never_ends_its_answer_is_ended(command, message, monkeypatch):
    monkeypatch.setattr(describe, "DESCRIBE_TIMEOUT_S", 1.0 if command[0] == "sleep" else 60.0)
    with pytest.raises(DescribeError, match=message):
        ProcessDescriber()(command)


KILLS_ITS_LAUNCHER = """
import os, pathlib, subprocess, sys
argv = [sys.executable, "-c", "import threading; threading.Event().wait()"]
other = subprocess.Popen(argv, start_new_session=True)
print('{"describe_version": 1, "program": "own", "digest": "", "models": {}}', flush=True)
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {other.pid}")
os.kill(os.getppid(), 9)
os.closerange(0, 3)
other.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
def test_an_asked_trainer_that_ends_its_launcher_has_not_answered_and_leaves_nothing(tmp_path):
    numbers = tmp_path / "numbers"
    with pytest.raises(DescribeError, match="was lost: its launcher"):
        ProcessDescriber()(["python", "-c", KILLS_ITS_LAUNCHER, str(numbers)])
    assert not [each for each in numbers.read_text().split() if runs(int(each))]


def runs(number):
    """A zombie that nobody has waited for yet runs no more."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
@pytest.mark.parametrize("how", ["hang", "end"])
def test_nothing_that_an_asked_trainer_started_outlives_the_question(how, tmp_path, monkeypatch):
    monkeypatch.setattr(describe, "DESCRIBE_TIMEOUT_S", 2.0)
    children = CHILDREN
    numbers = tmp_path / "numbers"
    with pytest.raises(DescribeError, match="did not answer" if how == "hang" else "not JSON"):
        ProcessDescriber()(["python", str(children / "escapes.py"), how, str(numbers)])
    started = numbers.read_text().split()
    assert len(started) == 2
    assert not [number for number in started if Path("/proc", number).exists()]


@pytest.mark.parametrize("where", ["trainers.mine", "hosts.pi"])
@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        ("HF_TOKEN='x'", "HF_TOKEN", "no place for secrets"),
        ("api_key='x'", "api_key", "no place for secrets"),
        ("CIS490_STATE_DIR='x'", "CIS490_STATE_DIR", "sets it itself"),
        ("'A B'='x'", '"A B"', "no variable's name"),
        ("A=1", "A", "must be 0 to 1024 printable characters"),
        ("A='x\\u0000'", "A", "must be 0 to 1024 printable characters"),
    ],
)
def test_variables_that_no_plan_may_set(where, line, key, words):
    command = "command=['x']\n" if where.startswith("trainers") else ""
    problem = only(f"[{where}]\n{command}env = {{ {line.replace(chr(39), chr(34))} }}\n" + job())
    assert problem.key.startswith(f"{where}.env.")
    assert words in problem.message


def test_outputs_that_no_bundle_could_hold_are_refused():
    head = "[trainers.mine]\ncommand=['x']\noutputs="
    assert "longer than 100" in only(f"{head}['{{model}}{'x' * 97}']\n" + job()).message
    assert "named twice" in only(f"{head}['mine.pt', '{{model}}.pt']\n" + job()).message


def test_variables_of_trainers_and_hosts_are_read_and_change_no_id():
    plain = load(HEAD + OWN + "[hosts.pi]\n" + job(model="mine"))
    variables = "env = { A = '1', B = '' }\n[hosts.pi]\nenv = { A = '2' }\n"
    with_env = load(HEAD + OWN + variables + job(model="mine"))
    assert with_env.trainers["mine"].to_dict()["env"] == {"A": "1", "B": ""}
    assert with_env.hosts["pi"].to_dict()["env"] == {"A": "2"}
    assert "env" not in plain.trainers["mine"].to_dict(), "plans of before are what they were"
    assert [one.job_id for one in with_env.jobs] == [one.job_id for one in plain.jobs]


def test_trainers_that_do_not_answer_are_the_only_mistake():
    def broken(command):
        raise DescribeError("broken checkout")

    with pytest.raises(ManifestError, match="broken checkout") as caught:
        manifest.parse_manifest(HEAD + job(), path=Path("plan.toml"), describer=broken)
    assert len(caught.value.mistakes) == 1


def described(key):
    models = {"m": {"hyper": {key: {"flag": "--out-dir", "type": "str"}}}}
    return json.dumps({"describe_version": 1, "program": "p", "digest": "d", "models": models})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not JSON of the form"),
        ("{}", "lacks the key"),
        ('{"describe_version": 2}', "version 2"),
        ("[" * 100_000, "not JSON"),
        (described("out_dir"), "belongs to the contract"),
        (described("a"), "does not match its flag"),
    ],
)
def test_a_description_is_not_trusted(text, message):
    with pytest.raises(DescribeError, match=message):
        parse_description(text)


def test_another_family_or_its_flags_changes_no_digest_of_a_model():
    def digests(**hyper):
        models = {model: {"hyper": flags} for model, flags in hyper.items()}
        said = {"describe_version": 1, "program": "run", "models": models}
        return dict(parse_description(json.dumps(said)).digests)

    depth = {"depth": {"flag": "--depth", "type": "int"}}
    assert digests(gbt={}, cnn=depth)["gbt"] == digests(gbt={})["gbt"] != digests(gbt=depth)["gbt"]


@given(value=st.one_of(st.integers(), st.floats(), st.text(), st.booleans(), st.none()))
@pytest.mark.parametrize("kind", list(FlagType))
def test_a_coerced_value_has_its_flags_type_and_is_its_own_coercion(kind, value):
    flag = HyperFlag(key="x", type=kind, min=-5, max=5)
    with contextlib.suppress(ValueError):
        coerced = flag.coerce(value)
        assert type(coerced) is {"int": int, "float": float, "bool": bool, "str": str}[kind]
        assert flag.coerce(coerced) == coerced == value


# --- the program ------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(manifest, "default_describer", TableDescriber)


def test_the_program_prints_the_plan(asked, capsys):
    assert manifest.main([str(EXAMPLE), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["name"] == "detectors"
    assert len(printed["jobs"]) == 14


@pytest.mark.parametrize(("plan", "jobs"), [(EXAMPLE, 14), (ROOT / "examples" / "first_plan.toml", 2)])
def test_the_program_counts_the_jobs_of_a_correct_plan_and_has_nothing_to_note(asked, capsys, plan, jobs):
    assert manifest.main([str(plan)]) == 0
    assert capsys.readouterr() == (f"{jobs} jobs, no mistakes\n", "")


def test_the_program_prints_every_mistake_and_exits_2(asked, capsys, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(HEAD + job("seed = -1\nprio = 3"))
    assert manifest.main([str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"{path}:7: jobs[0].seed: must be a whole number from 0 to 2147483647, not -1",
        f"{path}:8: jobs[0].prio: a job has no key `prio`; did you mean `priority`?",
    ]
    assert manifest.main([str(path), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)["mistakes"]
    assert [m["key"] for m in found] == ["jobs[0].seed", "jobs[0].prio"]
    assert set(found[0]) == {"file", "line", "key", "message", "suggestion"}


def test_a_hopeless_file_is_refused_in_reasonable_time():
    """A megabyte of nothing but mistakes: suggestions stop, the answer comes."""
    found = mistakes("".join(f"k{i} = {i}\n" for i in range(20_000)))
    assert len(found) == 1001
    assert found[-1].message == "and 19000 more mistakes"


def test_syntax_mistakes_are_counted_out():
    text = "\n".join(f"k{i} = nope" for i in range(50))
    assert len(manifest_syntax.parse(text).problems) == manifest_syntax.SYNTAX_MISTAKES_MAX


def test_reader_that_has_seen_enough_is_no_error():
    run = [sys.executable, "-m", "training.fleet.manifest", str(EXAMPLE), "--json"]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as printing:
        printing.stdout.close()
        assert printing.stderr.read() == b""
        assert printing.wait() == 0


# --- channels ----------------------------------------------------------------------------------------


def test_channels_are_read_with_the_places_of_their_secrets():
    plan = load(
        HEAD
        + """
[notify.ops]
kind = "webhook"
url_file = "/etc/cis490/hook"
on = ["failure", "disk"]

[notify.phone]
kind = "ntfy"
url_env = "TOPIC"
token_file = "/etc/cis490/token"

[notify.mail]
kind = "email"
host = "smtp.example.org"
security = "tls"
user = "fleet"
password_env = "MAIL_PASSWORD"
from = "fleet@example.org"
to = ["ada@example.org"]

[notify.own]
kind = "command"
command = ["/usr/local/bin/tell", "--loud"]
"""
    )
    ops, phone, mail, own = plan.channels
    assert (ops.kind, str(ops.url), ops.on) == ("webhook", "the file /etc/cis490/hook", ("failure", "disk"))
    assert (str(phone.url), str(phone.token), len(phone.on)) == ("the variable $TOPIC", "the file /etc/cis490/token", 8)
    assert (mail.port, mail.security, mail.user, mail.sender) == (465, "tls", "fleet", "fleet@example.org")
    assert own.command == ("/usr/local/bin/tell", "--loud")
    assert own.secrets == ()
    assert mail.secrets == (mail.password,)


def test_a_command_written_as_one_text_is_shown_as_the_list_that_runs():
    mistake = only(f'{HEAD}[notify.x]\nkind = "command"\ncommand = "tell --loudly ada"\n')
    assert mistake.suggestion == 'write ["tell", "--loudly", "ada"]'
    mistake = only(f'{HEAD}[notify.x]\nkind = "command"\ncommand = []\n')
    assert mistake.message == "must be a list of 1 to 100 entries, not one of 0"


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        ('kind = "webhook"', "notify.x", "lacks its url"),
        ('kind = "webhook"\nurl = "https://hook/s3cret"', "notify.x.url", "is a secret"),
        ('kind = "webhook"\nurl_file = "relative"', "notify.x.url_file", "absolute path"),
        ('kind = "webhook"\nurl_file = "/a"\nurl_env = "B"', "notify.x.url_env", "cannot be given with url_file"),
        ('kind = "webhook"\nurl_file = "/a"\ntoken_file = "/b"', "notify.x.token_file", "has no key `token_file`"),
        ('kind = "pigeon"', "notify.x.kind", "no kind of channel `pigeon`"),
        ('kind = "command"\ncommand = "tell"', "notify.x.command", "must be a list"),
        ('kind = "command"\ncommand = ["t"]\non = ["failures"]', "notify.x.on[0]", "no kind of notice `failures`"),
        ('kind = "email"\nhost = "h"\nfrom = "a@b"\nto = ["c"]', "notify.x.to[0]", "a mail address"),
        ('kind = "email"\nhost = "h"\nfrom = "a@b"\nto = ["c@d"]\nuser = "u"', "notify.x", "both user and password"),
        (
            'kind = "email"\nhost = "h"\nfrom = "a@b"\nto = ["c@d"]\nuser = "u"\npassword_env = "P"\nsecurity = "none"',
            "notify.x.security",
            "unencrypted",
        ),
    ],
)
def test_a_channel_with_a_mistake_is_named(table, key, words):
    mistake = only(f"{HEAD}[notify.x]\n{table}\n")
    assert mistake.key == key
    assert words in mistake.message
    assert "s3cret" not in str(mistake)


@pytest.mark.parametrize(
    ("line", "mistake", "suggestion"),
    [
        ("slots = 0", 'must be at least 1, or "auto"', ""),
        ("slots = -1", 'must be "auto" or a whole number from 1 to 1024, not -1', ""),
        ('slots = "all"', 'must be "auto" or a whole number from 1 to 1024, not the text "all"', ""),
        ("slots = true", 'must be "auto" or a whole number from 1 to 1024, not true', ""),
        ("reserve_cores = -1", "must be a whole number from 0", ""),
        ('reserve_ram_gib = "8"', "must be a number from 0", ""),
        ('hours = "sa su"', "must be a list of 1 to 50 entries", 'write ["sa su"]'),
        ('hours = ["mo-fr 18:00-25:00"]', "names no days", 'write "mo-fr 18:00-08:00"'),
        ('hours = ["mo-xx"]', "names no day of the week: 'xx'", 'write "mo-fr 18:00-08:00"'),
        ('hours = ["sa 8:00-8:00"]', "begins when it ends", 'write "mo-fr 18:00-08:00"'),
        ('hours = ["8:00-24:30"]', "ends after 24:00", 'write "mo-fr 18:00-08:00"'),
        ('hours = [","]', "names no days", 'write "mo-fr 18:00-08:00"'),
        ('pause_on_battery = "yes"', "must be true or false", ""),
        ("pause_above_cpu = 50", "must be a share from 0 to 1, not 50", "write 0.5 for 50 %"),
        ("pause_above_gpu = true", "must be a share from 0 to 1, not true", "0.5 is half of it"),
        ("pause_above_celsius = 200", "must be a temperature from 30 to 120 degrees Celsius, not 200", "at rest"),
        ("pause_max_s = -1", "must be a number from 0", ""),
        ("idle_s = 600", "has no effect without pause_when_used", "write pause_when_used = true"),
        ('mac = "a0:b1"', 'must be a hardware address as "a0:b1:c2:d3:e4:f5", not the text "a0:b1"', "`ip link`"),
        ('mac = "01:00:5e:00:00:01"', "is the address of a group of machines", "of one network card"),
        ("may_slep = true", "a host has no key `may_slep`", "may_sleep"),
    ],
)
def test_a_wrong_line_of_a_host_is_one_mistake(line, mistake, suggestion):
    (found,) = mistakes(HEAD + f"[hosts.pi]\n{line}\n" + job())
    assert mistake in found.message
    assert suggestion in found.suggestion
    assert found.line is not None


def test_a_host_declares_what_it_says_and_no_more():
    said = 'hours = ["Mo-Fr 18:00-8:00", "sa, su"]\npause_when_used = true\nidle_s = 60\nmac = "A0-B1-C2-D3-E4-F5"\n'
    said += 'slots = "auto"\nreserve_ram_gib = 4\n'
    assert load(HEAD + f"[hosts.pi]\n{said}" + job()).hosts["pi"].to_dict() == {
        "name": "pi",
        "hours": ["Mo-Fr 18:00-8:00", "sa, su"],
        "pause_when_used": True,
        "idle_s": 60.0,
        "mac": "a0:b1:c2:d3:e4:f5",
        "slots": "auto",
        "reserve_ram_gib": 4.0,
    }
    assert load(HEAD + "[hosts.pi]\n" + job()).hosts["pi"].to_dict() == {"name": "pi"}


@pytest.mark.parametrize("value", ["true", "false", "3"])
def test_urgent_is_a_mistake_that_names_priority(value):
    (mistake,) = mistakes(job(f"urgent = {value}"))
    assert (mistake.line, mistake.key, mistake.message) == (5, "jobs[0].urgent", "a job has no key `urgent`")
    assert mistake.suggestion == "give it a higher `priority`"


def test_a_wrong_list_of_hosts_in_the_defaults_is_one_mistake():
    head = HEAD + '[defaults]\nsplit_recipe = "host"\ntrain_hosts = ["Web 1"]\n'
    assert "host's name" in only(head + job() + job("seed = 1", name="b")).message
