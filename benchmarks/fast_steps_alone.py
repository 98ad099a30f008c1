"""One turn of ``benchmarks.fast_steps`` in this process: ``python fast_steps_alone.py NAME STEPS FILE``.

It is a script of its own because TraceML's launcher takes the path of one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from benchmarks.fast_steps import Loop, Recorder, _nothing, _plain, one_turn

#: Steps before those that are measured: the process has just begun.
WARM_UP = 60


@contextmanager
def _traceml(loop: Loop) -> Iterator[Recorder]:
    import traceml_ai

    traceml_ai.init(mode="auto")
    yield (lambda _: traceml_ai.trace_step(loop.model)), _nothing, lambda *_: None


@contextmanager
def _probing() -> Iterator[Recorder]:
    import probing

    if not probing.is_enabled():
        raise SystemExit("probing isn't on: it is started by a .pth file in the site-packages of this Python")

    def log(metrics: dict[str, float], step: int) -> None:
        with probing.span("log", step=step):
            probing.event("metrics", attributes=[metrics])

    yield (lambda number: probing.span("step", number=number)), probing.span, log


def main(name: str, steps: int, result: Path) -> None:
    torch.set_num_threads(1)
    loop = Loop()
    makers: dict[str, Callable[[Path], AbstractContextManager[Recorder]]] = {
        "plain": _plain,
        "TraceML": lambda _: _traceml(loop),
        "probing": lambda _: _probing(),
    }
    turn = one_turn(loop, makers[name], steps, min(steps, WARM_UP))
    result.write_text(json.dumps(vars(turn)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
