"""The numbers of a run, step by step: the tiles of the panel's overview, and the phases.

They are read from the live tables by the very specs that the panel reads, so that both show the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from probe import dashboards
from probe.dashboards.quantities import field_of
from probe.dashboards.standing import status_of
from probe.live import series
from probe.live.feed import Feed
from probe.live.tables import LiveTable, Words
from probe.views.panel.static_bundle import Reading, readings

Tables = Mapping[str, LiveTable]


@dataclass(frozen=True)
class Number:
    """One tile.

    Attributes:
        id: The id of the tile.
        unit: One of :data:`probe.dashboards.spec.UNITS`.
        by_step: Its value at each step.
        limits: From where on it is to be looked at ("warn", "alarm"), in its own unit.
        capacity: What it is measured against, NaN without.
        reading: What it was over the run.
        better: "lower" or "higher".
        before: The part of what is counted over the run that belongs to no step; NaN where nothing is counted.
    """

    id: str
    title: str
    unit: str
    by_step: Mapping[int, float]
    limits: Mapping[str, float]
    capacity: float
    reading: Reading
    better: str = "lower"
    before: float = math.nan

    @property
    def counts(self) -> bool:
        """Whether it is counted over the run."""
        return not math.isnan(self.before)

    @property
    def field(self) -> str:
        """Its name in JSON, with its unit.

        >>> from probe.views.panel.static_bundle import Reading
        >>> reading = Reading("Step time", "s", "", "", "", "none")
        >>> Number("step_time", "Step time", "s", {}, {}, float("nan"), reading).field
        'step_time_s'
        """
        return field_of({"id": self.id, "unit": self.unit})

    def at(self, step: int | None) -> float:
        """The value at a step, NaN where there is none; of what is counted all up to then."""
        if self.counts:
            return self.before + sum(value for one, value in self.by_step.items() if step is None or one <= step)
        return math.nan if step is None else self.by_step.get(step, math.nan)

    def status(self, step: int | None) -> str:
        """ "good", "warn" or "alarm" at a step; "none" where nothing can be said."""
        return status_of({**self.limits, "better": self.better}, self.at(step))


@dataclass(frozen=True)
class Phase:
    """A phase in one step.

    Attributes:
        time_s: Host time on the slowest process; NaN where it isn't known.
        peak_bytes: The largest peak of any rank; NaN where it isn't known.
        tokens: Tokens of its micro-batches on all ranks; NaN where it isn't known.
    """

    name: str
    time_s: float
    peak_bytes: float
    tokens: float


@dataclass(frozen=True)
class Numbers:
    """All numbers of a run as it is now.

    Attributes:
        tiles: The tiles in the panel's order.
        steps_per_second: Steps per second of the newest steps, in the run's own time; NaN for fewer than two.
    """

    tiles: list[Number]
    steps_per_second: float = math.nan
    _times: dict[str, dict[int, float]] = field(default_factory=dict)
    _peaks: dict[str, dict[int, float]] = field(default_factory=dict)
    _tokens: dict[str, dict[int, float]] = field(default_factory=dict)

    def phases(self, step: int | None) -> list[Phase]:
        """The phases of a step, the longest first."""
        if step is None:
            return []
        found = [
            Phase(name, times[step], *(told[name].get(step, math.nan) for told in (self._peaks, self._tokens)))
            for name, times in self._times.items()
            if step in times
        ]
        return sorted(found, key=lambda one: (-np.nan_to_num(one.time_s), one.name))


def read(feed: Feed) -> Numbers:
    """The numbers of what ``feed`` has read so far."""
    with series.at_one_moment():
        return _read(feed)


def _read(feed: Feed) -> Numbers:
    tables, words = feed.tables, feed.words
    tiles = dashboards.overview_tiles()
    told = zip(tiles, readings(tables, words, tiles, feed.complete_step), strict=True)
    names = _phases(tables["spans"], words)
    times, peaks, tokens = ({name: _of_phase(feed, spec, name) for name in names} for spec in _phase_specs())
    speed = steps_per_second(tables["spans"], words)
    return Numbers([_number(tables, words, *one) for one in told], speed, times, peaks, tokens)


def _number(tables: Tables, words: Words, tile: Mapping[str, Any], reading: Reading) -> Number:
    steps, values = series.by_step(tables, words, tile)
    capacity = math.nan
    if "capacity" in tile:
        capacity = series.total(tables, words, {"reduce": "max", **tile["capacity"]}) or math.nan
    before = math.nan
    if tile.get("total"):
        before = series.total(tables, words, tile) - sum(values)
    share = 1.0 if "capacity" not in tile else capacity  # limits are shares of it then
    limits = {name: tile[name] * share for name in ("warn", "alarm") if name in tile and not math.isnan(share)}
    return Number(
        id=str(tile["id"]),
        title=str(tile["title"]),
        unit=str(tile.get("unit", "number")),
        by_step=dict(zip(steps, values, strict=True)),
        limits=limits,
        capacity=capacity,
        reading=reading,
        better=str(tile.get("better", "lower")),
        before=before,
    )


# ---------------------------------------------------------------------------------------------------- phases


@cache
def _phase_specs() -> tuple[Mapping[str, Any], ...]:
    """Time, peak and tokens of a phase, each of the rows that the panel's "Time of each phase" shows."""
    live = dashboards.panel("phase_durations").live or {}
    scopes = {"table": "spans", "where": live.get("where", {})}
    return (
        {**scopes, "y": "duration", "each": "process", "reduce": "max"},
        {**scopes, "y": "peak", "reduce": "max"},
        {"table": "micro", "where": {}, "y": "tokens", "reduce": "sum"},
    )


def _phases(spans: LiveTable, words: Words) -> list[str]:
    codes = np.unique(spans.columns()["phase"]).tolist()
    return [words.texts[code] for code in codes if code >= 0]


def _of_phase(feed: Feed, spec: Mapping[str, Any], phase: str) -> dict[int, float]:
    own = {**spec, "where": {**spec["where"], "phase": [phase]}}
    return dict(zip(*series.by_step(feed.tables, feed.words, own), strict=True))


def steps_per_second(spans: LiveTable, words: Words, newest: int = 20) -> float:
    """How fast the newest steps follow each other, by when they began."""
    columns = spans.columns()
    kinds = [code for code, text in enumerate(words.texts) if text == "step"]
    here = np.isin(columns["kind"], kinds) & (columns["step"] >= 0) & ~np.isnan(columns["begin"])
    begun: dict[int, float] = {}
    for step, begin in zip(columns["step"][here].tolist(), columns["begin"][here].tolist(), strict=True):
        begun[step] = min(begin, begun.get(step, begin))
    times: Sequence[float] = [begun[step] for step in sorted(begun)[-newest:]]
    took = times[-1] - times[0] if times else 0.0
    return (len(times) - 1) / took if took > 0 else math.nan
