"""Columns of an Arrow table as NumPy arrays, out of their buffers: pyarrow's own way loads pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from probe.runs.frames import narrowed


def filled(values: Any, missing: float, dtype: Any) -> npt.NDArray[Any]:
    """A column as numbers.

    Args:
        values: The column, a ``pyarrow.ChunkedArray`` or ``Array`` of numbers or booleans.
        missing: What stands where there is none.
        dtype: ``float`` or ``numpy.int64``.

    Returns:
        One value a row, of ``dtype``; not to be written to.
    """
    import pyarrow as pa

    if not len(values):
        return np.empty(0, dtype)
    # An integer of more than 53 bits, such as a time in nanoseconds, becomes the nearest float.
    kind = pa.float64() if dtype is float else pa.int64()
    whole = narrowed(values).cast(kind, safe=dtype is not float)
    whole = whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    found = np.frombuffer(whole.buffers()[1], dtype, len(whole), whole.offset * whole.type.bit_width // 8)
    if not whole.null_count:
        return found
    gone = whole.is_null().cast(pa.uint8())
    return np.where(np.frombuffer(gone.buffers()[1], np.uint8, len(gone), gone.offset), missing, found).astype(dtype)


def factorized(values: Any) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The texts of a column, in the order in which they come, and for each row which one it is; −1 for none."""
    if not len(values):
        return np.empty(0, np.int64), []
    encoded = values.combine_chunks().dictionary_encode()
    return filled(encoded.indices, -1, np.int64), list(map(str, encoded.dictionary.to_pylist()))
