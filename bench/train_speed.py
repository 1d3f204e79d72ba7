"""Samples a second of every family's training loop, beside a plain PyTorch loop, skorch and Lightning.

    python bench/train_speed.py [--threads 1] [--rounds 3] [--device cpu|cuda] [--json]

The same network, loss, optimiser and batch size in all of them, in short turns (A B C D A B C D …) in one process, each
with its own way of setting torch up; the ratio is the median over the turns. Then the product and the plain loop again
at the batch size that suits each best. Trees: row-rounds a second beside plain XGBoost. Setting up is timed nowhere. At
one thread CPU seconds count, so that a busy machine bothers nobody; with more threads or a GPU, wall seconds.
"""

from __future__ import annotations

import io
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trainers import Table, among_peers, arguments

WINDOWS, CHANNELS, SAMPLES = 2_048, 16, 64
BATCHES = (64, 256, 1_024)
LEAST_S = 0.4  # that a turn of the plain loop takes; the number of epochs is chosen by it
TREES, ROWS, COLUMNS = 100, 50_000, 80


@dataclass(frozen=True, slots=True)
class Case:
    """A network to train; ``small`` ones have a higher bar."""

    name: str
    model: str
    hyper: dict[str, Any]
    small: bool = False

    @property
    def bar(self) -> float:
        return 1.2 if self.small else 1.0


CASES = (
    Case("mlp", "mlp", {}),
    Case("mlp of one", "mlp", {"members": 1}, small=True),
    Case("cnn", "cnn", {}),
    Case("cnn 16 wide", "cnn", {"hidden": 16}, small=True),
    Case("gru", "gru", {}),
    Case("lstm", "lstm", {}),
    Case("lstm 16 wide", "lstm", {"hidden": 16}, small=True),
    Case("transformer", "transformer", {}),
    Case("transformer_ssl", "transformer_ssl", {}),
)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cases", help="names of cases, with commas (default: all)")
    parser.add_argument("--skip-choice", action="store_true", help="leave the second part out")
    args = parser.parse_args()
    among_peers(args.threads)
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    from training.trainer import machine
    from training.trainer.contract import limit_threads

    limit_threads(args.threads)  # cuBLAS wants to know before CUDA starts that results must repeat
    global now
    now = wall if args.threads > 1 or args.device == "cuda" else time.process_time
    chosen = [case for case in CASES if not args.cases or case.name in args.cases.split(",")]
    widths = {"case": 18, "batch": 6, "ours": 9, "plain": 9, "skorch": 9, "lightning": 9}
    table = Table(
        f"samples a second, {WINDOWS} windows of {CHANNELS} × {SAMPLES}, {machine.device_name(args.device)}, "
        f"threads {args.threads}",
        widths | {"ours/plain": 10, "ours/skorch": 11, "ours/lightning": 14, "bar": 6},
        as_json=args.json,
    )
    missed = 0
    for case in chosen:
        work = prepare(case, args.device, args.threads)
        missed += not in_turn(work, table, args.rounds)
    if not args.skip_choice:
        table.say("each at its best batch size of " + ", ".join(map(str, BATCHES)))
        for case in chosen:
            missed += not own_choice(prepare(case, args.device, args.threads), table, args.rounds)
    if not args.cases or "gbt" in args.cases.split(","):
        missed += not trees(table, args.rounds, args.threads, args.device)
    table.end(device=machine.device_name(args.device), threads=args.threads, missed=missed)
    return 1 if missed else 0


# -- one training, four ways --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """Data and settings that all contenders get. ``x`` is normalised, ``raw`` is not."""

    case: Case
    x: Any  # Tensor (N, …)
    y: Any  # Tensor (N,)
    raw: Any  # array
    features: Any
    hyper: dict[str, Any]
    epochs: int
    device: str
    threads: int

    @property
    def ssl(self) -> bool:
        return self.case.model == "transformer_ssl"


