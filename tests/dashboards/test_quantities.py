"""A quantity is defined in one place: what is changed there is changed in every view."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import yaml

from probe import dashboards
from probe.analysis import overview
from probe.analysis.quantities import course, courses
from probe.analysis.verdict import findings
from probe.dashboards import files, overview_tiles
from probe.dashboards.courses import Course, over_run
from probe.dashboards.outstanding import who_stands_out
from probe.dashboards.quantities import field_of, quantities, quantity, resolved, window_steps
from probe.dashboards.spec import check_tiles
from probe.dashboards.spelling import spell
from probe.dashboards.standing import standing
from probe.errors import InputError
from probe.live.feed import Feed
from probe.publishing import across_ranks
from probe.records import Incident, Memory, Row, Scalar
from probe.runs.reader import Run
from probe.tracking.state import State
from probe.tracking.tracking import Tracking
from probe.views.panel import static_bundle
from probe.views.panel.panel import Panel
from probe.views.report.report import report_html
from probe.views.terminal import numbers as terminal
from tests.live.live_run import opened
from tests.sample_run import clock, sample_rows, write_run
from tests.tracking.tracking_readers import mlflow_client, tensorboard_scalars

NAMES = tuple(quantities())

#: Those that the backends get: what the trainer logs itself they have already.
PUBLISHED = tuple(name for name in NAMES if name != "reward")

#: What findings say in numbers.
FOUND = ("peak_memory", "rank_imbalance", "micro_batch_imbalance", "padding_tax", "own_cost")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = sample_rows(2, 4)
    alert = Incident(time_ns=rows[0][-1].time_ns, step=2, kind="backend", where="mlflow", message="no answer", count=3)
    rows[0].append(alert)
    return write_run(tmp_path_factory.mktemp("quantities") / "run", rows)


@pytest.fixture(scope="module")
def feed(directory: Path) -> Feed:
    return opened(directory)


@pytest.fixture(scope="module")
def as_it_is(directory: Path, feed: Feed) -> Views:
    """What all views say before anything is changed."""
    return views_of(directory, feed)


@pytest.fixture(scope="module")
def sentences(directory: Path) -> str:
    """What is found before anything is changed."""
    return said_of(directory)


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Definitions may be changed; afterwards they are read anew."""
    yield monkeypatch
    monkeypatch.undo()
    forget()


def forget() -> None:
    for cached in (quantities, window_steps, dashboards.dashboards, dashboards.views):
        cached.cache_clear()


#: What is one quantity divided by another.
DIVIDED = tuple(one["id"] for one in yaml.safe_load(files.text("quantities"))["quantities"] if "quantity" in one)

#: Half of them are changed at a time, and the other half is as it was. What is divided is in one, what it is made of in
#: the other.
MADE_OF = ("step_time", "tokens", "tokens_processed")
OTHERS = tuple(name for name in NAMES if name not in DIVIDED + MADE_OF)
HALVES = (MADE_OF + OTHERS[::2], DIVIDED + OTHERS[1::2])


