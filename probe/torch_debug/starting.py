"""Start PyTorch's debug server in this process, and on rank 0 its page in a process that doesn't outlive it.

PyTorch would fork that process from one with threads and a device, or spawn it, which runs a script without an
``if __name__ == "__main__"`` a second time. Here it is a program that is told what to run.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from probe.hooks import SWITCH
from probe.torch_debug.page import Page


def start(directory: Path, port: int) -> None:
    """Start it. torch.distributed is initialised.

    Args:
        directory: The run directory, for probe's page.
        port: Of the page.

    Raises:
        ImportError: This PyTorch has no debug server, or what its page needs isn't installed.
        RuntimeError: It can't listen.
    """
    from torch.distributed import debug
    from torch.distributed.debug._debug_handlers import default_handlers  # its own pages: nothing public names them

    loaded: Any = debug
    usual = loaded.multiprocessing
    # Its own name for the module, which nobody else uses.
    loaded.multiprocessing = SimpleNamespace(Process=Launched, get_context=lambda _: SimpleNamespace(Process=Launched))
    try:
        loaded.start_debug_server(port, handlers=[*default_handlers(), Page(str(directory))])
    finally:
        loaded.multiprocessing = usual


class Launched:
    """A process as ``multiprocessing`` has it, as far as PyTorch's server asks, that is a program of its own.

    Args:
        target: A function of a module.
        kwargs: What it is given.
        daemon: It ends with this process, always.
    """

    def __init__(self, *, target: Any, kwargs: Mapping[str, Any], daemon: bool) -> None:
        self._work = pickle.dumps((target, dict(kwargs)))
        self._daemon = daemon
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it."""
        command = [sys.executable, "-m", "probe.torch_debug.served", str(os.getpid())]
        environ = {**os.environ, SWITCH: "off"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environ)
        if self._process.stdin is not None:
            with self._process.stdin as told:
                told.write(self._work)

    def terminate(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()

    def join(self) -> None:
        """Wait for its end."""
        if self._process is not None:
            self._process.wait()
