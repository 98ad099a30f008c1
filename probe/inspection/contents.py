"""What a batch is made of, without touching what it holds: columns, shapes, dtypes, devices, bytes, shared memory.

Nothing here reads an element of a tensor or of a numeric array, so that nothing is copied and no device is waited for.
Values come from :mod:`probe.inspection.values`, tokens from :mod:`probe.inspection.token_map`.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDictBase, is_non_tensor

from probe import text as words
from probe.core.columns.equality import shape_text
from probe.core.columns.jagged import is_jagged
from probe.core.data_proto.info import object_bytes, tensor_bytes
from probe.errors import InputTypeError
from probe.guard import attempt
from probe.inspection.plain_text import plain

#: Containers inside containers that are opened.
_DEPTH: Final = 8


class Field(NamedTuple):
    """One column. ``section`` is the member of a DataProto that holds it, "" elsewhere; ``key`` is a path joined
    by dots where batches stand in batches."""

    section: str
    key: str
    value: Any


class Members(NamedTuple):
    """A batch taken apart. ``rows`` is None where its columns have no common number of rows."""

    kind: str
    rows: int | None
    fields: list[Field]
    meta: Mapping[Any, Any]


class Stacked:
    """A column of a lazily stacked TensorDict: the parts, which nobody has stacked yet, one for each row.

    Stacking them to look at them would copy them.
    """

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts)


class Column(NamedTuple):
    """What is known of one column.

    Attributes:
        kind: One of "tensor", "jagged", "nested", "stacked", "array", "objects" and "value".
        rows: How many it has, None without a row dimension.
        bytes: Bytes of its elements; of objects an estimate; None where it can't be known.
        memory: The name of the memory it shares with other columns, "" where it shares none.
        notes: What else is worth knowing, in words.
    """

    section: str
    key: str
    kind: str
    rows: int | None
    shape: str
    dtype: str
    device: str
    bytes: int | None
    memory: str
    notes: tuple[str, ...]


class Memory(NamedTuple):
    """Memory that several columns share. ``members`` are their keys, with "(offsets)" and the like behind it."""

    name: str
    device: str
    bytes: int
    members: tuple[str, ...]


class Schema(NamedTuple):
    """What a batch is made of.

    Attributes:
        bytes: Bytes of all elements, memory that is shared counted for each column.
        held_bytes: Bytes of the memory behind them, counted once; it is more where columns are views of something
            larger.
        unknown: Columns whose bytes can't be known.
        meta: Key, type and short text of each entry of ``meta_info``.
    """

    kind: str
    rows: int | None
    columns: tuple[Column, ...]
    memories: tuple[Memory, ...]
    bytes: int
    held_bytes: int
    unknown: int
    meta: tuple[tuple[str, str, str], ...]


class _Span(NamedTuple):
    """Addresses of one storage. ``used`` is how many of its bytes the column's elements take."""

    device: str
    begin: int
    end: int
    used: int
    key: str
    part: str


# ------------------------------------------------------------------------------------------------ taking apart


def members(batch: Any) -> Members:
    """``batch`` as a flat list of columns; nothing is copied.

    Args:
        batch: A DataProto (ours or any with ``batch``, ``non_tensor_batch`` and ``meta_info``), a TensorDict, a
            BatchedDataDict or another mapping of columns.

    Raises:
        InputTypeError: It is anything else.

    >>> found = members({"ids": torch.zeros(2, 3), "uid": ["a", "b"]})
    >>> found.rows, [field.key for field in found.fields]
    (2, ['ids', 'uid'])
    """
    kind = type(batch).__name__
    if isinstance(batch, TensorDictBase):
        fields = list(_opened("", (), batch))
        return Members(kind, batch.batch_size[0] if batch.batch_size else None, fields, {})
    if all(hasattr(batch, name) for name in ("batch", "non_tensor_batch", "meta_info")):
        inner = () if batch.batch is None else _opened("batch", (), batch.batch)
        outer = _opened("non_tensor_batch", (), batch.non_tensor_batch or {})
        fields = [*inner, *outer]
        return Members(kind, _common_rows(fields), fields, batch.meta_info or {})
    if isinstance(batch, Mapping):
        fields = list(_opened("", (), batch))
        return Members(kind, _common_rows(fields), fields, {})
    raise InputTypeError(
        f"batch: got {kind}, expected a DataProto, a TensorDict, a BatchedDataDict or a dict of columns"
    )


