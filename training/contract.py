"""The contract between the fleet and trainers; neither imports the other.

This module defines modes, split recipes, exit codes, the names of data sets' and trainers' files, the arguments of our
trainers, and a job's identity. This module needs only the standard library. docs/trainer-contract.md describes the
contract for people.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any

from training import strict_json
from training.families import FAMILIES, family_of

RECORDING_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # what a plan's train_hosts can name


class Mode(StrEnum):
    """The telemetry channels that a model may see: only those that a deployed detector has (realistic), or also those
    of the laboratory (oracle)."""

    REALISTIC = "realistic"
    ORACLE = "oracle"


class Recipe(StrEnum):
    """The method by which a split's test side is chosen."""

    HOST = "host"  # train on train_hosts, test on every other recording host
    SAMPLE = "sample"  # random episodes
    TIME = "time"  # earlier episodes train, later ones test
    BEHAVIOUR = "behaviour"  # as by host; and each malicious-like behaviour is left out of a training of its own

    @property
    def by_host(self) -> bool:
        """Tell whether this recipe splits episodes by their recording host, so that a job needs ``train_hosts``, its
        own or the defaults'."""
        return self in (Recipe.HOST, Recipe.BEHAVIOUR)


class Exit(IntEnum):
    """The exit codes of a trainer and of the tools for data."""

    DONE = 0
    BAD_ARGUMENTS = 2
    BAD_DATA = 65
    BUG = 70
    NO_ACCESS = 74  # a folder that cannot be written, a full or failing disk
    INTERRUPTED = 75  # stopped, or something else is at work; the next attempt goes on
    OUT_OF_MEMORY = 137  # as a shell or a container says: ended by SIGKILL


FINAL_EXITS = frozenset({Exit.BAD_ARGUMENTS, Exit.BAD_DATA})  # trying again cannot help


# ── files ───────────────────────────────────────────────────────────────────────────────────

VALIDATION_FILE = "validation_v1.parquet"
FEATURES_FILE = "features_window_v1.parquet"
SCHEMA_FILE = "feature_schema_v1.json"
TENSORS_FOLDER = "tensor_window_v1"
HOSTS_FILE = "hosts_v1.json"  # the recording hosts that have windows, for a reader without Parquet

CHECKPOINT_ENDING = ".ckpt.json"
REPORT_ENDING, PRETRAIN_REPORT_ENDING = "_train.json", "_pretrain.json"
TIMING_ENDING = "_timing.json"  # outside the bundle, so that equal bundles stay equal


def file_name(model: str, mode: str, ending: str) -> str:
    """Return the name of a file that belongs to a model and mode, for example ``gbt_oracle.ckpt.json``."""
    return f"{model}_{mode}{ending}"


def bundled(model: str, mode: str) -> tuple[str, ...]:
    """Return the names of the files that a bundle of our trainers may contain for this model and mode. Sidecars of all
    families are among them."""
    sidecars = sorted({family.sidecar for family in FAMILIES.values()})
    endings = (CHECKPOINT_ENDING, *sidecars, REPORT_ENDING, PRETRAIN_REPORT_ENDING)
    return tuple(file_name(model, mode, ending) for ending in endings)


# ── calling a trainer ───────────────────────────────────────────────────────────────────────

# The arguments that the worker itself passes. None of them can be a hyperparameter, even if a trainer prints one.
ARGUMENTS = frozenset(
    {
        "model", "mode", "validation", "summary", "schema", "tensors", "out_dir", "reports_dir", "state_dir",
        "split_recipe", "train_hosts", "test_hosts", "n_resamples", "seed", "split_seed", "threads", "device",
        "describe", "help",
    }
)  # fmt: skip


# Read by numerical libraries when they are imported.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")


# The imports of a forked trainer before it counts as started.
THEN = ("training.trainer.session",)


def reads(spec: Mapping[str, Any], path: str) -> bool:
    """Tell whether the trainer of a job dict reads this file of a data set; a custom trainer may read any.

    Both modes read the same files: each window has the channels of both modes.
    """
    if spec.get("trainer") or path == VALIDATION_FILE or path.startswith(f"{TENSORS_FOLDER}/"):
        return True
    return path in (FEATURES_FILE, SCHEMA_FILE) and family_of(str(spec.get("model"))).supervised


def outputs(spec: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the files that a job dict's custom trainer promises to write; empty for our trainers."""
    own = spec.get("trainer") or {}
    model, mode = str(spec.get("model")), str(spec.get("mode"))
    return [filled_in(str(name), model, mode) for name in own.get("outputs") or ()]


def filled_in(name: str, model: str, mode: str) -> str:
    """Return an output's file name with ``{model}`` and ``{mode}`` replaced by their values."""
    return name.replace("{model}", model).replace("{mode}", mode)


SECRETS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "KEY")  # endings of variables


def no_variable_because(name: str) -> str | None:
    """Return the reason why the plan may not set this environment variable for a trainer; None if the plan may."""
    if name.upper().endswith(SECRETS):
        return (
            "a plan is no place for secrets: everybody who may read the plan and every host would have the secret; "
            "put it into a file on the host, and give the file's path here"
        )
    if name.upper().startswith("CIS490_") or name in ("PYTHONUNBUFFERED", "PYTHONIOENCODING"):
        return "the worker sets it itself"
    return None


# ── the identity of a job ───────────────────────────────────────────────────────────────────

# The keys that determine the model. Editing a name, a priority, constraints or n_resamples trains nothing again.
IDENTITY_KEYS = ("model", "mode", "hyper", "split_recipe", "train_hosts", "seed")


def job_identity(spec: Mapping[str, Any]) -> str:
    """Return the id of the training that a job dict describes: the SHA-256 of everything that determines the model.

    A data set, test hosts, a split seed and a custom trainer's command are included if the job has them.
    """
    return digest(identity_of(spec))


def identity_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that determines the model of a job dict, as a dict whose digest is the job's id."""
    own = spec.get("trainer")
    command = own.get("command") if isinstance(own, Mapping) else None
    return _asked(spec) | ({"command": list(command)} if command else {})


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Return the digest by which workers and records name a job dict: its identity without a custom trainer's command.

    Unlike a job's id, this digest does not depend on a custom trainer's command.
    """
    return digest(_asked(spec))


def digest(value: Any) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of ``value``."""
    return hashlib.sha256(strict_json.canonical(value).encode()).hexdigest()


def _asked(spec: Mapping[str, Any]) -> dict[str, Any]:
    named = {key: spec[key] for key in ("dataset", "test_hosts") if spec.get(key)}
    named |= {} if spec.get("split_seed") is None else {"split_seed": spec["split_seed"]}
    return {key: spec.get(key) for key in IDENTITY_KEYS} | named
