"""Fewer points of a line that look the same. Without plotly and pandas: a picture of text is thinned, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

#: Most points that one trace may have.
POINTS: Final = 4000


def thin(values: Sequence[float] | npt.NDArray[Any] | pd.Series, points: int = POINTS) -> npt.NDArray[np.intp]:
    """Indices of at most ``points`` values, with the first, the last, and each slice's smallest and largest.

    Returns:
        Sorted indices, shape ``(n,)``; all of them when there are few enough. NaN is kept where a slice has
        only NaN.

    >>> thin([0, 1, 9, 1, 0, 0, -5, 0], points=6).tolist()
    [0, 2, 4, 6, 7]
    """
    array = np.asarray(values, dtype=float)
    if len(array) <= points:
        return np.arange(len(array))
    edges = np.linspace(0, len(array), max(points // 2 - 1, 1) + 1).astype(int)
    starts = edges[:-1]
    low = np.where(np.isnan(array), np.inf, array)
    high = np.where(np.isnan(array), -np.inf, array)
    kept = {0, len(array) - 1}
    for begin, end in zip(starts.tolist(), edges[1:].tolist(), strict=True):
        kept.update((begin + int(low[begin:end].argmin()), begin + int(high[begin:end].argmax())))
    return np.array(sorted(kept), dtype=np.intp)
