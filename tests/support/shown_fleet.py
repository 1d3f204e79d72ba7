"""A fleet with a day behind it, for looking at pages: built once, through the service's own calls."""

from __future__ import annotations

import contextlib
import hashlib
import json

import msgspec
from builders import a_beat, a_capability, a_failure, a_job, a_worker_claim, some_lines
from fakes import FakeClock
from receiver_running import Receiver

from training.fleet.scheduling.policy import Scheduling
from training.fleet.service.catalogue import kept_of
from training.fleet.service.hosts import Plan
from training.fleet.store.artifacts import Artifact
from training.fleet.wire.attempts import CompleteRequest, OutputRequest, Usage
from training.fleet.wire.incident_messages import WatchRequest

NOON = 1_782_993_600.0  # 2026-07-02, 12:00 UTC
MODELS = ("gbt", "mlp", "cnn", "gru", "lstm", "transformer", "transformer_ssl")
HOSTILE = "<script>alert(1)</script>\u202e\x1b[2J&\"'"
GPU = a_capability(cuda=True, vram=8.0, ram=32.0, cores=16)
PI = a_capability(ram=3.6, cores=4)


def the_plan():
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


def told_of(epoch):
    """Return a trainer's report of an epoch of 60: of 40 it searches, 20 are the refit."""
    stage, own, of = ("1 of 3: search", epoch, 40) if epoch <= 40 else ("2 of 3: refit", epoch - 40, 20)
    told = {"metric": 1 - 0.4 / epoch, "metric_name": "validation AUROC"} if epoch <= 40 else {}
    told |= {"stage": stage, "stage_epoch": own, "stage_epochs": of, "loss": 0.9 / own}
    return {"event": "epoch", "epoch": epoch, "epochs": 60, **told}


class Day:
    """Makes a day of work happen."""

    def __init__(self, service, clock, store):
        self.service, self.clock, self.store = service, clock, store
        self._claims = 0

    def claim(self, host, capability):
        self._claims += 1
        asked = a_worker_claim(host, capability=capability, request_id=f"r-{self._claims}")
        granted = self.service.claim(asked)
        assert granted.job_id is not None, granted.reason
        assert granted.claim_id is not None
        return granted.job_id, granted.claim_id

    def beat(self, job, epoch, eta_s, seq=1):
        told = told_of(epoch) | {"eta_s": eta_s}
        used = Usage(cpu=3.5 - 1 / (epoch + 1), memory_bytes=(900 + 8 * epoch) * 1024**2)
        self.service.heartbeat(job[0], a_beat(job[1], seq=seq, progress=told, usage=used))

    def work(self, host, capability, seconds, error=None):
        """One attempt from its grant to its end."""
        job = self.claim(host, capability)
        for step in range(4):
            self.beat(job, 15 * step + 1, seconds * (1 - step / 4), seq=step + 1)
            self.clock.advance(seconds / 4)
        lines = [json.dumps(told_of(epoch)) for epoch in range(1, 61)]
        self.service.output(job[0], OutputRequest(host_id=host, claim_id=job[1], log=some_lines(*lines, error or "")))
        if error is not None:
            self.service.fail(job[0], a_failure(job[1], error=error, exit_code=65))
            return
        artifact, kept = self.store(job[0], job[1])
        said = CompleteRequest(claim_id=job[1], artifact_id=artifact, record={"train_s": seconds})
        self.service.complete(job[0], said, kept)


def build(receiver, clock):
    """Let the day happen: four jobs trained, one failed, two under way, others waiting."""

    def decide():
        hosts = {"office-print": {"allow_jobs": ["gbt", "mlp"]}, "laptop": {}, "spectral-desktop": {"priority": 100}}
        receiver.service.reload(
            receiver.plan,
            Plan(hosts=hosts, named_hosts={"workshop": "[hosts.workshop]"}, scheduling=Scheduling.FIRST_COME),
        )
        watched(receiver, clock)
        happen(Day(receiver.service, clock, lambda job, claim: stored(receiver, job, claim)), clock)

    receiver.writer.submit(decide).result()


