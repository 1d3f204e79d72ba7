"""A trainer of one's own: the nearest class centre, under the contract of docs/trainer-contract.md."""

import argparse
import hashlib
import json
import sys
from pathlib import Path

SHRINK = {"flag": "--shrink", "type": "float", "min": 0.0, "max": 1.0, "min_open": False,
          "max_open": False, "choices": None, "default": 0.1, "help": "pull of the centre"}  # fmt: skip
if "--describe" in sys.argv:  # asked by the receiver, which has no NumPy
    models = {"centroid": {"hyper": {"shrink": SHRINK}}}
    text = json.dumps(models, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    told = {"describe_version": 1, "program": "centroid", "models": models, "digest": digest}
    sys.exit(print(json.dumps(told)))

import numpy as np  # noqa: E402 - not needed to describe

from training.data.dataset import load_processed  # noqa: E402
from training.data.split import make_split  # noqa: E402
from training.trainer.evaluation.report import least_report  # noqa: E402

parser = argparse.ArgumentParser()
for flag in ("--model", "--mode", "--summary", "--schema", "--tensors", "--out-dir", "--reports-dir"):
    parser.add_argument(flag, required=True)
for flag, usual in (("--split-recipe", "sample"), ("--seed", 0), ("--shrink", 0.1)):
    parser.add_argument(flag, type=type(usual), default=usual)
parser.add_argument("--split-seed", type=int)
for flag in ("--train-hosts", "--test-hosts"):
    parser.add_argument(flag, action="append", default=[])
args, _not_needed = parser.parse_known_args()
data = load_processed(Path(args.summary), Path(args.tensors), Path(args.schema), args.mode)
asked = {name: vars(args)[name] for name in ("train_hosts", "test_hosts", "seed", "split_seed")}
split = make_split(data.rows, recipe=args.split_recipe, **asked)
x, y = data.features, data.y
learnt = np.concatenate((split.learnt, split.cal))  # nothing stops early and there is no threshold: all of it trains
x = (x - x[learnt].mean(axis=0)) / (x[learnt].std(axis=0) + 1e-9)
inside = [(int(k), learnt[y[learnt] == k]) for k in sorted(set(y[learnt]))]
centres = {k: (1 - args.shrink) * x[rows].mean(axis=0) for k, rows in inside}
away = {k: ((x[split.test] - c) ** 2).sum(axis=1) for k, c in centres.items()}
near = [min(away, key=lambda k, i=i: away[k][i]) for i in range(len(split.test))]
accuracy = float((near == y[split.test]).mean())
benign = [data.label_map[name] for name in data.benign]
calm, odd = (np.min([away[k] for k in away if (k in benign) is kind], axis=0) for kind in (True, False))
print(json.dumps({"event": "epoch", "epoch": 1, "epochs": 1, "metric": accuracy}), flush=True)
model = {"schema_hash": data.schema_hash, "centres": {k: c.tolist() for k, c in centres.items()}}
Path(args.out_dir).mkdir(parents=True, exist_ok=True)
out = Path(args.out_dir) / f"{args.model}_{args.mode}.json"
out.write_text(json.dumps({"accuracy": accuracy, **model}, sort_keys=True))
report = Path(args.reports_dir) / f"{args.model}_{args.mode}_train.json"
report.parent.mkdir(parents=True, exist_ok=True)
report.write_text(json.dumps(least_report(data, split, calm - odd)))
