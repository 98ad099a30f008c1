"""Issue 15, part 6: what a page is handed of a step's replicas, beside what ``run.long_tail()`` says of the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import probe
from probe import dashboards
from probe.analysis.verdict import Findings
from probe.analysis.verdict.rollout import tail
from probe.opened import Run
from probe.views.panel import lanes
from probe.views.panel.browsing import Browsing
from probe.views.panel.looking import Looker
from probe.views.panel.samples import question_of
from probe.views.panel.verdict import topics
from probe.views.report.findings import anchors_of
from tests.served_run import ANSWERS, PHASES, REPLICAS, served_run


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served_run(tmp_path_factory.mktemp("served") / "run")


def test_15_6_a_page_is_told_what_the_long_tail_says_replica_by_replica(served: Path) -> None:
    with Run(served) as run:
        found = run.long_tail(first=2, last=2)
        told = lanes.told(run, 2)
    assert found is not None
    (step,) = found.steps
    assert told["sentence"] == found.sentence
    assert told["tail"] == [3.75, 6.0]
    assert told["tail"][1] - told["tail"][0] == (step.tail_ns or 0) / 1e9
    assert told["span"] == 10.0
    assert [one["name"] for one in told["lanes"]] == sorted(REPLICAS)
    assert [one["ended"] for one in told["lanes"]] == [4.0, 4.0, 6.0]  # of step 2 the last replica ends last
    assert [one["rests"] for one in told["lanes"]] == [[[4.0, 6.0]], [[4.0, 6.0]], []]  # and the others are idle then
    frame = found.replicas()
    assert [one["cells"][0] for one in told["lanes"]] == [str(one) for one in frame["samples"]]
    assert [len(one["late"]) for one in told["lanes"]] == frame["late"].tolist()
    for one in told["lanes"]:
        heights = [high for _, high in one["points"]]
        assert heights == sorted(heights, reverse=True)
        assert (heights[0], heights[-1], told["most"]) == (ANSWERS, 0, ANSWERS)
        assert one["points"][-1][0] * told["span"] == pytest.approx(one["ended"])


def test_15_6_the_trainer_s_phases_lie_on_the_same_clock(served: Path) -> None:
    with Run(served) as run:
        phases = {one["name"]: one for one in lanes.told(run, 3)["phases"]}
    assert {name: one["to"] for name, one in phases.items()} == PHASES
    assert phases["generate"]["from"] == 0.0
    assert not any(one["inside"] for one in phases.values())


def test_15_6_who_looks_hands_over_the_last_step_and_any_other_is_asked_for(served: Path) -> None:
    looker = Looker(str(served), looks=(), often=())
    told = looker.answer({"attempt": None, "whole": True})
    assert (told["long_tail"]["step"], told["failed"]) == (3, [])
    question = question_of({"of": "lanes", "step": 1, "v": 1})
    assert question == {"of": "lanes", "step": 1}
    browsing = Browsing(str(served))
    answer = browsing.answer({**question, "attempt": None})
    assert [answer["step"], len(answer["lanes"])] == [1, 3]
    nothing = browsing.answer({**question, "step": 9, "attempt": None})
    assert (nothing["lanes"], nothing["sentence"]) == (
        [],
        "When the answers of step 9 began and ended wasn't recorded.",
    )
    browsing.close()


def test_15_6_the_tail_s_findings_lead_to_its_lanes_in_the_panel_and_to_its_section_in_the_report(
    tmp_path: Path,
) -> None:
    with Run(served_run(tmp_path / "run", steps=5)) as run:
        found = tail(run)
    assert [(one.name, topics(dashboards.views())[one.topic]) for one in found] == [("long_tail", "tokens")]
    assert anchors_of(Findings(found), "", "there", "") == {0: "long-tail"}
    assert anchors_of(Findings(found), "", "", "") == {}


def test_15_6_many_answers_of_many_replicas_are_told_within_bounds(tmp_path: Path) -> None:
    replicas, many = 20, 40_000  # half of the answers are those of one
    with probe.start("p", "many", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(1):
        ends = np.random.default_rng(3).integers(10**9, 10**11, many)
        names = [f"replica {at // 2 % replicas if at % 2 else 0:02d}" for at in range(many)]
        probe.samples([4] * len(ends), begin_ns=[0] * len(ends), end_ns=ends.tolist(), replicas=names)
    with Run(tmp_path / "run") as run:
        told = lanes.kept(run)
    assert told is not None
    assert (len(told["lanes"]), told["left_out"]) == (16, 4)
    assert max(len(one["points"]) for one in told["lanes"]) <= lanes.POINTS + 1
    assert max(len(one["late"]) for one in told["lanes"]) == lanes.LATE
    assert len(json.dumps(told)) < 64 * 1024


def test_15_6_a_run_that_tells_no_times_has_no_lanes(tmp_path: Path) -> None:
    with probe.start("p", "none", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(1):
        probe.samples([4] * 3)
    with Run(tmp_path / "run") as run:
        assert lanes.kept(run) is None