def a_report(auroc=0.9, half=0.04, level="good", **parts):
    """Make a trainer's report with these figures; ``parts`` replaces members."""

    def figure(value):
        return {"value": value, "ci95": [max(0.0, value - half), min(1.0, value + half)]}

    figures = {"auroc": figure(auroc), "tpr": figure(auroc - 0.1), "fpr": figure(0.06)}
    alarms = {"value": 480.0, "ci95": [310.0, 690.0]}
    host = {"windows": 240, "one_class": None, **figures}
    report = {
        "metrics": {"test": {**figures, "alerts_per_host_day": alarms}},
        "operating_point": {"target_fpr": 0.05},
        "incidents": {"false_per_host_day": {"value": 40.0, "ci95": [3.0, 90.0]}},
        "per_host": {"office-print": host, "workshop": {**host, "one_class": "benign", "auroc": {"value": None}}},
        "baselines": {"logistic_regression": {"auroc": figure(auroc - 0.05)}},
        "curves": {"roc": [{"label": "malicious1", "points": [[x / 40, (x / 40) ** (1 - auroc)] for x in range(41)]}]},
        "split": {
            "recipe": "host",
            "unseen_hosts": ["office-print", "workshop"],
            "seen_hosts": [],
            "hosts": {"train": {"laptop": 600}, "test": {"office-print": 240, "workshop": 240}},
            "classes": {"train": {"benign": 500, "malicious1": 100}, "test": {"benign": 400, "malicious1": 80}},
            "n": {"test": {"windows": 480, "episodes": 24}},
        },
        "run_key": {"data": "d" * 64},
        "verdict": f"Catches {100 * auroc - 10:.0f} % of malicious-like windows.\nCalls falsely about 40 times a day.",
        "verdict_more": "It keeps its promise of 5 % false alarms.",
        "verdict_why": "" if level == "good" else "it may catch little",
        "verdict_level": level,
        "notes": ["The test side has no window of malicious2."],
    }
    return {**report, **parts}


# Reports of the shown fleet's trainers; other jobs leave nothing.
REPORTS = {
    "gbt-realistic": a_report(0.937, 0.04, "caution"),
    "gbt-oracle": a_report(0.951, 0.03),
    "mlp-realistic": a_report(0.842, 0.03, "poor"),
}


def stored(receiver, job, claim):
    """Keep a bundle of an attempt, as an upload does, and its report."""
    body = claim.encode()
    artifact = hashlib.sha256(body).hexdigest()
    found = receiver.queue.get(job)
    attempt = receiver.queue.attempts.by_claim(claim)
    folder = receiver.folder / "models" / f"{found.model}_{found.mode}" / artifact
    folder.mkdir(parents=True)
    (folder / "bundle.tar.zst").write_bytes(body)
    receiver.queue.attempts.add_artifact(attempt, artifact, found.model, found.mode, len(body))
    if found.name not in REPORTS:
        return artifact, None
    said = json.dumps(REPORTS[found.name]).encode()
    digest = receiver.store.write_report(Artifact(artifact, found.model, found.mode, len(body)), said)
    return artifact, kept_of(digest, said)


def happen(day, clock):
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
    day.beat(far, 31, 480.0)
    day.beat(near, 12, 2700.0)
    clock.advance(20)


def watched(receiver, clock):
    """Let two hosts be watched: one with an incident that a person judged and one that is open; one fell silent."""
    begin = clock.now()
    why = [("forks", 0.38), ("cpu_user", 0.21), ("context_switches", 0.09)]
    known = {
        "rule": "2 of 3 windows in a row above the threshold",
        "threshold": 0.62,
        "why": [{"channel": channel, "share": share} for channel, share in why],
        "seconds": [[begin + 60, begin + 64], [begin + 70, begin + 71]],
    }
    tellings = [
        ("office-print", {"id": "aa" * 8, "event": "over", "alarms": 12, "peak": 0.31}),
        ("office-print", {"id": "bb" * 8, "event": "raised", "alarms": 2, "peak": 0.12, "seconds": []}),
        ("attic-pi", {"id": "cc" * 8, "event": "over", "alarms": 3, "peak": 0.05, "why": [], "seconds": []}),
    ]
    for host, told in tellings:
        at = {"began_at": begin + 60, "raised_at": begin + 66, "last_alarm_at": begin + 62 + 2 * told["alarms"]}
        every = {"every_s": 86_400} if host == "office-print" else {}
        body = {"host_id": host, "model": "gbt realistic", "checkpoint": "5f" * 32, "incident": known | at | told}
        receiver.hub.incidents.report(msgspec.convert(body | every, WatchRequest))
    receiver.hub.incidents.judge(1, "confirmed", "operator ada")
    forks = {"channel": "forks", "measure": "level", "before": 0.21, "after": 3.4}
    load = {"channel": "load_1m", "measure": "spread", "before": 0.4, "after": 1.1}
    moved = {"channels": [forks, load], "more_channels": 3, "began_at": begin - 4800, "raised_at": begin - 1200}
    for name, event in (("dd" * 8, "changed"), ("dd" * 8, "confirmed"), ("ee" * 8, "changed")):
        body = {"host_id": "office-print", "model": "gbt realistic", "checkpoint": "5f" * 32, "every_s": 86_400}
        told = {"id": name, "event": event} | moved
        receiver.hub.incidents.report(msgspec.convert(body | {"incident": told}, WatchRequest))


@contextlib.contextmanager
def shown(folder, *more):
    """Serve that fleet."""
    clock = FakeClock(NOON)
    receiver = Receiver(folder, [*the_plan(), *more], fleet_clock=clock)
    receiver.judged = False
    with receiver:
        build(receiver, clock)
        yield receiver


__all__ = ["HOSTILE", "Day", "build", "shown", "the_plan"]
