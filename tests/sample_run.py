"""A made-up but consistent run on disk: what several ranks would have written, row by row.

``write_run`` puts any rows into the run layout; ``sample_rows`` makes a rich run to look at. The story it
tells is always the same: rank 1 is the fullest, step 3 has one micro-batch over its cap, and that one
makes the memory peak.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probe.opened import Run
from probe.records import (
    GIB,
    SCHEMA_VERSION,
    Call,
    Incident,
    Memory,
    MicroBatch,
    Padding,
    Process,
    Reduction,
    Row,
    Scalar,
    TokenFate,
)
from probe.runs.lines import encode
from probe.runs.version_1 import process_name

#: What the rows of a moment share: its step, role, phase and micro-batch.
Stamp = dict[str, Any]

WALL_NS = 1_790_000_000_000_000_000
CAP = 4096
MS = 1_000_000


def process(rank: int, world_size: int = 2, device: str = "cuda:0", name: str = "Made-up 80 GB") -> Process:
    """The first row of a rank's file; monotonic clocks of ranks start at unlike times."""
    return Process(
        rank=rank,
        time_ns=clock(rank),
        wall_ns=WALL_NS,
        pid=100 + rank,
        host="node-0",
        world_size=world_size,
        device=device,
        device_name=name,
    )


def clock(rank: int) -> int:
    """What the monotonic clock of a rank reads when the run starts."""
    return (rank + 1) * 10**12


