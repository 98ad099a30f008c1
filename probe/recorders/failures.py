"""The row of an exception: what it was, and what the process held when it came. Nothing of it is kept alive."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, Final

from probe.devices import Counters, Device
from probe.guard import attempt
from probe.records import Failure

#: Exceptions that say nothing of a failure: a generator, a task or the program is told to end.
ORDERLY: Final = (SystemExit, GeneratorExit, StopIteration, StopAsyncIteration)

MESSAGE: Final = 2_000
TRACE: Final = 20_000
CAUSES: Final = 8
FIELDS: Final = 200

_OUT_OF_MEMORY: Final = frozenset({"OutOfMemoryError", "CUDAOutOfMemoryError"})


def is_failure(error: BaseException) -> bool:
    """Whether an exception is told: not one that ends something in order.

    Args:
        error: Which.
    """
    return not isinstance(error, ORDERLY) and type(error).__name__ != "CancelledError"


def failure_row(error: BaseException, device: Device | None) -> Failure:
    """What is to be said of an exception itself and of the memory now. The row holds no part of it.

    Args:
        error: It isn't changed.
        device: Whose memory is told; None tells none.

    Returns:
        The row, without its stamp, its number and what it has left.
    """
    causes = list(_causes(error))
    row = Failure(
        exception_id=0,
        outermost="",
        kind="interrupted" if isinstance(error, KeyboardInterrupt) else "failure",
        type=qualified(error),
        message=message_of(error),
        traceback=trace_of(error),
        causes=[f"{qualified(one)}: {message_of(one)}"[:MESSAGE] for one in causes],
        out_of_memory=any(map(is_out_of_memory, (error, *causes))),
    )
    if device is not None:
        _add_memory(row, device)
    return row


def _add_memory(row: Failure, device: Device) -> None:
    # After an error of its own a device may answer nothing more.
    held = attempt(lambda: device.read(whole=True) if device.bound else Counters(), lambda _: Counters())
    row.device, row.source = device.name, device.source
    row.allocated_bytes, row.reserved_bytes = held.allocated_bytes, held.reserved_bytes
    row.device_total_bytes = held.total_bytes
    if held.used_bytes is not None and held.reserved_bytes is not None:
        own = held.process_used_bytes
        known = own if own is not None and held.reserved_bytes <= own <= held.used_bytes else held.used_bytes
        row.non_torch_bytes = known - held.reserved_bytes


def qualified(error: BaseException) -> str:
    """Name of an exception's type with its module, that of builtins left out."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """What it says, bounded; a user's ``__str__`` may raise itself."""
    return attempt(lambda: str(error)[:MESSAGE], lambda other: f"<its text raised {type(other).__name__}>")


def trace_of(error: BaseException) -> str:
    """Its traceback as text, with those that it came from; of a long one the beginning and the end."""
    return attempt(
        lambda: bounded("".join(traceback.format_exception(error)), TRACE),
        lambda other: f"<its traceback can't be told: {type(other).__name__}>",
    )


def bounded(text: str, size: int) -> str:
    """A text of at most ``size`` characters: where it is longer its middle is left out."""
    if len(text) <= size:
        return text
    half = size // 2 - 20
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters …]\n{text[-half:]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no more memory to give, by the exception's class."""
    torch: Any = sys.modules.get("torch")
    known = getattr(torch, "OutOfMemoryError", None)
    if isinstance(known, type) and isinstance(error, known):
        return True
    if any(one.__name__ in _OUT_OF_MEMORY and one.__module__ != "builtins" for one in type(error).__mro__):
        return True
    # Of a call to CUDA that isn't the allocator's, such as making a context: torch gives it no class of its own.
    return isinstance(error, RuntimeError) and "CUDA error: out of memory" in message_of(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    at: BaseException | None = error
    for _ in range(CAUSES):
        if at is None:
            return
        at = at.__cause__ if at.__cause__ is not None or at.__suppress_context__ else at.__context__
        if at is None or id(at) in seen:
            return
        seen.add(id(at))
        yield at


def fields_of(batch: Any) -> str:
    """Shape, dtype, bytes and device of each column of a batch, as JSON by key; "{}" where there are none.

    Args:
        batch: A DataProto, a TensorDict or a dict.
    """
    told: dict[str, Any] = {}
    for key, value in _columns(batch):
        if len(told) >= FIELDS:
            break
        told[str(key)] = _column(value)
    return json.dumps(told)


def _columns(batch: Any) -> Iterator[tuple[Any, Any]]:
    parts: tuple[Any, ...] = (getattr(batch, "batch", None), getattr(batch, "non_tensor_batch", None))
    for one in parts:
        if isinstance(one, Mapping) or hasattr(one, "items"):
            yield from one.items()
    if isinstance(batch, Mapping) or (hasattr(batch, "items") and not hasattr(batch, "non_tensor_batch")):
        yield from batch.items()


def _column(value: Any) -> dict[str, Any]:
    if not hasattr(value, "shape"):
        return {"type": type(value).__name__}
    told: dict[str, Any] = {
        "shape": [one if isinstance(one, int) else str(one) for one in value.shape],
        "dtype": str(getattr(value, "dtype", "")).removeprefix("torch."),
    }
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        told["bytes"] = size
    if hasattr(value, "device"):
        told["device"] = str(value.device)
    return told
