"""Deletion curves: do the channels and seconds that `score --explain` names carry the alarms?

    python bench/reasons.py [--models gbt,mlp,cnn,gru,transformer,transformer_ssl] [--json]

Trained as by `make demo` on three hosts of the recorded sample; the alarms are those on the fourth, at most 150.
Channel after channel is replaced by what the host's reference recording shows instead (three of its windows in turn,
features made anew): in the order of the shares, and in ten random orders. Whatever carried the alarms takes them with
it. Bars: after one, three and five channels fewer alarms are left than after as many random ones, and on average of all
numbers. The last column takes one second away, and has no bar.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from trainers import FAMILIES, ROOT, Table, arguments, own_python, train, words_of, workplace

from training.data.features import extract
from training.trainer import reasons
from training.trainer.judging import Judged, judge
from training.trainer.task import GivenWindows, thinned

SEED = 7
TRAIN_HOSTS = ("build-box", "front-desk", "ledger")  # as in the demo's manifest: attic-pi is unseen
MOST, FILLS, DRAWS = 150, 3, 10
TAKEN = (1, 3, 5)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--models", default=",".join(FAMILIES), help="names with commas")
    args = parser.parse_args()
    columns = {
        "model": 16,
        "alarms": 6,
        **{f"{k} channel{'s' * (k > 1)}": 11 for k in TAKEN},
        "area": 11,
        "1 second": 11,
    }
    table = Table("alarms left on the unseen host: by share / at random", columns, as_json=args.json)
    missed = 0
    with workplace() as folder:
        sample, data = ROOT / "examples" / "telemetry-sample", folder / "data"
        words_of([own_python(), "-m", "training.data.build", str(sample), "--out-dir", str(data)])
        hosts = [flag for host in TRAIN_HOSTS for flag in ("--train-hosts", host)]
        for model in args.models.split(","):
            flags = ["--split-recipe", "host", "--seed", str(SEED), "--n-resamples", "20", *hosts]
            train(model, data, folder / model, *flags, mode="realistic")
            missed += not tell(table, model, folder / model / f"{model}_realistic.ckpt.json", data)
        table.end(missed=missed)
    return 1 if missed else 0


def tell(table: Table, model: str, checkpoint: Path, data: Path) -> bool:
    """A row of what is left; False where a random order does as well."""
    judged = judge(checkpoint, data)
    assert judged.alarm is not None
    rows = np.flatnonzero(judged.alarm & ~np.isin(judged.inputs.rows.host, TRAIN_HOSTS))
    rows = thinned(rows, MOST)
    found, deleted = reasons.explain(judged.fitted, judged.inputs, rows), Deleted.of(judged, rows)
    rng = np.random.default_rng(0)

    def curves(share: Any, left: Any) -> tuple[Any, Any]:
        """Alarms left after each removal in the order of the shares, and on average of random orders."""
        by_share = left(np.argsort(-share, axis=1, kind="stable"))
        drawn = [left(np.argsort(rng.random(share.shape), axis=1)) for _ in range(DRAWS)]
        return by_share, np.mean(drawn, axis=0)

    channels = curves(found.share, deleted.without_channels)
    seconds = curves(found.moment, deleted.without_seconds)
    pairs = [tuple(curve[k] for curve in channels) for k in TAKEN]
    pairs += [tuple(curve.mean() for curve in channels), tuple(curve[1] for curve in seconds)]
    good = all(mine < random for mine, random in pairs[:-1])
    table.row(model, rows.size, *(f"{mine:.2f} / {random:.2f}" for mine, random in pairs), left=pairs)
    return good


@dataclass(frozen=True)
class Deleted:
    """The alarms of some windows with parts of them replaced by windows of their hosts' references."""

    judged: Judged
    rows: Any
    tensors: Any  # (n, C, T)
    fills: Any  # (FILLS, n, C, T)

    @classmethod
    def of(cls, judged: Judged, rows: Any) -> Deleted:
        inputs = judged.inputs
        fills = []
        for host in inputs.rows.host[rows]:
            places = np.flatnonzero(inputs.reference_host == host)
            fills.append(inputs.reference_tensors[places[np.linspace(0, places.size - 1, FILLS).astype(int)]])
        return cls(judged, rows, np.array(inputs.tensors[rows]), np.stack(fills, axis=1))

    def without_channels(self, order: Any) -> Any:
        """(C + 1,): the share of alarms left after each removal; ``order`` (n, C) has the channels."""
        rank = np.argsort(order, axis=1)[:, :, None]
        return np.array([self._left(rank < k) for k in range(order.shape[1] + 1)])

    def without_seconds(self, order: Any) -> Any:
        rank, samples = np.argsort(order, axis=1), self.tensors.shape[2]
        spans = reasons.stretches_of(samples, self.judged.inputs.schema.sample_hz)
        of_sample = np.repeat(np.arange(len(spans)), [end - start for start, end in spans])
        return np.array([self._left((rank < k)[:, None, of_sample]) for k in range(order.shape[1] + 1)])

    def _left(self, gone: Any) -> float:
        return float(np.mean([self._alarms(np.where(gone, fill, self.tensors)) for fill in self.fills]))

    def _alarms(self, tensors: Any) -> Any:
        inputs, judged = self.judged.inputs, self.judged
        features = extract(tensors, inputs.schema.channels, inputs.schema.sample_hz)
        X = features if inputs.X.ndim == 2 else tensors
        given = GivenWindows(X, features, inputs.rows.host[self.rows])
        outputs = judged.fitted.predict(given, np.arange(len(X)))
        if outputs.proba is not None:
            score = judged.classes.alarm_score(outputs.proba)
        else:
            assert outputs.score is not None
            host = inputs.rows.host[self.rows]
            score = outputs.score if judged.levels is None else judged.levels.applied(outputs.score, host)
        assert judged.thresholds is not None
        return score > judged.thresholds[self.rows]


if __name__ == "__main__":
    sys.exit(main())
