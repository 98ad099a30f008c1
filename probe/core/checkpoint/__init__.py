"""Checkpoints: no crash costs the last good one, loading runs no code, and any number of ranks can resume.

What is public stands here; how a checkpoint lies on the disk, in ``checkpoint_files``.
"""

from __future__ import annotations

import logging
import math
import os
import time
from typing import Final

from probe.core.checkpoint.fsdp import FSDPCheckpointManager
from probe.core.checkpoint.manager import BaseCheckpointManager
from probe.core.checkpoint.retention import (
    find_latest_ckpt_path,
    get_checkpoint_tracker_filename,
    update_checkpoint_tracker,
)
from probe.core.checkpoint.rng_state import get_rng_state, load_rng_state
from probe.errors import InputError

__all__ = [
    "BaseCheckpointManager",
    "FSDPCheckpointManager",
    "find_latest_ckpt_path",
    "get_checkpoint_tracker_filename",
    "get_rng_state",
    "load_rng_state",
    "should_save_ckpt_esi",
    "update_checkpoint_tracker",
]

#: Where the providers of machines with an end say when it is, in seconds since 1970.
_EXPIRATIONS: Final = (
    "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
    "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
)

_log = logging.getLogger("probe.checkpoint")


def should_save_ckpt_esi(max_steps_duration: float, save_ckpt_duration: float = 60, redundant_time: float = 0) -> bool:
    """Whether to save now, because the machine may be gone before another step and a save have fitted in.

    The end is read from ``MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP``, else from
    ``SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP``. Without either there is no end.

    Args:
        max_steps_duration: Seconds of the longest step so far; 0 before the first one, when a checkpoint is always
            made.
        save_ckpt_duration: Seconds that a save takes.
        redundant_time: Seconds to spare.

    Returns:
        Whether there are seconds left, at most ``max_steps_duration + save_ckpt_duration + redundant_time``. An end
        that has passed says nothing of a machine that is still there: it would ask for a checkpoint at every step.

    Raises:
        InputError: A duration is negative or not a number.

    >>> should_save_ckpt_esi(30)
    False
    """
    durations = {
        "max_steps_duration": max_steps_duration,
        "save_ckpt_duration": save_ckpt_duration,
        "redundant_time": redundant_time,
    }
    for name, seconds in durations.items():
        if not seconds >= 0:
            raise InputError(f"{name}: got {seconds!r}, expected at least 0 seconds")
    end = _expiration()
    return end is not None and max_steps_duration > 0 and 0 < end - time.time() <= sum(durations.values())


def _expiration() -> float | None:
    for name in _EXPIRATIONS:
        told = os.environ.get(name)
        if told:
            try:
                end = float(told)
            except ValueError:
                end = math.nan
            if math.isfinite(end):
                return end
            _log.warning("%s: got %r, expected seconds since 1970; it is ignored", name, told)
    return None
