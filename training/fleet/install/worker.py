"""The steps of installing a worker that Linux and Windows share: join, test the machine, fetch a data set. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from training import strict_json
from training.fleet.install.steps import Command, FetchCertificate, InstallStep
from training.fleet.install.types import InstallRequest

FETCH_S = 60  # the worker fetches the rest, so that no installation takes too long


def undelivered(saved: str) -> str | None:
    """Return the id of the job whose finished training, by the text of the worker's state, is not delivered; None if
    there is none, or the text is malformed."""
    try:
        return str(strict_json.loads(saved)["delivery"]["assignment"]["job_id"])
    except (ValueError, KeyError, TypeError):
        return None


def capability_words(output: str) -> str:
    """Describe the output of ``python -m training.fleet.capability`` in one line for people."""
    try:
        found: Mapping[str, object] = strict_json.loads(output[output.index("{") :])
        many = "core" if found["cpu_cores"] == 1 else "cores"
        words = f"{found['cpu_cores']} {many}, {float(str(found['ram_total_gib'])):.1f} GiB RAM"
        if found["cuda_available"] and isinstance(devices := found["cuda_devices"], list):
            return words + "".join(f", {each['name']} with {each['vram_total_gib']:.1f} GiB" for each in devices)
        torch = found["torch_version"]
        return f"{words}, no GPU that torch can use" if torch else f"{words}, no torch"
    except (ValueError, KeyError, TypeError):
        return "it could not be determined"


def first_steps(request: InstallRequest, tls: PurePath, mark: PurePath, as_user: str | None) -> Sequence[InstallStep]:
    """Return the steps that join the fleet (if a code is given), test the machine, and fetch a data set (if one is
    named). ``tls`` is the certificate's folder, ``mark`` the file that records the last used code."""
    return [*joining(request, tls, mark, as_user), trying(request, as_user), *fetching(request, tls, as_user)]


def joining(request: InstallRequest, folder: PurePath, mark: PurePath, as_user: str | None) -> Sequence[InstallStep]:
    """Return the step that gets a certificate into ``folder``; no step without a code and a fingerprint."""
    if request.code is None or request.fingerprint is None:
        return []
    argv = [str(request.python), "-m", "training.fleet.join", "--receiver-url", request.receiver_url]
    argv += ["--host-id", request.host_id, "--code", request.code, "--fingerprint", request.fingerprint]
    return [FetchCertificate([*argv, "--tls-dir", str(folder)], request.code, mark, request.checkout, as_user)]


def fetching(request: InstallRequest, tls: PurePath, as_user: str | None) -> Sequence[InstallStep]:
    """Return the step that fetches the requested data set into the worker's cache; no step without a request."""
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


def trying(request: InstallRequest, as_user: str | None) -> InstallStep:
    """Return the step that tests what the machine can train, run as ``as_user`` (None: as the installer's user)."""
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
