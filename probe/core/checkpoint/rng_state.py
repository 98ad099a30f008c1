"""Where the random number generators of one process stand: Python's, NumPy's, torch's on the CPU and on its device."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from probe.errors import InputTypeError, MissingKeyError

_log = logging.getLogger("probe.checkpoint")


def _accelerator() -> str | None:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if found is None else found.type


def get_rng_state() -> dict[str, Any]:
    """The state of all generators of this process.

    Returns:
        ``random`` (of the module ``random``), ``numpy`` (of NumPy's global generator), ``cpu`` (a uint8 tensor),
        and, where there is an accelerator, its type (such as ``cuda``) with the uint8 tensor of this process's
        current device.

    >>> state = get_rng_state()
    >>> before = torch.rand(1)
    >>> load_rng_state(state)
    >>> bool(torch.rand(1) == before)
    True
    """
    state: dict[str, Any] = {
        "random": random.getstate(),
        "numpy": np.random.get_state(legacy=True),
        "cpu": torch.get_rng_state(),
    }
    device = _accelerator()
    if device is not None:
        state[device] = torch.get_device_module(device).get_rng_state()
    return state


def load_rng_state(rng_state: Mapping[str, Any]) -> None:
    """Set all generators of this process to what :func:`get_rng_state` gave.

    A state of an accelerator of another type than this process has can't be used, and is left out with a warning.

    Raises:
        InputTypeError: It is not a mapping.
        MissingKeyError: A part is missing; nothing has been set then.
    """
    if not isinstance(rng_state, Mapping):
        raise InputTypeError(
            f"rng_state: got {type(rng_state).__name__}, expected the mapping that get_rng_state returns"
        )
    missing = {"random", "numpy", "cpu"} - set(rng_state)
    if missing:
        raise MissingKeyError(
            f"rng_state: lacks {', '.join(sorted(missing))}; it has {', '.join(sorted(rng_state)) or 'nothing'}"
        )
    random.setstate(rng_state["random"])
    np.random.set_state(rng_state["numpy"])
    torch.set_rng_state(rng_state["cpu"])
    device = _accelerator()
    if device is not None and device in rng_state:
        torch.get_device_module(device).set_rng_state(rng_state[device])
    for other in set(rng_state) - {"random", "numpy", "cpu", device}:
        _log.warning(
            "the random state of device %r isn't restored: this process has %s", other, device or "no accelerator"
        )
