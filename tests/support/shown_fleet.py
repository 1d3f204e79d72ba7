"""A fleet with a day behind it, for looking at pages: built once, through the service's own calls."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builders import a_beat, a_capability, a_failure, a_job, a_worker_claim, some_lines
from fakes import FakeClock
from receiver_running import Receiver

from training.fleet.service.service import Plan, Service
from training.fleet.wire.messages import CompleteRequest, OutputRequest

NOON = 1_782_993_600.0  # 2026-07-02, 12:00 UTC
MODELS = ("gbt", "mlp", "cnn", "gru", "lstm", "transformer", "transformer_ssl")
HOSTILE = "<script>alert(1)</script>\u202e\x1b[2J&\"'"
GPU = a_capability(cuda=True, vram=8.0, ram=32.0, cores=16)
PI = a_capability(ram=3.6, cores=4)


def the_plan() -> list[dict[str, Any]]:
    """Seven models in two modes; trees first, attention last and on a GPU."""
    wants_gpu = {"gru", "lstm", "transformer", "transformer_ssl"}
    return [
        a_job(
            f"{model}-{mode}",
            model=model,
            mode=mode,
            priority=100 - 10 * place,
            require_cuda=model in wants_gpu,
            min_vram_gib=4.0 if model.startswith("transformer") else 0.0,
            hyper={"epochs": 60, "lr": 0.001} if model != "gbt" else {"max_depth": 6},
        )
        for place, model in enumerate(MODELS)
        for mode in ("realistic", "oracle")
    ]


class Day:
    """Makes a day of work happen."""

    def __init__(self, service: Service, clock: FakeClock, store: Any) -> None:
        self.service, self.clock, self.store = service, clock, store
        self._claims = 0

    def claim(self, host: str, capability: dict[str, Any]) -> tuple[str, str]:
        self._claims += 1
        asked = a_worker_claim(host, capability=capability, request_id=f"r-{self._claims}")
        granted = self.service.claim(asked)
        assert granted.job_id is not None, granted.reason
        assert granted.claim_id is not None
        return granted.job_id, granted.claim_id

    def beat(self, job: tuple[str, str], epoch: int, epochs: int, eta_s: float, seq: int = 1) -> None:
        told = {"event": "epoch", "epoch": epoch, "epochs": epochs, "eta_s": eta_s, "loss": 0.9 / (epoch + 1)}
        self.service.heartbeat(job[0], a_beat(job[1], seq=seq, progress=told))

    def work(self, host: str, capability: dict[str, Any], seconds: float, error: str | None = None) -> None:
        """One attempt from its grant to its end."""
        job = self.claim(host, capability)
        for step in range(4):
            self.beat(job, 15 * step, 60, seconds * (1 - step / 4), seq=step + 1)
            self.clock.advance(seconds / 4)
        lines = [
            json.dumps({"event": "epoch", "epoch": n, "epochs": 60, "loss": 0.9 / (n + 1), "metric": 1 - 0.4 / (n + 1)})
            for n in range(60)
        ]
        self.service.output(job[0], OutputRequest(host_id=host, claim_id=job[1], log=some_lines(*lines, error or "")))
        if error is not None:
            self.service.fail(job[0], a_failure(job[1], error=error, exit_code=65))
            return
        artifact = self.store(job[0], job[1])
        self.service.complete(
            job[0], CompleteRequest(claim_id=job[1], artifact_id=artifact, record={"train_s": seconds})
        )


def build(receiver: Receiver, clock: FakeClock) -> None:
    """Let the day happen: four jobs trained, one failed, two under way, others waiting."""

    def decide() -> None:
        hosts = {"office-print": {"allow_jobs": ["gbt", "mlp"]}, "laptop": {}, "spectral-desktop": {"priority": 100}}
        receiver.service.reload(receiver.plan, Plan(hosts=hosts, named_hosts={"workshop": "[hosts.workshop]"}))
        happen(Day(receiver.service, clock, lambda job, claim: stored(receiver, job, claim)), clock)

    receiver.writer.submit(decide).result()


def stored(receiver: Receiver, job: str, claim: str) -> str:
    """Keep a bundle of an attempt, as an upload does."""
    body = claim.encode()
    artifact = hashlib.sha256(body).hexdigest()
    found = receiver.queue.get(job)
    attempt = receiver.queue.attempts.by_claim(claim)
    assert found is not None
    assert attempt is not None
    folder = receiver.folder / "models" / f"{found.model}_{found.mode}" / artifact
    folder.mkdir(parents=True)
    (folder / "bundle.tar.zst").write_bytes(body)
    receiver.queue.attempts.add_artifact(attempt, artifact, found.model, found.mode, len(body))
    return artifact


def happen(day: Day, clock: FakeClock) -> None:
    """Tell the day."""
    clock.advance(3600)
    day.work("office-print", PI, 900)
    day.work("office-print", PI, 1100)
    day.work("spectral-desktop", GPU, 5400)
    day.work("laptop", PI, 2600, error="ValueError: features_window_v1.parquet holds no rows")
    clock.advance(7200)
    day.work("spectral-desktop", GPU, 7000)
    clock.advance(1800)
    far, near = day.claim("laptop", PI), day.claim("spectral-desktop", GPU)
    clock.advance(600)
    day.beat(far, 31, 60, 480.0)
    day.beat(near, 12, 60, 2700.0)
    clock.advance(20)


@contextlib.contextmanager
def shown(folder: Path, *more: dict[str, Any]) -> Iterator[Receiver]:
    """Serve that fleet."""
    clock = FakeClock(NOON)
    receiver = Receiver(folder, [*the_plan(), *more], fleet_clock=clock)
    receiver.judged = False
    with receiver:
        build(receiver, clock)
        yield receiver


__all__ = ["HOSTILE", "Day", "build", "shown", "the_plan"]
