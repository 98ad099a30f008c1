"""Figures: what they hold, not how they look. Each is drawn from the same made-up run, and from an empty
one."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from probe import dashboards
from probe import text as words
from probe.analysis import incidents as incidents_of
from probe.analysis import memory as memory_of
from probe.analysis import padding_tax as padding_of
from probe.analysis import reduction as reduction_of
from probe.analysis import steps as steps_of
from probe.analysis import token_balance as balance_of
from probe.analysis.quantities import course
from probe.analysis.verdict.instrument import COST_TARGET
from probe.dashboards import frames, spec
from probe.figures import colours, incidents, memory, panel, reduction, theme
from probe.records import GIB, Memory
from tests.sample_run import CAP, open_run, sample_rows

#: A line for each phase.
LINES = {"mark": "line", "table": "spans", "where": {"level": "phase"}, "x": "step", "y": "duration"}
LINES |= {"by": "phase", "reduce": "max", "unit": "s"}

#: Panels that are drawn from their ``live:`` block.
BLOCKS = [one.id for board in dashboards.dashboards() for one in board.panels if one.figure is None]


def of_block(name: str) -> tuple[Callable[..., pd.DataFrame], Callable[..., go.Figure]]:
    """The numbers and the renderer of a panel that has no functions of its own."""
    shown = dashboards.panel(name)
    block = shown.live or {}

    def draw(frame: pd.DataFrame, theme: str = "light") -> go.Figure:
        return panel.MARKS[block["mark"]](block, frame, missing=shown.missing, theme=theme)

    draw.__module__, draw.__name__ = "probe.figures.marks", name
    return shown.frame, draw


def drawn(name: str, frame: pd.DataFrame) -> go.Figure:
    return of_block(name)[1](frame)


FIGURES: list[tuple[Callable[..., pd.DataFrame], Callable[..., go.Figure]]] = [
    (memory_of.timeline, memory.timeline),
    *(of_block(name) for name in BLOCKS),
    (reduction_of.spread, reduction.spread),
    (incidents_of.over_time, incidents.over_time),
]
NAMES = [f"{draw.__module__.rpartition('.')[2]}.{draw.__name__}" for _, draw in FIGURES]
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    with open_run(tmp_path_factory.mktemp("run"), sample_rows(2, 5, actor=MARKUP)) as opened:
        yield opened


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory):
    with open_run(tmp_path_factory.mktemp("empty"), {0: []}) as opened:
        yield opened


@pytest.mark.parametrize(("look", "draw"), FIGURES, ids=NAMES)
def test_every_figure_draws_and_leaves_its_frame_alone(run, look, draw) -> None:
    frame = look(run)
    before = frame.copy(deep=True)
    figure = draw(frame)
    pd.testing.assert_frame_equal(frame, before)
    assert figure.data
    assert theme.why(figure) is None
    assert figure.layout.template.layout.font.color == theme.template("light").layout.font.color
    dark, darks = draw(frame, theme="dark"), colours.dark_of_light()
    assert dark.layout.template != figure.layout.template
    dark.layout.template = figure.layout.template = None
    told = re.sub("#[0-9a-f]{6}|rgba[(][0-9,.]+[)]", lambda one: darks.get(one[0], one[0]), figure.to_json())
    assert dark.to_json() == told  # what a page that follows the theme makes of it


@pytest.mark.parametrize(("look", "draw"), FIGURES, ids=NAMES)
def test_without_rows_a_figure_says_why(nothing, look, draw) -> None:
    figure = draw(look(nothing))
    assert theme.why(figure)
    assert not figure.data
    assert figure.layout.annotations[0].text


@pytest.mark.parametrize(("look", "draw"), FIGURES, ids=NAMES)
def test_users_text_is_never_markup(run, look, draw) -> None:
    assert "<img" not in draw(look(run)).to_json().replace("\\u003c", "<")


def named(figure: go.Figure, name: str) -> Any:
    return next(trace for trace in figure.data if trace.name == name)


def test_the_peak_is_marked_at_its_value_and_says_where(run) -> None:
    figure = memory.timeline(memory_of.timeline(run))
    top = memory_of.peaks(run).iloc[0]
    mark = named(figure, f"peak of {theme.label(MARKUP)}")
    assert mark.y[0] == pytest.approx(top["peak_allocated_bytes"] / GIB)
    assert "micro-batch 0 · step 3 · rank 1" in mark.hovertext[0]
    assert "update_actor" in mark.hovertext[0]


def test_scopes_are_boxes_with_gaps_between_them(run) -> None:
    frame = memory_of.timeline(run)
    area = named(memory.timeline(frame), "rollout")
    scopes = frame[(frame["series"] == "peak") & (frame["role"] == "rollout")]
    assert len(area.x) == 5 * len(scopes)
    assert area.y[1] == area.y[2] == pytest.approx(scopes["value_bytes"].iloc[0] / GIB)
    assert math.isnan(area.y[4])


def test_capacity_is_drawn_only_where_it_does_not_flatten_the_rest(run) -> None:
    frame = memory_of.timeline(run)
    assert any("capacity" in note.text for note in memory.timeline(frame).layout.annotations)
    frame["device_total_bytes"] = 1000 * GIB
    assert not memory.timeline(frame).layout.annotations


def test_a_role_has_one_colour_in_all_memory_figures(run) -> None:
    area = named(memory.timeline(memory_of.timeline(run)), "rollout")
    figure = panel.draw(dashboards.panel("memory_by_phase"), run)
    place = figure.layout.yaxis.ticktext.index("rollout")
    assert figure.data[0].marker.color[place] == area.line.color


def test_bars_are_the_peaks_of_the_table_and_ticks_its_lowest_ranks(run) -> None:
    frame = memory_of.by_phase(run).iloc[::-1]
    bars, ticks = panel.draw(dashboards.panel("memory_by_phase"), run).data
    assert list(bars.x) == pytest.approx((frame["peak_allocated_bytes"] / GIB).tolist())
    assert list(ticks.x) == pytest.approx((frame["least_rank_bytes"] / GIB).tolist())
    highest = frame.iloc[-1]
    assert f"step {highest['step']} · rank {highest['rank']}" in bars.hovertext[-1]


def test_how_sure_a_peak_is_stands_before_it(tmp_path) -> None:
    rows = sample_rows(1, 1)
    for row in rows[0]:
        if isinstance(row, Memory) and row.peak_kind is not None:
            row.peak_kind = "at_least"
    with open_run(tmp_path, rows) as opened:
        (bars,) = panel.draw(dashboards.panel("memory_by_phase"), opened).data  # of one rank there is no lowest
        assert all(text.startswith("at least ") for text in bars.text)
        dots = panel.draw(dashboards.panel("memory_by_tokens"), opened).data[0]
        assert all("at least " in text for text in dots.hovertext)


#: Of as many micro-batches as a line through them needs at least.
TOKENS = [100, 200, 400, 500, 600, 700, 800, 900]


@pytest.mark.parametrize(
    ("tokens", "peaks", "why"),
    [
        (TOKENS[:7], TOKENS[:7], "no line: needs 8 dots of a series or more"),
        (TOKENS, [10_000 - one for one in TOKENS], "no line: no rising line explains 50 % of the variance"),
        (TOKENS, [5, 1, 9, 2, 8, 1, 9, 3], "no line: no rising line explains 50 % of the variance"),
        (TOKENS, TOKENS, ""),
    ],
    ids=["too few", "falls", "noise", "rises"],
)
def test_d_a_line_needs_rows_that_rise_and_the_picture_says_why_there_is_none(
    tokens: list[int], peaks: list[int], why: str
) -> None:
    place = {"rank": 0, "step": 0, "micro_batch": 0, "kind": "micro_batch", "name": "x", "role": "a", "phase": "p"}
    figure = drawn("memory_by_tokens", pd.DataFrame({**place, "tokens": tokens, "peak": peaks}))
    assert len(figure.data) == (1 if why else 2)
    assert figure.layout.xaxis.title.text.partition("<br>")[2] == why


def test_phases_without_a_role_have_a_line_too() -> None:
    where = {"rank": 0, "step": 0, "micro_batch": 0, "kind": "micro_batch", "name": "x", "tokens": TOKENS}
    parts = [
        pd.DataFrame({**where, "role": role, "phase": phase, "peak": [1000 + factor * one for one in TOKENS]})
        for role, phase, factor in ((None, "p", 2), ("a", None, 3), ("a", "p", 5))
    ]
    figure = drawn("memory_by_tokens", pd.concat(parts, ignore_index=True))
    told = {figure.data[place].name: figure.data[place + 1].hovertext[0] for place in (0, 2, 4)}
    slopes = {"no role · p": "2 B a token", "a · no phase": "3 B a token", "a · p": "5 B a token"}
    assert {name: text.split("<br>")[0] for name, text in told.items()} == {
        name: f"<b>{slope}</b>" for name, slope in slopes.items()
    }


def test_of_many_dots_the_highest_stay_and_of_the_rest_some(run, monkeypatch) -> None:
    shown = dashboards.panel("memory_by_tokens")
    every = shown.frame(run)
    monkeypatch.setattr(frames, "DOTS", 40)
    some = shown.frame(run)
    assert 10 < len(some) <= 42 < len(every)
    assert some["peak"].head(10).tolist() == every["peak"].head(10).tolist()
    assert some["peak"].min() < every["peak"].median()


def test_a_process_without_a_rank_has_a_lane_of_its_own() -> None:
    where = {"step": 1, "role": "r", "phase": "p", "kind": "phase", "name": "p", "micro_batch": None}
    frame = pd.DataFrame(
        {
            "who": ["rank 0", "driver"],
            "rank": [0, None],
            "begin": [1.0, 2.0],
            "end": [2.0, 5.0],
            "duration": [1.0, 3.0],
            **where,
        }
    )
    figure = drawn("step_timeline", frame.astype({"rank": "Int64"}))
    assert figure.layout.yaxis.ticktext == ("driver", "rank 0")
    assert sorted(zip(figure.data[0].y, figure.data[0].base, strict=True)) == [(0, 2.0), (1, 1.0)]


def test_a_line_is_drawn_only_where_tokens_explain_the_peaks() -> None:
    chance = np.random.default_rng(0)
    tokens = np.arange(40)
    where = {"rank": 0, "step": 0, "role": "actor", "micro_batch": 0, "kind": "micro_batch", "name": "x"}
    fits = pd.DataFrame({"tokens": tokens, "peak": 100 + 3 * tokens, "phase": "fits", **where})
    noise = pd.DataFrame({"tokens": tokens, "peak": chance.permutation(1000)[:40], "phase": "noise", **where})
    figure = drawn("memory_by_tokens", pd.concat([fits, noise], ignore_index=True))
    assert [trace.name for trace in figure.data] == ["actor · fits", "least squares", "actor · noise"]
    assert figure.data[1].hovertext[0] == "<b>3 B a token</b><br>over a base of 100 B"


def test_heat_holds_the_tokens_and_marks_what_is_over_the_cap(run) -> None:
    frame = balance_of.heat(run, 3, "update_actor", 1)
    figure = panel.draw(dashboards.panel("balance_heat"), run, step=3, phase="update_actor", round=1)
    grid = np.array(figure.data[0].z, dtype=float)
    for row in frame.to_dict("records"):
        assert grid[row["rank"], row["micro_batch"]] == row["tokens"]
    over = frame[frame["over_cap"]]
    assert len(figure.data[1].x) == len(over) > 0
    assert f"cap {CAP:,}" in figure.layout.coloraxis.colorbar.ticktext
    assert figure.layout.coloraxis.cmax == frame["tokens"].max()


def test_a_rank_without_a_micro_batch_has_a_gap_and_no_zero() -> None:
    frame = pd.DataFrame(
        {"who": ["rank 0", "rank 0", "rank 1"], "micro_batch": [0, 1, 0], "value": [5.0, 6, 7], "y": "tokens"}
    )
    figure = drawn("balance_heat", frame.assign(cap=math.nan, over=0.0, sequences=1.0, longest=7.0))
    grid = np.array(figure.data[0].z, dtype=float)
    assert grid[0].tolist() == [5, 6]
    assert grid[1, 0] == 7
    assert math.isnan(grid[1, 1])
    assert "no cap" in figure.data[0].hovertext[0][0]


def test_without_a_choice_the_most_uneven_batch_is_shown(run) -> None:
    (_, chosen), *_ = dashboards.panel("balance_heat").options(run)
    first = panel.draw(dashboards.panel("balance_heat"), run)
    assert first == panel.draw(dashboards.panel("balance_heat"), run, **chosen)
    assert first != panel.draw(dashboards.panel("balance_heat"), run, **{**chosen, "step": (chosen["step"] + 1) % 5})


def test_the_straggler_stands_out(run) -> None:
    frame = balance_of.stragglers(run)
    others, worst = panel.draw(dashboards.panel("balance_stragglers"), run).data
    assert list(worst.y) == [pytest.approx(frame["share_ratio"].iloc[0])]
    assert len(others.y) == 1
    assert worst.marker.pattern.shape == "/"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("balance_over_steps", ["rank_imbalance", "micro_batch_imbalance", "sync_wait"]),
        ("own_cost", ["own_cost"]),
    ],
)
def test_lines_beside_each_other_are_quantities(run, name, lines) -> None:
    figure = panel.draw(dashboards.panel(name), run)
    assert len(figure.data) > 1
    for trace, line in zip(figure.data, lines, strict=False):
        assert list(trace.y) == pytest.approx(course(run, line).values)


def test_padding_stacks_to_the_tax_of_each_step(run) -> None:
    figure = panel.draw(dashboards.panel("padding_over_steps"), run)
    stacked = sum(np.array(trace.y, dtype=float) for trace in figure.data)
    assert stacked == pytest.approx(course(run, "padding_tax").values)
    assert figure.layout.barmode == "stack"


def course_of(values: list[float], phase: str = "update") -> pd.DataFrame:
    return pd.DataFrame({"step": range(len(values)), "phase": phase, "y": "duration", "value": values})


@pytest.mark.parametrize("steps", [1, 3, 12, 17, 60, 2000])
@pytest.mark.parametrize("name", ["phase_durations", "balance_over_steps"])
def test_g_steps_have_whole_ticks_at_most_ten_and_none_twice(name: str, steps: int) -> None:
    frame = course_of([1.0] * steps).assign(y="across ranks")
    axis = drawn(name, frame).layout.xaxis
    assert axis.dtick == int(axis.dtick) >= 1
    assert axis.tick0 == 0
    assert (steps - 1) // axis.dtick + 1 <= 10


def test_g_many_ranks_and_micro_batches_have_at_most_ten_names_on_their_axis() -> None:
    frame = pd.DataFrame({"rank": 0, "who": "rank 0", "micro_batch": range(64), "value": 5.0, "y": "tokens"})
    figure = drawn("balance_heat", frame.assign(cap=math.nan, over=0.0, sequences=1.0, longest=7.0))
    assert len(figure.layout.xaxis.tickvals) <= 10
    ranks = pd.DataFrame({"rank": range(32), "share_ratio": 1.0, "tokens": 9, "largest_in": 1, "rounds": 32})
    assert len(drawn("balance_stragglers", ranks).layout.xaxis.tickvals) <= 10


def test_g_one_slow_first_step_is_cut_and_said_and_the_rest_stays_tall() -> None:
    figure = drawn("phase_durations", course_of([214.0] + [60.0, 61, 62] * 10))
    low, high = figure.layout.yaxis.range
    assert low == 0
    assert 62 < high < 75
    assert [note.text for note in figure.layout.annotations] == ["3 min 34 s: step 0"]
    assert len(figure.layout.shapes) == 1  # the gap in its bar
    assert figure.layout.xaxis.title.text == f"step<br>the scale ends at {words.seconds(high)}"
    assert not drawn("phase_durations", course_of([60.0, 61, 62] * 10)).layout.shapes


def test_g_a_line_that_a_few_values_would_flatten_is_cut_and_says_so() -> None:
    frame = course_of([9.0] + [1.1, 1.2] * 20).assign(y="across ranks")
    figure = drawn("balance_over_steps", frame)
    assert figure.layout.yaxis.range[1] < 1.5
    assert [note.text for note in figure.layout.annotations if note.name != "end"] == ["9.00×: step 0"]
    assert list(named(figure, "beyond the scale").x) == [0]


def test_g_of_2000_steps_several_share_a_bar_and_each_of_them_counts() -> None:
    values = [1.0] * 2000
    values[1234] = 1.1
    figure = drawn("phase_durations", course_of(values))
    bars, spread = figure.data
    assert len(bars.x) <= 200
    assert max(spread.base[at] + spread.y[at] for at in range(len(spread.y))) == pytest.approx(1.1)
    assert set(bars.y) == {1.0}  # the median of each
    assert "steps 1230 to 1239; the median one is step" in "".join(bars.hovertext)
    assert "each bar is the median of 10 steps" in figure.layout.xaxis.title.text


def test_g_of_2000_steps_a_line_shows_medians_and_their_range() -> None:
    values = [1.0] * 2000
    values[777] = 1.1
    band, line = drawn("balance_over_steps", course_of(values).assign(y="across ranks")).data
    assert len(line.x) <= 200
    assert set(line.y) == {1.0}
    assert max(band.y) == 1.1


def test_g_lines_are_named_at_their_last_values_with_leaders_where_names_would_touch(run) -> None:
    frame = frames.numbers(run, LINES)
    figure = panel.MARKS["line"](LINES, frame, missing="")
    names = [one for one in figure.layout.annotations if one.name == "end"]
    lines = [one for one in figure.data if one.mode.startswith("lines")]
    assert figure.layout.showlegend is False
    assert [one.text.partition("  ")[0] for one in names] == [one.name for one in lines]
    assert [one.y for one in names] == [one.y[-1] for one in lines]  # a leader begins at the last value …
    low, high = figure.layout.yaxis.range
    room = figure.layout.height - 64
    places = sorted((one.y - low) / (high - low) * room - one.ay for one in names)
    assert all(after - before > 14.9 for before, after in itertools.pairwise(places))  # … and no two names touch
    assert figure.layout.margin.r > 60


def test_g_more_lines_than_names_have_room_for_have_a_legend() -> None:
    pairs = itertools.product(range(4), range(20))
    frame = pd.DataFrame([{"step": step, "phase": f"p{one}", "y": "peak", "value": 1.0 + one} for step, one in pairs])
    figure = panel.MARKS["line"](LINES, frame, missing="")
    assert figure.layout.showlegend is None
    assert not [one for one in figure.layout.annotations if one.name == "end"]


def test_bytes_by_field_add_up(run) -> None:
    frame = padding_of.by_field(run)
    figure = panel.draw(dashboards.panel("padding_by_field"), run)
    divisor, _ = words.byte_unit(float(frame.groupby("field")["bytes"].sum().max()))
    assert sum(sum(trace.x) for trace in figure.data) == pytest.approx(frame["bytes"].sum() / divisor)


def test_phases_stack_to_their_mean_over_the_ranks(run) -> None:
    frame = steps_of.durations(run)
    figure = panel.draw(dashboards.panel("phase_durations"), run)
    assert {trace.name for trace in figure.data} == set(frame["phase"])
    for phase, own in frame.groupby("phase"):
        bars = named(figure, phase)
        assert dict(zip(bars.x, bars.y, strict=True)) == pytest.approx(
            dict(zip(own["step"], own["mean_s"], strict=True))
        )
    assert figure.layout.yaxis.title.text == "seconds, mean across processes"


def test_where_nothing_is_padded_the_stack_says_zero() -> None:
    frame = pd.DataFrame({"step": [0, 1], "cause": "none", "y": "tokens", "value": 0.0, "whole": 4.0})
    (trace,) = drawn("padding_over_steps", frame).data
    assert list(trace.y) == [0, 0]
    assert "0 of 4" in trace.hovertext[0]


def test_every_mark_that_is_drawn_at_rest_has_its_renderer() -> None:
    assert set(panel.MARKS) == set(spec.PICTURED)
    assert BLOCKS


def test_step_bars_stand_where_the_phases_ran(run) -> None:
    frame = steps_of.timeline(run)
    figure = panel.draw(dashboards.panel("step_timeline"), run)
    update = named(figure, "update_actor")
    rows = frame[(frame["name"] == "update_actor") & (frame["depth"] == 0)]
    assert list(update.base) == pytest.approx(rows["begin_s"].tolist(), abs=1e-6)  # since the step began
    assert list(update.x) == pytest.approx(rows["duration_s"].tolist())
    assert len(named(figure, "micro-batches").x) == (frame["depth"] == 1).sum()


def test_accidental_reductions_are_crossed(run) -> None:
    figure = reduction.spread(reduction_of.spread(run))
    wrong = named(figure, "reduced by accident")
    assert wrong.marker.symbol == "x"
    assert list(wrong.x) == [0]
    assert "timing/update_actor" in wrong.hovertext[0]


def test_incidents_stand_at_their_steps(run) -> None:
    figure = incidents.over_time(incidents_of.over_time(run))
    assert {float(x) for trace in figure.data for x in trace.x} == {4.0, 7.0}


def test_cost_shows_its_target(run) -> None:
    figure = panel.draw(dashboards.panel("own_cost"), run)
    assert figure.layout.annotations[0].text == f"target {words.percent(COST_TARGET)}"


def test_g_a_timeline_of_one_step_starts_at_the_step(run) -> None:
    axis = panel.draw(dashboards.panel("step_timeline"), run).layout.xaxis
    assert axis.range[0] == 0
    assert axis.title.text.startswith("seconds since step ")


def test_g_what_is_said_below_a_picture_is_said_of_that_picture(run) -> None:
    live = {one.id: one for view in dashboards.views() for one in view.panels}
    for board in dashboards.dashboards():
        for shown in board.panels:
            if shown.live is None:
                continue
            other = shown.figure is not None or shown.live["mark"] == "timeline"
            assert (live[shown.id].about != shown.about) is other, shown.id
    solid, mixed = panel.draw(dashboards.panel("own_cost"), run).data
    assert (solid.line.dash, mixed.line.dash) == ("solid", "dashdot")  # as its words say


def test_g_where_no_rank_stands_out_none_is_hatched() -> None:
    ranks = pd.DataFrame({"rank": [0, 1], "share_ratio": [1.01, 0.99], "tokens": 9, "largest_in": [3, 2], "rounds": 5})
    drawn_bars = [bar for bar in drawn("balance_stragglers", ranks).data if len(bar.x)]
    assert {bar.marker.pattern.shape for bar in drawn_bars} == {""}


def test_g_what_a_stack_comes_to_is_printed_at_its_end(run) -> None:
    frame = padding_of.by_field(run)
    figure = panel.draw(dashboards.panel("padding_by_field"), run)
    totals = frame.groupby("field")["bytes"].sum()
    assert {note.text for note in figure.layout.annotations} == {words.size(total) for total in totals}
