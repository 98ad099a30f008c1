"""The wire codec: rectangles to jagged columns without padding before they travel, and back where they are used.

Names and results are those of NeMo-RL's documented data-plane codec. What holds here beyond it:

* all fields that have an entry for each token share one offsets tensor, so that torch can combine them;
* the shortest and the longest row are always known to the jagged tensors made here, and padding never believes a
  tensor that doesn't know its own;
* a length that doesn't fit, or a tensor whose rows have holes between them, raises and never gives a wrong row;
* the rows are copied (jagged tensors own their tokens: nothing here is a view of the rectangle), at a fraction of the
  time that torch's nested tensors take for it (:mod:`probe.core.codec.jagged`);
* listeners hear, from lengths and shapes alone, what was decided for each field and what its padding costs.

Shapes: N rows, S width of a rectangle, j tokens of a row, ``*`` anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor

from probe._check import whole_number
from probe.core.batched_data_dict import BatchedDataDict
from probe.core.codec.field_packing import PackedField, Rule, check_no_holes, join_rows, pack_field, take_rows
from probe.core.codec.field_padding import TOKEN_FIELDS, PaddedField, Padder, unstrided
from probe.core.codec.jagged import RowLengths, Spans, is_jagged, pack_rows, values_of
from probe.core.codec.wire import STRIPPED, is_object_column, object_column, object_stack, unwrap_wire_stripped_payload
from probe.core.columns import rows as row_tools
from probe.core.columns.jagged import build_jagged
from probe.errors import InputTypeError, ShapeError, UnknownNameError
from probe.hooks import emit, observed, point

__all__ = [
    "MATERIALIZED",
    "PACKED",
    "STRIPPED",
    "TOKEN_FIELDS",
    "Layout",
    "PackedField",
    "PaddedField",
    "materialize",
    "maybe_pack_jagged",
    "pack_jagged_fields",
    "pack_per_token_field",
    "response_from_nested",
    "stack_or_nest",
    "to_nested_by_length",
    "unwrap_wire_stripped_payload",
]

Layout = Literal["padded", "jagged"]

#: Told once for each batch (or lone field) that was packed.
PACKED: Final = point(
    "codec.packed",
    "fields were packed for the wire; carries rows, lengths (int64 array, None where none were given), "
    "fields (a PackedField each: decision, reason, tokens kept and stripped)",
)
#: Told once for each batch that was materialised.
MATERIALIZED: Final = point(
    "codec.materialized",
    "a wire batch became columns; carries rows, layout, pad_to_seqlen, pad_to_multiple, width_from, "
    "fields (a PaddedField each: decision, reason, tokens valid, longest row, rounded, width)",
)


# --------------------------------------------------------------------------------------------- single tensors


@observed("codec.to_nested_by_length", "the right padding of a rectangle is stripped; arguments padded, lengths")
def to_nested_by_length(padded: Tensor, lengths: Tensor) -> Tensor:
    """The rows of a rectangle without their right padding, as a jagged tensor. Differentiable.

    Args:
        padded: A tensor (N, S, *) of any dtype and device; a jagged tensor whose rows are at least as long works too.
        lengths: Integers (N,) on any device; read once.

    Returns:
        (N, j, *) jagged; row i is a copy of ``padded[i, :lengths[i]]``. N = 0 and empty rows are allowed.

    Raises:
        ShapeError: ``padded`` has fewer than two dimensions, ``lengths`` isn't (N,), or a length is above S.
        InputError: A length is negative.
        InputTypeError: They are no tensors, or the lengths aren't integers.

    >>> to_nested_by_length(torch.tensor([[1, 2, 0], [3, 0, 0]]), torch.tensor([2, 1])).unbind()
    (tensor([1, 2]), tensor([3]))
    """
    if not isinstance(padded, Tensor):
        raise InputTypeError(f"padded: got {type(padded).__name__}, expected a tensor of shape (N, S, *)")
    if padded.dim() < 2:
        raise ShapeError(f"padded: got shape {tuple(padded.shape)}, expected (N, S, *)")
    read = RowLengths.read(lengths, int(padded.shape[0]))
    if not padded.is_nested:
        return read.jagged(pack_rows(padded, read))
    nested: Any = padded
    _check_jagged("padded", padded)
    starts = nested.offsets().cpu().numpy()
    have = np.diff(starts)
    if (have < read.host).any():
        row = int(np.argmax(have < read.host))
        raise ShapeError(f"lengths: row {row} has length {int(read.host[row])}, but padded has {int(have[row])} there")
    dim: int = nested._ragged_idx
    values = take_rows(values_of(nested), Spans(starts[:-1], read.host, read.total), dim)
    return build_jagged(values, read.offsets(values.device), read.shortest, read.longest, ragged_dim=dim)


@observed("codec.stack_or_nest", "rows become one tensor, jagged if they differ; argument tensors")
def stack_or_nest(tensors: list[Tensor]) -> Tensor:
    """Rows of equal shape stacked; rows that differ in one dimension as a jagged tensor. Differentiable.

    Args:
        tensors: One tensor for each row. An empty list gives ``torch.empty(0)``, as documented.

    Raises:
        InputTypeError: Something is no plain tensor, or rows have different dtypes (nothing is promoted silently).
        ShapeError: Rows differ in more than one dimension, or in how many they have.

    >>> stack_or_nest([torch.tensor([1, 2]), torch.tensor([3, 4])]).tolist()
    [[1, 2], [3, 4]]
    >>> stack_or_nest([torch.tensor([1, 2]), torch.tensor([3])]).is_nested
    True
    """
    found = list(tensors)
    for place, one in enumerate(found):
        if not isinstance(one, Tensor) or one.is_nested:
            raise InputTypeError(f"tensors[{place}]: got {_kind(one)}, expected a plain tensor")
        if (one.dtype, one.device) != (found[0].dtype, found[0].device):
            raise InputTypeError(
                f"tensors[{place}]: got {one.dtype} on {one.device}, but the first row is {found[0].dtype} on "
                f"{found[0].device}"
            )
    if not found:
        return torch.empty(0)
    if all(one.shape == found[0].shape for one in found):
        return torch.stack(found)
    return join_rows(found)


@observed(
    "codec.response_from_nested", "responses are cut out of prompt-and-response rows; arguments full, response_mask"
)
def response_from_nested(full: Tensor, response_mask: Tensor) -> Tensor:
    """The response of each row, shifted left by one token. Differentiable.

    Entry i of a row then belongs to the prediction of the response's token i, as with log-probabilities that stand
    where the token before is fed in.

    Where all rows are equally long, :func:`stack_or_nest` and others have made plain tensors of them: these are taken
    for what they are.

    Args:
        full: Jagged (N, prompt + response, *), or plain where all rows are equally long.
        response_mask: Jagged (N, response), or plain; only its lengths are used.

    Returns:
        Jagged (N, response, *), a copy, which shares the offsets of a jagged ``response_mask``.

    Raises:
        InputTypeError: It is no tensor, or a nested one of another layout.
        InputError: There are holes between rows.
        ShapeError: A plain tensor has no dimension of tokens, there are other rows, or a response without a token of
            the prompt before it: there would be nothing to shift from.

    >>> full = torch.nested.nested_tensor([torch.arange(5), torch.arange(10, 13)], layout=torch.jagged)
    >>> mask = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    >>> response_from_nested(full, mask).unbind()
    (tensor([2, 3]), tensor([11]))
    """
    whole, mask = _as_jagged("full", full), _as_jagged("response_mask", response_mask)
    rows, ends, offsets = len(whole.offsets()) - 1, whole.offsets(), mask.offsets()
    if len(offsets) - 1 != rows:
        raise ShapeError(f"response_mask: got {len(offsets) - 1} rows, expected {rows} as in full")
    same = ends.device == offsets.device
    if ends.device.type != "cpu":  # one copy to the CPU for both is the only wait
        ends, offsets = torch.stack((ends, offsets.to(ends.device))).cpu()
    ends, starts = ends.numpy(), offsets.cpu().numpy()
    lengths = RowLengths(np.diff(starts))
    bad = lengths.host >= np.maximum(np.diff(ends), 1)
    if bad.any():
        row = int(np.argmax(bad))
        raise ShapeError(
            f"response_mask: row {row} has a response of {lengths.host[row]} tokens, but full has "
            f"{ends[row + 1] - ends[row]} there, and at least one token of the prompt must stand before the response"
        )
    spans = Spans(np.maximum(ends[1:] - lengths.host - 1, 0), lengths.host, lengths.total)
    values = take_rows(values_of(whole), spans, whole._ragged_idx)
    shared = mask.offsets() if same and starts[0] == 0 else lengths.offsets(values.device)
    return build_jagged(values, shared, lengths.shortest, lengths.longest, ragged_dim=whole._ragged_idx)


# ---------------------------------------------------------------------------------------------------- packing


def maybe_pack_jagged(val: Tensor, lengths: Tensor) -> Tensor:
    """``val`` without padding if it looks like a field with an entry for each token: shape (N, max(lengths), *).

    A guess from shapes: a field of images that happens to have this shape is cut as well. Where the caller knows,
    :func:`pack_per_token_field` is the function.

    Args:
        val: A tensor (N, *) of any dtype and device.
        lengths: Tokens of each row, integers (N,); read once.

    Returns:
        Jagged (N, j, *), or ``val`` itself as a contiguous rectangle; detached.

    Raises:
        ShapeError: As :func:`to_nested_by_length` for ``lengths``.
        InputError: As :func:`to_nested_by_length` for ``lengths``.
        InputTypeError: As :func:`to_nested_by_length` for ``lengths``.

    >>> maybe_pack_jagged(torch.zeros(2, 3), torch.tensor([3, 1])).is_nested
    True
    >>> maybe_pack_jagged(torch.zeros(2, 4), torch.tensor([3, 1])).shape
    torch.Size([2, 4])
    """
    return _pack_one(val, lengths, "width")


def pack_per_token_field(val: Tensor, lengths: Tensor) -> Tensor:
    """``val``, known to have an entry for each token, without padding; it may be wider than the longest row.

    Args:
        val: A tensor (N, S, *) of any dtype and device, or a jagged one.
        lengths: Tokens of each row, integers (N,); read once.

    Returns:
        Jagged (N, j, *); or, where it can't be cut (another N, one dimension, narrower than the longest row, no rows),
        ``val`` itself as a contiguous rectangle, as documented: listeners of ``codec.packed`` hear of such a fallback
        and of its reason. Detached. A jagged ``val`` passes, its rows cut to ``lengths``.

    Raises:
        ShapeError: A jagged ``val`` has a row below its length; or as :func:`to_nested_by_length` for ``lengths``.
        InputError: As :func:`to_nested_by_length` for ``lengths``.
        InputTypeError: As :func:`to_nested_by_length` for ``lengths``.

    >>> pack_per_token_field(torch.zeros(2, 4), torch.tensor([3, 1])).unbind()[1].shape
    torch.Size([1])
    """
    return _pack_one(val, lengths, "named")


def _pack_one(val: Tensor, lengths: Tensor, rule: Rule) -> Tensor:
    if not isinstance(val, Tensor):
        raise InputTypeError(f"val: got {type(val).__name__}, expected a tensor")
    read = RowLengths.read(lengths)
    packed, told = pack_field("", val, read, rule)
    if PACKED.listeners:
        emit(PACKED, rows=read.rows, lengths=read.host, fields=(told,))
    return packed


@observed("codec.pack_jagged_fields", "columns are packed for the wire; arguments fields, lengths")
def pack_jagged_fields(
    fields: Mapping[str, Tensor | np.ndarray[Any, Any]],
    *,
    lengths: Tensor | None,
    token_aligned_fields: Collection[str] | None = None,
) -> TensorDict:
    """A dict of columns as the TensorDict that goes onto the wire: no padding in what has an entry for each token.

    Args:
        fields: Name to a tensor (N, *), an array of N objects, or TensorDict's own wrapper of objects.
        lengths: Tokens of each row, integers (N,) on any device; read once. With None every tensor stays as it is, and
            N is that of the fields.
        token_aligned_fields: The names of the fields that have an entry for each token, which are packed as
            :func:`pack_per_token_field` does; others stay as they are. Names without a field are allowed. With None
            every tensor goes through :func:`maybe_pack_jagged`, as documented.

    Returns:
        TensorDict of batch size [N], tensors detached. Packed fields share one offsets tensor (on each device);
        objects ride in a ``NonTensorStack``, which any index cuts with the rows.

    Raises:
        InputTypeError: A value is of another kind. The message begins with "pack_jagged_fields: unsupported value type
            for".
        ShapeError: A field has another N.
        InputError: See :func:`to_nested_by_length`. ``fields`` stays as it is.

    >>> ids = torch.tensor([[1, 2, 3], [4, 0, 0]])
    >>> packed = pack_jagged_fields({"ids": ids, "reward": torch.ones(2)}, lengths=torch.tensor([3, 1]))
    >>> packed["ids"].is_nested, packed["reward"].shape, packed.batch_size
    (True, torch.Size([2]), torch.Size([2]))
    """
    if isinstance(token_aligned_fields, str):
        raise InputTypeError(f"token_aligned_fields: got the string {token_aligned_fields!r}, expected a set of names")
    read = None if lengths is None else RowLengths.read(lengths)
    rows = _rows_of(fields) if read is None else read.rows
    packed: dict[str, Any] = {}
    told: list[PackedField] = []
    for name, value in fields.items():
        have = _check_field(name, value)
        if have != rows:
            raise ShapeError(f"{name!r}: got {have} rows, expected {rows}{'' if read is None else ' as in lengths'}")
        if isinstance(value, Tensor):
            packed[name], decided = pack_field(name, value, read, _rule(name, token_aligned_fields))
        else:
            packed[name] = object_stack(value) if isinstance(value, np.ndarray) else value
            decided = PackedField(name, "object", "objects", 0, None, 0, 0)
        told.append(decided)
    if PACKED.listeners:
        emit(PACKED, rows=rows, lengths=None if read is None else read.host, fields=tuple(told))
    return TensorDict(packed, batch_size=[rows])


def _rule(name: str, names: Collection[str] | None) -> Rule:
    if names is None:
        return "width"
    return "named" if name in names else "kept"


def _rows_of(fields: Mapping[str, Any]) -> int:
    return next((_check_field(name, value) for name, value in fields.items()), 0)


def _check_field(name: str, value: Any) -> int:
    """Rows of a field."""
    objects = isinstance(value, np.ndarray) and value.dtype == object
    if not objects and not isinstance(value, Tensor | NonTensorStack | NonTensorData):
        given = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise InputTypeError(
            f"pack_jagged_fields: unsupported value type for {name!r}: got {given}, expected a tensor or an array of "
            "objects (dtype=object)"
        )
    shape = value.batch_size if isinstance(value, NonTensorStack | NonTensorData) else value.shape
    if not len(shape):
        raise ShapeError(f"{name!r}: got a scalar, expected a first dimension of rows")
    return int(shape[0])


# ----------------------------------------------------------------------------------------------- materialising


@observed("codec.materialize", "a wire batch becomes columns; arguments td, layout, pad_to_seqlen")
def materialize(
    td: TensorDictBase,
    layout: Layout = "padded",
    pad_value_dict: Mapping[str, float] | None = None,
    pad_to_seqlen: int = 0,
    *,
    token_aligned_fields: Collection[str] | None = None,
    pad_to_multiple: int = 1,
    width_from: str = "",
) -> BatchedDataDict[Any]:
    """A wire TensorDict as the columns that a trainer takes.

    Args:
        td: A TensorDict of batch size [N, …]; also as a wire that strips wrappers, makes rectangles jagged or loses
            caches leaves it.
        layout: With ``"padded"`` jagged columns become rectangles as wide as their longest row; with ``"jagged"`` they
            stay (with their shortest and longest row known).
        pad_value_dict: What a column is padded with on the right; else 0.
        pad_to_seqlen: Least width of the fields that have an entry for each token, jagged ones at their ragged
            dimension, plain ones at dimension 1. 0 means none. Nothing is ever cut.
        token_aligned_fields: Which fields those are. None means those that have the lengths of ``input_ids`` (else of
            the jagged field with most tokens), or its width, see ``Padder.aligned``.
        pad_to_multiple: Their longest row is rounded up to a multiple of it.
        width_from: Who imposes ``pad_to_seqlen``, such as ``"all_ranks"``: kept in the records of the padding.

    Returns:
        Plain columns unchanged (they share memory with ``td``), others as ``layout`` says, objects as arrays (N,).

    Raises:
        UnknownNameError: ``layout`` is another word.
        InputTypeError: ``td`` is no TensorDict, or there is a nested TensorDict in it.
        ShapeError: There is no batch dimension.
        InputError: A nested tensor has holes, a column can't hold its pad value, ``pad_to_seqlen`` is negative, or
            ``pad_to_multiple`` is below 1.

    >>> td = pack_jagged_fields({"ids": torch.tensor([[1, 2], [3, 0]])}, lengths=torch.tensor([2, 1]))
    >>> materialize(td, pad_value_dict={"ids": -1}, pad_to_seqlen=3)["ids"].tolist()
    [[1, 2, -1], [3, -1, -1]]
    """
    _check_request(td, layout, pad_to_seqlen, pad_to_multiple, token_aligned_fields)
    rows = int(td.batch_size[0])
    found = {name: _leaf(name, column) for name, column in _wire_columns(td).items()}
    padder = Padder(
        found,
        rows,
        names=token_aligned_fields,
        pad_values=pad_value_dict or {},
        pad_to_seqlen=pad_to_seqlen,
        pad_to_multiple=pad_to_multiple,
    )
    made: dict[str, Any] = {}
    told: list[PaddedField] = []
    for name, column in found.items():
        made[name], decided = _materialized(name, column, padder, layout)
        told.append(decided)
    if MATERIALIZED.listeners:
        emit(
            MATERIALIZED,
            rows=rows,
            layout=layout,
            pad_to_seqlen=pad_to_seqlen,
            pad_to_multiple=pad_to_multiple,
            width_from=width_from,
            fields=tuple(told),
        )
    return BatchedDataDict(made)


def _check_request(
    td: Any, layout: str, pad_to_seqlen: Any, pad_to_multiple: Any, names: Collection[str] | None
) -> None:
    if not isinstance(td, TensorDictBase):
        raise InputTypeError(f"td: got {type(td).__name__}, expected a TensorDict")
    if not td.batch_dims:
        raise ShapeError("td: got a TensorDict without a batch dimension, expected batch_size [N, …]")
    if layout not in get_args(Layout):
        raise UnknownNameError.of("layout", layout, get_args(Layout))
    if isinstance(names, str):
        raise InputTypeError(f"token_aligned_fields: got the string {names!r}, expected a set of names")
    for name, given, least in (("pad_to_seqlen", pad_to_seqlen, 0), ("pad_to_multiple", pad_to_multiple, 1)):
        whole_number(name, given, least)


def _wire_columns(td: TensorDictBase) -> dict[str, Any]:
    """Name to column. A lazy stack can't stack rows of different lengths itself."""
    if isinstance(td, LazyStackedTensorDict) and td.stack_dim == 0 and td.tensordicts:
        parts = [row_tools.columns(part) for part in td.tensordicts]
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: _stacked(td, name, [part[name] for part in parts]) for name in shared}
    return row_tools.columns(td)