def _opened(section: str, path: tuple[str, ...], batch: Any) -> Iterator[Field]:
    if isinstance(batch, LazyStackedTensorDict):
        columns: Iterable[tuple[Any, Any]] = _stacked(batch)
    else:
        columns = batch.items()
    for key, value in columns:
        where = (*path, _text(key))
        if len(path) < _DEPTH and _is_batch(value):
            yield from _opened(section, where, value)
        else:
            yield Field(section, ".".join(where), _bare(value))


def _text(key: Any) -> str:
    return key if isinstance(key, str) else plain(key, 40)


def _is_batch(value: Any) -> bool:
    if isinstance(value, TensorDictBase):
        return not is_non_tensor(value)
    return isinstance(value, Mapping) and any(isinstance(one, torch.Tensor | TensorDictBase) for one in value.values())


def _stacked(batch: LazyStackedTensorDict) -> Iterator[tuple[str, Any]]:
    parts = batch.tensordicts  # each iterates over rows itself
    for key in dict.fromkeys(chain.from_iterable(part.keys() for part in parts)):
        yield key, Stacked([_bare(part.get(key, None)) for part in parts])


def _bare(value: Any) -> Any:
    """What isn't a tensor without TensorDict's wrapper; the objects themselves aren't copied."""
    if isinstance(value, NonTensorStack):
        return value.tolist()
    return value.data if is_non_tensor(value) else value


def _common_rows(fields: Iterable[Field]) -> int | None:
    found = {rows_of(field.value) for field in fields}
    return found.pop() if len(found) == 1 else None


def rows_of(value: Any) -> int | None:
    """Rows of a column, None for what has none.

    >>> rows_of(torch.zeros(3, 2)), rows_of(["a"]), rows_of(0.5)
    (3, 1, None)
    """
    if isinstance(value, torch.Tensor):
        return int(value.size(0)) if value.ndim else None
    if isinstance(value, np.ndarray):
        return int(value.shape[0]) if value.ndim else None
    return len(value) if isinstance(value, list | tuple | Stacked) else None


# ---------------------------------------------------------------------------------------------------- describing


def schema_of(batch: Any) -> Schema:
    """What ``batch`` is made of.

    Raises:
        InputTypeError: It isn't a batch, see :func:`members`.

    >>> ids = torch.arange(12).reshape(3, 4)
    >>> found = schema_of({"input_ids": ids, "responses": ids[:, 2:]})
    >>> found.bytes, found.held_bytes, found.memories[0].members
    (144, 96, ('input_ids', 'responses'))
    """
    found = members(batch)
    spans = [span for field in found.fields for span in _spans(field)]
    groups = _grouped(spans)
    memories, names = _memories(groups)
    columns = tuple(_column(field, spans, names) for field in found.fields)
    objects = sum(one.bytes or 0 for one in columns if one.kind in ("objects", "value"))
    held = sum(max(span.end for span in group) - min(span.begin for span in group) for group in groups)
    meta = tuple((_text(key), type(value).__name__, plain(value)) for key, value in found.meta.items())
    total, unknown = sum(one.bytes or 0 for one in columns), sum(one.bytes is None for one in columns)
    return Schema(found.kind, found.rows, columns, memories, total, held + objects, unknown, meta)


def _column(field: Field, spans: list[_Span], names: Mapping[str, str]) -> Column:
    value = field.value
    own = [span for span in spans if span.key == _name(field)]
    notes = tuple(_notes(value, own))
    known = (field.section, field.key, kind_of(value), rows_of(value))
    return Column(*known, *_look(value), _bytes(value), names.get(_name(field), ""), notes)


def kind_of(value: Any) -> str:
    """Which of the kinds of :class:`Column` a value is."""
    if isinstance(value, torch.Tensor):
        return "jagged" if is_jagged(value) else "nested" if value.is_nested else "tensor"
    if isinstance(value, Stacked):
        return "stacked"
    if isinstance(value, np.ndarray):
        return "objects" if value.dtype.hasobject else "array"
    return "objects" if isinstance(value, list | tuple) else "value"


def _look(value: Any) -> tuple[str, str, str]:
    """Shape, dtype and device as texts."""
    if isinstance(value, torch.Tensor):
        return shape_text(value), str(value.dtype).removeprefix("torch."), str(value.device)
    if isinstance(value, np.ndarray):
        return str(value.shape), str(value.dtype), ""
    if isinstance(value, Stacked):
        shapes, dtypes, devices = ({_look(part)[at] for part in value.parts} for at in range(3))
        inner = shapes.pop() if len(shapes) == 1 else f"{len(shapes)} shapes"
        return f"{len(value)} × {inner}", " | ".join(sorted(dtypes)), " | ".join(sorted(devices))
    if isinstance(value, list | tuple):
        return f"({len(value)},)", type(value).__name__, ""
    return "", type(value).__name__, ""


