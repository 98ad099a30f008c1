"""Whether PyTorch's debug server is asked for, and when it can be started: a rank's process group has to stand."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from probe.guard import Guard

_log = logging.getLogger("probe.torch_debug")

#: The port of the page; where it is set each rank starts a server.
VARIABLE: Final = "PROBE_DEBUG_SERVER"

#: The port where nobody chooses one: PyTorch's own default.
PORT: Final = 25999

#: What a launcher says to a rank, without which PyTorch's server finds no other one.
_NEEDED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

#: Seconds between two looks whether the process group stands.
_EVERY_S: Final = 0.2

_begun: Final = threading.Event()


def begin(directory: Path, environ: Mapping[str, str] | None = None) -> threading.Thread | None:
    """Have the server started as soon as ``torch.distributed`` is initialised, where the environment asks for it.

    Args:
        directory: The run directory, for probe's page.
        environ: The environment; None is the process's own.

    Returns:
        The thread that waits; None where nobody asks, this is no rank that a launcher began, or one waits already.
    """
    known = os.environ if environ is None else environ
    port = known.get(VARIABLE, "")
    if not port or _begun.is_set() or any(name not in known for name in _NEEDED):
        return None
    _begun.set()
    given = (directory, port)
    waiting = threading.Thread(target=_wait_and_start, args=given, name="probe debug server", daemon=True)
    waiting.start()
    return waiting


def _wait_and_start(directory: Path, port: str) -> None:
    while not _stands():
        time.sleep(_EVERY_S)
    failed = "PyTorch's debug server can't be started"
    with Guard("torch_debug", failed, tell=None, log=_log, level=logging.WARNING):
        from probe.torch_debug.starting import start  # who isn't asked for it loads none of it

        start(directory, int(port))


def _stands() -> bool:
    distributed: Any = sys.modules.get("torch.distributed")
    return bool(distributed is not None and distributed.is_available() and distributed.is_initialized())
