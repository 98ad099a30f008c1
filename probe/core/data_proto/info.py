"""What a DataProto looks like to a person: sizes, schema and a table for the notebook.

Everything here reads shapes, dtypes and, for masks that are on the CPU, their sums. It never waits for a
device.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDictBase, is_non_tensor

from probe import text as words
from probe.core.columns.equality import brief, shape_text
from probe.core.columns.jagged import is_jagged

GIB: Final = 1024**3

#: Masks whose share of true elements is the share of valid tokens.
MASKS: Final = ("attention_mask", "response_mask")


class Column(NamedTuple):
    """One line of the table. ``bytes`` is None where it isn't known."""

    section: str
    key: str
    shape: str
    dtype: str
    device: str
    bytes: int | None


def tensor_bytes(column: Any) -> int:
    """Bytes of a column's elements; of a jagged one its values, offsets and lengths.

    >>> tensor_bytes(torch.zeros(3, 4))
    48
    """
    if is_jagged(column):
        parts = (column._values, column.offsets(), column.lengths())
        return sum(part.numel() * part.element_size() for part in parts if part is not None)
    if isinstance(column, torch.Tensor):
        if column.is_nested:
            return sum(row.numel() * row.element_size() for row in column.unbind())
        return column.numel() * column.element_size()
    if is_non_tensor(column):
        return object_bytes(column.tolist() if isinstance(column, NonTensorStack) else column.data)
    return sum(tensor_bytes(one) for one in column.values())


def array_bytes(column: np.ndarray[Any, Any]) -> int:
    """Bytes of a numpy column; what an object column points at is counted, and counted once.

    >>> array_bytes(np.zeros(4, dtype=np.int32))
    16
    """
    return object_bytes(column) if column.dtype.hasobject else int(column.nbytes)


def object_bytes(value: object) -> int:
    """Bytes of ``value`` and of what it holds (containers, strings, arrays, tensors), each object once."""
    seen: set[int] = set()
    stack, total = [value], 0
    while stack:
        one = stack.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            total += tensor_bytes(one)
        elif isinstance(one, np.ndarray):
            total += int(one.nbytes)
            stack.extend(one.ravel().tolist() if one.dtype.hasobject else ())
        else:
            total += sys.getsizeof(one)
            stack.extend(_held(one))
    return total


