"""What tiles say and judge: nothing without data, who stands out, and the trainer's own reward."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from probe.analysis import overview
from probe.analysis.quantities import course, courses
from probe.analysis.verdict import findings
from probe.dashboards import overview_tiles
from probe.dashboards.courses import Course
from probe.dashboards.outstanding import who_stands_out
from probe.dashboards.quantities import quantities, quantity
from probe.dashboards.spec import check_tiles
from probe.dashboards.spelling import spell
from probe.dashboards.standing import standing
from probe.errors import InputError
from probe.records import Memory, Row, Scalar
from probe.runs.reader import Run
from probe.views.panel import static_bundle
from probe.views.terminal import numbers as terminal
from tests.live.live_run import opened
from tests.sample_run import clock, sample_rows, write_run

# --------------------------------------------------------------------------------------- no verdict without data


def test_e_a_pooled_quantity_is_a_ratio_of_sums_of_its_worst_series() -> None:
    spec = {"unit": "percent", "pooled": True, "warn": 0.01, "alarm": 0.05, "window": 4}
    parts = [{(0,): (0.0, 1.0), (1,): (0.1, 1.0)}] * 3 + [{(0,): (1.08, 1.0), (1,): (0.1, 1.0)}]
    told = standing(spec, Course(range(5), [math.nan, 0.1, 0.1, 0.1, 1.08], parts=[{(0,): (99.0, math.nan)}, *parts]))
    assert (told.value, told.text, told.status) == (pytest.approx(0.27), "27 %", "alarm")  # the median is 10 %
    assert told.note == "The last 4 steps together."
    assert math.isnan(standing(spec, Course([0], [math.nan], parts=[{(0,): (1.0, math.nan)}])).value)
    with pytest.raises(InputError, match="pooled: got it without a divide"):
        check_tiles([{"id": "a", "title": "A", "table": "scalars", "y": "value", "pooled": True}], "here")


def test_d_a_tile_judges_the_median_of_its_window() -> None:
    tile = {"unit": "ratio", "warn": 1.1, "window": 3, "means": {"good": "even", "warn": "uneven"}}
    early = standing(tile, Course(range(6), [9.0, 9.0, 9.0, 1.0, 1.0, 1.0]))
    assert (early.value, early.status, early.means) == (1.0, "good", "even")  # what is long over counts no more
    assert early.note == "1.00× in 3 steps."
    once = standing(tile, Course(range(4), [1.0, 1.0, 1.0, 9.0]))
    assert once.status == "good"  # one step alone is no verdict
    assert standing(tile, Course(range(5), [1.0, 1.2, 1.2, math.nan, math.nan])).value == 1.2
    counted = standing({**tile, "unit": "bytes"}, Course(range(4), [9.0, 1.0, 1.0, 1.0]))
    assert (counted.value, counted.note) == (9.0, "1 to 9 B in 4 steps.")
    alone = standing(tile, Course([4], [1.0]))
    assert alone.note == "Of one step."


@pytest.mark.parametrize("view", ["report", "saved copy", "tail"])
def test_d_each_view_says_the_median_of_the_same_steps(tmp_path: Path, view: str) -> None:
    """25 steps: of the first 5, which took ten times as long, nothing is left."""
    seconds = [10.0] * 5 + [1.0 + 0.02 * step for step in range(20)]
    rows: list[Row] = []
    for step, took in enumerate(seconds):
        place: dict[str, Any] = {"step": step, "kind": "step", "name": "step", "scope_id": step + 1}
        begin = clock(0) + step * 20_000_000_000
        end = begin + int(took * 1e9)
        rows.append(Memory(time_ns=begin, edge="enter", **place))
        rows.append(Memory(time_ns=end, edge="leave", host_duration_ns=end - begin, **place))
    tiles = tiles_of(write_run(tmp_path / "run", {0: rows}), view)
    middle = statistics.median(seconds[5:])
    assert tiles["step_time"][:2] == (spell(middle, "s"), "1.00 to 1.38 s in 20 steps.")


Told = tuple[str, str, str, str]


def tiles_of(directory: Path, view: str) -> dict[str, Told]:
    """Of each tile its text, note, meaning and status, as a view says them."""
    ids = [tile["id"] for tile in overview_tiles()]
    if view == "report":
        with Run(directory) as run:
            frame = overview.numbers(run)
        told = zip(*(frame[name] for name in ("text", "note", "about", "status")), strict=True)
        return dict(zip(frame["name"], told, strict=True))
    feed = opened(directory)
    found = (
        static_bundle.readings(feed.tables, feed.words, overview_tiles())
        if view == "saved copy"
        else [one.reading for one in terminal.read(feed).tiles]
    )
    return {name: (one.text, one.note, one.means, one.status) for name, one in zip(ids, found, strict=True)}


@pytest.mark.parametrize("view", ["report", "saved copy", "tail"])
def test_d_the_tiles_of_an_empty_run_say_why_they_are_empty_and_judge_nothing(tmp_path: Path, view: str) -> None:
    told = tiles_of(write_run(tmp_path / "run", {}), view)
    assert {(text, means, status) for text, _, means, status in told.values()} == {("–", "", "none")}
    assert {name: note for name, (_, note, _, _) in told.items()} == {
        "step_time": "No step has ended.",
        "tokens_per_second": "No micro-batches were cut.",
        "peak_memory": "No memory was recorded.",
        "rank_imbalance": "Needs two or more ranks that cut micro-batches.",
        "padding_tax": "No padded batch was formed.",
        "reward": "Your trainer has not logged it.",
        "own_cost": "No step after the first has ended.",
        "alerts": "Nothing was recorded yet.",
    }


@pytest.mark.parametrize("view", ["report", "saved copy", "tail"])
def test_d_a_lone_rank_is_compared_with_nobody(tmp_path: Path, view: str) -> None:
    told = tiles_of(write_run(tmp_path / "run", sample_rows(1, 3)), view)
    assert told["rank_imbalance"] == ("–", "Needs two or more ranks that cut micro-batches.", "", "none")


def test_d_no_quantity_over_ranks_says_anything_of_a_lone_rank(tmp_path: Path) -> None:
    with Run(write_run(tmp_path / "run", sample_rows(1, 3))) as run:
        frame = overview.by_step(run)
        said = " ".join(one.sentence for one in findings(run))
    assert frame[["rank_imbalance_ratio", "sync_wait_ratio"]].isna().all(axis=None)
    assert frame["micro_batch_imbalance_ratio"].notna().all()
    assert "fullest rank" not in said
    assert "nan" not in said
    assert "wait for each other" not in said


def test_d_a_value_that_nothing_is_known_to_compare_with_is_not_judged() -> None:
    peak = {"unit": "bytes", "warn": 0.5, "means": {"good": "There is room."}, "capacity": {}}
    told = standing(peak, Course([0], [1024.0]))
    assert (told.status, told.means) == ("none", "No capacity is known to compare it with.")


def test_d_every_quantity_says_why_it_may_be_missing() -> None:
    assert all(one["missing"]["rows"] for one in quantities().values())


@pytest.mark.parametrize("missing", ["nothing", {"why": "x"}, {"rows": 3}])
def test_a_reason_that_can_not_be_said_is_refused(missing: object) -> None:
    tile = {"id": "a", "title": "A", "table": "spans", "y": "peak", "missing": missing}
    with pytest.raises(InputError, match="tiles 0: missing"):
        check_tiles([tile], "tiles")


# ------------------------------------------------------------------------------------------------- who stands out


@pytest.mark.parametrize("seed", range(4))
def test_d_sql_and_kernel_name_the_same_rank(tmp_path: Path, seed: int) -> None:
    directory = write_run(tmp_path / "run", sample_rows(4, 25, seed=seed))
    tiles = [tile for tile in overview_tiles() if "who" in tile]
    assert {tile["id"] for tile in tiles} == {"step_time", "peak_memory", "rank_imbalance", "padding_tax"}
    feed = opened(directory)
    with Run(directory) as run:
        asked = courses(run, tiles, compared=True)
    for tile, found in zip(tiles, asked, strict=True):
        live = static_bundle.course_of(feed.tables, feed.words, tile)
        ours, theirs = who_stands_out(tile, found.by_rank), who_stands_out(tile, live.by_rank)
        assert ours is not None
        assert theirs is not None
        assert (ours.rank, ours.ranks, ours.stands_out) == (theirs.rank, theirs.ranks, theirs.stands_out), tile["id"]
        assert ours.value == pytest.approx(theirs.value, rel=1e-12)
        assert ours.others == pytest.approx(theirs.others, rel=1e-12)


def test_d_a_tile_names_the_rank_that_stands_out_and_no_other() -> None:
    tile = {"id": "t", "table": "spans", "y": "duration", "unit": "s", "who": "rank", "window": 20}
    slow = {(step, rank): 2.0 if rank == 3 else 1.0 for step in range(5) for rank in range(4)}
    course = Course(range(5), [2.0] * 5, by_rank=slow)
    assert standing(tile, course).who == "Rank 3: 2.00 s, the other 3 ranks: 1.00 s."
    near = {place: 1.05 if place[1] == 3 else 1.0 for place in slow}
    assert standing(tile, Course(range(5), [1.05] * 5, by_rank=near)).who == "No rank stands out: 1.00 s to 1.05 s."
    short = {place: value for place, value in slow.items() if place[0] < 2}  # too few steps to judge by
    assert standing(tile, Course(range(2), [2.0] * 2, by_rank=short)).who == "4 ranks: 1.00 s to 2.00 s."
    alone = {place: value for place, value in slow.items() if place[1] == 3}
    assert standing(tile, Course(range(5), [2.0] * 5, by_rank=alone)).who == ""
    once = {**dict.fromkeys(slow, 1.0), (4, 2): 30.0}  # one slow step is no habit
    assert standing(tile, Course(range(5), [1.0] * 4 + [30.0], by_rank=once)).who.startswith("No rank stands out")


@pytest.mark.parametrize(
    ("who", "message"),
    [
        ("nope", "who: got 'nope'"),
        ({"table": "micro", "y": "tokens"}, "who: by: got None"),
        ({"table": "micro", "y": "tokens", "by": ["rank", "phase"]}, "who: by: got"),
        (3, "who: got 3, expected a mapping"),
    ],
)
def test_d_who_is_compared_must_be_said_right(who: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_tiles([{"id": "t", "title": "T", "table": "spans", "y": "duration", "who": who}], "tiles")


# --------------------------------------------------------------------------------------------- the trainer's own reward


def logged(step: int, key: str, value: float, rank: int = 0, source: str = "user") -> Scalar:
    return Scalar(time_ns=clock(rank) + step * 1_000_000_000, key=key, value=value, step=step, source=source)


@pytest.mark.parametrize("view", ["report", "saved copy", "tail"])
def test_g_the_sixth_tile_is_the_trainer_s_own_reward_and_is_not_judged(tmp_path: Path, view: str) -> None:
    assert [tile["id"] for tile in overview_tiles() if not tile.get("own")][5] == "reward"
    rows = {0: [logged(step, "critic/rewards/mean", 0.25 * step) for step in range(3)]}
    told = tiles_of(write_run(tmp_path / "run", rows), view)["reward"]
    assert told == ("0.25", "0 to 0.5 in 3 steps.", "Logged by the trainer.", "none")
    none = tiles_of(write_run(tmp_path / "none", {0: [logged(0, "loss", 1.0)]}), view)["reward"]
    assert none == ("–", "Your trainer has not logged it.", "", "none")


def test_g_the_reward_of_a_step_is_the_mean_of_the_first_name_that_it_has(tmp_path: Path) -> None:
    rows = {
        0: [
            logged(0, "critic/rewards/mean", 9.0),  # after the KL penalty: the score comes first
            logged(0, "critic/score/mean", 1.0),
            logged(1, "reward", math.nan),  # is no value, so that the next name counts
            logged(1, "train/reward", 0.5),
            logged(2, "probe/reward/mean", 7.0),
            logged(2, "reward/mean", 7.0, source="probe"),  # not the trainer's
            logged(3, "reward/std", 7.0),  # none of the names
        ],
        1: [logged(0, "critic/score/mean", 3.0, rank=1)],  # the mean over those that log it
    }
    directory = write_run(tmp_path / "run", rows)
    feed = opened(directory)
    live = static_bundle.course_of(feed.tables, feed.words, quantity("reward"))
    with Run(directory) as run:
        found = course(run, "reward")
    for one in (found, live):
        assert dict(zip(one.steps, one.values, strict=True)) == {0: 2.0, 1: 0.5}


@pytest.mark.parametrize(
    "more",
    [
        {"first": "key"},
        {"first": "key", "where": {"key": "reward"}},
        {"first": "key", "where": {"key": ["reward*"]}},
        {"first": 3, "where": {"key": ["reward"]}},
        {"first": "key", "where": {"key": ["reward"]}, "per": "rank"},
    ],
)
def test_g_what_comes_first_must_be_a_list_of_whole_texts(more: dict) -> None:
    with pytest.raises(InputError, match="first: got"):
        check_tiles([{"id": "a", "title": "A", "table": "scalars", "y": "value", **more}], "tiles")
