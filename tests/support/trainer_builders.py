"""Small data sets on disk, and trainers run in this process, for the tests of the trainers."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from training import families
from training.contract import Exit
from training.data.dataset import Labelling, Sampling, WindowSet, write_processed
from training.data.rows import Rows
from training.data.schema import ChannelSpec
from training.trainer import scoring
from training.trainer.arguments import parse
from training.trainer.contract import Interrupted, Stop, perform
from training.trainer.evaluation.scored import Classes, Scored
from training.trainer.judging import judge, sides
from training.trainer.session import train
from training.trainer.task import LIMITS


def make_data(
    folder,
    *,
    episodes=36,
    windows=6,
    channels=5,
    samples=20,
    classes=2,
    signal=1.5,
    seed=0,
    rare=0,
    names=(),
    rename=None,
    unit="1",
    reference=False,
    only_on=None,
    oracle=2,
    benign=("benign",),
    turned=False,
    lacks=None,
    columns=None,
):
    """A processed data set of three hosts; class k > 0 swings with period k + 2 and strength ``signal``.

    ``turned`` numbers the classes the other way round, and changes nothing else. The last ``oracle`` channels are for
    the oracle alone. ``names`` are those of the classes, ``benign`` of those without alarm; ``only_on`` names the one
    host where a class occurs, ``lacks`` the channels that a host lacks, by number; ``columns``: only these are written.
    With ``rare`` only one episode in so many is malicious.
    """
    rng = np.random.default_rng(seed)
    of_window = np.repeat(np.arange(episodes), windows)
    label = rng.permutation(np.arange(episodes) % classes)[of_window]
    if rare:
        label = (np.arange(episodes) % rare == 0).astype(int)[of_window]
    host = (np.arange(episodes) // classes % 3)[of_window]
    names = list(names) or ["benign", *(f"malicious{k}" for k in range(1, classes))]
    hosts = np.array(["alpha", "beta", "gamma"])
    for name, place in (only_on or {}).items():
        label = np.where((label == names.index(name)) & (hosts[host] != place), 0, label)
    X = rng.normal(size=(of_window.size, channels, samples))
    X += rng.normal(size=(episodes, channels, 1))[of_window] * 0.3
    swing = np.sin(2 * np.pi * np.arange(samples) / (label[:, None] + 2.5))
    X[:, 0] += signal * (label[:, None] > 0) * (swing + 0.5)
    X[:, -1] = 3.25  # constant
    for name, gone in (lacks or {}).items():
        X[np.ix_(hosts[host] == name, gone)] = np.nan
    start = (of_window * 100 + np.tile(np.arange(windows) * 2, episodes)).astype(float)
    ids = [f"e{number:03}" for number in range(episodes)]
    specs = [_channel(number, channels - oracle, rename, unit) for number in range(channels)]
    if columns is not None:
        X, specs = X[:, columns], [specs[number] for number in columns]
    write_processed(
        folder,
        window_set(X, episode=np.array(ids)[of_window], host=hosts[host], t_start=start, label=np.array(names)[label]),
        Sampling(channels=specs, sample_hz=5.0, window_s=4.0, stride_s=2.0),
        Labelling(
            target="malicious" if set(benign) & set(names) else "class",
            names=names[::-1] if turned else names,
            benign=benign if set(benign) & set(names) else (),
        ),
        validation_rows=[
            *validated(ids),
            {"episode_id": "torn", "baseline": False, "ok": False, "reasons": ["too short"]},
        ],
        reference=_quiet(X) if reference else None,
    )
    return folder


def _quiet(X):
    """Twelve windows of reference on each host, none of which is a window of the data."""
    episode, host = np.repeat(["b0", "b1", "b2"], 12), np.repeat(["alpha", "beta", "gamma"], 12)
    start, label = np.arange(36) * 2.0, np.full(36, "baseline")
    return window_set(X[:36, :, ::-1], episode=episode, host=host, t_start=start, label=label)


def window_set(X, *, t_start, length=4, **columns):
    return WindowSet(X=X.astype(np.float32), rows=Rows.of(t_start=t_start, t_end=t_start + length, **columns))


def validated(ids):
    """The rows of good recordings in the validation table."""
    return [{"episode_id": name, "baseline": False, "ok": True, "reasons": []} for name in ids]


def _channel(number, realistic, rename, unit):
    name = rename if rename and number == 1 else f"channel{number}"
    privileged = number >= realistic
    modes = ("oracle",) if privileged else ("realistic", "oracle")
    return ChannelSpec(name=name, unit=unit, kind="gauge", modes=modes)


def arguments(model, data, out, *more, mode="oracle"):
    """The command line that a worker gives; without ``--model`` for the self-supervised trainer."""
    named = [] if model in families.SSL_MODELS else ["--model", model]
    return [
        *named,
        *("--mode", mode),
        *("--validation", str(data / "validation_v1.parquet")),
        *("--summary", str(data / "features_window_v1.parquet")),
        *("--tensors", str(data / "tensor_window_v1")),
        *("--out-dir", str(out / "artifacts")),
        *("--reports-dir", str(out / "reports")),
        *("--n-resamples", "200"),
        *more,
    ]


_BRIEF = {"n_estimators": 30, "epochs": 3, "batch_size": 32}
SHORT = {
    model: tuple(f"{each.flag}={_BRIEF[each.key]}" for each in family.hyper if each.key in _BRIEF)
    for model, family in families.FAMILIES.items()
} | {"combined": ("--epochs", "6")}


def scored(y, episode, score, **times):
    """Scored windows of one host."""
    rows = Rows.of(label=y, episode=episode, host=["h"] * len(y), **times)
    return Scored.build(rows, score=score)


BINARY = Classes(("benign", "malicious"), ("benign",))
BY_HOST = ("--split-recipe", "host", "--train-hosts", "alpha", "--train-hosts", "beta")


@dataclass(frozen=True)
class Ended:
    """The end of a trainer in this process."""

    code: int
    events: list[dict[str, object]]
    sentence: str


def told_in_order(events):
    """Return the lines of a whole run that say how far it is, after a check that none turns back."""
    told = [event for event in events if "epochs" in event]
    assert len({event["epochs"] for event in told}) == 1, "the whole is known from the first line on"
    places = [event["epoch"] for event in told]
    assert places == sorted(places)
    numbers = [int(event["stage"].split()[0]) for event in told]
    assert numbers == sorted(numbers)
    assert {event["stage"].split()[2] for event in told} == {f"{numbers[-1]}:"}
    assert told[-1]["stage"].endswith(": evaluation")
    return told


class Forgetful:
    """A keeper of nothing."""

    def load(self):
        return None

    def watch(self, snapshot): ...

    def tick(self): ...


class Memory(Forgetful):
    """A keeper that keeps what it is told, and answers with it."""

    def __init__(self, saved=None):
        self.saved, self.snapshot = saved, None

    def load(self):
        return self.saved

    def watch(self, snapshot):
        self.snapshot = snapshot


class StopAfter(Stop):
    """Asks to stop at the n-th safe point."""

    def __init__(self, points):
        super().__init__()
        self.left = points

    def check(self):
        self.left -= 1
        if self.left < 0:
            raise Interrupted


def run(argv, *, stop=None, limits=LIMITS):
    models = families.RUN_MODELS if "--model" in argv else families.SSL_MODELS
    args = parse(argv, program="training.trainer", models=models)
    out, err = io.StringIO(), io.StringIO()
    code = perform(lambda p, s: train(args, p, s, limits=limits), out=out, err=err, stop=stop or Stop())
    return Ended(code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue())


@dataclass(frozen=True)
class TrainedRun:
    """The files of a run that ended well, and its lines."""

    out: Path
    name: str  # <model>_<mode>
    events: list[dict[str, object]]

    @property
    def checkpoint(self):
        return self.out / "artifacts" / f"{self.name}.ckpt.json"

    @property
    def document(self):
        return json.loads(self.checkpoint.read_text())

    @property
    def report(self):
        (path,) = (self.out / "reports").glob(f"{self.name}_*train.json")
        return json.loads(path.read_text())


def trained(model, data, out, *more, mode="oracle", limits=LIMITS):
    """Train briefly."""
    ended = run(arguments(model, data, out, *SHORT[model], *more, mode=mode), limits=limits)
    assert ended.code == Exit.DONE, ended.sentence
    told_in_order(ended.events)
    return TrainedRun(out, f"{model}_{mode}", ended.events)


def ends_like(whole, argv, points, out, limits=LIMITS):
    """Assert that a run stopped at each of these safe points in turn, and resumed, leaves the files of a whole one, and
    that its progress never turns back."""
    told = []
    for stop in (*map(StopAfter, points), None):
        ended = run(argv, stop=stop, limits=limits)
        told += ended.events
        if ended.code == Exit.DONE:
            break
        assert ended.code == Exit.INTERRUPTED, ended.sentence
        assert not list(out.rglob("*.ckpt.json"))
    assert ended.code == Exit.DONE
    assert files(out) == files(whole)
    told_in_order(told)


def table(judged, side=None, reasons=None):
    """The rows of all windows."""
    return pl.concat(scoring.parts(judged, side, reasons))


def score(checkpoint, data):
    """The rows that a checkpoint gives for a data set."""
    judged = judge(checkpoint, data)
    return table(judged, sides(judged))


def files(out):
    """Return the files of a run, but for the timing, which differs between equal runs."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and not path.name.endswith("_timing.json")
    }
