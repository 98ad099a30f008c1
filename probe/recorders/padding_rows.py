"""Rows of padding: of one rectangle, one row for each cause and field; and the fields that have a token an entry."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

import torch

from probe.recorders.columns import tensors_of
from probe.records import Padding


class Field(NamedTuple):
    """One column of a batch that has an entry for each token."""

    name: str
    bytes_per_token: int


_field: Final = tuple.__new__


def token_fields(batch: Any, width: int | None) -> tuple[Field, ...]:
    """The columns of ``batch`` that have ``width`` entries a row, or (None) the jagged ones; by name. Batches of the
    same columns share them: those that wait for the writer would start collections of garbage.
    """
    found = []
    for name, tensor in tensors_of(batch).items():
        if tensor.is_nested:
            if width is None and (values := getattr(tensor, "_values", None)) is not None:
                found.append(Field(name, _bytes_per_token(values, 1)))
        elif width is not None:
            shape = tensor.shape
            if len(shape) >= 2 and shape[1] == width:
                size = tensor.element_size() if len(shape) == 2 else _bytes_per_token(tensor, 2)
                found.append(_field(Field, (name, size)))  # a third of the class's own time
    found.sort()
    return _same(tuple(found))


def told_fields(values: Mapping[str, Any]) -> tuple[Field, ...]:
    """The columns that code without a batch object has told of; shared likewise."""
    return _same(tuple(sorted(Field(name, int(size)) for name, size in values.get("fields") or ())))


@functools.lru_cache(maxsize=256)
def _same(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The fields that are equal to these and were there first."""
    return fields


def padding_rows(
    lengths: Sequence[int], width: int, fields: Iterable[Field], *, padded_rows: int = 0, **stamp: Any
) -> list[Padding]:
    """The rows of one rectangle: one for each cause that has tokens and each field; cause "none" where there
    is none.

    Args:
        lengths: Tokens of each real row.
        width: Width of the rectangle, at least the largest of ``lengths``.
        fields: The fields that lie in the rectangle.
        padded_rows: Further rows that only fill the batch up.
        **stamp: Further fields of the rows, such as ``batch_id`` and ``source``.
    """
    count, valid, longest = len(lengths), sum(lengths), max(lengths, default=0)
    causes = {
        "longest_row": count * longest - valid,
        "fixed_width": count * (width - longest),
        "filler_rows": padded_rows * width,
    }
    return rows_of_causes(fields, causes, count + padded_rows, valid, width, **stamp)


def rows_of_causes(
    fields: Iterable[tuple[str, int]], causes: dict[str, int], rows: int, valid: int, width: int, **stamp: Any
) -> list[Padding]:
    """One row for each of ``fields`` and each of ``causes`` that has tokens; cause "none" where there is none.

    Args:
        fields: Names, and bytes of a token.
        causes: Tokens of padding by cause.
        rows: Of the rectangle.
        valid: Tokens that aren't padding.
        width: Of the rectangle, in tokens.
        **stamp: Further fields of the rows; ``rectangle_tokens`` where it isn't ``rows * width``.
    """
    shared = Padding(
        **{"rectangle_tokens": rows * width, **stamp},
        field="",
        cause="none",
        tokens=0,
        bytes=0,
        valid_tokens=valid,
        rows=rows,
        width_tokens=width,
    )
    present = [(cause, tokens) for cause, tokens in causes.items() if tokens] or [("none", 0)]
    made = []
    for name, size in fields:
        for cause, tokens in present:
            row = copy(shared)  # at a third of what a new one takes
            row.field, row.cause, row.tokens, row.bytes = name, cause, tokens, tokens * size
            made.append(row)
    return made


def without_padding(tokens: int, rows: int, field: Field, stamp: dict[str, Any]) -> Padding:
    """The row of tokens that have no padding among them.

    Args:
        tokens: How many.
        rows: That they are of.
        field: Whose tokens they are.
        stamp: Further fields of the row.
    """
    return Padding(
        field=field.name,
        cause="none",
        tokens=0,
        bytes=0,
        rectangle_tokens=tokens,
        valid_tokens=tokens,
        rows=rows,
        **stamp,
    )


def _bytes_per_token(tensor: torch.Tensor, leading: int) -> int:
    trailing = 1
    for size in tensor.shape[leading:]:
        trailing *= size
    return tensor.element_size() * trailing
