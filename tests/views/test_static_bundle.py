"""What stays in a notebook: small, quick, complete, and no name of a user's is ever markup."""

from __future__ import annotations

import json
import math
import re
from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest

from probe.dashboards import overview_tiles
from probe.dashboards.standing import status_of
from probe.records import Incident
from probe.views.panel import board, static_bundle
from probe.views.panel.panel import Panel
from probe.views.panel.static_bundle import Overview, Reading
from tests.sample_run import clock, open_run, sample_rows, write_run

NASTY = '<img src=x onerror="alert(1)"><script>alert(2)</script>&\x07\ud800'
PLOTLY, SVG, TEXT = "application/vnd.plotly.v1+json", "image/svg+xml", "text/plain"


def overview(**changes: object) -> Overview:
    reading = Reading("Step time", "s", "1.2 s", "1 s … 2 s", "", "good", [0, 1, 2], [1.0, math.nan, 2.0])
    return Overview(**{"title": "t", "facts": "f", "hint": "probe.open", "readings": [reading], **changes})


def test_the_bundle_of_a_run(tmp_path):
    write_run(tmp_path / "run", sample_rows(4, 30))
    with Panel(tmp_path / "run") as panel:
        bundle, _ = panel._repr_mimebundle_()
    assert set(bundle) == {PLOTLY, SVG, TEXT}
    assert static_bundle.size_of(bundle) < 60_000
    assert "Peak memory" in bundle[TEXT]
    assert f'probe.open("{tmp_path / "run"}").panel()' in bundle[TEXT]
    assert ElementTree.fromstring(bundle[SVG]).tag.endswith("svg")
    figure = go.Figure(bundle[PLOTLY])
    assert len(figure.data) == len([one for one in overview_tiles() if not one.get("own")])
    json.dumps(bundle, allow_nan=False)


def test_14_the_copy_names_the_run_for_a_tab_and_says_when_it_was_made():
    made = static_bundle.copy(overview(), "a" * 32, "/home/ann/runs/first")
    assert made[static_bundle.COPY] == {"run": "/home/ann/runs/first", "key": "a" * 32}
    assert re.search(r"Saved copy of \d{4}-\d\d-\d\d \d\d:\d\d\. ", made["text/html"])
    # A run that the Jupyter server doesn't read has no tab.
    assert static_bundle.COPY not in static_bundle.copy(overview(), "a" * 32)


def test_14_the_copy_of_a_panel_names_its_run_by_its_whole_path(tmp_path, monkeypatch):
    write_run(tmp_path / "run", sample_rows(1, 2))
    monkeypatch.chdir(tmp_path)
    with Panel("run") as panel:
        assert panel._copy()[static_bundle.COPY] == {"run": str(tmp_path / "run"), "key": panel.config()["key"]}


def test_the_saved_picture_has_every_tile_with_its_value_and_its_course(tmp_path):
    write_run(tmp_path / "run", sample_rows(2, 6))
    with Panel(tmp_path / "run") as panel:
        bundle, _ = panel._repr_mimebundle_()
        feed = panel._pump.feed
        tiles = [one for one in overview_tiles() if not one.get("own")]
        told = static_bundle.readings(feed.tables, feed.words, tiles)
    picture = ElementTree.fromstring(bundle[SVG])
    words = [node.text for node in picture.iter() if node.tag.endswith("}text")]
    assert len(told) == len(overview_tiles()) - 2
    for one in told:
        place = words.index(one.title)
        assert words[place + 1] == one.text
        assert one.note[:20] in words[place + 2]
    courses = [one for one in told if len(one.values) > 1]
    assert len([node for node in picture.iter() if node.tag.endswith("}polyline")]) == len(courses) == len(told)
    assert "Cost of probe" not in words  # nothing about the observing itself


@pytest.mark.parametrize("where", ["title", "facts", "hint", "errors"])
def test_markup_in_names_stays_text(where):
    shown = overview(**{where: [NASTY] if where == "errors" else NASTY})
    bundle = static_bundle.bundle(shown)
    tags = {node.tag.split("}")[1] for node in ElementTree.fromstring(bundle[SVG]).iter()}
    assert tags <= {"svg", "title", "desc", "rect", "text", "polyline", "circle"}
    assert "<img" not in bundle[SVG]
    assert "<img" not in json.dumps(bundle[PLOTLY])
    assert "<script" not in json.dumps(bundle[PLOTLY])
    assert "\x07" not in bundle[TEXT]
    nothing = static_bundle.plotly_figure(overview(readings=[], **{where: getattr(shown, where)}))
    assert "<img" not in json.dumps(nothing)


def test_markup_in_a_real_run_stays_text(tmp_path):
    rows = sample_rows(2, 2, actor=NASTY.replace("\ud800", ""))
    rows[0].append(Incident(rank=0, kind="listener", where=NASTY, message=NASTY, time_ns=clock(0)))
    with open_run(tmp_path / "run", rows, project=NASTY[:-1], experiment="<b>e</b>") as run, Panel(run) as panel:
        bundle, _ = panel._repr_mimebundle_()
        drawn = panel._drawn()
    ElementTree.fromstring(bundle[SVG])
    assert "<img" not in bundle[SVG] + json.dumps(bundle[PLOTLY]) + json.dumps(drawn)
    assert "<b>e</b>" not in bundle[SVG] + json.dumps(bundle[PLOTLY]) + json.dumps(drawn)


def test_an_empty_run_says_so(tmp_path):
    with Panel(write_run(tmp_path / "run", {})) as panel:
        bundle, _ = panel._repr_mimebundle_()
    assert "no step yet" in bundle[TEXT]
    assert "no step yet" in json.dumps(bundle[PLOTLY])
    assert go.Figure(bundle[PLOTLY]).data == ()


@pytest.mark.parametrize(
    ("value", "better", "status"),
    [(5, "lower", "good"), (15, "lower", "warn"), (25, "lower", "alarm"), (5, "higher", "alarm")],
)
def test_a_tile_is_judged(value, better, status):
    tile = {"warn": 10, "alarm": 20} if better == "lower" else {"warn": 20, "alarm": 10, "better": better}
    assert status_of(tile, value) == status


def test_memory_is_judged_by_its_share_of_the_device(tmp_path):
    write_run(tmp_path / "run", sample_rows(1, 2))
    with Panel(tmp_path / "run") as panel:
        reading = next(one for one in panel._overview().readings if one.title == "Peak memory")
    assert reading.status == "good"
    assert reading.note == "The peak takes 61 % of 80.0 GiB."


@pytest.mark.slow
def test_the_dashboards_together(tmp_path):
    with open_run(tmp_path / "run", sample_rows(2, 300)) as run:
        drawn = board.figure(run, "title")
    assert drawn is not None
    text = json.dumps(drawn, allow_nan=False)
    assert len(text) < board.MOST_BYTES
    figure = go.Figure(drawn)
    assert len({trace.yaxis for trace in figure.data}) == len(board.PANELS)
    assert max(len(trace.x) for trace in figure.data) <= board.POINTS
    domains = sorted(tuple(figure.layout[f"yaxis{n}"].domain) for n in ("", 2, 3, 4))
    assert all(below[1] < above[0] for below, above in zip(domains[:-1], domains[1:], strict=True))  # noqa: RUF007
    with open_run(tmp_path / "empty", {}) as run:
        assert board.figure(run, "title") is None
