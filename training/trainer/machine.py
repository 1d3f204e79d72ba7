"""Collect the facts that can change a training's result (data, arguments, sources, library versions, processor, device)
into the run key."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import NamedTuple

from training import strict_json
from training.checkout import code_digest
from training.data.scratch import WIDE_ROWS, spans
from training.data.values import Json, JsonDict, Names
from training.trainer.arguments import TrainerArgs
from training.trainer.contract import BadArguments
from training.trainer.inputs import Inputs
from training.trainer.task import MemoryLimits

# Their versions may change a feature, a baseline or a byte of the bundle, of every family.
ALWAYS = ("numpy", "polars", "scikit-learn", "scipy", "zstandard", "jinja2")


class RunKey(NamedTuple):
    """All facts that can change a run's result. Runs of equal keys write byte-identical checkpoints and reports, unless
    they moved between processors.

    The key holds no path, date, duration or name of the training machine.
    """

    facts: Json

    @property
    def digest(self) -> str:
        text = strict_json.canonical(self.facts, ascii_only=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> JsonDict:
        return {"digest": self.digest, **self.facts}

    def with_processors(self, mixed: Sequence[Json]) -> RunKey:
        """Return the key of a run that trained on several kinds of processor in turn; unchanged if ``mixed`` is
        empty."""
        return self if not mixed else RunKey({**self.facts, "mixed": [dict(each) for each in mixed]})


def run_key(
    args: TrainerArgs,
    inputs: Inputs,
    *,
    device: str,
    libraries: Iterable[str],
    adapted: Json | None,
    limits: MemoryLimits,
) -> RunKey:
    """Build the key of this run; ``adapted`` says which model is adapted and to which references, if one is."""
    spec = {
        "model": args.model,
        "mode": args.mode.value,
        "hyper": dict(args.hyper),
        "split_recipe": args.split_recipe.value,
        "train_hosts": list(args.train_hosts),
        **({"test_hosts": list(args.test_hosts)} if args.test_hosts else {}),
        "seed": args.seed,
        **({} if args.split_seed is None else {"split_seed": args.split_seed}),
        "n_resamples": args.n_resamples,
        **({} if adapted is None else {"adapted": adapted}),
        **limits.to_dict(),
    }
    return RunKey(
        {
            "spec": spec,
            "data": inputs.digest,
            "validation": inputs.validation_digest,
            "behaviours": digest_of(inputs.behaviour),
            "schema": inputs.schema.hash(),
            "code": code_digest(),
            "versions": versions((*ALWAYS, *libraries)),
            "threads": args.threads,
            "cpu": cpu(torch_too="torch" in libraries),
            "device": device_name(device),
        }
    )


def digest_of(names: Names) -> str:
    """Return the SHA-256 of the names with NUL between them."""
    total = hashlib.sha256()
    for here in spans(names, step=WIDE_ROWS):
        total.update(("\0" * bool(here.start) + "\0".join(names[here].tolist())).encode())
    return total.hexdigest()


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return installed versions by package name, Python's own included; absent packages are left out."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu(*, torch_too: bool) -> JsonDict:
    """Return the type of machine, and the BLAS libraries with their instruction sets, because others round differently.

    With ``torch_too`` also the instruction set that torch chose.
    """
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    blas = {
        f"{pool.get('internal_api')} {pool.get('version')} {pool.get('architecture', '')}".strip()
        for pool in threadpool_info()
        if pool.get("user_api") == "blas"
    }
    facts = {"machine": platform.machine(), "blas": sorted(blas)}
    if torch_too:
        import torch

        facts["torch"] = torch.backends.cpu.get_cpu_capability()
    return facts


def pick_device(wanted: str, *, prefers_cuda: bool) -> str:
    """Return ``cpu`` or ``cuda``. ``auto`` takes CUDA where the family gains by it and torch can use it.

    Raises ``BadArguments`` if CUDA is wanted and missing.
    """
    if wanted == "cpu" or (wanted == "auto" and not prefers_cuda):
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise BadArguments("there is no CUDA device that torch can use: choose --device cpu")
    return "cpu"


def device_name(device: str) -> str:
    """Return the device as the run key names it: ``cpu``, or the GPU's model with the versions that select kernels."""
    if device == "cpu":
        return "cpu"
    import torch

    processors = torch.cuda.get_device_properties(0).multi_processor_count  # sums are parted by them
    cudnn, driver = torch.backends.cudnn.version(), driver_version()
    tf32 = os.environ.get("NVIDIA_TF32_OVERRIDE", "unset")  # overrules every program's own choice
    name = torch.cuda.get_device_name(0)
    return f"cuda {torch.version.cuda} {name}, {processors} SM, cuDNN {cudnn}, driver {driver}, TF32 override {tf32}"


def driver_version() -> str:
    """Return the version of NVIDIA's driver, such as `580.65.06`; `unknown` if its library cannot tell."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return "unknown"


def settle_torch(threads: int) -> None:
    """Make torch repeatable: set its threads, and allow deterministic kernels only."""
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory before it was written; filling it first cost five steps in a hundred.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
