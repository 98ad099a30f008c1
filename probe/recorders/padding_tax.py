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

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import torch

from probe.core.metric import Metric
from probe.hooks import Event
from probe.recorders.columns import batch_id_of, batches_of, cut_of, next_batch_id, tensors_of
from probe.recorders.mask_lengths import copied, from_device, lengths_in, lengths_of_copy
from probe.recorders.packed import packed, unpacked
from probe.recorders.packing_padding import POINTS as PLANNED
from probe.recorders.packing_padding import deferred_packing_rows
from probe.recorders.padding_rows import Field, padding_rows, token_fields, told_fields, without_padding
from probe.recorders.recorder import Recorder, Rows, rows_of
from probe.recorders.told_padding import ADDED, MATERIALIZED, PACKED, SEQUENCE_PARALLEL, STRIPPED, TOLD_ROWS
from probe.records import GIB, PLANNED_SOURCES, Deferred, Incident, Later, Padding, Row, counts_for_tax

PREFIX = "probe/padding_tax/"
PARTITION: Final = "seqlen_balancing.partition"
TOLD: Final = "micro_batch.told"
PAD_ROWS: Final = "data_proto.pad_to_divisor"
PADDED: Final = "data_proto.padded"

#: Where no field is known.
_TOKENS: Final = (Field("tokens", 0),)

#: Masks up to this many elements are copied at once; of larger ones it is seen whether they were changed meanwhile.
_SMALL: Final = 4096


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

    def enter(self, event: Event) -> int:
        """How many calls of these points are around this one."""
        del event  # only the depth counts
        depth: int = getattr(self._nested, "depth", 0)
        self._nested.depth = depth + 1
        return depth

    def fire(self, event: Event) -> Rows:
        """A batch was cut into micro-batches, which keep its width, rows were added, or a codec or a trainer told."""
        values = event.values
        if event.point.name in PLANNED:
            return deferred_packing_rows(event)
        if event.point.name in TOLD_ROWS:
            # The numbers are all there; only the rows are left for the writer thread.
            return Deferred(partial(TOLD_ROWS[event.point.name], batch_id_of(event), dict(values)))
        if event.point.name == PADDED:
            # Where an observed call did it, that call's end tells of the rows.
            return None if values["source"] == PAD_ROWS else self._formed(event, values["data"], values["pad_rows"])
        width, batch = values.get("width_tokens"), values.get("batch")
        fields = token_fields(batch, width) if batch is not None else told_fields(values)
        source, reason = event.point.name, None
        if source == TOLD or batch is None:  # other code's: its name, and where no field is known its tokens
            reason = values.get("source") or ""
            fields = fields or _TOKENS
        if source == TOLD:
            stamp, lengths = {"source": source, "reason": reason}, values["lengths"]
            return Deferred(partial(_rectangle_of, values["micro_batch"], lengths, width, fields, stamp))
        return _Cut(cut_of(event), _widths(values, width), fields, source, reason)

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
            return _Small(batch_id, source, fields, width, padded_rows, copied(mask))
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
                return Deferred(partial(make, lengths_in(mask)))
            return Deferred(partial(self._unchanged, mask, mask._version, make, source))
        if mask.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            return from_device(mask, make)
        return None

    def _unchanged(
        self, mask: torch.Tensor, version: int, make: Callable[[list[int]], list[Padding]], source: str
    ) -> Sequence[Row]:
        lengths = lengths_in(mask) if mask._version == version else []
        if mask._version != version:  # also while it was read
            self.unread += 1
            message = "a batch's attention_mask was changed before it was read: the batch has no padding rows"
            return [Incident(kind="unread_mask", where=source, message=message)]
        return make(lengths)


def _widths(values: Mapping[str, Any], width: int | None) -> Any:
    """Of the rectangles that are computed on, :func:`packed`: of each, of all, or None where the model takes the
    padding out.
    """
    if values.get("packed") or width is None:
        return None
    each = values.get("widths")
    return width if each is None else packed([int(one) for one in each])


class _Cut(Later, gc=False):
    """The micro-batches that a batch was cut into."""

    cut: Any  #: lengths and partitions, packed
    widths: Any  #: as of :func:`_widths`
    fields: tuple[Field, ...]
    source: str
    reason: str | None  #: None where it is probe's own

    def build(self) -> list[Padding]:
        rows: list[Padding] = []
        lengths, partitions = unpacked(self.cut)
        widths = unpacked(self.widths)
        stamp = {"source": self.source} if self.reason is None else {"source": self.source, "reason": self.reason}
        for index, part in enumerate(partitions):
            width = widths[index] if isinstance(widths, list) else widths
            rows += _rectangle_of(index, [int(lengths[row]) for row in part], width, self.fields, stamp)
        return rows


class _Small(Later, gc=False):
    """A batch that was put together, with a copy of its mask."""

    batch_id: int
    source: str
    fields: tuple[Field, ...]
    width: int
    padded_rows: int
    mask: Any

    def build(self) -> list[Padding]:
        lengths = lengths_of_copy(self.mask)
        return _formed_rows(self.batch_id, self.source, self.fields, self.width, self.padded_rows, lengths)


def _rectangle_of(
    index: int, lengths: list[int], width: int | None, fields: tuple[Field, ...], stamp: dict[str, Any]
) -> list[Padding]:
    """The rows of the micro-batch ``index``, or of its tokens alone where nothing is padded."""
    own: dict[str, Any] = {**stamp, "batch_id": next_batch_id(), "micro_batch": index}
    if width is None:
        return [without_padding(sum(lengths), len(lengths), field, own) for field in fields]
    return padding_rows(lengths, width, fields, **own)


def _formed_rows(
    batch_id: int, source: str, fields: tuple[Field, ...], width: int, padded_rows: int, lengths: list[int]
) -> list[Padding]:
    real = lengths[: len(lengths) - padded_rows]  # the copies stand at the end
    return padding_rows(real, width, fields, padded_rows=padded_rows, batch_id=batch_id, source=source)


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
