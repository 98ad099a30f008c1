"""5: a training is bitwise the same with failures, watchdog and write-through on and off, and whoever trains sees the
very exception that was raised.
"""

# ruff: noqa: NPY002  (trainers draw from numpy's global generator, too, and its state is compared)

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import probe
from probe import hooks
from probe.runs import writer
from probe.session import Session


class Theirs(ValueError):
    """With a state of its own."""

    def __init__(self) -> None:
        super().__init__("a token that isn't in the vocabulary", 151936)
        self.sample = 7


def batch() -> dict[str, torch.Tensor]:
    lengths = torch.randint(1, 17, (12,))
    mask = (torch.arange(16)[None] < lengths[:, None]).long()
    return {"attention_mask": mask, "input_ids": torch.randint(0, 50, (12, 16)) * mask}


def train(error: Theirs | None, step_of: Callable[[int], Any], wait: Callable[[], None]) -> dict[str, Any]:
    """Three steps with dropout, and what is there afterwards: also of an exception in micro-batch 1 of the last."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    model = torch.nn.Sequential(
        torch.nn.Embedding(50, 8), torch.nn.Flatten(), torch.nn.Dropout(0.3), torch.nn.Linear(128, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses: list[float] = []
    caught: Theirs | None = None
    try:
        for step in range(3):
            with step_of(step):
                try:
                    with probe.phase("parse"):
                        raise KeyError("caught by the trainer")
                except KeyError:
                    wait()
                with probe.phase("update", role="actor"):
                    for index, part in enumerate(probe.micro_batches(batch(), max_token_len=64)):
                        if error is not None and (step, index) == (2, 1):
                            raise error
                        loss = model(part["input_ids"]).square().mean() * (1 + random.random() + np.random.rand())
                        loss.backward()
                        losses.append(loss.item())
                    optimizer.step()
                    optimizer.zero_grad()
    except Theirs as raised:
        caught = raised
    return {
        "weights": [one.detach().clone() for one in model.parameters()],
        "gradients": [None if one.grad is None else one.grad.clone() for one in model.parameters()],
        "moments": [one["exp_avg"].clone() for one in optimizer.state.values()],
        "losses": losses,
        "random": (torch.get_rng_state(), random.getstate(), repr(np.random.get_state())),
        "same": caught is error,
        "told": None if caught is None else (caught.args, vars(caught), caught.__cause__, caught.__context__),
        "trace": None if caught is None else traceback.format_tb(caught.__traceback__),
    }


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def watched(path: Path, **options: Any) -> Session:
    return probe.start("p", run_dir=path, rank=0, world_size=1, **options)


@pytest.mark.parametrize("raises", [False, True])
def test_5_a_training_is_bitwise_the_same_with_failures_watchdog_and_write_through_on_and_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    def error() -> Theirs | None:
        return Theirs() if raises else None

    plain = train(error(), lambda step: hooks.scope("step", "step", step=step), lambda: None)
    assert plain["same"]
    assert equal(plain, train(error(), lambda step: hooks.scope("step", "step", step=step), lambda: None))

    with monkeypatch.context() as patched:  # as on a directory that takes no memory map
        patched.setattr(writer, "NowFile", _fails)
        with watched(tmp_path / "off") as session:
            hooks.follow()
            off = train(error(), session.step, lambda: None)
        assert not list((tmp_path / "off").glob("*.now"))
        assert session.run.failures().empty

    monkeypatch.setenv("PROBE_OVERDUE_S", "0.05")
    with watched(tmp_path / "on", save_failed_batch=True, oom_snapshot=True) as session:
        until = time.monotonic() + 300

        def overdue() -> None:
            while session.run.table("stacks").empty and time.monotonic() < until:
                time.sleep(0.05)

        on = train(error(), session.step, overdue)
        session.flush()
        assert not session.run.table("stacks").empty  # the watchdog has looked at this thread's frames
        assert (session.run.failures()["type"] == "KeyError").sum() == 3
        assert session.run.failures()["type"].str.endswith("Theirs").sum() == raises
        assert session.run.now()["sequence"].iloc[0] > 20
    for name, value in plain.items():
        assert equal(value, off[name]), name
        assert equal(value, on[name]), name


def _fails(*_: Any) -> None:
    raise OSError("no memory map here")
