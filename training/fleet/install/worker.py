"""The steps of installing a worker on every system: join, try what the machine can do, lose no finished work. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from training import strict_json
from training.fleet.install.steps import Command, Join, Step
from training.fleet.install.types import Wish

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


def joining(wish: Wish, folder: PurePath, mark: PurePath, as_user: str | None) -> Sequence[Step]:
    """The step that gets a certificate into ``folder``; none without a code."""
    if wish.code is None or wish.fingerprint is None:
        return []
    argv = [str(wish.python), "-m", "training.fleet.join", "--receiver-url", wish.receiver_url]
    argv += ["--host-id", wish.host_id, "--code", wish.code, "--fingerprint", wish.fingerprint]
    return [Join([*argv, "--tls-dir", str(folder)], wish.code, mark, wish.checkout, as_user)]


def fetching(wish: Wish, tls: PurePath, as_user: str | None) -> Sequence[Step]:
    """The step that fetches the data set, to where the worker looks for it; none unless one was named."""
    if wish.dataset is None:
        return []
    argv = [str(wish.python), "-m", "training.fleet.worker.prefetch", wish.dataset]
    argv += ["--receiver-url", wish.receiver_url, "--host-id", wish.host_id]
    argv += ["--tls-dir", str(tls), "--cache-dir", str(tls.parent / "datasets")]
    return [
        Command(
            f"fetch the data set {wish.dataset}, or what can be had of it in {FETCH_S} s",
            [*argv, "--within-s", str(FETCH_S)],
            cwd=wish.checkout,
            user=as_user,
            changes=False,
            summary=str.strip,
        )
    ]


def trying(wish: Wish, as_user: str | None) -> Step:
    """See what the machine can do, in the very way in which the service will."""
    argv = [str(wish.python), "-m", "training.fleet.capability", "--host-id", wish.host_id]
    argv += ["--repo-root", str(wish.checkout), "--venv-python", str(wish.python)]
    return Command(
        "see what this machine can do",
        argv,
        cwd=wish.checkout,
        user=as_user,
        remedy="can the service's user read the checkout and its .venv? (chmod -R a+rX)",
        changes=False,
        summary=capability_words,
    )