def _held(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value


def table(batch: TensorDictBase | None, non_tensor_batch: Mapping[str, np.ndarray[Any, Any]]) -> list[Column]:
    """A line for each column, tensors first."""
    lines = [] if batch is None else [_line(key, column) for key, column in batch.items()]
    for key, column in non_tensor_batch.items():
        size = array_bytes(column)
        lines.append(Column("non_tensor_batch", key, str(column.shape), str(column.dtype), "", size))
    return lines


def _line(key: str, column: Any) -> Column:
    if isinstance(column, torch.Tensor):
        dtype = str(column.dtype).removeprefix("torch.")
        kind = f"{dtype} jagged" if is_jagged(column) else dtype
        return Column("batch", key, shape_text(column), kind, str(column.device), tensor_bytes(column))
    device = "" if column.device is None else str(column.device)
    shape = str(tuple(column.batch_size))
    return Column("batch", key, shape, type(column).__name__, device, tensor_bytes(column))


def valid_token_share(batch: TensorDictBase | None) -> dict[str, float]:
    """Share of true elements of each mask that is on the CPU: name to a ratio from 0 to 1.

    Those on a device are left out, since reading them would make the host wait. Of a jagged mask it is the
    share of the rectangle that padding it would make.
    """
    shares: dict[str, float] = {}
    for name in MASKS:
        mask = None if batch is None else batch.get(name, None)
        if not isinstance(mask, torch.Tensor) or mask.device.type != "cpu" or mask.dtype.is_complex:
            continue
        share = _share(mask)
        if share is not None:
            shares[name] = share
    return shares


def _share(mask: Any) -> float | None:
    if is_jagged(mask):
        longest = mask._maybe_max_seqlen
        rectangle = 0 if longest is None else mask.shape[0] * int(longest)
        valid = int(torch.cat([row.reshape(-1) for row in mask.unbind()]).count_nonzero()) if rectangle else 0
    elif mask.is_nested:
        return None
    else:
        rectangle, valid = mask.numel(), int(mask.count_nonzero())
    return valid / rectangle if rectangle else None


def schema_text(
    rows: int,
    batch: TensorDictBase | None,
    non_tensor_batch: Mapping[str, np.ndarray[Any, Any]],
    meta_info: Mapping[str, Any],
) -> str:
    """What :meth:`probe.core.protocol.DataProto.get_data_info` returns."""
    lines = [f"rows: {rows}", "batch: None" if batch is None else "batch:"]
    for column in table(batch, non_tensor_batch):
        if column.section == "batch":
            lines.append(f"  {column.key}: {column.shape} {column.dtype} {column.device}".rstrip())
    lines.append("non_tensor_batch:")
    lines += [f"  {key}: {column.shape} {column.dtype}" for key, column in non_tensor_batch.items()]
    lines.append("meta_info:")
    lines += [f"  {key}: {type(value).__name__}" for key, value in meta_info.items()]
    return "\n".join(lines)


def size_text(batch: TensorDictBase | None, non_tensor_batch: Mapping[str, np.ndarray[Any, Any]], prefix: str) -> str:
    """The line of :meth:`probe.core.protocol.DataProto.print_size`."""
    tensors = 0 if batch is None else sum(tensor_bytes(column) for column in batch.values())
    arrays = sum(array_bytes(column) for column in non_tensor_batch.values())
    text = f"Size of tensordict: {tensors / GIB} GB, size of non_tensor_batch: {arrays / GIB} GB"
    return f"{prefix}, {text}" if prefix else text


def one_line(
    name: str,
    rows: int | None,
    batch: TensorDictBase | None,
    non_tensor_batch: Mapping[str, Any],
    meta_info: Mapping[str, Any],
) -> str:
    """The ``repr``: shapes and dtypes, no values."""
    columns = [] if batch is None else [_line(key, column) for key, column in batch.items()]
    parts = [] if rows is None else [f"{rows} rows"]
    if columns:
        parts.append("batch: " + ", ".join(f"{c.key} {c.dtype}{c.shape}" for c in columns))
    if non_tensor_batch:
        kinds = ", ".join(f"{key} {_kind(value)}" for key, value in non_tensor_batch.items())
        parts.append(f"non_tensor_batch: {kinds}")
    if meta_info:
        parts.append("meta_info: " + ", ".join(map(str, meta_info)))
    return f"{name}({'; '.join(parts)})"


def _kind(value: Any) -> str:
    return f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


# --------------------------------------------------------------------------------------------------- HTML


def html_table(
    name: str,
    rows: int,
    batch: TensorDictBase | None,
    non_tensor_batch: Mapping[str, np.ndarray[Any, Any]],
    meta_info: Mapping[str, Any],
) -> str:
    """The batch as an HTML table; every text that comes from the data is escaped."""
    columns = table(batch, non_tensor_batch)
    total = sum(column.bytes or 0 for column in columns)
    shares = [f"{key}: {share:.1%} valid tokens" for key, share in valid_token_share(batch).items()]
    caption = " · ".join([f"{name}: {rows} rows", words.size(total), *shares])
    cells = [
        (c.section, c.key, c.shape, c.dtype, c.device, "" if c.bytes is None else words.size(c.bytes)) for c in columns
    ]
    meta = [("meta_info", str(key), "", type(value).__name__, "", brief(value)) for key, value in meta_info.items()]
    head = "".join(f"<th>{title}</th>" for title in ("section", "key", "shape", "dtype", "device", "size"))
    body = "".join(_html_row(row) for row in [*cells, *meta])
    return (
        f'<table class="probe-data-proto"><caption>{html.escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _html_row(cells: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def mime_bundle(text: str, table: str, include: Any, exclude: Any) -> dict[str, str]:
    """The forms of a batch that a front end may ask for, by their MIME types.

    Args:
        text: The plain form.
        table: The form in HTML.
        include: The only types wanted; None wants all.
        exclude: Types that aren't wanted; None wants all.
    """
    bundle = {"text/plain": text, "text/html": table}
    return {
        kind: form
        for kind, form in bundle.items()
        if (not include or kind in include) and not (exclude and kind in exclude)
    }
