"""How one field of a batch goes onto the wire: jagged, as the rectangle that it is, or as objects; and why.

The rules are the documented ones of NeMo-RL's codec. A field is cut to the lengths of its rows

* by the rule "named": the caller says that it has an entry for each token. It may be wider than the longest row
  (frameworks round widths up); what can't be cut stays a rectangle, a *fallback*;
* by the rule "width": nobody says anything, and its second size is exactly the longest row;
* by the rule "kept": never.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probe.core.codec.jagged import Ints, RowLengths, Spans, is_jagged, pack_rows, take_spans
from probe.core.columns.jagged import build_jagged
from probe.errors import InputError, InputTypeError, ShapeError

Rule = Literal["named", "width", "kept"]
Decision = Literal["jagged", "rectangular", "fallback", "object"]


class PackedField(NamedTuple):
    """What was decided for a field, from its shape and the lengths alone.

    Attributes:
        reason: For a jagged field "named", "width_matches" or "already_jagged"; for a rectangle "not_named",
            "no_lengths", "no_rows", "one_dimension", "other_rows", "other_width" or "too_narrow"; else "objects".
        width_tokens: Width of the rectangle that came, 0 for jagged fields, objects and one dimension.
        kept_tokens: Tokens that a jagged field kept; None for a rectangle, which keeps everything and tells nothing of
            its tokens.
        stripped_tokens: Padding that a jagged field lost; None for a rectangle, which keeps everything and tells
            nothing of its tokens.
        bytes_per_token: Bytes of all that belongs to one entry of a row.
    """

    name: str
    decision: Decision
    reason: str
    width_tokens: int
    kept_tokens: int | None
    stripped_tokens: int
    bytes_per_token: int


def entry_bytes(value: Tensor, leading: int) -> int:
    """Bytes of one entry: what comes after the first ``leading`` dimensions."""
    return int(value.element_size() * math.prod(value.shape[leading:]))


def check_no_holes(name: str, column: Any) -> None:
    """Raise :class:`InputError` for a jagged tensor whose rows don't fill the space between their offsets."""
    if column.lengths() is not None:
        raise InputError(
            f"{name}: got a nested tensor with holes (its lengths are set), expected rows side by side; "
            "call .contiguous() on it first"
        )


def pack_field(name: str, value: Tensor, lengths: RowLengths | None, rule: Rule) -> tuple[Tensor, PackedField]:
    """One tensor as it goes onto the wire, detached; and what was decided.

    Raises:
        InputError: A nested tensor that has holes, isn't jagged, or has a row shorter than its length.
        InputTypeError: A nested tensor that has holes, isn't jagged, or has a row shorter than its length.
        ShapeError: A nested tensor that has holes, isn't jagged, or has a row shorter than its length.
    """
    if is_jagged(value) or value.is_nested:
        return _pack_nested(name, value, lengths, rule)
    obstacle = _obstacle(value, lengths, rule)
    width = int(value.shape[1]) if value.dim() > 1 else 0
    if obstacle or lengths is None:
        decision: Decision = "fallback" if rule == "named" else "rectangular"
        size = entry_bytes(value, 2 if width else 1)
        return value.detach().contiguous(), PackedField(name, decision, obstacle, width, None, 0, size)
    reason = "named" if rule == "named" else "width_matches"
    stripped = lengths.rows * width - lengths.total
    told = PackedField(name, "jagged", reason, width, lengths.total, stripped, entry_bytes(value, 2))
    return lengths.jagged(pack_rows(value.detach(), lengths)), told


def _obstacle(value: Tensor, lengths: RowLengths | None, rule: Rule) -> str:
    """Why the rectangle stays one; empty where it is cut."""
    if lengths is None:
        return "no_lengths"
    if rule == "kept":
        return "not_named"
    if not lengths.rows:
        return "no_rows"
    if value.dim() < 2 or value.shape[0] != lengths.rows:
        return "one_dimension" if value.dim() < 2 else "other_rows"
    if rule == "width":
        return "" if value.shape[1] == lengths.longest else "other_width"
    return "" if value.shape[1] >= lengths.longest else "too_narrow"


