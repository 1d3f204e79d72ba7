"""A trainer that keeps the contract in no time, or breaks it in the way that ``--behave`` names."""

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

parser = argparse.ArgumentParser()
for flag in ("--model", "--mode", "--validation", "--summary", "--schema", "--tensors"):
    parser.add_argument(flag, required=True)
for flag in ("--out-dir", "--reports-dir"):
    parser.add_argument(flag, type=Path, required=True)
for flag in ("--split-recipe", "--n-resamples", "--seed"):
    parser.add_argument(flag)
for flag in ("--train-hosts", "--test-hosts"):
    parser.add_argument(flag, action="append", default=[])
parser.add_argument("--behave", default="well")
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()

asked = threading.Event()
if args.behave == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: asked.set())


def interruptible(seconds: float | None) -> None:
    if asked.wait(seconds):
        state = os.environ.get("CIS490_STATE_DIR")
        if state:
            (Path(state) / "resumable").write_text("learnt so far")
        print("interrupted", flush=True)
        sys.exit(75)


def report() -> dict[str, object]:
    """Say which host was tested, with an AUROC made of its name."""
    if not args.test_hosts:
        return {"metrics": {"test": {}}}
    (tested,) = args.test_hosts
    auroc = {"value": round(0.9 - len(tested) / 100, 6), "ci95": None}
    hosts = {"train": dict.fromkeys(args.train_hosts, 8), "test": {tested: 8}}
    split = {"recipe": args.split_recipe, "unseen_hosts": [tested], "hosts": hosts, "classes": {}}
    return {"metrics": {"test": {"auroc": auroc}}, "per_host": {tested: {"auroc": auroc}}, "split": split}


def leave(sha256: str | None = None) -> None:
    weights = f"{args.model} {args.mode} {args.seed}".encode() * 1000
    stem = f"{args.model}_{args.mode}"
    digest = sha256 or hashlib.sha256(weights).hexdigest()
    sidecar = {"file": f"{stem}.pt", "bytes": len(weights), "sha256": digest}
    (args.out_dir / f"{stem}.pt").write_bytes(weights)
    (args.out_dir / f"{stem}.ckpt.json").write_text(json.dumps({"sidecar": sidecar}))
    (args.reports_dir / f"{stem}_train.json").write_text(json.dumps(report()))
    (args.reports_dir / f"{stem}_timing.json").write_text(json.dumps({"fit_s": 0.1}))


match args.behave:
    case "well":
        for epoch in range(1, args.epochs + 1):
            line = {"event": "epoch", "epoch": epoch, "epochs": args.epochs, "loss": 1 / epoch}
            print(json.dumps(line), flush=True)
        leave()
    case "mumbles":
        print('{"event": "epoch", "epoch": 1, "note": "half a character: \\ud800"}', flush=True)
        leave()
        timing = args.reports_dir / f"{args.model}_{args.mode}_timing.json"
        timing.write_text('{"fit_s": NaN, "note": "\\ud800"}')
    case "on-file":
        while not Path("go").exists():
            interruptible(0.05)
        leave()
    case "talks" | "talks-and-fails":
        for number in range(300):
            print(f"line {number}", flush=True)
        while not Path("go").exists():
            interruptible(0.05)
        for number in range(300, 550):
            print(f"line {number}", flush=True)
        if args.behave == "talks-and-fails":
            raise ValueError("the labels are all of one class")
        leave()
    case "hang" | "deaf":
        print(json.dumps({"event": "epoch", "epoch": 1, "epochs": 9, "eta_s": 60}), flush=True)
        print(f"running as {os.getpid()}", flush=True)
        while True:
            interruptible(None)
    case "counts":  # epoch by epoch, kept after each: it goes on from what it finds, and ends when there is a file
        kept = Path(os.environ["CIS490_STATE_DIR"], "epoch")
        epoch = int(kept.read_text()) if kept.exists() else 0
        print(f"goes on from {epoch} as {os.getpid()}", flush=True)
        while not Path("go").exists():
            epoch += 1
            kept.with_name(".new").write_text(str(epoch))
            kept.with_name(".new").replace(kept)
            print(json.dumps({"event": "epoch", "epoch": epoch, "epochs": 10**6, "loss": 1 / epoch}), flush=True)
            if asked.wait(0.02):
                sys.exit(75)
        leave()
    case "fail":
        print("loading data")
        raise ValueError("the labels are all of one class")
    case "bad-data":
        print("error: the data set has another schema", file=sys.stderr)
        sys.exit(65)
    case "binary":
        sys.stdout.buffer.write(bytes(range(256)) * 4 + b"\nRuntimeError: \xffbroken\n")
        sys.exit(1)
    case "silent":
        sys.exit(3)
    case "shot":
        os.kill(os.getpid(), signal.SIGKILL)
    case "forgets":
        print("done")
    case "lies":
        leave(sha256="0" * 64)
