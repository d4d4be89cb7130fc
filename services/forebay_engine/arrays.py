"""Names for the array types that the engine's files pass to each other."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
"""float32 values: weights, logits, hidden rows."""
Ints: TypeAlias = npt.NDArray[np.int64]
"""Token ids and positions."""
Indexes: TypeAlias = npt.NDArray[np.int32]
"""Row numbers, block numbers and lengths, as the attention kernels want them."""
Bytes: TypeAlias = npt.NDArray[np.uint8]
AnyArray: TypeAlias = npt.NDArray[Any]
