"""Runs whose batches were cut by verl's rule and whose micro-batches have peaks and times by known coefficients."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from probe.core.balancing.replay import Cut, replay_ranks
from probe.core.balancing.verl_rule import verl_partition
from probe.moments import workload_of
from probe.recorders.token_balance import micro_batch_rows
from probe.records import GIB, Memory, MicroBatch, Partition, Row
from tests.sample_run import clock, open_run

MIB = 1024**2
MS = 1_000_000


@dataclass
class Planted:
    """What a run is made of; memory in bytes, times in seconds."""

    ranks: int = 4
    steps: int = 12
    rows: int = 128
    mini_batches: int = 2
    cap: int | None = 8192
    rows_each: int = 4
    rows_in: dict[int, int] = field(default_factory=dict)  #: of a step, in the place of the others'
    balanced: bool = True
    evened: str = "workload"
    packer: str = "verl 0.9.1"
    tells_packer: bool = True
    phase: str = "update_actor"
    floor: float = 20 * GIB
    per_token: float = 3.0 * MIB
    per_longest: float = 0.5 * MIB
    per_row: float = 20.0 * MIB
    noise: float = 64 * MIB
    gross: float = 0.0  #: share of peaks that are off by gigabytes
    drift: float = 0.0
    drifts: dict[int, float] = field(default_factory=dict)  #: of a rank, in the place of the others'
    per_micro_batch_s: float = 0.05
    per_token_s: float = 2e-5
    per_square_s: float = 1e-9
    total: float = 80 * GIB
    beside: float = 2 * GIB
    above: float = 1 * GIB
    above_more: float = 0.0  #: of what is reserved above, it varies by so much
    peak_kind: str = "exact"
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    lengths: Any = None
    width: int | None = None
    padded: bool = False  #: rows of a micro-batch to the longest of it
    sp_size: int = 1  #: of the ranks, so many neighbours share their sequences, and hold the cap together
    slower: dict[int, float] = field(default_factory=dict)
    source: str = "planted"

    def of(self, step: int) -> Planted:
        """As it is in a step."""
        return replace(self, rows_each=self.rows_in.get(step, self.rows_each))

    def drawn(self, random: np.random.Generator) -> list[int]:
        if self.lengths is not None:
            return [int(one) for one in self.lengths(random, self.rows)]
        return [int(one) for one in np.clip(random.lognormal(6.3, 0.7, self.rows), 20, 4000)]


def planted(path: Path, made: Planted) -> Any:
    """The run, opened."""
    random = np.random.default_rng(made.seed)
    rows: dict[int, list[Row]] = {rank: [] for rank in range(made.ranks)}
    writers = {rank: _Writer(rank, made, random, rows[rank]) for rank in rows}
    shares = made.ranks // made.sp_size
    for step in range(1, made.steps + 1):
        lengths = made.drawn(random)
        if made.balanced and made.tells_packer:
            parts = verl_partition(workload_of(lengths), shares, equal_size=True)
            told = Partition(
                rank=0,
                time_ns=clock(0) + step * 60_000 * MS,
                step=step,
                batch_id=10_000 + step,
                level="ranks",
                parts=shares,
                sequences=len(lengths),
                packer=made.packer,
                arguments=json.dumps({"k_partitions": shares, "equal_size": True}),
                lengths=lengths,
                assignment=[next(at for at, part in enumerate(parts) if row in part) for row in range(len(lengths))],
                source="planted",
            )
            rows[0].append(told)
        else:
            each = len(lengths) // shares
            parts = [list(range(rank * each, (rank + 1) * each)) for rank in range(shares)]
        for one in writers.values():
            one.begin_step(step)
        size = len(lengths) // shares // made.mini_batches
        for number in range(made.mini_batches):
            mine = [[lengths[row] for row in part[number * size : (number + 1) * size]] for part in parts]
            cuts = replay_ranks([cut_of(made.of(step), one) for one in mine])
            for rank, writer in writers.items():
                writer.batch(step, number, mine[rank // made.sp_size], cuts[rank // made.sp_size])
            together(writers)
        for one in writers.values():
            one.end_step(step)
    return open_run(path, rows, config=made.config)


def together(writers: dict[int, _Writer]) -> None:
    """Ranks wait for each other at the end of a mini-batch."""
    latest = max(one.now - clock(one.rank) for one in writers.values())
    for one in writers.values():
        one.now = clock(one.rank) + latest


def arguments_of(made: Planted) -> dict[str, Any]:
    if made.cap is None:
        fixed = {"use_dynamic_bsz": False, "force_group_size": 1, "micro_batch_size_per_gpu": made.rows_each}
        return fixed | {"sp_size": made.sp_size}
    return {
        "use_dynamic_bsz": True,
        "force_group_size": 1,
        "max_token_len": made.cap,
        "max_token_len_per_gpu": made.cap // made.sp_size,
        "sp_size": made.sp_size,
        "num_batches_divided_by": None,
        "min_num_micro_batch": None,
        "use_dynamic_bsz_balance": True,
        **({"balance": made.evened} if made.packer.startswith("probe") else {}),
        "same_micro_num_in_dp": made.ranks > made.sp_size,
        "dp_size": made.ranks // made.sp_size,
    }


def cut_of(made: Planted, lengths: list[int]) -> Cut:
    return Cut.of_micro_batches(made.packer, arguments_of(made), lengths, 1)


class _Writer:
    """The rows of one rank, as its recorders would write them."""

    def __init__(self, rank: int, made: Planted, random: np.random.Generator, rows: list[Row]) -> None:
        self.rank, self.made, self.random, self.rows = rank, made, random, rows
        self.now, self.scope, self.batches = clock(rank) + MS, 0, 0
        self.outer = self.begun = 0
        self.apart = np.random.default_rng([made.seed, rank])  # so that the rest of a run stays as it was

    def begin_step(self, step: int) -> None:
        self.outer = self._enter("step", "step", None, {"step": step})
        self.begun = self.now

    def end_step(self, step: int) -> None:
        self._leave("step", "step", None, self.outer, {"step": step}, self.begun, self.made.floor)

    def batch(self, step: int, number: int, lengths: list[int], parts: list[list[int]]) -> None:
        made, self.batches = self.made, self.batches + 1
        stamp: dict[str, Any] = {"step": step, "role": "actor", "phase": made.phase}
        outer = self._enter("phase", made.phase, self.outer, stamp)
        if made.tells_packer:
            self.rows.append(
                Partition(
                    time_ns=self.now,
                    scope_id=outer,
                    batch_id=self.batches,
                    level="micro_batches",
                    parts=len(parts),
                    sequences=len(lengths),
                    packer=made.packer,
                    arguments=json.dumps(arguments_of(made.of(step))),
                    source="planted",
                    **stamp,
                )
            )
        cuts: list[MicroBatch] = micro_batch_rows(
            lengths,
            parts,
            batch_id=self.batches,
            workload=workload_of(lengths),
            cap_tokens=made.cap,
            width_tokens=made.width,
            widths=[max(lengths[row] for row in part) for part in parts] if made.padded else None,
            source=made.source,
        )
        for cut in cuts:
            for name, value in {"time_ns": self.now, "scope_id": outer, **stamp}.items():
                setattr(cut, name, value)
        self.rows.extend(cuts)
        begin, peaks = self.now, []
        for cut in cuts:
            peaks.append(self._micro_batch(cut, outer, stamp))
        self._leave("phase", made.phase, self.outer, outer, stamp, begin, max(peaks))

    def _micro_batch(self, cut: MicroBatch, outer: int, stamp: dict[str, Any]) -> float:
        made, told = self.made, {**stamp, "micro_batch": cut.micro_batch}
        self.now += MS
        scope = self._enter("micro_batch", str(cut.micro_batch), outer, told)
        begin = self.now
        squares = sum(one * one for one in cut.lengths)
        computed = cut.tokens if cut.width_tokens is None else cut.width_tokens * len(cut.lengths)
        took = made.per_micro_batch_s + made.per_token_s * computed + made.per_square_s * squares
        took *= made.slower.get(self.rank, 1.0)
        self.now += int(took * self.random.normal(1, 0.01) * 1e9)
        peak: float = (
            made.floor
            + made.per_token * computed
            + made.per_longest * max(cut.lengths)
            + made.per_row * len(cut.lengths)
            + made.drifts.get(self.rank, made.drift) * stamp["step"]
            + self.random.normal(0, made.noise)
        )
        if self.apart.random() < made.gross:
            peak += self.apart.uniform(5, 20) * GIB
        self._leave("micro_batch", str(cut.micro_batch), outer, scope, told, begin, peak)
        return peak

    def _more(self) -> float:
        return float(self.apart.uniform(0, self.made.above_more))

    def _enter(self, kind: str, name: str, parent: int | None, stamp: dict[str, Any]) -> int:
        self.scope += 1
        self._memory("enter", kind, name, parent, self.scope, stamp)
        self.now += MS // 10
        return self.scope

    def _leave(
        self, kind: str, name: str, parent: int | None, scope: int, stamp: dict[str, Any], begin: int, peak: float
    ) -> None:
        self._memory(
            "leave",
            kind,
            name,
            parent,
            scope,
            stamp,
            peak_allocated_bytes=int(peak),
            peak_reserved_bytes=int(peak + self.made.above + self._more()),
            peak_kind=self.made.peak_kind,
            host_duration_ns=self.now - begin,
            device_duration_ns=self.now - begin,
        )

    def _memory(
        self, edge: str, kind: str, name: str, parent: int | None, scope: int, stamp: dict[str, Any], **more: Any
    ) -> None:
        self.rows.append(
            Memory(
                time_ns=self.now,
                edge=edge,
                kind=kind,
                name=name,
                parent_id=parent,
                device="cuda:0",
                source="cuda",
                allocated_bytes=int(self.made.floor),
                reserved_bytes=int(self.made.floor + self.made.above),
                device_total_bytes=int(self.made.total),
                device_used_bytes=int(self.made.floor + self.made.beside),
                non_torch_bytes=int(self.made.beside),
                scope_id=scope,
                scope=name,
                **stamp,
                **more,
            )
        )
