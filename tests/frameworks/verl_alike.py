"""Whether verl's functions and probe's do alike: the same result, or errors that one handler takes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what verl and its dependencies warn of when imported is theirs to mend
    import verl.protocol as their_protocol

from probe.core import protocol
from probe.core.columns.equality import same


def plain(value: Any) -> Any:
    """A result without the class that it came in."""
    if isinstance(value, protocol.DataProto | their_protocol.DataProto):
        batch = {} if value.batch is None else {key: plain(column) for key, column in value.batch.items()}
        arrays = {key: column.tolist() for key, column in (value.non_tensor_batch or {}).items()}
        return {"batch": batch, "arrays": arrays, "meta": dict(value.meta_info), "rows": len(value)}
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [plain(row) for row in value.unbind()]
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), str(value.dtype), value.tolist())
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def outcome(call: Any) -> Any:
    """What a call gives, or what it raises."""
    try:
        return plain(call())
    except Exception as error:
        return error


def check_alike(theirs: Any, ours: Any) -> None:
    """One call of verl's function and one of probe's have the same outcome, or end in errors that one handler takes."""
    expected, got = outcome(theirs), outcome(ours)
    if isinstance(expected, Exception):
        assert isinstance(got, type(expected)), (expected, got)
        return
    if isinstance(got, Exception):
        raise got
    assert same(expected, got), (expected, got)
