"""Healthy runs that are written row by row, without a training: what noise with memory of itself does in all of them.

A training on a fake clock is healthier than any real one. Here memory is one of :data:`probe.demo.zoo.series.KINDS`
(noise that remembers, random walks, warm-ups, caches that follow the largest batch, batches that grow), and so are
times, metrics, the host's memory and what isn't PyTorch's: each an own draw, none with a fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe.demo.zoo.series import GIB, KINDS, MIB, Series, healthy
from probe.records import Memory, MicroBatch, Process, Row, Scalar
from probe.runs.layout import Segment, create_run, process_name
from probe.runs.lines import encode

Array = NDArray[np.float64]

STEPS: Final = 40
RANKS: Final = 2
#: Runs of each kind of memory in the table: with ten kinds, 300 runs.
EACH: Final = 30

_MICRO_BATCHES: Final = 4
_TOTAL: Final = 80 * GIB
_WALL_NS: Final = 1_790_000_000 * 10**9
_SECOND: Final = 10**9


def write(kind: str, seed: int, directory: Path) -> Path:
    """Write a healthy run.

    Args:
        kind: Of its memory, one of :data:`probe.demo.zoo.series.KINDS`.
        seed: Everything that is drawn follows from it.
        directory: A new run directory.

    Returns:
        ``directory``.
    """
    create_run("zoo", run_dir=directory, config={"max_token_len": 20_000})
    ranks = [_Rank(kind, seed, rank) for rank in range(RANKS)]
    for step in range(STEPS):
        for at in (0, 1):  # of what ranks wait for each other after: an update in two mini-batches
            done = max(one.now_ns + one.compute_ns(step, at) for one in ranks)
            for one in ranks:
                one.mini_batch(step, at, done)
        for one in ranks:
            one.end(step)
    for one in ranks:
        name = Segment.of_rank(one.rank).name
        (directory / name).write_bytes(b"".join(encode(row) for row in one.rows))
    return directory


def with_memory(rng: np.random.Generator, count: int, memory: float) -> Array:
    """Noise of deviation 1 that remembers: its correlation from one to the next is ``memory``, shape (count,)."""
    drawn, level = rng.normal(size=count), np.zeros(count)
    level[0] = drawn[0]
    for at in range(1, count):
        level[at] = memory * level[at - 1] + math.sqrt(1 - memory**2) * drawn[at]
    return level


@dataclass
class _Rank:
    """What one rank writes."""

    kind: str
    seed: int
    rank: int
    rows: list[Row] = field(default_factory=list)
    now_ns: int = _SECOND
    scopes: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng([KINDS.index(self.kind), self.seed, self.rank, 77])
        self.series: Series = healthy(self.kind, STEPS, self.seed, self.rank)
        self.pace = np.exp(0.05 * with_memory(rng, STEPS, rng.uniform(0.3, 0.95)))
        self.others = 0.6 * GIB + 40 * MIB * with_memory(rng, STEPS, rng.uniform(0.3, 0.9))
        warm = 3 * GIB * (1 - np.exp(-np.arange(STEPS) / rng.uniform(0.5, 6)))
        self.resident = 4 * GIB + warm + 30 * MIB * with_memory(rng, STEPS, rng.uniform(0.3, 0.9))
        self.metrics = self._metrics(rng)
        self.rows.append(
            Process(wall_ns=_WALL_NS, pid=100 + self.rank, host="node-0", world_size=RANKS, device="fake:0")
        )
        self._stamp(self.rows[0], 0)
        self.step_ns = self.now_ns

    def _metrics(self, rng: np.random.Generator) -> dict[str, Array]:
        slow = with_memory(rng, STEPS, 0.95)
        return {
            "reward/mean": 0.3 + 0.005 * np.arange(STEPS) + 0.05 * slow,
            "frac_reward_zero_std": np.clip(0.15 + 0.05 * with_memory(rng, STEPS, 0.9), 0, 1),
            "critic/advantages/max": 1.5 + 0.2 * np.abs(with_memory(rng, STEPS, 0.5)),
            "critic/advantages/min": -1.5 - 0.2 * np.abs(with_memory(rng, STEPS, 0.5)),
            "response_length/clip_ratio": np.clip(0.05 + 0.02 * with_memory(rng, STEPS, 0.9), 0, 1),
            "actor/grad_norm": 0.8 * np.exp(0.25 * with_memory(rng, STEPS, 0.7)),
        }

    def lengths(self, step: int) -> list[int]:
        """Of the step's sequences: the longest, and others that have the rest of the tokens in equal parts."""
        total, longest = int(self.series.tokens[step]), int(self.series.longest[step])
        count = 8 * math.ceil(total / longest / 4)
        rest = (total - longest) // (count - 1)
        return [longest, *[rest] * (count - 1)]

    def compute_ns(self, step: int, at: int) -> int:
        """How long the rank computes in a mini-batch."""
        lengths = self.lengths(step)
        half = lengths[at::2]
        slow = 3.0 if step == 0 else 1.0
        return int(sum(half) * 20e-6 * self.pace[step] * slow * _SECOND)

    def mini_batch(self, step: int, at: int, done_ns: int) -> None:
        """The rows of a mini-batch's micro-batches; they end when the rank has computed them, and then it waits."""
        if at == 0:
            self.scopes += 1
            self.outer = self.scopes
            self.step_ns = self.now_ns
            self._memory(step, "enter", "step", "step", self.outer, None)
            self.scopes += 1
            self.inner = self.scopes
            self.phase_ns = self.now_ns
            self._memory(step, "enter", "phase", "update", self.inner, self.outer)
        half, whole = self.lengths(step)[at::2], self.compute_ns(step, at)
        many = _MICRO_BATCHES // 2
        self.scopes += 1
        batch = self.scopes
        for index in range(many):
            part = half[index::many]
            row = MicroBatch(
                batch_id=batch,
                micro_batches=many,
                sequences=len(part),
                lengths=part,
                tokens=sum(part),
                cap_tokens=max(20_000, sum(part)),
            )
            self.rows.append(self._stamp(row, step, "update", index))
            begin = self.now_ns
            self.now_ns += int(whole * sum(part) / sum(half))
            self._left(step, "micro_batch", f"micro_batch {index}", self.now_ns - begin, sum(part), index)
        self.now_ns = done_ns + 100_000

    def end(self, step: int) -> None:
        """The end of the step, and what it logs."""
        self._memory(step, "leave", "phase", "update", self.inner, self.outer, self.now_ns - self.phase_ns)
        self._memory(step, "leave", "step", "step", self.outer, None, self.now_ns - self.step_ns)
        if self.rank == 0:
            for key, values in self.metrics.items():
                self.rows.append(self._stamp(Scalar(key=key, value=float(values[step])), step))
        self.now_ns += 10_000_000

    def _left(self, step: int, kind: str, name: str, duration_ns: int, tokens: int, index: int) -> None:
        self.scopes += 1
        self._memory(step, "leave", kind, name, self.scopes, self.inner, duration_ns, tokens)
        self.rows[-1].micro_batch = index

    def _memory(
        self,
        step: int,
        edge: str,
        kind: str,
        name: str,
        scope: int,
        parent: int | None,
        duration_ns: int | None = None,
        tokens: int = 0,
    ) -> None:
        level = int(self.series.level[max(0, step - (edge == "enter"))])
        peak = level + int((tokens or max(self.lengths(step)[0], 12_000)) * 0.25 * MIB)
        reserved = max(level, int(peak * 1.03))
        told: dict[str, Any] = {
            "allocated_bytes": level,
            "reserved_bytes": reserved,
            "device_total_bytes": _TOTAL,
            "non_torch_bytes": int(self.others[step]),
            "device_used_bytes": reserved + int(self.others[step]),
            "process_rss_bytes": int(self.resident[step]),
            "alloc_retries": 0,
        }
        if edge == "leave":
            told |= {
                "peak_allocated_bytes": peak,
                "peak_reserved_bytes": reserved,
                "peak_kind": "exact",
                "host_duration_ns": duration_ns,
            }
        row = Memory(edge=edge, kind=kind, name=name, parent_id=parent, device="fake:0", source="fake", **told)
        self._stamp(row, step, None if kind == "step" else "update")
        row.scope_id = scope
        self.rows.append(row)

    def _stamp(self, row: Row, step: int, phase: str | None = None, micro_batch: int | None = None) -> Row:
        row.time_ns = self.now_ns
        row.process, row.rank = process_name(f"rank-{self.rank:05d}"), self.rank
        if not isinstance(row, Process):
            row.step, row.phase, row.micro_batch = step, phase, micro_batch
        return row
