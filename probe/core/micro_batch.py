"""``with micro_batch(i, lengths=…)``: a micro-batch that the trainer's own code has cut and collated.

:func:`probe.core.seqlen_balancing.micro_batches` cuts a batch and tells of it; code that cuts its own tells here.
"""

from __future__ import annotations

from typing import Any

from probe._check import whole_number
from probe.core.balancing.partition import calculate_workload
from probe.errors import InputError, InputTypeError
from probe.hooks import emit, scope
from probe.moments import TOLD, Content


class micro_batch(scope):  # noqa: N801  (reads as a noun at the point of use: `with micro_batch(0, lengths=lengths):`)
    """The block works on one micro-batch: a scope with its own peak memory, time, and rows for its tokens and padding.

    The rows are those that :func:`~probe.core.seqlen_balancing.micro_batches` makes of the same micro-batch: one in
    ``micro_batches``, and one in ``padding`` for each cause and field, whose tokens sum exactly to rows times width
    minus tokens. Micro-batches in one scope whose numbers rise are of one batch; a number that doesn't rise begins the
    next batch. Without a session it costs the check of its arguments.

    Args:
        index: Its number in the batch, from 0.
        lengths: Tokens of each of its sequences, on the CPU: a list, a tuple, a 1-D array or tensor of whole numbers.
        width: Width in tokens of the rectangle that is computed on; None where no padding is computed on (jagged or
            packed rows).
        cap: The most tokens that it may have; None where there is no cap.
        batch: What is computed on, such as the dict of collated tensors: its fields of ``width`` columns give padding
            its bytes. None is one field "tokens" whose bytes are unknown, and told as 0. It isn't kept.
        count: How many micro-batches the batch is cut into; None where that isn't known.
        indices: Which rows of the batch it holds; None where that isn't known.
        source: What the rows call the code that cut the batch.

    Raises:
        InputTypeError: A length, a number or an index isn't a whole number, or lengths are on a device: reading them
            would wait for it.
        InputError: One of them is negative, ``cap`` is below 1, a sequence is longer than ``width``, or there are
            not as many indices as lengths.

    >>> with micro_batch(0, lengths=[5, 3], width=8) as opened:
    ...     opened.values["tokens"]
    8
    """

    __slots__ = ("_told",)

    def __init__(
        self,
        index: int,
        *,
        lengths: Any,
        width: int | None = None,
        cap: int | None = None,
        batch: Any = None,
        count: int | None = None,
        indices: Any = None,
        source: str = "micro_batch",
    ) -> None:
        index = whole_number("index", index, 0)
        inside = _whole_numbers("lengths", lengths)
        longest = max(inside, default=0)
        if width is not None and whole_number("width", width, 0) < longest:
            raise InputError(f"width: got {width}, expected at least {longest}, the tokens of the longest sequence")
        rows = None if indices is None else _whole_numbers("indices", indices)
        if rows is not None and len(rows) != len(inside):
            raise InputError(f"indices: got {len(rows)} of them, expected {len(inside)}, one for each length")
        super().__init__("micro_batch", str(index), micro_batch=index, tokens=sum(inside), sequences=len(inside))
        self.values["content"] = Content(batch, inside)
        self._told: dict[str, Any] = {
            "micro_batch": index,
            "lengths": inside,
            "width_tokens": None if width is None else int(width),
            "cap_tokens": None if cap is None else whole_number("cap", cap, 1),
            "batch": batch,
            "count": None if count is None else whole_number("count", count, 1),
            "indices": rows,
            "source": source,
        }

    def __enter__(self) -> scope:
        told, self._told = self._told, {}  # the batch isn't kept
        if told and TOLD.listeners:
            emit(TOLD, workload=calculate_workload(told["lengths"]), **told)
        return super().__enter__()


def _whole_numbers(argument: str, given: Any) -> list[int]:
    """``given`` as Python's numbers, checked to be whole and not negative."""
    device = getattr(given, "device", None)  # of a tensor; numpy 2 says "cpu"
    if str(device or "cpu").partition(":")[0] != "cpu":
        raise InputTypeError(
            f"{argument}: got a tensor on {device}, expected numbers on the CPU: reading it would wait for the device"
        )
    try:
        numbers = given.tolist() if hasattr(given, "tolist") else list(given)
    except TypeError:
        numbers = given
    if not isinstance(numbers, list):
        raise InputTypeError(f"{argument}: got {type(given).__name__}, expected a flat sequence of whole numbers")
    return [whole_number(f"{argument}[{at}]", one, 0) for at, one in enumerate(numbers)]
