"""Copies of rows that a DataProto gets so that it divides evenly, and taking them off again."""

from __future__ import annotations

import logging
from typing import Final

import torch

from probe._check import whole_number
from probe.core.data_proto.members import M, Members
from probe.core.data_proto.merging import PAD_ROWS
from probe.core.data_proto.picking import become, rows_at, stretch
from probe.errors import InputError
from probe.hooks import emit, point

_log = logging.getLogger("probe.core.protocol")

#: Rows that are copies of others were added so that a batch divides evenly.
PADDED: Final = point(
    "data_proto.padded",
    "copies of rows were added; carries data (the new DataProto), rows (count before), pad_rows (count added), source",
)


def padding(data: Members, padding_size: int, padding_candidate: str) -> None:
    """See :meth:`probe.core.protocol.DataProto.padding`."""
    whole_number("padding_size", padding_size, 0, expected="an integer")
    if not padding_size:
        return
    count = len(data)
    if not count:
        raise InputError(f"padding_size: got {padding_size}, expected 0: the batch is without rows to copy")
    copied = 0 if padding_candidate == "first" else count - 1
    become(data, rows_at(data, torch.cat([torch.arange(count), torch.full((padding_size,), copied)])))
    _tell_padded(data, padding_size, "data_proto.padding")


def padded(data: M, pad_rows: int, source: str) -> M:
    """A copy with ``pad_rows`` more rows, taken cyclically from the start; its meta info, metrics included, stays.

    Args:
        data: The batch, which stays as it is.
        pad_rows: How many rows are added.
        source: The point whose function adds them, as listeners are told.
    """
    count = len(data)
    made = rows_at(data, torch.arange(count + pad_rows) % max(count, 1))
    _tell_padded(made, pad_rows, source)
    return made


def _tell_padded(data: Members, pad_rows: int, source: str) -> None:
    if PADDED.listeners:
        emit(PADDED, data=data, rows=len(data) - pad_rows, pad_rows=pad_rows, source=source)


def pad_to_divisor(data: M, size_divisor: int) -> tuple[M, int]:
    """See :func:`probe.core.protocol.pad_dataproto_to_divisor`."""
    whole_number("size_divisor", size_divisor, 1, expected="an integer")
    added = -len(data) % size_divisor
    if not len(data):
        _log.warning("a batch without rows can't be padded to a multiple of %d; it stays empty", size_divisor)
    if not added:
        return data, 0
    return padded(data, added, "data_proto.pad_to_divisor"), added


def unpad(data: M, pad_size: int) -> M:
    """See :func:`probe.core.protocol.unpad_dataproto`."""
    whole_number("pad_size", pad_size, 0, expected="an integer")
    if pad_size > len(data):
        raise InputError(f"pad_size: got {pad_size}, expected at most {len(data)}, the rows of the batch")
    if not pad_size:
        return data
    kept = stretch(data, slice(0, len(data) - pad_size))
    kept.meta_info.pop(PAD_ROWS, None)
    return kept
