"""What padding costs: for every batch that is formed, its rectangle against the tokens that mean something.

Kinds of batches are told apart by ``source``:

* ``seqlen_balancing.partition``: the micro-batches that a batch is cut into, one ``batch_id`` each. Their rectangle is
  what is computed on: where the model takes the padding out (``packed=True``) their tokens alone;
* ``data_proto.pad_to_divisor``, ``data_proto.padding``: a batch filled up with copies of its own rows. The
  copies count as padding as a whole, the tokens in them too;
* ``data_proto.from_dict``, ``from_single_dict`` and ``concat``: batches as they are put together;
* ``codec.packed``, ``codec.materialized``: a batch before and after a wire, with what the codec decided for each
  field. What is packed has no padding left; what was taken off stands in ``stripped_tokens``;
* ``micro_batch.told``: a micro-batch that other code has cut and tells of; ``reason`` is what it calls itself;
* ``packing.packed``, ``batched_data_dict.partition``: micro-batches that were planned by packing or by dynamic
  batching (:mod:`probe.recorders.packing_padding`);
* ``padding.added``: other code filled a batch up; the cause is its word, and the rows' reason the function's name.
* ``ulysses.padded``: one field filled up so that the ranks of sequence parallelism get equal parts.

They describe the same tokens at different moments, so that sums over different sources count them again. The
metrics therefore look at the micro-batches alone where the step has any, else at all batches formed.

Causes, for n rows of lengths l in a rectangle S wide: ``longest_row`` is n·max(l) − Σl, ``fixed_width``
n·(S − max(l)), ``filler_rows`` S for each row that was added. Where max(l) was rounded up to a multiple R, which the
codec tells, ``rounding`` is n·(R − max(l)) and ``fixed_width`` n·(S − R). ``sequence_parallel`` is what was added
for the ranks. The tokens of the causes sum exactly to rectangle − valid.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, cast

import torch
import torch.autograd.profiler as _profiler

from probe.core.metric import Metric
from probe.hooks import Event
from probe.recorders.columns import batch_id_of, batches_of, lengths_of, next_batch_id, partitions_of, tensors_of
from probe.recorders.packing_padding import POINTS as PLANNED
from probe.recorders.packing_padding import deferred_packing_rows
from probe.recorders.recorder import Recorder, Rows, rows_of
from probe.records import GIB, PLANNED_SOURCES, Deferred, Incident, Later, Padding, Row, counts_for_tax

PREFIX = "probe/padding_tax/"
PARTITION: Final = "seqlen_balancing.partition"
TOLD: Final = "micro_batch.told"
PAD_ROWS: Final = "data_proto.pad_to_divisor"
PADDED: Final = "data_proto.padded"
PACKED: Final = "codec.packed"
MATERIALIZED: Final = "codec.materialized"
STRIPPED: Final = "codec.stripped_payload"
SEQUENCE_PARALLEL: Final = "ulysses.padded"
ADDED: Final = "padding.added"

#: Types of masks that NumPy adds up to the very numbers that torch does, without its way through the dispatcher.
_IN_NUMPY: Final = frozenset({torch.int64, torch.int32, torch.bool, torch.uint8})

#: Masks up to this many elements are copied at once; of larger ones it is seen whether they were changed meanwhile.
_SMALL: Final = 4096


class Field(NamedTuple):
    """One column of a batch that has an entry for each token."""

    name: str
    bytes_per_token: int


_field: Final = tuple.__new__


class PaddingTaxRecorder(Recorder):
    """Padding by cause, from lengths that are on the CPU or that travel there without anybody waiting.

    Attributes:
        unread: Batches that gave no rows, because their mask was changed before it was read.
    """

    rows: ClassVar[tuple[type[Row], ...]] = (Padding,)
    points: ClassVar[tuple[str, ...]] = (
        PARTITION,
        TOLD,
        PAD_ROWS,
        PADDED,
        "data_proto.from_dict",
        "data_proto.from_single_dict",
        "data_proto.concat",
        PACKED,
        MATERIALIZED,
        STRIPPED,
        SEQUENCE_PARALLEL,
        ADDED,
        *PLANNED,
    )
    #: Padding over the rectangle, and its parts; each token once and not once for each field, but for the
    #: bytes.
    keys: ClassVar[tuple[str, ...]] = (
        f"{PREFIX}rank_ratio",
        f"{PREFIX}padding_gib",
        f"{PREFIX}{{cause}}/padding_tokens",
    )

    def __init__(self) -> None:
        self.unread = 0
        self._nested = threading.local()

    def enter(self, event: Event) -> int:  # noqa: ARG002  # the contract's signature
        """How many calls of these points are around this one."""
        depth: int = getattr(self._nested, "depth", 0)
        self._nested.depth = depth + 1
        return depth

    def fire(self, event: Event) -> Rows:
        """A batch was cut into micro-batches, which keep its width, rows were added, or a codec or a trainer told."""
        values = event.values
        if event.point.name in PLANNED:
            return deferred_packing_rows(event)
        if event.point.name in _TOLD:
            # The numbers are all there; only the rows are left for the writer thread.
            return Deferred(partial(_TOLD[event.point.name], batch_id_of(event), dict(values)))
        if event.point.name == PADDED:
            # Where an observed call did it, that call's end tells of the rows.
            return None if values["source"] == PAD_ROWS else self._formed(event, values["data"], values["pad_rows"])
        width, batch = values.get("width_tokens"), values.get("batch")
        fields = token_fields(batch, width) if batch is not None else _told_fields(values)
        stamp = {"source": event.point.name}
        if event.point.name == TOLD or batch is None:  # other code's: its name, and where no field is known its tokens
            stamp["reason"] = values.get("source") or ""
            fields = fields or [Field("tokens", 0)]
        if event.point.name == TOLD:
            lengths = values["lengths"]
            return Deferred(partial(_rectangle_of, values["micro_batch"], lengths, width, fields, stamp))
        widths = _widths(values, width)
        return _Cut(lengths_of(event), partitions_of(event), widths, fields, stamp)

    def leave(self, event: Event, state: int) -> Rows:
        """A DataProto was put together or filled up. Of calls inside each other the outer one counts."""
        self._nested.depth = state
        if state:
            return None
        padded_rows = 0
        if event.point.name == PAD_ROWS:
            padded_rows = event.result[1] if isinstance(event.result, tuple) else 0
            if not padded_rows:
                return None
        return self._formed(event, event.result, int(padded_rows))

    def _formed(self, event: Event, result: Any, padded_rows: int) -> Rows:
        formed = batches_of(result)
        mask = tensors_of(formed[0]).get("attention_mask") if len(formed) == 1 else None
        if mask is None or mask.ndim != 2 or mask.is_nested:
            return None
        fields = token_fields(formed[0], mask.shape[1])
        source = event.values.get("source") or event.point.name
        batch_id, width = batch_id_of(event), mask.shape[1]
        if mask.is_cpu and mask.numel() <= _SMALL:  # copied at a third of what summing it here would take
            return _Small(batch_id, source, fields, width, padded_rows, _copied(mask))
        return self._when_known(mask, partial(_formed_rows, batch_id, source, fields, width, padded_rows), source)

    def metrics(self, rows: Sequence[Row]) -> dict[str, Metric]:
        """Of this process's micro-batches in the step; where there are none, of the batches put together.

        What was packed for a wire has no padding, and what sequence parallelism adds comes on top of batches that
        are counted already: neither is part of the ratio, and the latter has its cause.
        """
        told = rows_of(rows, Padding)
        sources = {row.source for row in told}
        cut = not sources.isdisjoint(PLANNED_SOURCES)
        counting = {source for source in sources if counts_for_tax(source, cut)}
        chosen = [row for row in told if row.source in counting]
        seen: dict[int, Padding] = {}
        tokens: dict[str, list[int]] = {}
        for row in chosen:
            if seen.setdefault(row.batch_id, row).field == row.field and row.cause != "none":
                tokens.setdefault(row.cause, []).append(row.tokens)
        causes = _sequence_parallel_metric(told)
        for cause, amounts in tokens.items():
            causes.setdefault(f"{PREFIX}{cause}/padding_tokens", Metric("sum")).extend(amounts)
        rectangle = sum(row.rectangle_tokens for row in seen.values())
        if not rectangle:
            return causes
        spare = rectangle - sum(row.valid_tokens for row in seen.values())
        amount = sum(row.bytes for row in chosen)
        return causes | {
            f"{PREFIX}rank_ratio": Metric("mean", spare / rectangle),
            f"{PREFIX}padding_gib": Metric("sum", amount / GIB),
        }

    def _when_known(self, mask: torch.Tensor, make: Callable[[list[int]], list[Padding]], source: str) -> Rows:
        """Rows from the lengths in ``mask``, as soon as those can be read without anybody waiting."""
        if mask.is_cpu:
            if mask.is_inference():  # it can't tell that it was changed
                return Deferred(partial(make, _lengths(mask)))
            return Deferred(partial(self._unchanged, mask, mask._version, make, source))
        if mask.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            return _from_device(mask, make)
        return None

    def _unchanged(
        self, mask: torch.Tensor, version: int, make: Callable[[list[int]], list[Padding]], source: str
    ) -> Sequence[Row]:
        lengths = _lengths(mask) if mask._version == version else []
        if mask._version != version:  # also while it was read
            self.unread += 1
            message = "a batch's attention_mask was changed before it was read: the batch has no padding rows"
            return [Incident(kind="unread_mask", where=source, message=message)]
        return make(lengths)


def token_fields(batch: Any, width: int | None) -> list[Field]:
    """The columns of ``batch`` that have ``width`` entries a row, or (None) the jagged ones; by name."""
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
    return found


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


def _told_fields(values: Mapping[str, Any]) -> list[Field]:
    """The columns that code without a batch object has told of."""
    return sorted(Field(name, int(size)) for name, size in values.get("fields") or ())


def _widths(values: Mapping[str, Any], width: int | None) -> list[int] | int | None:
    """Of the rectangles that are computed on: of each, of all, or None where the model takes the padding out."""
    if values.get("packed") or width is None:
        return None
    each = values.get("widths")
    return width if each is None else [int(one) for one in each]


class _Cut(Later, gc=False):
    """The micro-batches that a batch was cut into."""

    lengths: list[int]
    partitions: list[list[int]]
    widths: list[int] | int | None
    fields: list[Field]
    stamp: dict[str, Any]

    def build(self) -> list[Padding]:
        rows: list[Padding] = []
        lengths, widths = self.lengths, self.widths
        for index, part in enumerate(self.partitions):
            width = widths[index] if isinstance(widths, list) else widths
            rows += _rectangle_of(index, [int(lengths[row]) for row in part], width, self.fields, self.stamp)
        return rows


class _Small(Later, gc=False):
    """A batch that was put together, with a copy of its mask."""

    batch_id: int
    source: str
    fields: list[Field]
    width: int
    padded_rows: int
    mask: Any

    def build(self) -> list[Padding]:
        lengths = _lengths_of_copy(self.mask)
        return _formed_rows(self.batch_id, self.source, self.fields, self.width, self.padded_rows, lengths)


def _rectangle_of(
    index: int, lengths: list[int], width: int | None, fields: list[Field], stamp: dict[str, Any]
) -> list[Padding]:
    """The rows of the micro-batch ``index``, or of its tokens alone where nothing is padded."""
    own: dict[str, Any] = {**stamp, "batch_id": next_batch_id(), "micro_batch": index}
    if width is None:
        return [_without_padding(sum(lengths), len(lengths), field, own) for field in fields]
    return padding_rows(lengths, width, fields, **own)


def _without_padding(tokens: int, rows: int, field: Field, stamp: dict[str, Any]) -> Padding:
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


def _formed_rows(
    batch_id: int, source: str, fields: list[Field], width: int, padded_rows: int, lengths: list[int]
) -> list[Padding]:
    real = lengths[: len(lengths) - padded_rows]  # the copies stand at the end
    return padding_rows(real, width, fields, padded_rows=padded_rows, batch_id=batch_id, source=source)


# ---------------------------------------------------------------------------------------------- the codec's tales


def _packed_rows(batch_id: int, values: dict[str, Any]) -> list[Padding]:
    """A row for each field: jagged ones hold exactly their tokens; a rectangle's tokens aren't known to be any."""
    found = []
    for field in values["fields"]:
        tokens = field.kept_tokens or 0
        row = _without_padding(
            tokens, values["rows"], Field(field.name, field.bytes_per_token), {"batch_id": batch_id, "source": PACKED}
        )
        row.decision, row.reason = field.decision, field.reason
        row.stripped_tokens = field.stripped_tokens
        row.stripped_bytes = field.stripped_tokens * field.bytes_per_token
        found.append(row)
    return found


def _materialized_rows(batch_id: int, values: dict[str, Any]) -> list[Padding]:
    """The rows of each field's rectangle, by what made it so wide."""
    found: list[Padding] = []
    for field in values["fields"]:
        imposed = values["width_from"] if field.reason == "fixed_width" else ""
        stamp = {
            "batch_id": batch_id,
            "source": MATERIALIZED,
            "decision": field.decision,
            "reason": "; ".join(filter(None, (field.reason, imposed, _CACHES.get(field.cache, "")))),
        }
        size = Field(field.name, field.bytes_per_token)
        if field.width_tokens:
            found += _rectangle_rows(field, size, stamp)
        else:
            found.append(_without_padding(field.valid_tokens, field.rows, size, stamp))
    return found


