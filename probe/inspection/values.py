"""Values of a few rows of a batch: only what is asked for leaves its device.

Every function narrows a column first, as a view, and moves what is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from probe._check import is_whole
from probe.core.columns.jagged import is_jagged, jagged_spans
from probe.errors import InputError, InputTypeError
from probe.guard import attempt
from probe.inspection.contents import Field, Stacked
from probe.inspection.plain_text import cut, one_line, plain

#: Characters of a decoded text that are kept.
TEXT_LIMIT: Final = 4000


def row_range(rows: Any, count: int, default: int | None = None) -> tuple[int, int]:
    """(start, stop) of ``rows`` within a batch of ``count``.

    Args:
        rows: One row, a ``range`` or ``slice`` without steps, a (start, stop) pair, or None for the first ``default``
            rows. What lies beyond the batch is cut off, as in a slice.
        count: The batch's number of rows.
        default: How many rows None means; with None it means all.

    Raises:
        InputTypeError: It is something else.
        InputError: It has steps, or is a single row outside the batch.

    >>> row_range(slice(2, None), 5), row_range(-1, 5), row_range(None, 5, 3), row_range((1, 99), 5)
    ((2, 5), (4, 5), (0, 3), (1, 5))
    """
    if rows is None:
        return 0, count if default is None else min(default, count)
    if is_whole(rows):
        if not -count <= rows < count:
            raise InputError(f"rows: got {rows}, expected the index of a row; the batch has {count} rows")
        first = int(rows) % count
        return first, first + 1
    if isinstance(rows, tuple) and len(rows) == 2:
        rows = slice(*rows)
    if isinstance(rows, range):
        rows = slice(rows.start, rows.stop, rows.step)
    if not isinstance(rows, slice):
        raise InputTypeError(f"rows: got {plain(rows)}, expected a row, a range, a slice or a (start, stop) pair")
    try:
        start, stop, step = rows.indices(count)
    except TypeError:
        raise InputTypeError(f"rows: got {plain(rows)}, expected whole numbers as start and stop") from None
    if step != 1:
        raise InputError(f"rows: got a step of {step}, expected consecutive rows (step 1)")
    return start, max(start, stop)


def rows_of_column(value: Any, start: int, stop: int, positions: slice | None = None) -> list[Any]:
    """Rows ``start`` to ``stop`` of a column: tensors on the CPU, or the objects themselves.

    Args:
        value: The column, of any kind.
        start: The first row.
        stop: The row after the last one.
        positions: Only these entries of each row, without steps; cut before anything travels.

    Raises:
        NotImplementedError: torch has no values to give (a meta tensor, an odd layout).
        RuntimeError: torch has no values to give (a meta tensor, an odd layout).

    >>> [row.tolist() for row in rows_of_column(torch.arange(6).reshape(3, 2), 1, 3, slice(0, 1))]
    [[2], [4]]
    """
    if isinstance(value, torch.Tensor):
        return _tensor_rows(value.detach(), start, stop, positions)
    if isinstance(value, np.ndarray):
        return [row[positions] if positions and isinstance(row, np.ndarray) else row for row in value[start:stop]]
    if isinstance(value, Stacked):
        return [_moved(part, positions) for part in value.parts[start:stop]]
    return list(value[start:stop]) if isinstance(value, list | tuple) else [value] * (stop - start)


def _moved(row: Any, positions: slice | None) -> Any:
    if not isinstance(row, torch.Tensor):
        return row
    row = row.detach()
    return (row[positions] if positions and row.ndim else row).cpu()


def _tensor_rows(value: Any, start: int, stop: int, positions: slice | None) -> list[Any]:
    if is_jagged(value):
        return _jagged_rows(value, start, stop, positions)
    if value.is_nested:
        return [_moved(row, positions) for row in value.unbind()[start:stop]]
    if value.layout is not torch.strided:
        raise NotImplementedError(f"values of a tensor with the layout {value.layout}; only torch.strided is supported")
    if not value.ndim:
        return [value.cpu()] * (stop - start)
    part = value.narrow(0, start, stop - start)
    return list((part[:, positions] if positions and part.ndim > 1 else part).cpu().unbind())


def _jagged_rows(value: Any, start: int, stop: int, positions: slice | None) -> list[Any]:
    spans = jagged_spans(value, start, stop)
    dim = value._ragged_idx - 1
    if positions is None and spans and dim == 0:  # all in one journey
        first, last = spans[0][0], max(end for _, end in spans)
        part = value._values.narrow(0, first, last - first).cpu()
        return [part[begin - first : end - first] for begin, end in spans]
    rows = (value._values.narrow(dim, begin, end - begin) for begin, end in spans)
    return [_moved(row, positions if dim == 0 else None) for row in rows]


# --------------------------------------------------------------------------------------------------- as text


def row_text(row: Any, limit: int = 12) -> str:
    """A row as text: its first ``limit`` entries, and how many more there are. Never raises.

    >>> row_text(torch.tensor([1.5, float("nan"), 2.0]), 2)
    '[1.5, nan, … 1 more]'
    >>> row_text("hello"), row_text(torch.ones(2, 2))
    ("'hello'", '(2, 2): [1, 1, 1, 1]')
    """
    return attempt(lambda: _row_text(row, limit), lambda _: plain(row))  # exotic dtypes can do without tolist


def _row_text(row: Any, limit: int) -> str:
    return _numbers_text(row, limit) if _is_dense(row) else plain(row, 40 + 10 * limit)


def _is_dense(row: Any) -> bool:
    if isinstance(row, np.ndarray):
        return not row.dtype.hasobject
    return isinstance(row, torch.Tensor) and not row.is_nested


def _numbers_text(row: Any, limit: int) -> str:
    if not row.ndim:
        return _number_text(row.item())
    count = int(np.prod(row.shape))
    flat = row.reshape(-1)[:limit] if row.ndim == 1 else row[: limit or 1].reshape(-1)[:limit]
    shown = [_number_text(one) for one in flat.tolist()]
    if count > len(shown):
        shown.append(f"… {count - len(shown):,} more")
    shape = f"{tuple(row.shape)}: " if row.ndim > 1 else ""
    return f"{shape}[{', '.join(shown)}]"


def _number_text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else plain(value, 60)


class RowText(NamedTuple):
    """The decoded tokens of one row. ``whole`` is set where prompt and response can't be told apart."""

    row: int
    prompt: str
    response: str
    whole: str


def decoded(tokenizer: Any, ids: Iterable[int]) -> str:
    """Text of ``ids``, special tokens included; what went wrong in the tokenizer is said in its place.

    >>> class Letters:
    ...     def decode(self, ids): return "".join(chr(97 + one) for one in ids)
    >>> decoded(Letters(), [7, 8])
    'hi'
    """
    numbers = [int(one) for one in ids]

    def failed(error: Exception) -> str:
        return f"⟨the tokenizer failed on {len(numbers)} tokens: {type(error).__name__}: {one_line(error)}⟩"

    text = attempt(lambda: str(tokenizer.decode(numbers)), failed)  # it may raise anything for ids that it doesn't know
    more = len(text) - TEXT_LIMIT
    return cut(text, len(text)) if more <= 0 else f"{cut(text[:TEXT_LIMIT], TEXT_LIMIT)}… {more:,} more characters"


def tensors_of(fields: Iterable[Field]) -> dict[str, Any]:
    """Tensor columns by key, those of inner batches left out: where the names of token columns are looked up."""
    kinds = (torch.Tensor, Stacked)
    return {field.key: field.value for field in fields if isinstance(field.value, kinds) and "." not in field.key}
