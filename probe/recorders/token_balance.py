"""How evenly tokens are spread: one row for each micro-batch of every batch that is cut up.

Batches are cut up in three ways, told apart by ``source``: balanced partitions, dynamic batching (micro-batches of
all shards, each with a width of its own) and sequence packing (bins, which have no rectangle). Other code that cuts
batches tells of each micro-batch as it begins, by the name that it gives itself.

Imbalance across ranks needs the rows of all of them; the analysis works it out from the run.
"""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from probe.core.metric import Metric
from probe.hooks import Event
from probe.recorders.columns import batch_id_of, cut_of
from probe.recorders.packed import packed, unpacked
from probe.recorders.recorder import Recorder, Rows, rows_of
from probe.records import Deferred, Later, MicroBatch, Partition, Row

PREFIX = "probe/token_balance/"
PACKED: Final = "packing.packed"
TOLD: Final = "micro_batch.told"
CUT: Final = "micro_batch.cut"
DEALT: Final = "token_balance.dealt"
PACKED_DATA: Final = "data_set.packed"


class TokenBalanceRecorder(Recorder):
    """Micro-batches, from the lengths that the partitioner has on the CPU anyway."""

    rows: ClassVar[tuple[type[Row], ...]] = (MicroBatch, Partition)
    points: ClassVar[tuple[str, ...]] = (
        "seqlen_balancing.partition",
        "batched_data_dict.partition",
        PACKED,
        TOLD,
        CUT,
        DEALT,
        PACKED_DATA,
    )
    #: An imbalance is the largest micro-batch over the mean one of its batch, empty ones included; 1 is even.
    #: Those of packing are about its bins alone, in real tokens: rounding counts as waste. Its balance is
    #: 1 − standard deviation / mean of the bins' utilisation; 1 is even.
    keys: ClassVar[tuple[str, ...]] = (
        f"{PREFIX}micro_batch_imbalance_ratio_max",
        f"{PREFIX}micro_batch_workload_imbalance_ratio_max",
        f"{PREFIX}utilisation_ratio_mean",
        f"{PREFIX}largest_micro_batch_tokens",
        f"{PREFIX}micro_batches",
        f"{PREFIX}cap_violations",
        f"{PREFIX}rank_tokens",
        f"{PREFIX}packing/utilisation_ratio_mean",
        f"{PREFIX}packing/waste_ratio_mean",
        f"{PREFIX}packing/balance_ratio_mean",
        f"{PREFIX}packing/bins",
    )

    def __init__(self) -> None:
        self._batches = threading.local()

    def fire(self, event: Event) -> Rows:
        """A batch was cut up, or other code begins with a micro-batch of one that it has cut."""
        values = event.values
        if event.point.name == TOLD:
            return Deferred(partial(_told_rows, self._batch_of(event), dict(values, batch=None)))
        if event.point.name == CUT:
            return self._cut(event)
        if event.point.name == DEALT:
            return Deferred(partial(_dealt_rows, batch_id_of(event), dict(values)))
        if event.point.name == PACKED_DATA:
            return Deferred(partial(_data_set_rows, batch_id_of(event), dict(values)))
        bins = event.point.name == PACKED
        computed = None if bins or values.get("packed") else values.get("width_tokens")
        workload, widths = values.get("workload"), values.get("widths")
        effective, named = values.get("effective"), values.get("packer")
        return _Cut(
            cut_of(event, "bins" if bins else "partitions"),
            batch_id_of(event),
            PACKED if bins else values.get("source") or event.point.name,
            values.get("capacity_tokens" if bins else "cap_tokens"),
            computed,
            packed(
                (
                    None if widths is None or values.get("width_tokens") is None else list(widths),
                    None if workload is None else list(workload),
                    None if effective is None else list(effective),
                )
            ),
            values.get("first_row", 0),
            named or "",
            dict(values.get("arguments") or {}) if named else None,
        )

    def _cut(self, event: Event) -> Rows:
        """By whose rule the batch was cut whose micro-batches other code has told of in this scope."""
        around, _, batch_id = getattr(self._batches, "last", (None, -1, 0))
        if around != event.scope.id:  # none of them was recorded
            return None
        return Deferred(partial(_whole_rows, batch_id, dict(event.values)))

    def _batch_of(self, event: Event) -> int:
        """The number of its batch: of the one before, if that began in the same scope and with a smaller index."""
        around, index = event.scope.id, event.values["micro_batch"]
        before, last, batch_id = getattr(self._batches, "last", (None, -1, 0))
        if around != before or index <= last:
            batch_id = batch_id_of(event)
        self._batches.last = (around, index, batch_id)
        return batch_id

    def metrics(self, rows: Sequence[Row]) -> dict[str, Metric]:
        """Over all batches that this process cut up in the step."""
        batches: dict[int, list[MicroBatch]] = {}
        for row in rows_of(rows, MicroBatch):
            batches.setdefault(row.batch_id, []).append(row)
        if not batches:
            return {}
        parts = [part for batch in batches.values() for part in batch]
        tokens = [part.tokens for part in parts]
        found = {
            "micro_batch_imbalance_ratio_max": Metric(
                "max", _imbalances([[p.tokens for p in b] for b in batches.values()])
            ),
            "micro_batch_workload_imbalance_ratio_max": Metric("max", _imbalances(_workloads(batches.values()))),
            "utilisation_ratio_mean": Metric(
                "mean", [p.utilisation_ratio for p in parts if p.utilisation_ratio is not None]
            ),
            "largest_micro_batch_tokens": Metric("max", tokens),
            "micro_batches": Metric("sum", len(parts)),
            "cap_violations": Metric("sum", sum(part.over_cap for part in parts)),
            "rank_tokens": Metric("sum", tokens),
        }
        packed = [batch for batch in batches.values() if batch[0].source == PACKED]
        if packed:
            found |= _packing(packed)
        return {PREFIX + name: metric for name, metric in found.items() if metric.count}


