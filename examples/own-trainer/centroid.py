"""A trainer of one's own: the nearest class centre, under the contract of docs/trainer-contract.md."""

import argparse
import hashlib
import json
import sys
from pathlib import Path

HYPER = {"flag": "--shrink", "type": "float", "min": 0.0, "max": 1.0, "min_open": False,
         "max_open": False, "choices": None, "default": 0.1, "help": "pull of the centre"}  # fmt: skip


def describe() -> None:  # answered by a receiver that has no NumPy
    models = {"centroid": {"hyper": {"shrink": HYPER}}}
    digest = hashlib.sha256(json.dumps(models, sort_keys=True).encode()).hexdigest()
    said = {"describe_version": 1, "program": "centroid", "models": models, "digest": digest}
    print(json.dumps(said))


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--model", "--mode", "--summary", "--schema", "--tensors", "--out-dir"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--split-recipe", default="sample")
    parser.add_argument("--train-hosts", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shrink", type=float, default=0.1)
    args, _not_needed = parser.parse_known_args()

    from training.data.dataset import load_processed
    from training.data.split import make_split

    data = load_processed(Path(args.summary), Path(args.tensors), Path(args.schema), args.mode)
    of_windows = (data.episode, data.host, data.t_start, data.y)
    wanted = {"recipe": args.split_recipe, "train_hosts": args.train_hosts, "seed": args.seed}
    split = make_split(*of_windows, **wanted)
    x, y = data.features[split.train].astype(float), data.y[split.train]
    scaled = (data.features - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)
    known = sorted(set(y.tolist()))
    centres = [(1 - args.shrink) * scaled[split.train][y == k].mean(axis=0) for k in known]
    far = [((scaled[split.test] - centre) ** 2).sum(axis=1) for centre in centres]
    right = [known[min(range(len(known)), key=lambda k, i=i: far[k][i])] == truth
             for i, truth in enumerate(data.y[split.test])]  # fmt: skip
    accuracy = sum(right) / len(right)
    print(json.dumps({"event": "epoch", "epoch": 1, "epochs": 1, "metric": accuracy}), flush=True)
    out = Path(args.out_dir) / f"{args.model}_{args.mode}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    model = {"schema_hash": data.schema_hash, "centres": [c.tolist() for c in centres]}
    out.write_text(json.dumps({"accuracy": accuracy, **model}, sort_keys=True))


if __name__ == "__main__":
    describe() if "--describe" in sys.argv else main()
