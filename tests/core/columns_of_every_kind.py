"""Batches with every kind of column (tensors, jagged tensors, lists, NumPy arrays), and a look at all their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from probe.core.batched_data_dict import BatchedDataDict

COLUMNS = {"ids", "jagged", "more", "deep", "text", "object", "number"}


def nested(lengths: Sequence[int], fill: Any, ragged_dim: int = 1, offsets: torch.Tensor | None = None) -> torch.Tensor:
    """A jagged tensor whose row i is full of ``fill[i]``; with ragged_dim 2 each row is (3, length)."""
    fill = torch.tensor(fill) if fill else torch.zeros(0, dtype=torch.long)
    flat = torch.repeat_interleave(fill, torch.tensor(lengths, dtype=torch.long))
    if offsets is None:
        offsets = torch.tensor([0, *lengths]).cumsum(0)
    values = flat if ragged_dim == 1 else flat.expand(3, -1)
    bounds: dict[str, Any] = {"min_seqlen": min(lengths, default=0), "max_seqlen": max(lengths, default=0)}
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=ragged_dim, **bounds)


def batch_of(lengths: Sequence[int], first: int = 0, width: int | None = None) -> BatchedDataDict[Any]:
    """Columns of every kind, each row of which tells its number (``first`` and on); jagged ones share offsets."""
    numbers = list(range(first, first + len(lengths)))
    objects = np.empty(len(lengths), dtype=object)
    objects[:] = [{"row": number, "tensor": torch.tensor([number])} for number in numbers]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    width = max([*lengths, 0]) if width is None else width
    ids = torch.full((len(lengths), width), -1)
    for row, length in enumerate(lengths):
        ids[row, :length] = numbers[row]
    return BatchedDataDict(
        {
            "ids": ids,
            "jagged": nested(lengths, numbers, offsets=offsets),
            "more": nested(lengths, numbers, offsets=offsets),
            "deep": nested(lengths, numbers, ragged_dim=2),
            "text": [f"row {number}" for number in numbers],
            "object": objects,
            "number": np.array(numbers, dtype=np.int64),
        }
    )


def check(batch: Any, numbers: list[int], lengths: Sequence[int]) -> None:
    """``batch`` holds the rows ``numbers``, in every column."""
    assert set(batch) == COLUMNS
    assert batch.size == len(numbers)
    assert batch["number"].tolist() == numbers
    assert batch["text"] == [f"row {number}" for number in numbers]
    assert batch["object"].shape == (len(numbers),)
    assert [one["row"] for one in batch["object"]] == numbers
    assert batch["ids"].shape[0] == len(numbers)
    for row, number in enumerate(numbers):
        length = lengths[row]
        assert batch["ids"][row].tolist() == [number] * length + [-1] * (batch["ids"].shape[1] - length)
    for key in ("jagged", "more", "deep"):
        found = [row.reshape(-1).tolist() for row in batch[key].unbind()]
        times = 3 if key == "deep" else 1
        assert found == [[number] * length * times for number, length in zip(numbers, lengths, strict=True)]
    assert batch["jagged"].offsets() is batch["more"].offsets()
    if numbers:
        assert (batch["jagged"] + batch["more"]).shape[0] == len(numbers)  # torch refuses where offsets aren't shared
        assert batch["jagged"]._maybe_max_seqlen == max(lengths)  # without which torch pads to the sum of lengths
