"""Memory by kernel and process on the machine of a Jupyter server: of its NVIDIA GPUs, else of its processes (RSS)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psutil

from probe.devices import Gpu, Gpus

if TYPE_CHECKING:
    from probe.jupyter.holders import Holders

#: What asking may take of the time, and the most seconds that an answer is old by it.
SHARE: Final = 0.02
LATEST_S: Final = 30.0


class Memory:
    """What holds memory.

    Args:
        gpus: The GPUs; None are those of this machine.
    """

    def __init__(self, gpus: Gpus | None = None) -> None:
        self._gpus = Gpus() if gpus is None else gpus
        self._lock = threading.Lock()
        self._answer: dict[str, Any] = {}
        self._due = 0.0

    def read(self, holders: Holders) -> dict[str, Any]:
        """What holds memory now.

        Args:
            holders: Says whose it is.

        Returns:
            ``kind``, "gpu", or "rss" where there is no GPU of NVIDIA's that can be read; ``why``, what helps where
            there is one all the same, else ""; and ``devices``: of each ``number`` (None is the machine itself),
            ``name``, ``mig``, ``used_bytes`` and ``total_bytes`` (None where they aren't known), ``why`` something of
            it isn't known, ``listed`` (whether the driver says which processes there are), and ``holders``, as
            :meth:`probe.jupyter.holders.Holders.resident` gives them.
        """
        with self._lock:
            begun = time.monotonic()
            if begun >= self._due:
                gpus = self._gpus.read()
                devices = [_gpu(one, holders) for one in gpus] or [_machine(holders)]
                self._answer = {"kind": "gpu" if gpus else "rss", "why": self._gpus.why, "devices": devices}
                ended = time.monotonic()
                self._due = ended + min((ended - begun) / SHARE, LATEST_S)
            return self._answer


def _gpu(gpu: Gpu, holders: Holders) -> dict[str, Any]:
    return {
        "number": gpu.number,
        "name": gpu.name,
        "mig": gpu.mig,
        "used_bytes": gpu.used_bytes,
        "total_bytes": gpu.total_bytes,
        "why": gpu.why,
        "listed": gpu.processes is not None,
        "holders": holders.on_gpu((one.pid, one.used_bytes) for one in gpu.processes or ()),
    }


def _machine(holders: Holders) -> dict[str, Any]:
    found = psutil.virtual_memory()
    return {
        "number": None,
        "name": "",
        "mig": False,
        "used_bytes": found.total - found.available,
        "total_bytes": found.total,
        "why": "",
        "listed": True,
        "holders": holders.resident(),
    }
