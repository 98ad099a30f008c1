"""Whatever waits for the device raises: how tests on a GPU see that nothing of ours does."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def nobody_waits() -> Iterator[None]:
    """Inside, an operation of this process that waits for the device raises ``RuntimeError``."""
    _set("error")
    try:
        yield
    finally:
        _set("default")


def _set(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that this is a prototype
        torch.cuda.set_sync_debug_mode(mode)
