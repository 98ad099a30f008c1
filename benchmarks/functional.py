"""Log-probabilities and metric reduction beside the plain way of writing them: ``python benchmarks/functional.py``.

Each row is a ratio of medians measured in one run, the two taking turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from probe.core.metric import reduce_metrics
from probe.core.torch_functional import logprobs_from_logits

ROUNDS = 7


def plain_logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-softmax of everything, then a gather."""
    return torch.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def plain_reduce(metrics: dict[str, list[float]]) -> dict[str, float]:
    """The documented rule over numpy."""
    reducers = (("max", np.max), ("min", np.min), ("", np.mean))
    return {
        key: next(one for word, one in reducers if word in key)(values) for key, values in metrics.items()
    }


def time_ratio(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """Median time of ``ours`` over that of ``theirs``."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for call, into in zip((ours, theirs), taken, strict=True):
            begin = time.perf_counter()
            call()
            into.append(time.perf_counter() - begin)
    return statistics.median(taken[0]) / statistics.median(taken[1])


class _Largest(TorchDispatchMode):
    """The largest storage that an operation makes, in bytes, those that existed before left out."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in self._known:
            self.bytes = max(self.bytes, result.untyped_storage().nbytes())
        return result


def largest_share(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The largest temporary of the forward pass, as a part of the logits."""
    with _Largest(logits, labels) as seen:
        logprobs_from_logits(logits, labels)
    return seen.bytes / logits.nbytes


def training(function: Callable[..., torch.Tensor], logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Forward and backward, with logits that only the graph holds."""
    leaf = logits.detach().requires_grad_()
    function(leaf * 1.0, labels).sum().backward()


def main() -> list[tuple[str, float]]:
    """Measure and print each ratio."""
    rows: list[tuple[str, float]] = []
    for dtype in (torch.float32, torch.bfloat16):
        logits, labels = torch.randn(4, 512, 8192).to(dtype), torch.randint(8192, (4, 512))
        name = f"logprobs_from_logits 4×512×8192 {dtype}".replace("torch.", "")
        with torch.no_grad():
            forward = time_ratio(
                lambda x=logits, y=labels: logprobs_from_logits(x, y),
                lambda x=logits, y=labels: plain_logprobs(x, y),
            )
        both = time_ratio(
            lambda x=logits, y=labels: training(logprobs_from_logits, x, y),
            lambda x=logits, y=labels: training(plain_logprobs, x, y),
        )
        rows += [
            (f"{name}: forward time / log_softmax and gather", forward),
            (f"{name}: forward and backward time / log_softmax and gather", both),
            (f"{name}: largest temporary / logits", largest_share(logits, labels)),
        ]
    metrics = {f"actor/{word}_{index}": [0.1] * 16 for index in range(17) for word in ("max", "min", "loss")}
    rows.append(
        (
            "reduce_metrics of 51 lists of 16: time / numpy",
            time_ratio(lambda: reduce_metrics(metrics), lambda: plain_reduce(metrics)),
        )
    )
    for what, ratio in rows:
        print(f"{ratio:8.3f}  {what}")
    return rows


if __name__ == "__main__":
    main()