def prepare(case: Case, device: str, threads: int) -> Work:
    import numpy as np
    import torch

    from training import families
    from training.data.features import extract
    from training.data.schema import ChannelSpec
    from training.trainer.normalise import QuantileNormal, RobustAsinh

    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, WINDOWS)
    X = rng.normal(size=(WINDOWS, CHANNELS, SAMPLES)).astype(np.float32)
    X += np.sin(np.arange(SAMPLES) / 3)[None, None] * y[:, None, None] * 0.3
    X = X.astype(np.float32)
    channels = tuple(
        ChannelSpec(name=f"c{n}", unit="1", kind="gauge", modes=("realistic", "oracle")) for n in range(CHANNELS)
    )
    features = extract(X, channels, 1.0)
    raw = features if case.model == "mlp" else X
    normalise = QuantileNormal(raw.shape[1]) if case.model == "mlp" else RobustAsinh(CHANNELS)
    normalise.fit(raw, np.arange(WINDOWS))
    with torch.no_grad():
        x = normalise(torch.from_numpy(raw))
    hyper = families.FAMILIES[case.model].defaults() | case.hyper
    work = Work(case, x.to(device), torch.from_numpy(y).to(device), raw, features, hyper, 1, device, threads)
    plain(work)
    seconds = plain(work)
    return replace(work, epochs=max(1, min(100, round(LEAST_S / seconds))))


def network(work: Work) -> Any:
    """The product's own network; ``forward`` gives what ``loss`` takes."""
    import torch
    from torch import nn

    from training.trainer.masked import MaskedModel
    from training.trainer.supervised import build

    torch.manual_seed(0)
    if not work.ssl:
        shape = tuple(work.raw.shape[1:])
        return build(work.case.model, shape, 2, work.hyper).body.to(work.device)

    class Rebuild(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = MaskedModel(CHANNELS, SAMPLES, work.hyper)
            self.length = self.body.encoder.length
            self.count = round(float(work.hyper["mask_ratio"]) * self.length)

        def forward(self, x: Any) -> Any:
            order = torch.rand(len(x), self.length, device=x.device).argsort(dim=1)
            return self.body.loss(x, order < self.count)

    return Rebuild().to(work.device)


def criterion(work: Work) -> Any:
    from torch import nn
    from torch.nn import functional

    class Loss(nn.Module):
        def forward(self, said: Any, y: Any) -> Any:
            if work.ssl:
                return said
            truth = y.expand(said.shape[0], -1).flatten()
            smoothing = float(work.hyper["label_smoothing"])
            return functional.cross_entropy(said.flatten(0, 1), truth, label_smoothing=smoothing)

    return Loss()


def optimizer(work: Work, net: Any) -> Any:
    import torch

    lr, decay = float(work.hyper["lr"]), float(work.hyper["weight_decay"])
    return torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=decay)


def ours(work: Work) -> float:
    """The product's training function; only its loop is timed, as with the others."""
    import numpy as np
    import torch

    from training.clock import SystemClock
    from training.trainer import loop, machine, ssl, supervised
    from training.trainer.contract import Progress, Stop
    from training.trainer.task import GivenWindows, Task
    from training.trainer.windows import Resident

    class Keeper:
        def load(self) -> None: ...
        def watch(self, snapshot: Any) -> None: ...
        def tick(self) -> None: ...

    task = Task(
        model=work.case.model,
        X=work.raw,
        features=work.features,
        names=(),
        feature_names=(),
        y=work.y.cpu().numpy(),
        host=np.full(len(work.y), "one"),
        recording=np.full(len(work.y), ""),
        behaviour=np.full(len(work.y), ""),
        ordinary=GivenWindows(work.raw[:0], work.features[:0], np.zeros(0, dtype=np.str_)),
        classes=2,
        is_benign=work.y.cpu().numpy() == 0,
        split=all_train(WINDOWS),
        hyper=work.hyper | {"epochs": work.epochs, "patience": 10_000},
        seed=0,
        threads=work.threads,
        device=work.device,
        progress=Progress(io.StringIO(), SystemClock()),
        stop=Stop(),
        keeper=Keeper(),
    )
    rows = np.arange(WINDOWS)
    seconds: list[float] = []
    machine.settle_torch(work.threads)
    real = loop.train

    def measured(*args: Any, **kwargs: Any) -> Any:
        answer: list[Any] = []
        seconds.append(timed(lambda: answer.append(real(*args, **kwargs))))
        return answer[0]

    loop.train, windows, to_learn_from = measured, ssl.windows, ssl.to_learn_from
    # What all contenders learn from.
    ssl.windows = lambda _X, some, *_more, **_: Resident(work.x[: len(some)])
    ssl.to_learn_from = lambda _X, some, *_more: Resident(work.x[: len(some)])
    try:
        if work.ssl:
            detector = ssl.ViewMaker(CHANNELS, SAMPLES, work.features.shape[1], work.hyper)
            assert detector.body is not None
            detector.body.to(work.device)
            ssl._pretrain(task, detector, rows, rows[:64], torch.device(work.device))
        else:
            supervised._train(task, rows, None, Keeper())
    finally:
        loop.train, ssl.windows, ssl.to_learn_from = real, windows, to_learn_from
    return seconds[0]