def write_run(
    directory: Path,
    rows: Mapping[int, Iterable[Row]],
    *,
    project: str = "arithmetic",
    experiment: str = "grpo-small",
    processes: Mapping[int, Process] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``run.json`` and one file for each rank; returns ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    info = {
        "schema_version": SCHEMA_VERSION,
        "project": project,
        "experiment": experiment,
        "config": {"train_batch_size": 64} if config is None else dict(config),
        "host": "node-0",
        "versions": {"probe": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
        "started_at": "2026-09-21T14:13:20+00:00",
    }
    (directory / "run.json").write_text(json.dumps(info))
    for rank, own in rows.items():
        first = (processes or {}).get(rank) or process(rank, world_size=len(rows))
        lines = [encode(written_by(row, process_name(rank, 0), rank)) for row in (first, *own)]
        (directory / f"rank-{rank:05d}.jsonl").write_bytes(b"".join(lines))
    return directory


def written_by(row: Row, process: str, rank: int | None) -> Row:
    """``row`` with the process and the rank that its writer would stamp it with, where it says none."""
    row.process = row.process or process
    row.rank = rank if row.rank is None else row.rank
    return row


def open_run(directory: Path, rows: Mapping[int, Iterable[Row]], **told: Any) -> Run:
    """:func:`write_run`, and the reader on it."""
    return Run(write_run(directory, rows, **told))


def sample_rows(
    ranks: int = 4, steps: int = 12, *, seed: int = 0, accelerator: bool = True, actor: str = "actor"
) -> dict[int, list[Row]]:
    """Rows of ``ranks`` ranks over ``steps`` steps, the same for the same ``seed``."""
    told = [_Rank(rank, ranks, seed, accelerator, actor) for rank in range(ranks)]
    for step in range(steps):
        for one in told:
            one.step(step)
        together = max(one.now - clock(one.rank) for one in told)  # ranks wait for each other at the end of a step
        for one in told:
            one.now = clock(one.rank) + together + one.random.randrange(4) * MS
    told[0].trouble()
    return {one.rank: one.rows for one in told}


class _Rank:
    """One rank's storyteller: its clock, its scopes, and the rows so far."""

    def __init__(self, rank: int, ranks: int, seed: int, accelerator: bool, actor: str) -> None:
        self.random = random.Random(seed * 1000 + rank)
        self.rank, self.ranks, self.accelerator, self.actor = rank, ranks, accelerator, actor
        self.now = clock(rank) + 5 * MS
        self.rows: list[Row] = []
        self.scopes, self.batches = 0, 0
        self.unit = GIB if accelerator else GIB // 40
        self.base = 18 * self.unit

    def trouble(self) -> None:
        refused = "log failed: connection refused"
        self.add(Incident(kind="backend", where="mlflow", message=refused, step=4, count=3))
        self.add(Incident(kind="dropped_rows", where="memory", message="dropped 17 rows", step=7, count=17))

    def add(self, row: Row, **stamp: object) -> None:
        for name, value in {"rank": self.rank, "time_ns": self.now, **stamp}.items():
            setattr(row, name, value)
        self.rows.append(row)

    def step(self, step: int) -> None:
        stamp = {"step": step}
        outer, begin = self.open("step", "step", None, stamp, self.base)
        lengths = self.lengths(step)
        self.padding("data_proto.from_dict", lengths, step + 1, stamp)
        peaks = [
            self.phase("rollout", "rollout", outer, stamp, 14, 350 + self.random.randrange(120)),
            self.phase("reward", "reward", outer, stamp, 0.5, 30),
            self.batch("old_log_prob", outer, stamp, lengths, 5.0),
            self.phase("adv", None, outer, stamp, 0.8, 12),
            self.batch("update_actor", outer, stamp, lengths, 9.0),
        ]
        self.close("step", "step", None, stamp, outer, begin, max(peaks))
        self.reductions(step)
        self.fates(step, sum(lengths))
        self.sample()

    def lengths(self, step: int) -> list[int]:
        mean = 620 + 110 * (self.rank == 1) + 9 * step
        return [min(2048, max(24, int(self.random.gauss(mean, 280)))) for _ in range(32)]

    def cuts(self, step: int, lengths: list[int]) -> list[list[int]]:
        """First-fit under the cap; the story's one loose micro-batch goes over it."""
        cap = CAP + 900 * (step == 3 and self.rank == 1)
        bins: list[list[int]] = []
        for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            home = next((b for b in bins if sum(lengths[i] for i in b) + lengths[index] <= cap), None)
            bins.append([index]) if home is None else home.append(index)
        return bins + [[] for _ in range(8 - len(bins))]

    def fates(self, step: int, tokens: int) -> None:
        nothing = tokens // (3 + step % 2)
        for fate, count in (("no_advantage", nothing), ("carried", tokens - nothing)):
            row = TokenFate(
                batch_id=step,
                source="probe.samples",
                fate=fate,
                tokens=count,
                samples=16,
                batch_tokens=tokens,
                batch_samples=32,
                kept_samples=32,
            )
            self.add(row, step=step)

    def open(self, kind: str, name: str, parent: int | None, stamp: Stamp, allocated: float) -> tuple[int, int]:
        self.scopes += 1
        self.memory("enter", kind, name, parent, self.scopes, stamp, allocated)
        self.now += MS // 4
        return self.scopes, self.now

    def memory(
        self, edge: str, kind: str, name: str, parent: int | None, scope: int, stamp: Stamp, now: float, **more: Any
    ) -> None:
        gpu = self.accelerator
        row = Memory(
            edge=edge,
            kind=kind,
            name=name,
            parent_id=parent,
            device="cuda:0" if gpu else "cpu",
            source="cuda" if gpu else "process_rss",
            allocated_bytes=int(now),
            reserved_bytes=int(now * 1.12) if gpu else None,
            process_rss_bytes=None if gpu else int(now),
            **more,
        )
        self.add(row, scope_id=scope, scope=name, **stamp)

    def sample(self) -> None:
        gpu, now = self.accelerator, self.base
        row = Memory(
            edge="sample",
            device="cuda:0" if gpu else "cpu",
            source="cuda" if gpu else "process_rss",
            allocated_bytes=int(now),
            reserved_bytes=int(now * 1.12) if gpu else None,
            device_total_bytes=80 * GIB if gpu else 8 * GIB,
            device_used_bytes=int(now * 1.12 + 2 * GIB) if gpu else 5 * GIB,
            non_torch_bytes=2 * GIB if gpu else None,
            process_rss_bytes=3 * GIB if gpu else int(now),
        )
        self.add(row)

    def close(
        self, kind: str, name: str, parent: int | None, stamp: Stamp, scope: int, begin: int, peak: float
    ) -> float:
        duration = self.now - begin
        self.memory(
            "leave",
            kind,
            name,
            parent,
            scope,
            stamp,
            self.base,
            peak_allocated_bytes=int(peak),
            peak_reserved_bytes=int(peak * 1.12) if self.accelerator else None,
            peak_kind="exact" if self.accelerator else "at_least",
            host_duration_ns=duration,
        )
        call = Call(point=f"scope.{kind}", name=name, begin_ns=begin, duration_ns=duration)
        self.add(call, scope_id=scope, scope=name, **stamp)
        self.now += MS // 5
        return peak

    def phase(self, name: str, role: str | None, parent: int, stamp: Stamp, extra: float, duration_ms: float) -> float:
        stamp = {**stamp, "role": role, "phase": name}
        scope, begin = self.open("phase", name, parent, stamp, self.base)
        self.now += int(duration_ms * MS)
        return self.close("phase", name, parent, stamp, scope, begin, self.base + extra * self.unit)

    def batch(self, name: str, parent: int, stamp: Stamp, lengths: list[int], gib_per_cap: float) -> float:
        stamp = {**stamp, "role": self.actor, "phase": name}
        cuts = self.cuts(stamp["step"], lengths)
        scope, begin = self.open("phase", name, parent, stamp, self.base + 2 * self.unit)
        self.batches += 1
        for index, cut in enumerate(cuts):
            self.add(
                _micro_batch(self.batches, len(cuts), [lengths[i] for i in cut], cut),
                micro_batch=index,
                **stamp,
            )
        for index, cut in enumerate(cuts):
            stamp_mb = {**stamp, "micro_batch": index}
            self.padding("seqlen_balancing.partition", [lengths[i] for i in cut], 10_000 + 10 * scope + index, stamp_mb)
        peaks = [
            self.micro(name, scope, stamp, i, [lengths[j] for j in cut], gib_per_cap) for i, cut in enumerate(cuts)
        ]
        return self.close("phase", name, parent, stamp, scope, begin, max(peaks))

    def micro(self, name: str, parent: int, stamp: Stamp, index: int, lengths: list[int], gib: float) -> float:
        stamp = {**stamp, "micro_batch": index}
        tokens = sum(lengths)
        scope, begin = self.open("micro_batch", f"micro_batch {index}", parent, stamp, self.base + 2 * self.unit)
        self.now += int(tokens * (gib / 9) * 0.02 * MS) + MS
        peak = self.base + (2 + gib * (tokens / CAP) * 3.2) * self.unit
        return self.close("micro_batch", f"micro_batch {index}", parent, stamp, scope, begin, peak)

    def padding(self, source: str, lengths: list[int], batch_id: int, stamp: Stamp) -> None:
        rows, valid, imposed = len(lengths), sum(lengths), 2048
        longest = max(lengths, default=0)
        causes = {"longest_row": rows * longest - valid, "fixed_width": rows * (imposed - longest)}
        causes = causes if rows else {"none": 0}
        for field, width in {"input_ids": 8, "position_ids": 8, "response_mask": 1}.items():
            for cause, tokens in causes.items():
                row = Padding(
                    batch_id=batch_id,
                    source=source,
                    field=field,
                    cause=cause,
                    tokens=tokens,
                    bytes=tokens * width,
                    rectangle_tokens=rows * imposed,
                    valid_tokens=valid,
                    rows=rows,
                    width_tokens=imposed,
                )
                self.add(row, **stamp)

    def reductions(self, step: int) -> None:
        loss = [0.9 / (step + 1) + self.random.random() * 0.1 for _ in range(8)]
        for key, reducer, value in (
            ("actor/pg_loss", "mean", sum(loss) / 8),
            ("actor/grad_norm_max", "max", max(loss)),
            ("timing/update_actor", "min", min(loss)),
        ):
            row = Reduction(
                key=key,
                reducer=reducer,
                chosen_by="name",
                count=8,
                smallest=min(loss),
                largest=max(loss),
                nan_count=int(step == 5 and key == "actor/pg_loss"),
                value=value,
            )
            self.add(row, step=step)
        for key, value in (
            ("probe/cost/hooks_ms", 1.9 + 0.4 * self.random.random()),
            ("probe/cost/writer_cpu_ms", 5.2 + self.random.random()),
            ("probe/cost/step_ms", 1500.0),
            ("probe/cost/overhead_ms", 2.25 + 0.6 * (ratio := self.random.random())),
            ("probe/cost/overhead_ratio", (2.25 + 0.6 * ratio) / 1500.0),
        ):
            self.add(Scalar(key=key, value=value, source="probe"), step=step)
        reward = 0.1 + 0.06 * step
        self.add(Scalar(key="critic/rewards/mean", value=reward, source="user"), step=step)


def _micro_batch(batch_id: int, count: int, lengths: list[int], indices: list[int]) -> MicroBatch:
    tokens = sum(lengths)
    return MicroBatch(
        batch_id=batch_id,
        micro_batches=count,
        sequences=len(lengths),
        lengths=lengths,
        indices=indices,
        tokens=tokens,
        width_tokens=max(lengths, default=0),
        cap_tokens=CAP,
        utilisation_ratio=tokens / CAP,
        over_cap=tokens > CAP,
        workload=float(sum(24_576 * n + n * n for n in lengths)),
        source="seqlen_balancing.rearrange_micro_batches",
    )