def _pack_nested(name: str, value: Any, lengths: RowLengths | None, rule: Rule) -> tuple[Tensor, PackedField]:
    if not is_jagged(value):
        raise InputTypeError(
            f"{name!r}: got a nested tensor of layout {value.layout}, expected a jagged or a plain one"
        )
    check_no_holes(repr(name), value)
    values, dim = value._values.detach(), value._ragged_idx
    tokens = int(values.shape[dim - 1])
    told = PackedField(name, "jagged", "already_jagged", 0, tokens, 0, nested_entry_bytes(values, dim))
    if lengths is None or rule == "kept":
        return value.detach(), told
    if len(value.offsets()) - 1 != lengths.rows:
        raise ShapeError(f"{name!r}: got {len(value.offsets()) - 1} rows, expected {lengths.rows} as in lengths")
    shared = lengths.offsets(values.device)
    if value.offsets() is shared:
        return value.detach(), told
    starts = value.offsets().cpu().numpy()
    have = np.diff(starts)
    if not np.array_equal(have, lengths.host):
        if rule == "width":
            return value.detach(), told
        values = _first_tokens(name, values, starts, lengths, dim)
        told = told._replace(kept_tokens=lengths.total, stripped_tokens=tokens - lengths.total)
    return build_jagged(values, shared, lengths.shortest, lengths.longest, ragged_dim=dim), told


def _first_tokens(name: str, values: Tensor, starts: Ints, lengths: RowLengths, dim: int) -> Tensor:
    short = np.diff(starts) < lengths.host
    if short.any():
        row = int(np.argmax(short))
        have = int(starts[row + 1] - starts[row])
        raise ShapeError(f"{name!r}: row {row} has {have} tokens, but lengths says {int(lengths.host[row])}")
    return take_rows(values, Spans(starts[:-1], lengths.host, lengths.total), dim)


def take_rows(values: Tensor, spans: Spans, ragged_dim: int) -> Tensor:
    """:func:`take_spans` along dimension ``ragged_dim - 1``, where a jagged tensor's values have their tokens."""
    if ragged_dim == 1:
        return take_spans(values, spans)
    return take_spans(values.movedim(ragged_dim - 1, 0), spans).movedim(0, ragged_dim - 1).contiguous()


def nested_entry_bytes(values: Tensor, ragged_dim: int) -> int:
    """Bytes of one entry of a jagged tensor, from its values."""
    others = math.prod(size for place, size in enumerate(values.shape) if place != ragged_dim - 1)
    return int(values.element_size() * others)


def join_rows(tensors: list[Tensor]) -> Tensor:
    """Rows of different sizes as one jagged tensor, ragged in the one dimension in which they differ. Differentiable.

    Raises:
        ShapeError: They differ in their number of dimensions, or in more than one of them.
    """
    dims = {tensor.dim() for tensor in tensors}
    if len(dims) > 1:
        raise ShapeError(f"tensors: got rows of {' and '.join(map(str, sorted(dims)))} dimensions, expected the same")
    sizes = list(zip(*(tensor.shape for tensor in tensors), strict=True))
    ragged = [dim for dim, found in enumerate(sizes) if len(set(found)) > 1]
    if len(ragged) > 1:
        raise ShapeError(
            f"tensors: the rows differ in dimensions {ragged}, expected at most one; found {_shapes(tensors)}"
        )
    dim = ragged[0]
    lengths = RowLengths(np.array(sizes[dim], dtype=np.int64))
    values = torch.cat(tensors, dim)
    offsets = lengths.offsets(values.device)
    return build_jagged(values, offsets, lengths.shortest, lengths.longest, ragged_dim=dim + 1)


def _shapes(tensors: list[Tensor]) -> str:
    shapes = list(dict.fromkeys(str(tuple(tensor.shape)) for tensor in tensors))
    return ", ".join(shapes[:4]) + (" …" if len(shapes) > 4 else "")
