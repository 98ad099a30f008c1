"""Made-up runs for the rules about scopes: nested at will, batches cut and run in many ways, rows in any order."""

from __future__ import annotations

import random
from typing import Any

from probe.records import Call, Memory, MicroBatch, Row
from tests.sample_run import MS, clock


class Teller:
    """Tells what one rank does, as its recorders would.

    Args:
        told_by: "memory" or "calls". samples: whether open scopes are told of by the sampler.
    """

    def __init__(self, rank: int, *, told_by: str = "memory", chance: random.Random | None = None) -> None:
        self.rank, self.told_by, self.chance = rank, told_by, chance
        self.now = clock(rank) + MS
        self.rows: list[Row] = []
        self.scope = Open(self, None, "process", "process")
        self.ids = 0
        self.batches = 0

    def tick(self) -> int:
        self.now += MS
        return self.now

    def enter(self, kind: str, name: str, **where: Any) -> Open:
        self.scope = Open(self, self.scope, kind, name, **where)
        return self.scope

    def cut(self, *tokens: int) -> int:
        """A batch is cut into micro-batches of so many tokens; the number of the batch."""
        self.batches += 1
        at = self.tick()
        for index, one in enumerate(tokens):
            row = MicroBatch(
                batch_id=self.batches, micro_batches=len(tokens), sequences=1, lengths=[one], tokens=one, time_ns=at
            )
            self.rows.append(self.scope.stamp(row, micro_batch=index))
        return self.batches

    def run(self, index: int, peak: int = 1) -> None:
        """A micro-batch in a scope of its own."""
        with self.enter("micro_batch", str(index), micro_batch=index) as opened:
            opened.peak = peak

    def cut_and_run(self, *tokens: int) -> None:
        self.cut(*tokens)
        for index in range(len(tokens)):
            self.run(index)


class Open:
    """An open scope; what it inherits is as in ``probe.hooks.Scope``."""

    told: bool

    def __init__(self, teller: Teller, parent: Open | None, kind: str, name: str, **where: Any) -> None:
        self.teller, self.parent, self.kind, self.name = teller, parent, kind, name
        if parent is not None:
            teller.ids += 1
        self.id = 0 if parent is None else teller.ids
        names = ("step", "role", "phase", "micro_batch")
        self.where: dict[str, Any] = {one: where.get(one, parent.where[one] if parent else None) for one in names}
        self.path: str = name if parent is None or parent.parent is None else f"{parent.path}/{name}"
        self.peak = 1
        self.peak_kind = "exact"

    def stamp(self, row: Row, **where: Any) -> Row:
        for name, value in {**self.where, **where}.items():
            setattr(row, name, value)
        row.rank, row.scope_id = self.teller.rank, self.id
        row.scope = "" if self.parent is None else self.path
        return row

    def _memory(self, edge: str, at: int) -> Memory:
        assert self.parent is not None
        row = Memory(edge=edge, kind=self.kind, name=self.name, parent_id=self.parent.id, source="fake", time_ns=at)
        self.stamp(row)
        return row

    def sampled(self) -> None:
        """The sampler tells that it has begun."""
        if self.parent is not None and self.teller.told_by == "memory" and not self.told:
            self.told = True
            self.teller.rows.append(self._memory("enter", self.begin))

    def __enter__(self) -> Open:
        self.begin = self.teller.tick()
        self.told = False
        return self

    def __exit__(self, *_: object) -> None:
        teller = self.teller
        assert self.parent is not None
        end = teller.tick()
        if teller.told_by == "calls":
            row = Call(
                point=f"scope.{self.kind}",
                name=self.name,
                begin_ns=self.begin,
                duration_ns=end - self.begin,
                time_ns=end,
            )
            teller.rows.append(self.stamp(row))
        else:
            if not self.told:
                teller.rows.append(self._memory("enter", self.begin))
            left = self._memory("leave", end)
            left.host_duration_ns = end - self.begin
            left.peak_allocated_bytes, left.peak_kind = self.peak, self.peak_kind
            teller.rows.append(left)
        self.parent.peak = max(self.parent.peak, self.peak)
        teller.scope = self.parent


def random_rows(rank: int, seed: int, *, told_by: str = "memory", steps: int = 2) -> list[Row]:
    """A rank that does anything that scopes allow."""
    chance = random.Random(seed * 31 + rank)
    teller = Teller(rank, told_by=told_by)
    if chance.random() < 0.3:
        with teller.enter("phase", "train", phase="train"):
            _steps(teller, chance, steps)
    else:
        _steps(teller, chance, steps)
    return teller.rows


def _steps(teller: Teller, chance: random.Random, steps: int) -> None:
    for step in range(steps):
        with teller.enter("step", "step", step=step):
            for _ in range(chance.randrange(1, 4)):
                _block(teller, chance, 0)


def _block(teller: Teller, chance: random.Random, depth: int) -> None:
    kind = chance.choice(("phase", "watch", "watch", "custom"))
    name = chance.choice(("a", "b", "a/b"))
    where: dict[str, Any] = {"role": chance.choice((None, "r", "q")) or teller.scope.where["role"]}
    if kind == "phase" or (kind == "watch" and (teller.scope.where["phase"] is None or chance.random() < 0.2)):
        where["phase"] = name
    with teller.enter(kind, name, **where) as opened:
        opened.peak = chance.randrange(1, 6)
        opened.peak_kind = chance.choice(("exact", "exact", "at_most"))
        for _ in range(chance.randrange(5)):
            what = chance.random()
            if what < 0.35:
                teller.cut(*(chance.randrange(3) for _ in range(chance.randrange(1, 4))))
            elif what < 0.75:
                teller.run(chance.randrange(3), chance.randrange(1, 7))
            elif what < 0.85:
                opened.sampled()
            elif depth < 3:
                _block(teller, chance, depth + 1)


def disordered(rows: list[Row], seed: int) -> list[Row]:
    """Rows as they may come: those that wait for the device, or for the writer's thread, some dozens of places late.

    Calls wait for nothing, and the begin of a scope is never told after its end.
    """
    chance = random.Random(seed)
    lates = [chance.choice((0, 0, 0, chance.randrange(40))) for _ in rows]
    waits = [not isinstance(row, Call) and getattr(row, "edge", "") != "enter" for row in rows]
    places = [index + late * wait for index, (late, wait) in enumerate(zip(lates, waits, strict=True))]
    return [row for _, _, row in sorted(zip(places, range(len(rows)), rows, strict=True), key=lambda one: one[:2])]
