"""The worker as it is, with shorter times and a smaller disk, noting every answer that it got in a file of its own."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from typing import Any

from training.fleet.client import bundles as client_bundles
from training.fleet.client import client
from training.fleet.worker import attempt as worker_attempt
from training.fleet.worker import daemon
from training.fleet.worker import requests as worker_calls
from training.fleet.worker import self_test as worker_health

given = json.loads(os.environ["CIS490_TORTURE"])
witness = os.open(given["witness"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
exchange = worker_calls.Calls._exchange
options_of = daemon.options_of


def exchange_and_tell(self: Any, request: Any) -> Any:
    """One line for each answer, before the worker itself can act on it."""
    event = exchange(self, request)
    subject = getattr(event, "assignment", None) or getattr(request, "assignment", None)
    delivery = getattr(request, "delivery", None)
    subject = delivery.assignment if delivery is not None else subject
    if subject is not None:
        line = {"host": sys.argv[sys.argv.index("--host-id") + 1], "said": type(event).__name__}
        line |= {"job_id": subject.job_id, "claim_id": subject.claim_id, "attempt": subject.attempt}
        line["sha256"] = None if delivery is None else delivery.sha256
        os.write(witness, json.dumps(line).encode() + b"\n")
    return event


def options(args: Any) -> Any:
    plain = options_of(args)
    known = asdict(plain.settings)
    wanted = {name: value for name, value in given["settings"].items() if name in known}
    return replace(plain, settings=replace(plain.settings, **wanted))


worker_calls.Calls._exchange = exchange_and_tell  # type: ignore[method-assign]
daemon.options_of = options
daemon.detect = lambda _: {"cpu_cores": 2, "ram_available_gib": 4.0, "cuda_available": False}  # type: ignore[assignment]
worker_health.DISK_WANTED_BYTES = worker_attempt.DISK_WANTED_BYTES = given["disk_wanted_bytes"]
worker_attempt.DISK_FLOOR_BYTES = given["disk_floor_bytes"]
worker_attempt.LOOK_S = given["look_s"]
daemon.CALL_TIMEOUT_S = daemon.BEAT_TIMEOUT_S = given["timeout_s"]
client.SLOW_S = client_bundles.SLOW_S = given["timeout_s"]

if __name__ == "__main__":
    sys.exit(daemon.main())
