"""How long the rows of a mask are, read without anybody waiting for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, cast

import torch
import torch.autograd.profiler as _profiler

from probe.records import Deferred, Padding

#: Types of masks that NumPy adds up to the very numbers that torch does, without its way through the dispatcher.
_IN_NUMPY: Final = frozenset({torch.int64, torch.int32, torch.bool, torch.uint8})


def lengths_in(mask: torch.Tensor) -> list[int]:
    """How many entries of each row count."""
    return [int(length) for length in mask.detach().sum(-1).tolist()]


def copied(mask: torch.Tensor) -> Any:
    """A copy of a small mask on the CPU: an array where NumPy adds it up alike, else a tensor.

    After a step's work NumPy's way to a copy is found in no cache and takes 17 µs; torch's is warm from the work
    itself and takes 3, but whoever watches torch's functions would see it.
    """
    if type(mask) is torch.Tensor and mask.dtype in _IN_NUMPY and not mask.requires_grad:
        if unnoticed():
            return mask.clone()
        with contextlib.suppress(RuntimeError, TypeError):  # such as a tensor under torch.func
            return mask.numpy().copy()
    return mask.detach().clone()


def unnoticed() -> bool:
    """Whether nobody watches torch's functions, who would see those that a recorder calls."""
    return not (_watched() or _modes() or _profiler._is_profiler_enabled)


def _always() -> int:
    """Where torch doesn't tell."""
    return 1


#: How many modes of a user's own see torch's functions and what these dispatch to.
_watched: Final[Callable[[], int]] = getattr(torch._C, "_len_torch_dispatch_stack", _always)
_modes: Final[Callable[[], int]] = getattr(torch._C, "_len_torch_function_stack", _always)


def lengths_of_copy(kept: Any) -> list[int]:
    """The lengths in what :func:`copied` returned."""
    if isinstance(kept, torch.Tensor):
        if kept.dtype not in _IN_NUMPY:
            return lengths_in(kept)
        try:
            kept = kept.numpy()
        except (RuntimeError, TypeError):  # such as a tensor under torch.func
            return lengths_in(kept)
    return cast("list[int]", kept.sum(-1).tolist())


def from_device(mask: torch.Tensor, make: Callable[[list[int]], list[Padding]]) -> Deferred:
    """The row sums travel to pinned memory behind the work that is queued already; nobody waits for them.

    Args:
        mask: On a CUDA device.
        make: Makes the rows from the lengths.
    """
    sums = mask.detach().sum(-1)
    landing = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
    landing.copy_(sums, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(mask.device))
    return Deferred(lambda: make([int(length) for length in landing.tolist()]), done.query)
