"""Counts what the model is really given, below verl and without probe: the truth that a recording is held against.

A line of JSON for each call of the model, each backward pass (with its begin and end on the monotonic clock), each
step of an optimizer and each stretch that verl times in a task of an event loop, in
``$COUNTER_DIR/<process id>.jsonl``.
``KILL_RANK`` and ``KILL_AFTER`` let that rank's process die after so many steps of its optimizer.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import codetiming
import cpu_platform  # noqa: F401  # the platform comes first
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_call = torch.nn.Module.__call__
_backward: Callable[..., None] = torch.Tensor.backward
_stop = codetiming.Timer.stop
_steps = 0


def _write(line: dict[str, Any]) -> None:
    path = Path(os.environ["COUNTER_DIR"]) / f"{os.getpid()}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps({"rank": int(os.environ.get("RANK", "-1"))} | line) + "\n")


def _lengths(given: dict[str, Any]) -> list[int]:
    """Of packed sequences, whose positions begin with 0 again, or of the rows of a mask."""
    if given.get("attention_mask") is not None:
        return [int(one) for one in given["attention_mask"].sum(-1).tolist()]
    positions = given["position_ids"][0].tolist()
    starts = [index for index, position in enumerate(positions) if position == 0]
    return [end - begin for begin, end in zip(starts, [*starts[1:], len(positions)], strict=True)]


def _counted(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    if type(self).__name__.endswith("Qwen2ForCausalLM") and "input_ids" in kwargs:
        rows, width = kwargs["input_ids"].shape
        _write(
            {
                "what": "model",
                "rows": rows,
                "width": width,
                "lengths": _lengths(kwargs),
                "packed": kwargs.get("attention_mask") is None,
                "update": torch.is_grad_enabled(),
            }
        )
    return _call(self, *args, **kwargs)


def _timed(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    begin_ns = time.monotonic_ns()
    _backward(self, *args, **kwargs)
    _write({"what": "backward", "begin_ns": begin_ns, "end_ns": time.monotonic_ns()})


def _stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    global _steps
    _steps += 1
    gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    nonzero = sum(int(torch.count_nonzero(getattr(one, "_local_tensor", one))) for one in gradients)
    _write({"what": "optimizer", "nonzero": nonzero})
    if os.environ.get("KILL_RANK") == os.environ.get("RANK") and _steps >= int(os.environ.get("KILL_AFTER", "1")):
        _until_recorded()
        os.kill(os.getpid(), signal.SIGKILL)


def _until_recorded() -> None:
    """Rows of the first step are on the disk: those of the last half second may be lost with the process."""
    name, until = f"rank-{int(os.environ['RANK']):05d}*.jsonl", time.monotonic() + 60
    while time.monotonic() < until:
        files = Path(os.environ["PROBE_RUN_DIR"]).rglob(name)
        if any(b'"step":1' in line and b'"lengths"' in line for file in files for line in file.open("rb")):
            return
        time.sleep(0.01)


def _stopped(timer: codetiming.Timer) -> float:
    seconds = _stop(timer)
    if asyncio._get_running_loop() is not None:
        _write({"what": "timer", "name": timer.name, "seconds": seconds})
    return seconds


if os.environ.get("COUNTER_DIR"):
    codetiming.Timer.stop = _stopped
    torch.nn.Module.__call__ = _counted  # type: ignore[method-assign]
    torch.Tensor.backward = _timed  # type: ignore[method-assign]
    register_optimizer_step_post_hook(_stepped)
