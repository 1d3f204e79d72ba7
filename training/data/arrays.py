"""Arrays by what they hold, as annotations name them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Bools = NDArray[np.bool_]
Codes = NDArray[np.int32]
Digests = NDArray[np.uint64]
Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Indices = NDArray[np.integer[Any]]
Ints = NDArray[np.int64]
Names = NDArray[np.str_]
