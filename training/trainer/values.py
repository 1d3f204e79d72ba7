"""The types of the values that trainers hand to each other: arrays by what they hold, and JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]  # samples and features
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
NameArray = NDArray[np.str_]
Json = Mapping[str, Any]  # as it is read
JsonDict = dict[str, Any]  # as it is made
