"""The environment that a trainer is given: built from an allow-list, because nobody can list all secrets."""

from __future__ import annotations

from collections.abc import Mapping

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
SECRETS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "KEY")  # endings
# fmt: on


def trainer_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """The part of ``parent`` that a trainer needs.

    A name that ends like a secret stays out even where its prefix is allowed (``NVIDIA_API_KEY``).
    """
    kept = {name: value for name, value in parent.items() if _allowed(name.upper())}
    kept["PYTHONUNBUFFERED"] = "1"  # a progress line is wanted when it is printed, not a page later
    kept["PYTHONIOENCODING"] = "utf-8"
    return kept


def _allowed(name: str) -> bool:
    if name.endswith(SECRETS):
        return False
    return name in NAMES or name.startswith(PREFIXES)