def double(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    """The one definition of each of these quantities says twice as much from now on."""
    data = yaml.safe_load(files.text("quantities"))
    for one in data["quantities"]:
        if one["id"] in names:
            one["scale"] = 2
    changed, before = yaml.safe_dump(data), files.text
    monkeypatch.setattr(files, "text", lambda asked: changed if asked == "quantities" else before(asked))
    forget()


def twice(found: list[float], before: list[float]) -> bool:
    known = [(one, other) for one, other in zip(found, before, strict=True) if not math.isnan(other)]
    return bool(known) and all(one == pytest.approx(2 * other, rel=1e-12) for one, other in known)


class Views(NamedTuple):
    """What each view says of the run."""

    frame: pd.DataFrame  # by step
    published: dict[int, dict[str, float]]
    report: pd.Series
    tail: dict[str, Any]
    copy: dict[str, Any]

    def of(self, name: str) -> dict[str, list[float]]:
        """The values of one quantity, by view."""
        field = field_of(quantity(name))
        found = {"by step": self.frame[field].tolist()}
        if name in PUBLISHED:
            key = f"{across_ranks.PREFIX}{field}"
            found["published"] = [self.published[step].get(key, math.nan) for step in range(4)]
        if name in self.tail:
            at_the_end = [self.tail[name].at(3)]
            found |= {"report": [self.report[name]], "tail": at_the_end, "copy": self.copy[name].values or at_the_end}
        return found


def views_of(directory: Path, feed: Feed) -> Views:
    with Run(directory) as run:
        frame = overview.by_step(run)
        published = across_ranks.numbers(run, range(4), [])
        report = overview.numbers(run).set_index("name")["value"]
    tiles = overview_tiles()
    copy = static_bundle.readings(feed.tables, feed.words, tiles)
    tail = {one.id: one for one in terminal.read(feed).tiles}
    return Views(frame, published, report, tail, {tile["id"]: one for tile, one in zip(tiles, copy, strict=True)})


@pytest.mark.slow
@pytest.mark.parametrize("names", HALVES, ids=["made of", "divided"])
def test_twice_as_much_in_its_one_place_is_twice_as_much_everywhere(
    directory: Path, feed: Feed, as_it_is: Views, doubling: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """In the report, the tail, the panel and its saved copy, and in what goes to TensorBoard and MLflow."""
    assert set(as_it_is.tail) == {tile["id"] for tile in overview_tiles()}
    before = {name: as_it_is.of(name) for name in NAMES}
    double(doubling, names)
    views = views_of(directory, feed)
    for name in NAMES:
        if name in DIVIDED and name not in names:
            continue  # it follows what it is made of
        after = views.of(name)
        for view, values in before[name].items():
            changed = twice(after[view], values)
            assert changed if name in names else after[view] == pytest.approx(values, nan_ok=True), (name, view)


@pytest.mark.slow
def test_twice_as_much_stands_in_the_files_of_tensorboard_and_mlflow(
    directory: Path, doubling: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each quantity's own key, as it is (attempt 0) and as it is when it is doubled, half of them at a time."""
    doubling.delenv("MLFLOW_TRACKING_URI", raising=False)
    steps = range(4)
    keys = {name: f"{across_ranks.PREFIX}{field_of(quantity(name))}" for name in PUBLISHED}
    with Tracking("p", "e", ["tensorboard", "mlflow"], directory=tmp_path) as tracking:
        for attempt, names in enumerate(((), *HALVES)):
            doubling.undo()
            double(doubling, names)
            with Run(directory) as run:
                told = across_ranks.numbers(run, steps, [])
            for step in steps:
                asked = [key for name, key in keys.items() if not attempt or name in names]
                own = {key: told[step][key] for key in asked if key in told[step]}
                tracking.log(own, attempt * 100 + step)
        assert tracking.flush(300)  # it is more than the end waits for
    board = tensorboard_scalars(tmp_path / "tensorboard")
    client, run_id = mlflow_client(f"sqlite:///{tmp_path}/mlflow.db"), State(tmp_path, "mlflow").read()["run_id"]
    for name, key in keys.items():
        attempt = 1 if name in HALVES[0] else 2
        history = client.get_metric_history(run_id, key)
        for found in ({one.step: one.value for one in told} for told in (board[key], history)):
            before, after = ([found.get(place * 100 + step, math.nan) for step in steps] for place in (0, attempt))
            known = [(one, other) for one, other in zip(after, before, strict=True) if not math.isnan(other)]
            assert known, name
            assert all(one == pytest.approx(2 * other, rel=1e-6) for one, other in known), name  # TensorBoard has f4


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.thorough] * (one in FOUND[2:])) for one in FOUND]
)
def test_findings_say_what_the_quantity_says(
    directory: Path, sentences: str, doubling: pytest.MonkeyPatch, name: str
) -> None:
    def spelt() -> str:
        with Run(directory) as run:
            spec = quantity(name)
            return spell(over_run(spec, course(run, name)), str(spec["unit"]))

    value = spelt()
    assert value in sentences
    double(doubling, (name,))
    other = spelt()
    assert other != value
    assert other in said_of(directory)


def said_of(directory: Path) -> str:
    """All sentences that are found in the run."""
    with Run(directory) as run:
        return " ".join(one.sentence for one in findings(run))