#: What a reader should know of a jagged tensor that said something wrong of its longest row.
_CACHES: Final = {"missing": "its longest row was not cached", "wrong": "its longest row was cached wrongly"}


def _rectangle_rows(told: Any, field: Field, stamp: dict[str, Any]) -> list[Padding]:
    causes = {
        "longest_row": told.rows * told.longest_tokens - told.valid_tokens,
        "rounding": told.rows * (told.rounded_tokens - told.longest_tokens),
        "fixed_width": told.rows * (told.width_tokens - told.rounded_tokens),
    }
    rectangle = (told.rows, told.valid_tokens, told.width_tokens)
    return rows_of_causes([field], causes, *rectangle, **stamp)


def _sequence_parallel_rows(batch_id: int, values: dict[str, Any]) -> list[Padding]:
    tokens, added = int(values["tokens"]), int(values["pad_tokens"])
    return rows_of_causes(
        [Field(values["field"], int(values["bytes_per_token"]))],
        {"sequence_parallel": added},
        int(values["rows"]),
        tokens,
        (tokens + added) // max(int(values["rows"]), 1),
        batch_id=batch_id,
        source=SEQUENCE_PARALLEL,
        reason=f"sp_size {values['sp_size']}",
        rectangle_tokens=tokens + added,
    )


