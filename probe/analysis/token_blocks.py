"""What a run keeps of the tokens of a few samples, as arrays again."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def unpack(block: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of one row of ``token_blocks``.

    Args:
        block: The row, such as ``run.token_blocks.iloc[0]``.

    Returns:
        By name, each (tokens,): ``rollout_log_probs``, ``log_probs`` and ``entropies`` in half precision (kept to 3
        significant digits), ``advantages`` (float32), ``mask`` (1 where the loss counts the token) and
        ``clipped_passes`` (how many passes held it back); those that the run has.

    >>> raw = np.array([-0.5, -2], "<f2").tobytes() + np.array([1, 0], "u1").tobytes()
    >>> data = base64.b64encode(zlib.compress(raw)).decode()
    >>> found = unpack({"tokens": 2, "arrays": ["log_probs", "mask"], "dtypes": ["f2", "u1"], "data": data})
    >>> {name: values.tolist() for name, values in found.items()}
    {'log_probs': [-0.5, -2.0], 'mask': [1, 0]}
    """
    raw, begin, found = zlib.decompress(base64.b64decode(block["data"])), 0, {}
    for name, kind in zip(block["arrays"], block["dtypes"], strict=True):
        dtype = np.dtype("<" + kind)
        found[name] = np.frombuffer(raw, dtype, int(block["tokens"]), begin)
        begin += int(block["tokens"]) * dtype.itemsize
    return found
