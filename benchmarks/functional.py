"""Log-probabilities and metric reduction beside the plain way of writing them.

Times take turns in one process; peak memory is the growth of the resident set, in a process for each way.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Size, row, seconds
from probe.core.metric import reduce_metrics
from probe.core.torch_functional import logprobs_from_logits

SHAPE = (4, 512, 8192)
SMALL_SHAPE = (1, 8, 64)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def plain_logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-softmax of everything, then a gather."""
    return torch.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


WAYS: dict[str, Callable[..., torch.Tensor]] = {"ours": logprobs_from_logits, "plain": plain_logprobs}


def plain_reduce(metrics: dict[str, list[float]]) -> dict[str, float]:
    """The documented rule over numpy."""
    reducers = (("max", np.max), ("min", np.min), ("", np.mean))
    return {key: float(next(one for word, one in reducers if word in key)(values)) for key, values in metrics.items()}


def train(way: Callable[..., torch.Tensor], leaf: torch.Tensor, labels: torch.Tensor) -> None:
    """Forward and backward, with logits that only the graph holds."""
    way(leaf * 1.0, labels).sum().backward()
    leaf.grad = None


def made(shape: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(*shape, dtype=dtype).normal_(), torch.randint(shape[-1], tuple(shape[:-1]))


def peak_mib(way: str, dtype: str, shape: Sequence[int]) -> float:
    """Growth of the resident set over the forward pass, in MiB."""
    call = [sys.executable, "-m", "benchmarks.functional", way, dtype, *map(str, shape)]
    root = Path(__file__).parent.parent
    return float(subprocess.run(call, check=True, capture_output=True, text=True, cwd=root).stdout)


def measure_peak(way: str, dtype: str, *shape: str) -> float:
    small, few = torch.zeros(1, 8, dtype=DTYPES[dtype]), torch.zeros(1, dtype=torch.long)
    WAYS[way](small, few)  # what torch loads on first use isn't the algorithm's
    logits, labels = made([int(one) for one in shape], DTYPES[dtype])
    before = peak_kib()
    with torch.no_grad():
        WAYS[way](logits, labels)
    return (peak_kib() - before) / 1024


def peak_kib() -> int:
    """The largest resident set of this program so far. Linux's ru_maxrss would include the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    found = []
    shape, repeats = size.pick(SMALL_SHAPE, SHAPE), size.pick(1, 7)
    for name, dtype in list(DTYPES.items())[: size.pick(1, len(DTYPES))]:
        what = f"logprobs_from_logits {'×'.join(map(str, shape))} {name}"
        logits, labels = made(shape, dtype)
        with torch.no_grad():
            forward_s, plain_s = seconds(
                partial(logprobs_from_logits, logits, labels),
                partial(plain_logprobs, logits, labels),
                repeats=repeats,
            )
        leaf = logits.requires_grad_()
        both_s, plain_both_s = seconds(
            partial(train, logprobs_from_logits, leaf, labels),
            partial(train, plain_logprobs, leaf, labels),
            repeats=repeats,
        )
        copy = logits.nbytes / 2**20
        peaks = peak_mib("ours", name, shape), peak_mib("plain", name, shape)
        found += [
            row(f"{what}: forward", forward_s, plain_s, note="log_softmax and gather"),
            row(f"{what}: forward and backward", both_s, plain_both_s, note="log_softmax and gather"),
            row(f"{what}: extra memory", *peaks, note=f"one copy is {copy:g} MiB") | {"unit": "MiB"},
        ]
    metrics = {f"actor/{word}_{index}": [0.1] * 16 for index in range(17) for word in ("max", "min", "loss")}
    ours_s, theirs_s = seconds(
        lambda: reduce_metrics(metrics), lambda: plain_reduce(metrics), repeats=size.pick(1, 15), number=20
    )
    return [*found, row("reduce_metrics of 51 lists of 16", ours_s, theirs_s, note="the same rule over numpy")]


if __name__ == "__main__":
    print(measure_peak(*sys.argv[1:]))