def _added_rows(batch_id: int, values: dict[str, Any]) -> list[Padding]:
    tokens, added, rows = int(values["tokens"]), int(values["pad_tokens"]), int(values["rows"])
    return rows_of_causes(
        _told_fields(values) or [Field("tokens", 0)],
        {str(values["cause"]): added},
        rows,
        tokens,
        (tokens + added) // max(rows, 1),
        batch_id=batch_id,
        source=ADDED,
        reason=values["source"],
        rectangle_tokens=tokens + added,
    )


def _lost_payloads(batch_id: int, values: dict[str, Any]) -> list[Incident]:  # noqa: ARG001  # the table's signature
    if not values["lost"]:
        return []
    what = f"field {values['field']!r}" if values["field"] else "a lone payload"
    message = f"{values['lost']} of {values['rows']} objects of {what} were lost on the wire and read as None"
    return [Incident(kind="wire", where=STRIPPED, message=message, count=values["lost"])]


_TOLD: Final[dict[str, Callable[[int, dict[str, Any]], Iterable[Row]]]] = {
    PACKED: _packed_rows,
    MATERIALIZED: _materialized_rows,
    STRIPPED: _lost_payloads,
    SEQUENCE_PARALLEL: _sequence_parallel_rows,
    ADDED: _added_rows,
}


