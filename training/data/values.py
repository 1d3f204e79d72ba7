"""The types of arrays, named by their contents, and of JSON objects that data and trainer modules exchange."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Bools = NDArray[np.bool_]
Codes = NDArray[np.int32]
Digests = NDArray[np.uint64]
Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]  # samples and features
Indices = NDArray[np.integer[Any]]
Ints = NDArray[np.int64]
Json = Mapping[str, Any]  # as it is read
JsonDict = dict[str, Any]  # as it is made
Names = NDArray[np.str_]
