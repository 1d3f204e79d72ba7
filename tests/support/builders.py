"""Jobs, hosts and requests with readable defaults: a test names only what it is about."""

from __future__ import annotations

from fakes import EPOCH

from training.fleet.scheduling.job import Attempt, Host, Job, JobStatus, Needs
from training.fleet.wire.attempts import ClaimRequest, CompleteRequest, FailRequest, HeartbeatRequest, LogLines
from training.fleet.wire.constants import HEADER_DATABASE

SHOWN = {HEADER_DATABASE.lower(): "d" * 32}  # the header of every answer of a receiver


def a_job(name="gbt-realistic", **wishes):
    """A job dict as the manifest makes it: gbt on CPU, unless told otherwise. Its id follows from its name."""
    return {
        "name": name,
        "job_id": f"id-{name}",
        "model": "gbt",
        "mode": "realistic",
        "priority": 50,
        "require_cuda": False,
        "prefer_cuda": False,
        "min_vram_gib": 0.0,
        "min_ram_gib": 0.0,
        "min_cores": 0,
        "allowed_hosts": [],
        "denied_hosts": [],
        "hyper": {},
        "split_recipe": "host",
        "train_hosts": ["lab-1"],
        "seed": 7,
        "n_resamples": 1000,
        **wishes,
    }


def a_capability(*, cuda=False, vram=8.0, ram=8.0, cores=4, **more):
    """A host's report: a small CPU machine; with ``cuda`` one GPU with ``vram`` GiB free."""
    device = {"name": "GPU", "vram_total_gib": vram, "vram_free_gib": vram}
    return {
        "os": "linux",
        "arch": "x86_64",
        "cpu_cores": cores,
        "ram_total_gib": ram,
        "ram_available_gib": ram,
        "cuda_available": cuda,
        "cuda_devices": [device] if cuda else [],
        **more,
    }


def a_host(name="pi", **facts):
    """A host as the decision sees it: enough for every CPU job, no GPU."""
    return Host(**{"name": name, "ram_available_gib": 8.0, "cores": 4, **facts})


def a_gpu_host(name="desktop", *, vram=8.0, **facts):
    return a_host(name, cuda=True, vram_free_gib=vram, **facts)


def needs(**wishes):
    return Needs.of({"model": "gbt", **wishes})


def a_row(status=JobStatus.RUNNING, **facts):
    """A job of the queue as a value: granted once and running, unless told otherwise."""
    known = {"job_id": "id-gbt", "name": "gbt", "spec": {}, "priority": 0}
    times = {"created_at": EPOCH, "claimable_at": EPOCH}
    return Job(**{**known, **times, "status": status, "attempt": 1, "grants": 1, **facts})


def an_attempt(**facts):
    """The first grant of that job."""
    known = {"job_id": "id-gbt", "attempt": 1, "claim_id": "claim-1", "host": "pi"}
    return Attempt(**{**known, "generation": 1, "granted_at": EPOCH, **facts})


# ── requests ────────────────────────────────────────────────────────────────────────────────


def a_claim(host="pi", **fields):
    """A request for work, of the old form: no session, no instance."""
    return ClaimRequest(**{"host_id": host, "capability": a_capability(), **fields})


def a_worker_claim(host="pi", *, session=1, **fields):
    """A request as this project's worker makes it; ``session`` counts the starts of the worker."""
    who = {"instance_id": f"instance-of-{host}", "session_id": f"{session:010d}-abcd", "slot": 0}
    return a_claim(host, **{**who, **fields})


def a_beat(claim_id=None, *, seq=1, **fields):
    return HeartbeatRequest(claim_id=claim_id, seq=seq, **fields)


def a_completion(claim_id=None, artifact="a" * 64, **fields):
    return CompleteRequest(claim_id=claim_id, artifact_id=artifact, **fields)


def a_failure(claim_id=None, **fields):
    return FailRequest(**{"claim_id": claim_id, "error": "it broke", "exit_code": 1, **fields})


def some_lines(*lines, first=0):
    return LogLines(first=first, lines=list(lines))
