"""What trainings of verl left: what was logged, weights and counts, and that two are the same to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from probe.opened import Run

if TYPE_CHECKING:
    from recipes import Done

#: What depends on the machine's load or memory, by a part of its name.
OF_THE_MACHINE = ("timing", "throughput", "time_per_step", "cpu_memory", "mfu")

Train = Callable[..., "Done"]


def without_the_machine(done: Done) -> dict[int, dict[str, Any]]:
    """All that verl logged, but what no two runs have in common."""
    return {
        step: {key: value for key, value in logged.items() if not any(one in key for one in OF_THE_MACHINE)}
        for step, logged in done.logged().items()
    }


def weights(done: Done) -> dict[str, Any]:
    """All tensors of the last checkpoint, by file and key."""
    found: dict[str, Any] = {}
    for file in sorted(done.directory.glob("checkpoints/**/*.pt")):
        if file.name.startswith(("model", "optim")):
            loaded = torch.load(file, weights_only=False)
            found |= {f"{file.name}/{key}": one for key, one in _tensors(loaded)}
    return found


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    value = getattr(value, "_local_tensor", value)
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _tensors(inner, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _tensors(inner, f"{path}/{index}")


def assert_the_same_training(one: Done, other: Done) -> None:
    assert without_the_machine(one) == without_the_machine(other)
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 10
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())
    assert one.counted("model") == other.counted("model")


def counted(done: Done, rank: int, what: str = "model") -> list[dict[str, Any]]:
    return [line for line in done.counted(what) if line["rank"] == rank]


def recorded(run: Run, rank: int) -> pd.DataFrame:
    """The rank's micro-batches in the order in which they ran."""
    rows = run.micro_batches
    return rows[rows["rank"] == rank].sort_values(["batch_id", "micro_batch"], kind="stable")
