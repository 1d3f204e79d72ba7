"""Build a trainer's environment: the plan's variables, and of the worker's own only those on an allow-list, because no
list of secrets could be complete."""

from collections.abc import Mapping
from typing import Any

from training.contract import SECRETS, no_variable_because

# fmt: off
NAMES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "XDG_CACHE_HOME", "TORCH_HOME", "POLARS_MAX_THREADS",
    # Windows does not start a Python, or find its own libraries, without these
    "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "PROGRAMDATA", "PROGRAMFILES", "USERPROFILE",
    "USERNAME", "APPDATA", "LOCALAPPDATA", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE",
})
PREFIXES = (
    "LC_", "CUDA_", "CUBLAS_", "NVIDIA_", "PYTORCH_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "NUMEXPR_",
)
# fmt: on


def planned(spec: Mapping[str, Any], of_the_host: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that the plan sets for this job on this host.

    The host's values override those of the job's custom trainer. A variable that the receiver should have refused is
    left out.
    """
    own = spec.get("trainer")
    of_the_trainer = own.get("env") if isinstance(own, Mapping) else None
    both = {**(of_the_trainer if isinstance(of_the_trainer, Mapping) else {}), **of_the_host}
    return {
        name: value
        for name, value in both.items()
        if isinstance(value, str) and "\0" not in value and no_variable_because(name) is None
    }


def trainer_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """Return the allowed variables of ``parent``, and two that make Python print unbuffered UTF-8.

    A variable whose name ends like a secret's is left out even if its prefix is allowed (``NVIDIA_API_KEY``).
    """
    kept = {name: value for name, value in parent.items() if _allowed(name.upper())}
    kept["PYTHONUNBUFFERED"] = "1"  # a progress line is wanted when it is printed, not a page later
    kept["PYTHONIOENCODING"] = "utf-8"
    return kept


def _allowed(name: str) -> bool:
    if name.endswith(SECRETS):
        return False
    return name in NAMES or name.startswith(PREFIXES)
