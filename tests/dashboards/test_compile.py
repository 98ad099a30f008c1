"""A series spec gives the same numbers by SQL over the run's files and by the live reducers over its live tables."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from probe import dashboards
from probe.analysis.quantities import course
from probe.dashboards import compile as sql
from probe.dashboards.courses import over_run, over_window
from probe.dashboards.quantities import quantities, series_of
from probe.dashboards.spec import SERIES, listed
from probe.live import series
from probe.live.feed import Feed
from probe.records import Incident, MicroBatch, Padding, Row, Scalar
from probe.runs.reader import Run
from probe.views.panel import static_bundle
from tests.live.live_run import opened
from tests.live.nested_run import random_rows
from tests.sample_run import MS, clock, sample_rows, write_run

#: Marks whose numbers are series; the others show rows.
SUMMED = ("line", "stack", "bars", "heat")


class Both(NamedTuple):
    """One run, read both ways."""

    feed: Feed
    run: Run


def batches(rank: int, chance: random.Random) -> Iterator[Row]:
    """Batches that are cut, and what of them is padding, at random."""
    for batch in range(chance.randrange(1, 12)):
        at = {"time_ns": clock(rank) + (500 + batch) * MS, "batch_id": 100 + batch}
        where = {"step": chance.choice((None, 0, 1, 2)), "phase": chance.choice((None, "a", "b"))}
        many = chance.randrange(1, 4)
        for index in range(many):
            lengths = [chance.randrange(9) for _ in range(chance.randrange(4))]
            width, tokens = chance.choice((None, 9)), sum(lengths)
            told: dict[str, Any] = {"sequences": len(lengths), "lengths": lengths, "tokens": tokens}
            told |= {"width_tokens": width, "cap_tokens": chance.choice((None, 12)), "over_cap": tokens > 12}
            yield MicroBatch(**at, **where, **told, micro_batches=many, micro_batch=index)
        yield from padding(chance, {**at, "step": where["step"]})


def padding(chance: random.Random, at: Mapping[str, Any]) -> Iterator[Row]:
    source = chance.choice(("seqlen_balancing.partition", "packing.packed", "codec.packed", "data_proto.from_dict"))
    for field in chance.sample(("input_ids", "mask", "a'b"), chance.randrange(1, 4)):
        rectangle = chance.randrange(20)
        for cause in chance.sample(("longest_row", "rounding", "none"), chance.randrange(1, 3)):
            numbers = {"tokens": chance.randrange(9), "bytes": chance.randrange(99)}
            size = {"rectangle_tokens": rectangle, "valid_tokens": chance.randrange(9)}
            yield Padding(**at, **numbers, **size, source=source, field=field, cause=cause)


def others(rank: int, chance: random.Random) -> Iterator[Row]:
    for index in range(chance.randrange(8)):
        at: dict[str, Any] = {"time_ns": clock(rank) + index * MS, "step": chance.choice((None, 0, 1, 5))}
        value = chance.choice((math.nan, 0.0, chance.random(), -1.0))
        key = chance.choice(("probe/cost/overhead_ms", "probe/cost/step_ms", "loss"))
        yield Scalar(**at, key=key, value=value, source="probe" if key.startswith("probe") else "user")
        kind = chance.choice(("listener", "backend"))
        yield Incident(**at, kind=kind, where="w", message="m", count=chance.randrange(1, 5))


def random_run(seed: int) -> dict[int, list[Row]]:
    chance = random.Random(seed)
    told_by = chance.choice(("memory", "calls"))
    rows = {}
    for rank in range(chance.randrange(1, 4)):
        own = [*batches(rank, chance), *others(rank, chance)]
        rows[rank] = sorted([*random_rows(rank, seed, told_by=told_by), *own], key=lambda row: row.time_ns)
    return rows


@pytest.fixture(scope="module", params=["sample", 1, 2, 3, 4, 5], ids=lambda seed: f"run {seed}")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    rows = sample_rows(3, 4) if request.param == "sample" else random_run(request.param)
    directory = write_run(tmp_path_factory.mktemp("both") / "run", rows)
    with Run(directory) as run:
        yield Both(opened(directory), run)


def same(found: Any, expected: Any, unit: str) -> None:
    """Whole numbers exactly, others to 12 digits."""
    assert found.keys() == expected.keys()
    for place, value in expected.items():
        close = value == found[place] or (math.isnan(value) and math.isnan(found[place]))
        if not close and unit not in ("tokens", "count", "bytes"):
            close = math.isclose(found[place], value, rel_tol=1e-12, abs_tol=1e-15)
        assert close, (place, found[place], value)


def number(value: Any) -> float:
    return math.nan if value is None or type(value).__name__ == "NAType" else float(value)


def cell(value: Any) -> Any:
    return None if value is None or type(value).__name__ == "NAType" or value != value else value


@pytest.mark.parametrize("name", quantities())
def test_each_step_of_a_quantity_is_the_same_by_sql_and_in_the_kernel(both: Both, name: str) -> None:
    spec = quantities()[name]
    frame = both.run.sql(sql.by_step(spec))
    found = dict(zip(frame["step"].tolist(), map(number, frame["value"]), strict=True))
    same(found, dict(zip(*series.by_step(both.feed.tables, both.feed.words, spec), strict=True)), spec["unit"])


def test_e_what_probe_costs_is_one_ratio_of_sums_by_sql_and_in_the_kernel(both: Both) -> None:
    spec = {**quantities()["own_cost"], "window": 20}
    by_sql = course(both.run, "own_cost")
    live = static_bundle.course_of(both.feed.tables, both.feed.words, spec)
    for read in (over_run, over_window):
        same({0: read(spec, by_sql)}, {0: read(spec, live)}, "percent")


#: The quantities that have a value over the whole run: sums of ratios are asked for by nobody.
TOTALLED = [name for name in quantities() if series_of(name).get("reduce") not in ("ratio", "imbalance")]


@pytest.mark.parametrize("name", TOTALLED)
def test_the_whole_run_of_a_quantity_is_the_same(both: Both, name: str) -> None:
    spec = {field: value for field, value in series_of(name).items() if field != "divide"}
    found = number(both.run.sql(sql.total(spec))["value"][0])
    same({0: found}, {0: series.total(both.feed.tables, both.feed.words, spec)}, spec["unit"])


def summed_panels() -> dict[str, Mapping[str, Any]]:
    """The series of all panels that are sums, by panel and column."""
    found = {}
    for view in dashboards.views():
        for panel in view.panels:
            spec = {name: value for name, value in panel.live.items() if name in SERIES and name != "of"}
            if panel.live["mark"] in SUMMED and spec.get("x") != "time":
                found |= {f"{panel.id} {one}": {**spec, "y": one} for one in listed(spec["y"])}
    return found


@pytest.mark.parametrize("name", summed_panels())
def test_each_series_of_a_panel_is_the_same(both: Both, name: str) -> None:
    spec = summed_panels()[name]
    keys = [*listed(spec["x"]), *(one for one in listed(spec.get("by")) if one not in listed(spec["x"]))]
    frame = both.run.sql(sql.series(spec))
    places = [tuple(map(cell, place)) for place in zip(*(frame[key] for key in keys), strict=True)]
    found = dict(zip(places, map(number, frame["value"]), strict=True))
    same(found, series.cells(both.feed.tables, both.feed.words, spec), spec.get("unit", "number"))


@pytest.mark.parametrize(
    "more",
    [
        {"reduce": "min"},
        {"reduce": "mean", "each": "rank"},
        {"reduce": "count", "y": None},
        {"reduce": "sum", "by": ["phase", "rank"], "per": "micro_batch"},
        {"reduce": "sum", "by": ["phase"], "least": "rank"},
        {"reduce": "max", "least": ["rank", "phase"]},
        {"reduce": "imbalance", "each": "rank", "slots": ["micro_batch", "round"], "scale": 3},
        {"reduce": "sum", "scale": -2, "divide": {"table": "spans", "y": "duration", "reduce": "sum", "scale": 4}},
        {"reduce": "sum", "y": "padding"},
        {"y": "use"},
        {"reduce": "sum", "where": {"phase": ["a*", ""]}},
        {"reduce": "sum", "where": {"phase": {"not": "a"}, "over": 0}},
        {"reduce": "sum", "where": {"phase": "it's"}},
    ],
)
def test_every_field_of_the_grammar_means_the_same(both: Both, more: Mapping[str, Any]) -> None:
    spec = {"table": "micro", "y": "tokens", **more}
    frame = both.run.sql(sql.by_step(spec))
    found = dict(zip(frame["step"].tolist(), map(number, frame["value"]), strict=True))
    same(found, dict(zip(*series.by_step(both.feed.tables, both.feed.words, spec), strict=True)), "number")


def test_only_the_steps_that_are_asked_for_are_looked_at(tmp_path: Path) -> None:
    """Restricted to some steps each quantity says of them what it says without."""
    with Run(write_run(tmp_path / "run", sample_rows(2, 4))) as run:
        for spec in quantities().values():
            whole = run.sql(sql.by_step(spec)).set_index("step")["value"]
            some = run.sql(sql.by_step(spec, "step between 1 and 2")).set_index("step")["value"]
            assert some.to_dict() == whole[whole.index.isin([1, 2])].to_dict()
