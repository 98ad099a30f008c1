"""On a GPU, whatever of probe's adapter waits for the device raises; how often it was looked at stands in a file.

Loaded by verl (``VERL_USE_EXTERNAL_MODULES``). Without CUDA there is nothing to wait for, and it only counts.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from probe.adapters.seams import ToldCall

_seen = 0


def _watched(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any) -> Any:
        global _seen
        _seen += 1
        if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return method(*args)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            return method(*args)
        finally:
            torch.cuda.set_sync_debug_mode(before)
            if _seen % 100 == 0:
                _tell()

    return run


def _tell() -> None:
    Path(os.environ["COUNTER_DIR"], f"watched-{os.getpid()}").write_text(str(_seen))


ToldCall.__enter__ = _watched(ToldCall.__enter__)  # type: ignore[method-assign]
ToldCall.__exit__ = _watched(ToldCall.__exit__)  # type: ignore[method-assign]