def _bytes(value: Any) -> int | None:
    """None where it isn't known: a foreign object may raise anything when it is asked for its size or its entries."""
    return attempt(lambda: _known_bytes(value), lambda _: None)


def _known_bytes(value: Any) -> int | None:
    if isinstance(value, torch.Tensor):
        return tensor_bytes(value) if value.is_nested or value.layout is torch.strided else None
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return int(value.nbytes)
    if isinstance(value, Stacked):
        parts = [_bytes(part) for part in value.parts]
        return None if None in parts else sum(part or 0 for part in parts)
    return object_bytes(value)


def _notes(value: Any, own: list[_Span]) -> Iterator[str]:
    for span in own:
        what = f"{span.part} are a view" if span.part else "view"
        if span.used < span.end - span.begin:
            yield f"{what} of {words.size(span.end - span.begin)}"
    if not isinstance(value, torch.Tensor):
        return
    if value.requires_grad:
        yield "requires grad"
    if value.layout is not torch.strided and not is_jagged(value):
        yield str(value.layout).removeprefix("torch.")
    elif not value.is_nested:
        if any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True)):
            yield "expanded: its entries share memory"
        elif not value.is_contiguous():
            yield "not contiguous"


# ----------------------------------------------------------------------------------------------------- memory


def _name(field: Field) -> str:
    return f"{field.section}.{field.key}" if field.section else field.key


def _spans(field: Field) -> Iterator[_Span]:
    key, value = _name(field), field.value
    parts: list[tuple[str, Any]] = [("", value)]
    if is_jagged(value):
        parts = [("values", value._values), ("offsets", value.offsets()), ("lengths", value.lengths())]
    elif isinstance(value, Stacked):
        parts = [("", part) for part in value.parts]
    for part, one in parts:
        if isinstance(one, torch.Tensor):
            yield from _tensor_span(one, key, part)
        elif isinstance(one, np.ndarray) and one.size:
            yield _array_span(one, key)


def _tensor_span(tensor: torch.Tensor, key: str, part: str) -> Iterator[_Span]:
    try:
        local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, the part that is here
        storage = local.untyped_storage()
        begin, size = storage.data_ptr(), storage.nbytes()
        used = size if local.is_nested else _used(local)
    except (RuntimeError, NotImplementedError):  # sparse and fake tensors have no storage
        return
    if begin and size:
        yield _Span(str(local.device), begin, begin + size, used, key, part)


def _used(tensor: torch.Tensor) -> int:
    """Bytes of a storage that a tensor's elements take, each counted once where it's expanded."""
    sizes = [size for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step]
    count = tensor.element_size()
    for size in sizes:
        count *= size
    return count


def _array_span(array: np.ndarray[Any, Any], key: str) -> _Span:
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    begin = int(root.__array_interface__["data"][0])
    reach = [(size - 1) * step for size, step in zip(root.shape, root.strides, strict=True)]
    end = begin + sum(max(one, 0) for one in reach) + root.itemsize
    return _Span("cpu", begin + sum(min(one, 0) for one in reach), end, int(array.nbytes), key, "")


def _grouped(spans: list[_Span]) -> list[list[_Span]]:
    """Spans whose addresses overlap, together."""
    groups: list[list[_Span]] = []
    reached = ("", 0)
    for span in sorted(spans):
        if groups and reached[0] == span.device and span.begin < reached[1]:
            groups[-1].append(span)
        else:
            groups.append([span])
            reached = (span.device, 0)
        reached = (span.device, max(reached[1], span.end))
    return groups


def _memories(groups: list[list[_Span]]) -> tuple[tuple[Memory, ...], dict[str, str]]:
    """Each memory that is shared, and by column the one that its elements lie in."""
    found: list[Memory] = []
    names: dict[str, str] = {}
    for group in groups:
        if len({span.key for span in group}) < 2:
            continue
        name = _letters(len(found))
        names.update({span.key: name for span in group if span.part in ("", "values")})
        size = max(span.end for span in group) - min(span.begin for span in group)
        labels = sorted({span.key if span.part in ("", "values") else f"{span.key} ({span.part})" for span in group})
        found.append(Memory(name, group[0].device, size, tuple(labels)))
    return tuple(found), names


def _letters(number: int) -> str:
    letter = string.ascii_uppercase[number % 26]
    return letter if number < 26 else f"{letter}{number // 26}"
