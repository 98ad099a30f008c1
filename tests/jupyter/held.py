"""An answer about memory that has every case: two GPUs, an instance of a divided one, and one that tells little."""

from __future__ import annotations

import copy
import itertools
import time
from typing import Any

GIB = 1024**3
NASTY = "<img src=x onerror=globalThis.__hurt=1>"


#: No two processes have the same id.
_PIDS = itertools.count(4242)


def _kernel(path: str, state: str = "idle", since_s: float = 0, kind: str = "notebook") -> dict[str, Any]:
    session = {"path": path, "name": path.rpartition("/")[2], "type": kind}
    return {"id": path, "name": "python3", "state": state, "since_s": since_s, "sessions": [session]}


def _holder(what: str, *sizes: int | None, **more: Any) -> dict[str, Any]:
    parts = [
        {"pid": next(_PIDS), "bytes": size, "name": "pt_main_thread" if at else None} for at, size in enumerate(sizes)
    ]
    known = [size for size in sizes if size is not None]
    told: dict[str, Any] = dict.fromkeys(("kernel", "run", "name", "user", "path"))
    return {
        **told,
        "what": what,
        "bytes": sum(known) if known else None,
        "processes": parts,
        "count": len(parts),
        **more,
    }


def _device(number: str, used: int | None, *holders: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = {"name": "NVIDIA H100 80GB HBM3", "mig": False, "total_bytes": 80 * GIB, "why": "", "listed": True}
    return {**told, "number": number, "used_bytes": used, "holders": list(holders), **more}


def held() -> dict[str, Any]:
    """As the server answers, the same each time."""
    return copy.deepcopy(_HELD)


def _held() -> dict[str, Any]:
    rank = {"run": "runs/first", "who": "rank 3", "role": "actor"}
    forgotten = _kernel("sweeps/forgotten-experiment.ipynb", since_s=time.time() - 3 * 3600)
    return {
        "kind": "gpu",
        "why": "",
        "devices": [
            _device(
                "0",
                71 * GIB,
                _holder("kernel", 30 * GIB, 9 * GIB, 2 * GIB, GIB, GIB, GIB, kernel=forgotten),
                _holder("run", 17 * GIB, run=rank),
                _holder("kernel", 5 * GIB, kernel=_kernel(f"{NASTY}.ipynb", "busy"), run={**rank, "who": "rank 4"}),
                _holder("left", 2 * GIB, name="python3.11", path="sweeps/restarted.ipynb"),
            ),
            _device(
                "1",
                40 * GIB,
                _holder("process", 4 * GIB, name="python3.11 -m vllm.entrypoints.openai.api_server"),
                _holder("process", 3 * GIB, name="python3", user="bob"),
                _holder("server", GIB),
                _holder("stranger", GIB),
            ),
            _device("2:0", GIB, mig=True, name="NVIDIA H100 MIG 1g.10gb", total_bytes=10 * GIB),
            _device("3", 9 * GIB, _holder("kernel", None, kernel=_kernel("Console 1", kind="console"))),
            _device("4", None, total_bytes=None, why="GPU is lost", listed=False),
        ],
    }


_HELD = _held()