@pytest.mark.slow
@pytest.mark.parametrize("names", HALVES, ids=["made of", "divided"])
def test_the_panel_s_configuration_and_the_report_follow(
    directory: Path, doubling: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """What the browser draws is the specification that it is sent."""
    double(doubling, names)
    with Panel(directory) as panel, Run(directory) as run:
        config = panel.config()
        tiles = {tile["id"]: tile for tile in config["panels"]["overview_tiles"]["live"]["tiles"]}
        texts = overview.numbers(run).set_index("name")["text"]
        for name, tile in tiles.items():
            if name in names or name not in DIVIDED:  # which follow what they are made of
                assert (tile.get("scale") == 2) is (name in names), name
            if not tile.get("own"):  # what is about probe itself stands in no tile
                assert texts[name] in repr(panel)
        if "rank_imbalance" in names:  # the report says what overview.numbers says; once is enough to see it
            assert f'<p class="value">{texts["rank_imbalance"]}</p>' in report_html(run)
    live = {one.id: one.live or {} for board in dashboards.dashboards() for one in board.panels}
    for name, panel_id in (("rank_imbalance", "balance_over_steps"), ("own_cost", "own_cost")):
        for one in (live[panel_id], config["panels"][panel_id]["live"]):
            assert (one.get("scale") == 2) is (name in names), name
    for name, place in (("micro_batch_imbalance", 0), ("sync_wait", 1)):
        one = config["panels"]["balance_over_steps"]["live"]["beside"][place]
        assert (one.get("scale") == 2) is (name in names), name


# ------------------------------------------------------------------------------------------------- the words of it


def test_a_block_gets_the_series_and_a_tile_gets_the_words_too() -> None:
    block = resolved({"mark": "line", "x": "step", "quantity": "rank_imbalance", "by": "rank"})
    assert (block["by"], block["per"], "means" in block, "quantity" in block) == ("rank", "round", False, False)
    tile = resolved({"tiles": [{"quantity": "own_cost", "title": "mine"}]})["tiles"][0]
    assert (tile["id"], tile["title"], tile["alarm"]) == ("own_cost", "mine", 0.05)


@pytest.mark.parametrize("block", [{"quantity": "nothing"}, {"tiles": [{"quantity": "nothing"}]}])
def test_a_quantity_that_is_not_there_is_refused(block: dict) -> None:
    with pytest.raises(InputError, match=r"quantity: got 'nothing', expected one of .*rank_imbalance"):
        resolved(block)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "quantities: []",
        *(
            f"window_steps: 20\n{more}"
            for more in ("quantities: 3", "quantities: [{id: a}]", "quantities: [3]", "a: []")
        ),
    ],
)
def test_a_file_that_says_no_quantities_is_refused(doubling: pytest.MonkeyPatch, text: str) -> None:
    doubling.setattr(files, "text", lambda _: text)
    forget()
    with pytest.raises(InputError, match="quantities"):
        quantities()


def test_where_it_stands_says_value_limits_and_what_is_free() -> None:
    peak = {"unit": "bytes", "warn": 0.5, "alarm": 0.9, "means": {"good": "g", "warn": "w", "alarm": "a"}}
    told = standing({**peak, "capacity": {}}, Course([0, 1], [1024.0, 2048.0], capacity=4096.0))
    assert (told.value, told.text, told.note, told.means, told.status) == (
        2048,
        "2.00 KiB",
        "50 % of 4.00 KiB are free.",
        "w",
        "warn",
    )
    unknown = standing({**peak, "capacity": {}}, Course([0], [1024.0]))
    assert (unknown.status, unknown.note) == ("none", "Of one step.")
    assert standing(peak, Course([], [])).note == "Not measured."
    counted = standing({"unit": "count", "total": True, "warn": 1}, Course([1], [2.0], total=5.0))
    assert (counted.value, counted.note, counted.status) == (5, "Over the run.", "warn")


# --------------------------------------------------------------------------------------- no verdict without data


@pytest.mark.parametrize("steps", ["0", "2.5", "many", "true"])
def test_a_window_of_no_steps_is_refused(doubling: pytest.MonkeyPatch, steps: str) -> None:
    doubling.setattr(files, "text", lambda _: f"quantities: []\nwindow_steps: {steps}")
    forget()
    with pytest.raises(InputError, match=r"quantities: window_steps: got .*expected a whole number of steps from 1 on"):
        window_steps()


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
        "rank_imbalance": "Needs two ranks or more that cut micro-batches.",
        "padding_tax": "No padded batch was formed.",
        "reward": "Your trainer has not logged it.",
        "own_cost": "No step after the first has ended.",
        "alerts": "Nothing was recorded yet.",
    }


@pytest.mark.parametrize("view", ["report", "saved copy", "tail"])
def test_d_a_lone_rank_is_compared_with_nobody(tmp_path: Path, view: str) -> None:
    told = tiles_of(write_run(tmp_path / "run", sample_rows(1, 3)), view)
    assert told["rank_imbalance"] == ("–", "Needs two ranks or more that cut micro-batches.", "", "none")


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
    assert standing(tile, course).who == "Rank 3: 2.00 s, the other 3: 1.00 s."
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
    assert told == ("0.25", "0 to 0.5 in 3 steps.", "Logged by trainer.", "none")
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
