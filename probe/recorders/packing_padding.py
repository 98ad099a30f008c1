"""What sequence packing and dynamic batching pay for padding, from the lengths that their plans are made of.

For n rows of lengths l, and the row that is the longest of a micro-batch over all ranks:

* packing: ``rounding`` is what rounding each length up adds. A bin's rectangle is what its sequences take, and not
  its capacity: room that nobody uses is no padding (:mod:`probe.recorders.token_balance` tells of it);
* dynamic batching: ``longest_row`` is n·max(l) − Σl, ``fixed_width`` n·(longest over all ranks − max(l)),
  ``rounding`` n·(width − longest over all ranks). Jagged rows aren't padded: cause "none".

The causes sum exactly to rectangle − valid tokens. A packing whose batch isn't known is recorded as one field
"tokens" of 0 bytes, since the size of a token is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from probe.hooks import Event
from probe.recorders.columns import lengths_of, next_batch_id, partitions_of
from probe.recorders.padding_rows import rows_of_causes, token_fields
from probe.records import Deferred, Padding

#: The moments that :func:`packing_rows` understands.
POINTS: Final = ("packing.packed", "batched_data_dict.partition")


class _Part(NamedTuple):
    """One micro-batch: its tokens, and how many of padding each cause added."""

    rows: int
    valid: int
    width: int
    causes: dict[str, int]


def packing_rows(event: Event) -> list[Padding]:
    """One row for each micro-batch, cause that has tokens, and field; cause "none" where there is no padding.

    Every micro-batch has a ``batch_id`` of its own, and its number in ``micro_batch``.

    Args:
        event: The event of one of :data:`POINTS`.
    """
    return list(cast("Iterable[Padding]", deferred_packing_rows(event).build()))


def deferred_packing_rows(event: Event) -> Deferred:
    """:func:`packing_rows` for the writer thread: only lists are copied at once, and no tensor is kept."""
    values = event.values
    packed = event.point.name == POINTS[0]
    names = ("lengths", "padded_lengths") if packed else ("lengths", "widths", "longest")
    taken = {name: lengths_of(event) if name == "lengths" else list(values[name]) for name in names}
    parts = partitions_of(event, "bins" if packed else "partitions")
    jagged = not packed and values.get("width_tokens") is None
    make = _packed if packed else _unpadded if jagged else _rectangles
    return Deferred(partial(_rows, make, parts, taken, _fields(values), event.point.name))


def _fields(values: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Name and bytes per token of each column that has an entry for each token."""
    fields = token_fields(values.get("batch"), values.get("width_tokens"))
    return [(field.name, field.bytes_per_token) for field in fields] or [("tokens", 0)]


def _packed(parts: Sequence[Sequence[int]], taken: Mapping[str, Sequence[int]]) -> Iterator[_Part]:
    for part in parts:
        valid = sum(taken["lengths"][row] for row in part)
        padded = sum(taken["padded_lengths"][row] for row in part)
        yield _Part(len(part), valid, 0, {"rounding": padded - valid})


def _rectangles(parts: Sequence[Sequence[int]], taken: Mapping[str, Sequence[int]]) -> Iterator[_Part]:
    for part, width, longest in zip(parts, taken["widths"], taken["longest"], strict=True):
        inside = [taken["lengths"][row] for row in part]
        count, most = len(inside), max(inside, default=0)
        causes = {
            "longest_row": count * most - sum(inside),
            "fixed_width": count * (longest - most),
            "rounding": count * (width - longest),
        }
        yield _Part(count, sum(inside), width, causes)


def _unpadded(parts: Sequence[Sequence[int]], taken: Mapping[str, Sequence[int]]) -> Iterator[_Part]:
    for part in parts:
        yield _Part(len(part), sum(taken["lengths"][row] for row in part), 0, {})


def _rows(
    make: Any,
    parts: Sequence[Sequence[int]],
    taken: Mapping[str, Sequence[int]],
    fields: Sequence[tuple[str, int]],
    source: str,
) -> list[Padding]:
    rows = []
    for index, part in enumerate(make(parts, taken)):
        rows += rows_of_causes(
            fields,
            part.causes,
            part.rows,
            part.valid,
            part.width,
            batch_id=next_batch_id(),
            source=source,
            micro_batch=index,
            rectangle_tokens=part.valid + sum(part.causes.values()),
        )
    return rows