def micro_batch_rows(
    lengths: Sequence[int],
    partitions: Sequence[Sequence[int]],
    *,
    batch_id: int,
    workload: Sequence[float] | None,
    cap_tokens: int | None,
    width_tokens: int | None,
    source: str,
    widths: Sequence[int] | None = None,
    first_row: int = 0,
    effective: Sequence[int] | None = None,
) -> list[MicroBatch]:
    """One row for each of ``partitions``, whose entries are indices into ``lengths``.

    Args:
        lengths: Tokens of each sequence.
        partitions: Indices into ``lengths``, of each micro-batch.
        batch_id: The number of the batch.
        workload: The cost of each sequence, or (where there are fewer) of each partition.
        cap_tokens: Most tokens of a micro-batch; None where there is no cap.
        width_tokens: Width of every rectangle, in tokens; ``widths``, where given, tells of each. None where there are
            no rectangles.
        source: The point that the rows come from.
        widths: Width of each rectangle, in tokens.
        first_row: The row of the batch that entry 0 of ``lengths`` is.
        effective: Tokens of each sequence that the loss counts; None where that isn't known.
    """
    shared: dict[str, Any] = {
        "batch_id": batch_id,
        "micro_batches": len(partitions),
        "cap_tokens": cap_tokens,
        "source": source,
    }
    rows = []
    for index, part in enumerate(partitions):
        inside = [int(lengths[row]) for row in part]
        tokens = sum(inside)
        rows.append(
            MicroBatch(
                micro_batch=index,
                sequences=len(inside),
                lengths=inside,
                indices=[first_row + int(row) for row in part],
                width_tokens=width_tokens if widths is None else int(widths[index]),
                tokens=tokens,
                utilisation_ratio=tokens / cap_tokens if cap_tokens else None,
                over_cap=cap_tokens is not None and tokens > cap_tokens,
                workload=_workload(workload, index, part, len(lengths)),
                effective_tokens=None if effective is None else sum(int(effective[row]) for row in part),
                **shared,
            )
        )
    return rows


class _Cut(Later, gc=False):
    """A batch that was cut up, and by whose rule where that has a name."""

    cut: Any  #: lengths and partitions, packed
    batch_id: int
    source: str
    cap_tokens: int | None
    width_tokens: int | None
    each: Any  #: widths, workload and effective tokens, each or None, packed
    first_row: int
    packer: str
    arguments: dict[str, Any] | None

    def build(self) -> list[Row]:
        lengths, partitions = unpacked(self.cut)
        widths, workload, effective = unpacked(self.each)
        parts = micro_batch_rows(
            lengths,
            partitions,
            batch_id=self.batch_id,
            source=self.source,
            cap_tokens=self.cap_tokens,
            width_tokens=self.width_tokens,
            widths=widths,
            workload=workload,
            effective=effective,
            first_row=self.first_row,
        )
        if not self.packer:
            return list(parts)
        cut = Partition(
            batch_id=self.batch_id,
            level="micro_batches",
            parts=len(parts),
            sequences=len(lengths),
            packer=self.packer,
            arguments=_as_json(self.arguments or {}),
            parts_tokens=[part.tokens for part in parts],
            source=self.source,
        )
        return [cut, *parts]


