"""Batches whose rows are numbered, with tensors, jagged tensors and arrays of objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from probe.core.protocol import DataProto


class Special(DataProto):
    """A subclass: methods must return it."""


def jagged(lengths: Sequence[int], trailing: Sequence[int] = (), offsets: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of these lengths, with values that count on from row to row."""
    if offsets is None:
        offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    values = torch.arange(float(offsets[-1])).reshape(-1, *[1] * len(trailing)).expand(-1, *trailing).clone()
    bounds = (min(lengths), max(lengths)) if lengths else (0, 0)
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=bounds[0], max_seqlen=bounds[1])


def make(
    rows: int = 4, cls: type[DataProto] = DataProto, with_jagged: bool = False, meta: dict[str, Any] | None = None
) -> DataProto:
    """A batch of two tensors, two arrays and, where asked for, two jagged tensors that share their offsets."""
    tensors: dict[str, Any] = {"a": torch.arange(rows), "b": torch.arange(rows * 3.0).reshape(rows, 3)}
    if with_jagged:
        lengths = [1 + (row * 2) % 5 for row in range(rows)]
        tensors["j"] = jagged(lengths)
        tensors["k"] = jagged(lengths, (2,), tensors["j"].offsets())
    uid = np.array([f"u{row}" for row in range(rows)], dtype=object)
    return cls.from_dict(tensors, {"uid": uid, "n": np.arange(rows) * 0.5}, {"t": 1.0} if meta is None else meta)


def ids(data: Any) -> list[int]:
    """Column ``a``: the numbers of the rows."""
    found: list[int] = data.batch["a"].tolist()
    return found


def rows_of(data: Any, key: Any = "j") -> list[Any]:
    """The rows of a jagged column, as lists."""
    return [row.tolist() for row in data.batch[key].unbind()]