def all_train(windows: int) -> Any:
    """A split whose windows all train."""
    import numpy as np

    from training.contract import Recipe
    from training.data.split import Split

    none = np.zeros(0, dtype=np.int64)
    return Split(Recipe.SAMPLE, (), 0, np.arange(windows), none, none, none, {}, "")


def plain(work: Work) -> float:
    """The loop of every tutorial."""
    from torch.utils.data import DataLoader, TensorDataset

    as_torch_comes(work.threads)
    net, loss_of = network(work), criterion(work)
    steps = optimizer(work, net)
    loader = DataLoader(TensorDataset(work.x, work.y), batch_size=int(work.hyper["batch_size"]), shuffle=True)

    def train() -> None:
        net.train()
        for _ in range(work.epochs):
            total = 0.0
            for x, y in loader:
                steps.zero_grad()
                loss = loss_of(net(x), y)
                loss.backward()
                steps.step()
                total += loss.item()

    return timed(train)


def by_skorch(work: Work) -> float:
    import torch
    from skorch import NeuralNet

    as_torch_comes(work.threads)
    net = NeuralNet(
        network(work),
        criterion(work),
        optimizer=torch.optim.AdamW,
        lr=float(work.hyper["lr"]),
        optimizer__weight_decay=float(work.hyper["weight_decay"]),
        max_epochs=work.epochs,
        batch_size=int(work.hyper["batch_size"]),
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
        device=work.device,
    )
    net.initialize()
    return timed(lambda: net.partial_fit(work.x, work.y))