def _sequence_parallel_metric(rows: Sequence[Padding]) -> dict[str, Metric]:
    """Tokens that were added for the ranks, each once: those of ``input_ids``, or of the first field by name."""
    added = [row for row in rows if row.source == SEQUENCE_PARALLEL and row.tokens]
    if not added:
        return {}
    names = {row.field for row in added}
    chosen = "input_ids" if "input_ids" in names else min(names)
    metric = Metric("sum")
    for row in added:
        if row.field == chosen:
            metric.append(row.tokens)
    return {f"{PREFIX}sequence_parallel/padding_tokens": metric}


def _bytes_per_token(tensor: torch.Tensor, leading: int) -> int:
    trailing = 1
    for size in tensor.shape[leading:]:
        trailing *= size
    return tensor.element_size() * trailing


def _lengths(mask: torch.Tensor) -> list[int]:
    return [int(length) for length in mask.detach().sum(-1).tolist()]


def _copied(mask: torch.Tensor) -> Any:
    """A copy of a small mask on the CPU: an array where NumPy adds it up alike, else a tensor.

    After a step's work NumPy's way to a copy is found in no cache and takes 17 µs; torch's is warm from the work
    itself and takes 3, but whoever watches torch's functions would see it.
    """
    if type(mask) is torch.Tensor and mask.dtype in _IN_NUMPY and not mask.requires_grad:
        if not (_watched() or _modes() or _profiler._is_profiler_enabled):
            return mask.clone()
        with contextlib.suppress(RuntimeError, TypeError):  # such as a tensor under torch.func
            return mask.numpy().copy()
    return mask.detach().clone()


def _always() -> int:
    """Where torch doesn't tell."""
    return 1


#: How many modes of a user's own see torch's functions and what these dispatch to.
_watched: Final[Callable[[], int]] = getattr(torch._C, "_len_torch_dispatch_stack", _always)
_modes: Final[Callable[[], int]] = getattr(torch._C, "_len_torch_function_stack", _always)


def _lengths_of_copy(kept: Any) -> list[int]:
    if isinstance(kept, torch.Tensor):
        if kept.dtype not in _IN_NUMPY:
            return _lengths(kept)
        try:
            kept = kept.numpy()
        except (RuntimeError, TypeError):  # such as a tensor under torch.func
            return _lengths(kept)
    return cast("list[int]", kept.sum(-1).tolist())


def _from_device(mask: torch.Tensor, make: Callable[[list[int]], list[Padding]]) -> Deferred:
    """The row sums travel to pinned memory behind the work that is queued already; nobody waits for them."""
    sums = mask.detach().sum(-1)
    landing = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
    landing.copy_(sums, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(mask.device))
    return Deferred(lambda: make([int(length) for length in landing.tolist()]), done.query)
