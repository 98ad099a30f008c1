"""A quantity is defined in one place: what is changed there is changed in every view."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import yaml

from probe import dashboards
from probe.analysis import overview
from probe.analysis.quantities import course
from probe.analysis.verdict import findings
from probe.dashboards import files, overview_tiles
from probe.dashboards.courses import Course, over_run
from probe.dashboards.quantities import field_of, quantities, quantity, resolved, window_steps
from probe.dashboards.spelling import spell
from probe.dashboards.standing import standing
from probe.errors import InputError
from probe.live.feed import Feed
from probe.publishing import across_ranks
from probe.records import Incident
from probe.runs.reader import Run
from probe.tracking.state import State
from probe.tracking.tracking import Tracking
from probe.views.panel import static_bundle
from probe.views.panel.panel import Panel
from probe.views.report.report import report_html
from probe.views.terminal import numbers as terminal
from tests.live.live_run import opened
from tests.sample_run import sample_rows, write_run
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
        "The peak takes 50 % of 4.00 KiB.",
        "w",
        "warn",
    )
    unknown = standing({**peak, "capacity": {}}, Course([0], [1024.0]))
    assert (unknown.status, unknown.note) == ("none", "Of one step.")
    assert standing(peak, Course([], [])).note == "Not measured."
    counted = standing({"unit": "count", "total": True, "warn": 1}, Course([1], [2.0], total=5.0))
    assert (counted.value, counted.note, counted.status) == (5, "Over the run.", "warn")


@pytest.mark.parametrize("steps", ["0", "2.5", "many", "true"])
def test_a_window_of_no_steps_is_refused(doubling: pytest.MonkeyPatch, steps: str) -> None:
    doubling.setattr(files, "text", lambda _: f"quantities: []\nwindow_steps: {steps}")
    forget()
    with pytest.raises(InputError, match=r"quantities: window_steps: got .*expected a whole number of steps from 1 on"):
        window_steps()
