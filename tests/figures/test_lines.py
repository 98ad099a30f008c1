"""Small lines of any values: what is infinite is marked, and nothing else is moved by it."""

from __future__ import annotations

import math
import re

import pytest

from probe.figures.lines import line
from probe.hooks import phase
from probe.runs.reader import Run
from probe.session import start
from probe.views.panel.static_bundle import Reading
from probe.views.panel.static_bundle import _spark as saved
from probe.views.report.report import write_report
from probe.views.report.tiles import _spark as reported

INF = math.inf


@pytest.mark.parametrize(
    ("values", "points", "infinite"),
    [
        ([1.0, 3.0], [(0.0, 1.0), (1.0, 0.0)], []),
        ([1.0, INF, 3.0], [(0.0, 1.0), (1.0, 0.0)], [(0.5, 0.0)]),
        ([-INF, 1.0, 3.0], [(0.5, 1.0), (1.0, 0.0)], [(0.0, 1.0)]),
        ([INF, INF], [], [(0.0, 0.0), (1.0, 0.0)]),
        ([-1e308, 1e308], [(0.0, 1.0), (1.0, 0.0)], []),
        ([2.0, 2.0], [(0.0, 1.0), (1.0, 1.0)], []),
        ([math.nan, 1.0, math.nan, 3.0], [(0.0, 1.0), (1.0, 0.0)], []),
        ([math.nan], [], []),
        ([], [], []),
    ],
)
def test_25_21_points_are_where_they_belong_and_infinite_ones_at_an_edge(values, points, infinite):
    found = line(range(len(values)), values)
    assert found.points == points
    assert found.infinite == infinite


@pytest.mark.parametrize("draw", [lambda values: reported(values), None], ids=["report", "saved panel"])
@pytest.mark.parametrize(
    ("values", "marks"),
    [([1.0, INF, 2.0], 1), ([INF] * 3, 3), ([-INF, INF], 2), ([-1e308, 1e308, 0.0], 0), ([1e308, -INF, 5e-324], 1)],
)
def test_25_21_no_picture_of_infinities_has_a_nan_or_warns(draw, values, marks):
    if draw is None:
        reading = Reading("title", "", "text", "note", "means", "ok", list(range(len(values))), values)
        drawn = saved(reading, 0, 0, 200, 40)
    else:
        drawn = draw(values)
    assert not re.search(r"nan|inf(?!inite)", drawn)
    assert drawn.count('class="infinite"') == marks


@pytest.mark.slow
def test_25_21_a_report_of_infinite_metrics_warns_of_nothing_and_draws_no_nan(tmp_path):
    metrics = {
        "loss": [0.5, INF, 0.25, -INF, 0.125, 0.5],
        "actor/grad_norm": [INF] * 6,
        "perf/throughput": [1e308, -1e308, 1e308, INF, 0.0, -1e308],
        "critic/score/mean": [0.1, 0.2, 0.3, 0.4, 0.5, INF],
    }
    with start("p", "e", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for step in range(6):
            with session.step(step), phase("update_actor"):
                pass
            session.log({name: values[step] for name, values in metrics.items()}, step)
    with Run(tmp_path / "run") as run:
        page = write_report(run, tmp_path / "report.html").read_text()
    drawn = re.findall(r'points="([^"]*)"', page)
    assert drawn
    assert not [one for one in drawn if re.search("nan|inf", one)]