def _whole_rows(batch_id: int, values: Mapping[str, Any]) -> list[Partition]:
    """By whose rule a batch was cut whose micro-batches have all been told of."""
    parts: Sequence[Sequence[int]] = values["parts"]
    return [
        Partition(
            batch_id=batch_id,
            level="micro_batches",
            parts=len(parts),
            sequences=sum(map(len, parts)),
            packer=values["packer"],
            arguments=_as_json(values["arguments"]),
            parts_tokens=[sum(part) for part in parts],
            source=values["source"],
        )
    ]


def _data_set_rows(batch_id: int, values: Mapping[str, Any]) -> list[Partition]:
    """The row of a packing of rows of the data set."""
    return [
        Partition(
            batch_id=batch_id,
            level="data_set",
            parts=len(values["parts_tokens"]),
            sequences=len(values["lengths"]),
            packer=values["packer"],
            arguments=_as_json(values["arguments"]),
            lengths=values["lengths"],
            parts_tokens=values["parts_tokens"],
            source=values["source"],
        )
    ]


def _dealt_rows(batch_id: int, values: Mapping[str, Any]) -> list[Partition]:
    """The row of a batch that was dealt to ranks."""
    lengths, parts = [int(one) for one in values["lengths"]], values["partitions"]
    rank_of = {int(row): rank for rank, part in enumerate(parts) for row in part}
    return [
        Partition(
            batch_id=batch_id,
            level="ranks",
            parts=len(parts),
            sequences=len(lengths),
            padded_rows=int(values["padded_rows"]),
            packer=values["packer"],
            arguments=_as_json(values["arguments"]),
            lengths=lengths,
            assignment=[rank_of.get(row, -1) for row in range(len(lengths))],
            parts_tokens=[sum(lengths[int(row)] for row in part) for part in parts],
            source=values["source"],
        )
    ]


def _as_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments), default=repr)


def _told_rows(batch_id: int, values: Mapping[str, Any]) -> list[MicroBatch]:
    """The row of a micro-batch that other code has cut."""
    lengths, shared = values["lengths"], {"batch_id": batch_id, "workload": values["workload"]}
    (row,) = micro_batch_rows(
        lengths,
        [range(len(lengths))],
        cap_tokens=values["cap_tokens"],
        width_tokens=values["width_tokens"],
        source=values["source"],
        **shared,
    )
    effective = values.get("effective")
    row.effective_tokens = None if effective is None else int(sum(effective))
    row.micro_batch, row.micro_batches, row.indices = values["micro_batch"], values["count"], values["indices"] or []
    return [row]


def _workload(workload: Sequence[float] | None, index: int, part: Sequence[int], sequences: int) -> float | None:
    if workload is None:
        return None
    if len(workload) == sequences:
        return float(sum(workload[row] for row in part))
    return float(workload[index])


def _workloads(batches: Any) -> list[list[float]]:
    return [[p.workload for p in batch] for batch in batches if all(p.workload is not None for p in batch)]


def _packing(batches: Sequence[Sequence[MicroBatch]]) -> dict[str, Metric]:
    """How well bins are filled: the ratios of each packing, and the bins of all."""
    used: list[float] = []
    even: list[float] = []
    for batch in batches:
        filled = [part.utilisation_ratio for part in batch if part.utilisation_ratio is not None]
        if not filled:
            continue
        used.append(statistics.fmean(filled))
        if used[-1]:
            even.append(1 - statistics.pstdev(filled) / used[-1])
    found = {
        "utilisation_ratio_mean": Metric("mean", used),
        "waste_ratio_mean": Metric("mean", [1 - one for one in used]),
        "balance_ratio_mean": Metric("mean", even),
        "bins": Metric("sum", [len(batch) for batch in batches]),
    }
    return {f"packing/{name}": metric for name, metric in found.items()}


def _imbalances(batches: Sequence[Sequence[float]]) -> list[float]:
    """Largest over mean of each batch; one without anything in it has none."""
    return [max(batch) * len(batch) / sum(batch) for batch in batches if sum(batch)]
