"""Ranks that wait for each other at the end of a phase, with the truth known: as arrays and as rows of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.analysis.rank_times import RankTimes
from probe.records import Memory, MicroBatch, Row
from tests.sample_run import clock

Array = NDArray[np.float64]

RATE_S: float = 1e-4
BATCHES: int = 4


@dataclass
class Planted:
    """Each step: a phase "load_batch" that each rank has for itself, then "update", which all leave together.

    Attributes:
        tokens: Of each rank in each step.
        pace: Factor on its time a token.
        load_s: Its time in "load_batch".
        pause_s: Its time in "update" before the first micro-batch.
        skew_s: By which its clock is ahead.
        each_waits: Whether ranks wait for each other in each micro-batch, too.
    """

    tokens: Array
    pace: Array
    load_s: Array
    pause_s: Array
    skew_s: Array
    each_waits: bool = False

    def times(self) -> dict[str, RankTimes]:
        """The arrays, as :func:`probe.analysis.waiting.of_rows` gives them."""
        steps, ranks = self.tokens.shape
        rng = np.random.default_rng(7)
        work = self.tokens * RATE_S * self.pace + 0.002
        if self.each_waits:
            work = np.broadcast_to(work.max(1, keepdims=True), work.shape)
        together = self.load_s + self.pause_s + work
        ends = together.max(1) + 0.01
        start = np.concatenate([[0.0], np.cumsum(ends)[:-1]])[:, None] + self.skew_s
        jitter = rng.uniform(0, 2e-4, (steps, ranks))
        known, first = np.full((steps, ranks), np.nan), start + self.load_s + self.pause_s
        every = np.arange(ranks)
        loaded = (known,) * 7
        load = RankTimes(np.arange(float(steps)), every, start, start + self.load_s, self.load_s, *loaded)
        begin, end = start + self.load_s, start + ends[:, None] - 1e-3 + jitter
        batches = np.full((steps, ranks), float(BATCHES))
        worked = (first, first + work, work, known, batches, np.ones((steps, ranks)), self.tokens)
        update = RankTimes(np.arange(float(steps)), every, begin, end, end - begin, *worked)
        return {"load_batch": load, "update": update}

    def rows(self) -> dict[int, list[Row]]:
        """The rows that these ranks would have written."""
        phases = self.times()
        return {rank: _rows(rank, phases) for rank in range(self.tokens.shape[1])}


def healthy(ranks: int, steps: int, seed: int = 0, noise: float = 0.05) -> Planted:
    """All ranks with about as many tokens and as fast; times and tokens differ from step to step."""
    rng = np.random.default_rng([seed, ranks, steps])
    shape = (steps, ranks)
    return Planted(
        tokens=np.round(rng.normal(4000, 4000 * noise, shape)),
        pace=1 + np.abs(rng.normal(0, noise, shape)),
        load_s=0.02 + np.abs(rng.normal(0, 0.02 * noise, shape)),
        pause_s=0.005 + np.abs(rng.normal(0, 0.005 * noise, shape)),
        skew_s=np.zeros(ranks),
    )


def _rows(rank: int, phases: dict[str, RankTimes]) -> list[Row]:
    rows: list[Row] = []
    scopes = 0
    for at, step in enumerate(phases["update"].steps):
        for name, times in phases.items():
            scopes += 1
            stamp = {"step": int(step), "phase": name}
            if name == "update":
                cuts = np.linspace(times.first[at, rank], times.last[at, rank], BATCHES + 1)
                tokens = int(times.tokens[at, rank])
                for index in range(BATCHES):
                    own = tokens // BATCHES + (tokens % BATCHES if index == 0 else 0)
                    batch = MicroBatch(
                        batch_id=int(step), micro_batches=BATCHES, sequences=1, lengths=[own], tokens=own
                    )
                    rows.append(_stamped(batch, rank, times.begin[at, rank], **stamp, micro_batch=index))
                    inner = _left("micro_batch", f"micro_batch {index}", cuts[index + 1] - cuts[index])
                    rows.append(_stamped(inner, rank, cuts[index + 1], **stamp, micro_batch=index))
            outer = _left("phase", name, times.end[at, rank] - times.begin[at, rank])
            rows.append(_stamped(outer, rank, times.end[at, rank], **stamp))
    return rows


def _left(kind: str, name: str, duration_s: float) -> Memory:
    return Memory(edge="leave", kind=kind, name=name, source="fake", host_duration_ns=round(duration_s * 1e9))


def _stamped(row: Row, rank: int, time_s: float, **stamp: object) -> Row:
    row.time_ns = clock(rank) + 10**9 + round(time_s * 1e9)
    for key, value in stamp.items():
        setattr(row, key, value)
    return row