def by_lightning(work: Work) -> float:
    import pytorch_lightning as lightning
    from torch.utils.data import DataLoader, TensorDataset

    as_torch_comes(work.threads)
    loss_of = criterion(work)
    marks: list[float] = []

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(work)

        def training_step(self, batch: Any, _number: int) -> Any:
            x, y = batch
            return loss_of(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return optimizer(work, self.net)

        def on_train_start(self) -> None:
            marks.append(now())

        def on_train_end(self) -> None:
            marks.append(now())

    trainer = lightning.Trainer(
        max_epochs=work.epochs,
        accelerator="gpu" if work.device == "cuda" else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(TensorDataset(work.x, work.y), batch_size=int(work.hyper["batch_size"]), shuffle=True)
    module = Lit()
    trainer.fit(module, loader)
    return marks[-1] - marks[0]


def as_torch_comes(threads: int) -> None:
    """The libraries and the plain loop do not ask for repeatable results."""
    import torch

    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


CONTENDERS: dict[str, Callable[[Work], float]] = {
    "ours": ours,
    "plain": plain,
    "skorch": by_skorch,
    "lightning": by_lightning,
}


# -- rounds ---------------------------------------------------------------------------------------------------------


def turns(work: Work, names: tuple[str, ...], rounds: int) -> dict[str, list[float]]:
    """Samples a second of each, turn by turn; one before them warms up."""
    short = replace(work, epochs=1)
    for name in names:
        CONTENDERS[name](short)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 else reversed(names):  # nobody always comes after the same
            found[name].append(WINDOWS * work.epochs / CONTENDERS[name](work))
    return found


def ratio(found: dict[str, list[float]], other: str) -> float:
    pairs = zip(found["ours"], found[other], strict=True)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def in_turn(work: Work, table: Table, rounds: int) -> bool:
    found = turns(work, tuple(CONTENDERS), rounds)
    ratios = [ratio(found, name) for name in ("plain", "skorch", "lightning")]
    table.row(
        work.case.name,
        work.hyper["batch_size"],
        *(f"{statistics.median(each):,.0f}" for each in found.values()),
        *(f"{each:.2f}" for each in ratios),
        f"≥ {work.case.bar} {'✓' if min(ratios) >= work.case.bar else '–'}",
    )
    return min(ratios) >= work.case.bar


def own_choice(work: Work, table: Table, rounds: int) -> bool:
    """Both at the batch size at which they are fastest, which a first turn finds."""
    sizes = {batch: replace(work, hyper=work.hyper | {"batch_size": batch}) for batch in BATCHES}
    first = {batch: turns(each, ("ours", "plain"), 1) for batch, each in sizes.items()}
    best = {name: max(BATCHES, key=lambda b: first[b][name][0]) for name in ("ours", "plain")}
    found: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(rounds):
        for name, each in found.items():
            at = sizes[best[name]]
            each.append(WINDOWS * at.epochs / CONTENDERS[name](at))
    gained = ratio(found, "plain")
    rates = [f"{statistics.median(each):,.0f}" for each in found.values()]
    verdict = f"≥ {work.case.bar} {'✓' if gained >= work.case.bar else '–'}"
    batches = f"{best['ours']}/{best['plain']}"
    table.row(work.case.name, batches, *rates, "", "", f"{gained:.2f}", "", "", verdict)
    return gained >= work.case.bar


def trees(table: Table, rounds: int, threads: int, device: str) -> bool:
    """Boosting as the product does it, watching the loss and able to stop at every tree, beside a bare call."""
    from contextlib import ExitStack

    import numpy as np
    import xgboost

    from training import families
    from training.clock import SystemClock
    from training.trainer import gbt
    from training.trainer.contract import Progress, Stop
    from training.trainer.task import GivenWindows, Task

    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    y = (X[:, :5].sum(axis=1) + rng.normal(size=ROWS) > 0).astype(np.int64)
    hyper = families.FAMILIES["gbt"].defaults()

    class Keeper:
        def load(self) -> None: ...
        def watch(self, snapshot: Any) -> None: ...
        def tick(self) -> None: ...

    task = Task(
        model="gbt", X=X, features=X, names=(), feature_names=(), y=y, classes=2, is_benign=y == 0,
        split=all_train(ROWS),
        host=np.full(len(y), "one"), recording=np.full(len(y), ""), behaviour=np.full(len(y), ""),
        ordinary=GivenWindows(X[:0], X[:0], np.zeros(0, dtype=np.str_)),
        hyper=hyper, seed=0, threads=threads, device=device,
        progress=Progress(io.StringIO(), SystemClock()), stop=Stop(), keeper=Keeper(),
    )  # fmt: skip
    parameters = gbt._parameters(task) | {"seed": 0}
    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: gbt.Boosting(task, Keeper(), 0).boost(
            gbt.Bins(task, ExitStack()).of(np.arange(ROWS), None), None, TREES
        ),
        "plain": lambda: xgboost.train(parameters, xgboost.DMatrix(X, y, nthread=threads), TREES),
        "XGBClassifier": lambda: xgboost.XGBClassifier(
            n_estimators=TREES, n_jobs=threads, **_for_classifier(parameters)
        ).fit(X, y),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(ROWS * TREES / timed(way))
    rates = (f"{statistics.median(each) / 1e6:.2f} M" for each in found.values())
    gained = ratio(found, "plain")
    table.say(f"trees: row-rounds a second, {ROWS:,} × {COLUMNS}, {TREES} trees; in skorch's place XGBClassifier")
    table.row("gbt", "", *rates, "", f"{gained:.2f}", f"{ratio(found, 'XGBClassifier'):.2f}", "",
              f"≥ 1.0 {'✓' if gained >= 1 else '–'}")  # fmt: skip
    return gained >= 1


def _for_classifier(parameters: dict[str, Any]) -> dict[str, Any]:
    names = {"eta": "learning_rate", "seed": "random_state"}
    unknown = ("nthread", "disable_default_eval_metric")
    return {names.get(k, k): v for k, v in parameters.items() if k not in unknown}


now: Callable[[], float] = time.process_time


def wall() -> float:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(work: Callable[[], object]) -> float:
    began = now()
    work()
    return now() - began


if __name__ == "__main__":
    sys.exit(main())