def _stacked(td: TensorDictBase, name: str, parts: list[Any]) -> Any:
    plain = all(isinstance(part, Tensor) and not part.is_nested for part in parts)
    return stack_or_nest(parts) if plain else td.get(name)


def _leaf(name: str, column: Any) -> Any:
    if isinstance(column, Tensor):
        return column if is_jagged(column) or not column.is_nested else unstrided(column)
    if is_object_column(column):
        return column
    raise InputTypeError(
        f"materialize: unexpected leaf type for {name!r}: got {type(column).__name__}, expected a tensor or objects"
    )


def _materialized(name: str, column: Any, padder: Padder, layout: Layout) -> tuple[Any, PaddedField]:
    if is_jagged(column):
        return padder.pad(name, column) if layout == "padded" else padder.keep(name, column)
    if isinstance(column, Tensor):
        return padder.widen(name, column)
    objects, dicts, lost = object_column(name, column, padder.rows)
    if (dicts or lost) and STRIPPED.listeners:
        emit(STRIPPED, field=name, rows=padder.rows, dicts=dicts, lost=lost)
    return objects, PaddedField(name, "object", "objects", rows=padder.rows, dicts=dicts, lost=lost)


# ------------------------------------------------------------------------------------------------------ checks


def _as_jagged(name: str, given: Any) -> Any:
    """Equally long rows that were stacked, as rows one after the other; what is jagged as it is."""
    if not isinstance(given, Tensor) or given.is_nested:
        return _check_jagged(name, given)
    if given.dim() < 2:
        raise ShapeError(f"{name}: got shape {tuple(given.shape)}, expected (N, tokens, …)")
    rows, each = given.shape[:2]
    offsets = torch.arange(rows + 1, device=given.device) * each
    return build_jagged(given.flatten(0, 1), offsets, each, each)


def _check_jagged(name: str, given: Any) -> Any:
    if not is_jagged(given):
        raise InputTypeError(f"{name}: got {_kind(given)}, expected a jagged nested tensor")
    check_no_holes(name, given)
    return given


def _kind(given: Any) -> str:
    if not isinstance(given, Tensor):
        return type(given).__name__
    return f"a nested tensor of layout {given.layout}" if given.is_nested else "a plain tensor"
