"""A trainer that is done at once, or does what ``--behave`` says; it dies at ``--die`` the first time on each host.

With ``--chatter N`` its last words are N lines, however it ends, but for being killed.
"""

import atexit
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


model, mode, out = option("--model"), option("--mode"), Path(option("--out-dir"))
behave, die, seed = option("--behave", "well"), option("--die"), int(option("--seed", "0"))
chatter = int(option("--chatter", "0"))
state = Path(os.environ.get("CIS490_STATE_DIR", "."))


def place(name: str) -> None:
    mark = state / "died"
    if name == die and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def once(name: str) -> bool:
    mark = state / name
    new = not mark.exists()
    mark.touch()
    return new


def chat() -> None:
    print("\n".join(f"chatter {n}" for n in range(1, chatter + 1)), flush=True)


place("trainer.begun")
if chatter:
    atexit.register(chat)
print(json.dumps({"event": "start", "pid": os.getpid()}), flush=True)
for epoch in range(1, 6):
    print(json.dumps({"event": "epoch", "epoch": epoch, "epochs": 5}), flush=True)
    if epoch == 3:
        place("trainer.training")
if behave == "bad-data":
    print("error: the data set has another schema", file=sys.stderr)
    sys.exit(65)
if behave == "fail-once" and once("failed"):
    print("RuntimeError: the first time it fails", file=sys.stderr)
    sys.exit(1)
if behave == "linger":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    go = Path(option("--go"))
    while not go.exists():
        threading.Event().wait(0.05)
size = int(option("--bytes", "20000"))
weights = random.Random(seed).randbytes(size)
(out / f"{model}_{mode}.pt").write_bytes(weights)
place("trainer.half_saved")
(out / f"{model}_{mode}.ckpt.json").write_text(json.dumps({"seed": seed}))
place("trainer.saved")
print("done", flush=True)
