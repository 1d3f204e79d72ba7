"""The trainers as the fleet starts them: commands, exit codes, lines, files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from trainer_builders import SHORT, arguments, ends_like, files, make_data, run, trained

from training import families
from training.contract import Exit
from training.trainer.comparison import compare
from training.trainer.contract import BadData
from training.trainer.judging import judge

pytestmark = pytest.mark.usefixtures("one_anomaly_method")


def command(model, data, out, *more):
    program = "run_ssl" if model in families.SSL_MODELS else "run"
    trainer = [sys.executable, "-m", f"training.trainer.{program}"]
    return [*trainer, *arguments(model, data, out, *more)]


def finish(argv, folder, hash_seed):
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("model", ["gbt", pytest.param("mlp", marks=pytest.mark.thorough)])
def test_equal_runs_in_unlike_processes_give_equal_bytes(model, data, tmp_path):
    for seed, name in enumerate(("here", "a/longer way/there")):
        ended = finish(command(model, data, tmp_path / name, *SHORT[model]), tmp_path / name, str(seed))
        assert ended.returncode == Exit.DONE, ended.stderr
        assert json.loads(ended.stdout.splitlines()[-1])["event"] == "done"
    made = files(tmp_path / "here")
    assert made == files(tmp_path / "a/longer way/there")
    sidecar = "xgb.json" if model == "gbt" else "pt"
    assert set(made) == {
        f"artifacts/{model}_oracle.ckpt.json",
        f"artifacts/{model}_oracle.{sidecar}",
        f"reports/{model}_oracle_train.json",
        f"reports/{model}_oracle_train.html",
    }


def test_the_self_supervised_trainer_needs_no_more_than_the_tensors(data, tmp_path):
    argv = [
        *("--mode", "realistic", "--validation", str(data / "validation_v1.parquet")),
        *("--tensors", str(data / "tensor_window_v1"), "--seed", "4"),
        *("--out-dir", str(tmp_path / "artifacts"), "--reports-dir", str(tmp_path / "reports")),
    ]
    alone = tmp_path / "tensors only"
    alone.mkdir()
    (alone / "tensor_window_v1").symlink_to(data / "tensor_window_v1")
    argv[argv.index("--tensors") + 1] = str(alone / "tensor_window_v1")
    assert run(argv).code == Exit.DONE
    assert set(files(tmp_path / "reports")) == {
        "transformer_ssl_realistic_pretrain.json",
        "transformer_ssl_realistic_pretrain.html",
    }


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM cannot be caught on Windows")
def test_sigterm_ends_with_75_and_the_same_command_goes_on(data, tmp_path):
    more = ("--epochs", "60", "--patience", "60", "--batch-size", "16")
    process = subprocess.Popen(command("mlp", data, tmp_path / "b", *more), stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if json.loads(line)["event"] == "epoch":
            process.send_signal(signal.SIGTERM)
            break
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait() == Exit.INTERRUPTED
    assert json.loads(rest.splitlines()[-1])["event"] == "interrupted"
    assert (tmp_path / "b/artifacts/mlp_oracle.state").exists()
    for name in "ba":
        trained("mlp", data, tmp_path / name, *more)
    # What this process and the interrupted one made together is what this one makes alone.
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        (("--tensors", "nowhere"), Exit.BAD_DATA, "There are no readable window tensors in nowhere"),
        (("--validation", "nowhere"), Exit.BAD_DATA, "nowhere cannot be read"),
        (("--split-recipe", "host"), Exit.BAD_DATA, "needs train_hosts"),
        (("--split-recipe", "host", "--train-hosts", "omega"), Exit.BAD_DATA, "omega"),
        (("--train-hosts", "alpha"), Exit.BAD_ARGUMENTS, "--train-hosts has no effect"),
        (("--test-hosts", "alpha"), Exit.BAD_ARGUMENTS, "--test-hosts has no effect"),
    ],
    ids=["tensors", "validation", "no host", "unknown host", "no effect", "no effect on the test"],
)
def test_bad_input_ends_in_one_sentence(more, code, sentence, data, tmp_path):
    ended = run(arguments("mlp", data, tmp_path, *more))
    assert ended.code == code
    assert sentence in ended.sentence
    assert ended.sentence.count("\n") == 1
    assert ended.events[-1]["event"] == "error"
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.parametrize(
    ("model", "made", "said"),
    [
        ("gbt", {"classes": 1}, ""),
        ("transformer_ssl", {"episodes": 9, "windows": 2}, "benign windows to learn from"),
        ("transformer_ssl", {"names": ["run", "walk"]}, "say which class is benign when you make the data set"),
    ],
)
def test_data_that_nothing_can_be_learnt_from_end_in_one_sentence(model, made, said, tmp_path):
    ended = run(arguments(model, make_data(tmp_path / "data", **made), tmp_path))
    assert ended.code == Exit.BAD_DATA
    assert said in ended.sentence
    assert ended.sentence.count("\n") == 1


@pytest.mark.parametrize(("target", "holds"), [pytest.param("0.05", False, marks=pytest.mark.thorough), ("0.2", True)])
def test_windows_that_can_set_no_threshold_train(target, holds, tmp_path):
    """Four classes, one of which is taken for benign, with too few windows for 5 %, just enough for 20 %."""
    names = [str(number) for number in range(4)]
    data = make_data(tmp_path / "data", episodes=48, windows=2, classes=4, names=names, benign=["0"])
    argv = arguments("gbt", data, tmp_path / "a", *SHORT["gbt"], "--target-fpr", target)
    made = trained("gbt", data, tmp_path / "a", "--target-fpr", target)
    split, point = made.report["split"], made.report["operating_point"]
    sides = {side: count["windows"] for side, count in split["n"].items()}
    assert sum(sides.values()) == 96
    assert (sides["cal"] > 0) is (point["threshold"] is not None) is holds
    assert any("They train instead." in note for note in split["notes"]) is not holds
    assert holds or "too few benign windows to set any aside for it; a target of 5 % needs 19" in point["reason"]
    metrics = made.report["metrics"]["test"]
    assert metrics["accuracy"]["value"] > 0.25
    assert (metrics["accuracy_at_threshold"]["value"] is not None) is holds
    assert made.report["new_behaviours"]["all"]["auroc"]["value"] is not None
    assert "Accuracy of the likeliest class" in (tmp_path / "a/reports/gbt_oracle_train.html").read_text()
    judged = judge(made.checkpoint, data)
    assert compare(judged, judged)["windows"] == sides["test"], "the split is made again from the checkpoint"
    ends_like(tmp_path / "a", [word.replace("/a/", "/b/") for word in argv], (9, 40), tmp_path / "b")


@pytest.mark.usefixtures("no_rival_models")
@pytest.mark.parametrize("model", ["gbt", "mlp"])
def test_permuted_labels_teach_nothing(model, tmp_path):
    """Labels dealt to whole episodes at random: a 95 % interval may miss 0.5 once in twenty, no more."""
    held, values = 0, []
    brief = ("--n-estimators", "12") if model == "gbt" else ()
    for seed in range(6):
        out = tmp_path / str(seed)
        data = make_data(out / "data", episodes=60, signal=0.0, seed=seed)
        report = trained(model, data, out, *brief, "--seed", str(seed), "--n-resamples", "1000").report
        assert ("boosted" if model == "gbt" else "trained") + " again" in report["course"]
        auroc = report["metrics"]["test"]["auroc"]
        held += auroc["ci95"][0] <= 0.5 <= auroc["ci95"][1]
        values.append(auroc["value"])
    assert held >= 5
    assert abs(np.mean(values) - 0.5) < 0.1


@pytest.mark.usefixtures("no_rival_models")
def test_the_run_key_changes_with_what_can_change_the_result(data, tmp_path):
    keys, splits, judged = [], [], []
    other = ("--seed", "1")
    for number, more in enumerate([(), other, (*other, "--split-seed", "0"), ("--threads", "2"), ("--max-depth", "2")]):
        made = trained("gbt", data, tmp_path / str(number), "--n-estimators", "3", *more)
        keys.append(made.document["run_key"]["digest"])
        splits.append(made.document["split"])
        assert made.document["threshold"]["calibrated_on"]
        judged.append(judge(tmp_path / str(number) / "artifacts/gbt_oracle.ckpt.json", data))
    assert len(set(keys)) == len(keys)
    assert splits[0]["fingerprint"] == splits[2]["fingerprint"] != splits[1]["fingerprint"]
    assert compare(judged[0], judged[2], n_resamples=200)["windows"] == splits[0]["n"]["test"]["windows"]
    with pytest.raises(BadData, match="split"):
        compare(*judged[:2])


@pytest.mark.parametrize("model", ["gbt", "mlp", "cnn", "transformer_ssl"])
def test_an_imbalance_of_one_in_a_hundred_is_trained_on(model, tmp_path):
    data = make_data(tmp_path / "data", episodes=400, windows=2, rare=100, signal=4.0)
    assert trained(model, data, tmp_path).events[-1]["metric"] is not None
