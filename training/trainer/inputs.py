"""The data set as a trainer sees it: the windows of one mode, and which episodes were kept out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.trainer.families import Takes
from training.trainer.flags import TrainerArgs


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """N windows in the order of the data set; ``X`` is what the model learns from."""

    X: NDArray[np.float32]  # (N, F) features, or (N, C, T) samples
    names: tuple[str, ...]  # of the features, or of the channels
    features: NDArray[np.float32]  # (N, F), for the baselines
    y: NDArray[np.int64]  # (N,)
    label_map: Mapping[str, int]
    episode: NDArray[np.str_]
    host: NDArray[np.str_]
    t_start: NDArray[np.float64]  # seconds
    t_end: NDArray[np.float64]
    schema_hash: str
    schema_fields: Mapping[str, Any]  # what the hash covers
    digest: str  # of the data set
    quarantined: tuple[Mapping[str, Any], ...]


def read_inputs(args: TrainerArgs, *, takes: Takes) -> Inputs:
    raise NotImplementedError
