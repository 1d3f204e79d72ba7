"""The steps of installing a worker on every system: join, try what the machine can do, lose no finished work. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from training import strict_json
from training.fleet.install.steps import Command, Join, Step
from training.fleet.install.types import InstallRequest

FETCH_S = 60  # the worker goes on with what is there, so that no installation takes for ever


def undelivered(saved: str) -> str | None:
    """The job whose finished training still waits to be delivered, from the worker's own notes; None without one."""
    try:
        return str(strict_json.loads(saved)["delivery"]["assignment"]["job_id"])
    except (ValueError, KeyError, TypeError):
        return None


def capability_words(output: str) -> str:
    """One line for a person from what ``python -m training.fleet.capability`` prints."""
    try:
        found: Mapping[str, object] = strict_json.loads(output[output.index("{") :])
        many = "core" if found["cpu_cores"] == 1 else "cores"
        words = f"{found['cpu_cores']} {many}, {float(str(found['ram_total_gib'])):.1f} GiB RAM"
        if found["cuda_available"] and isinstance(devices := found["cuda_devices"], list):
            return words + "".join(f", {each['name']} with {each['vram_total_gib']:.1f} GiB" for each in devices)
        torch = found["torch_version"]
        return f"{words}, no GPU that torch can use" if torch else f"{words}, no torch"
    except (ValueError, KeyError, TypeError):
        return "it could not be told"


def joining(request: InstallRequest, folder: PurePath, mark: PurePath, as_user: str | None) -> Sequence[Step]:
    """The step that gets a certificate into ``folder``; none without a code."""
    if request.code is None or request.fingerprint is None:
        return []
    argv = [str(request.python), "-m", "training.fleet.join", "--receiver-url", request.receiver_url]
    argv += ["--host-id", request.host_id, "--code", request.code, "--fingerprint", request.fingerprint]
    return [Join([*argv, "--tls-dir", str(folder)], request.code, mark, request.checkout, as_user)]


def fetching(request: InstallRequest, tls: PurePath, as_user: str | None) -> Sequence[Step]:
    """The step that fetches the data set, to where the worker looks for it; none unless one was named."""
    if request.dataset is None:
        return []
    argv = [str(request.python), "-m", "training.fleet.worker.prefetch", request.dataset]
    argv += ["--receiver-url", request.receiver_url, "--host-id", request.host_id]
    argv += ["--tls-dir", str(tls), "--cache-dir", str(tls.parent / "datasets")]
    return [
        Command(
            f"fetch the data set {request.dataset}, or what can be had of it in {FETCH_S} s",
            [*argv, "--within-s", str(FETCH_S)],
            cwd=request.checkout,
            user=as_user,
            changes=False,
            summary=str.strip,
        )
    ]


def trying(request: InstallRequest, as_user: str | None) -> Step:
    """See what the machine can do, in the very way in which the service will."""
    argv = [str(request.python), "-m", "training.fleet.capability", "--host-id", request.host_id]
    argv += ["--repo-root", str(request.checkout), "--venv-python", str(request.python)]
    return Command(
        "see what this machine can do",
        argv,
        cwd=request.checkout,
        user=as_user,
        remedy="can the service's user read the checkout and its .venv? (chmod -R a+rX)",
        changes=False,
        summary=capability_words,
    )
