"""15.4: what a page is told of why rollout and training disagree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.analysis.mismatch.onset import POINTS
from probe.runs.reader import Run
from probe.views.panel import looking
from probe.views.panel.disagree import PARTS, kept
from probe.views.panel.looking import Looker
from tests.told_samples import told_samples


def sampled(directory: Path, *, cut: int = 0, tokens: int = 200) -> Path:
    """Eight steps of eight answers; the text of the first ``cut`` of each goes on with other tokens from 120 on."""
    drawing = np.random.default_rng(5)
    with probe.start("p", "told", run_dir=directory, rank=0, world_size=1) as session:
        for step in range(8):
            lengths = [tokens - 10 * row for row in range(8)]
            train = [-drawing.exponential(2.0, many) - 0.02 for many in lengths]
            rollout = [one + 0.005 * drawing.normal(size=len(one)) for one in train]
            for one in rollout[:cut]:
                one[120:] = -drawing.exponential(2.0, len(one) - 120) - 0.02
            mask = [[0] * 5 + [1] * (many - 5) for many in lengths]
            versions: dict[str, Any] = {"weight_versions": [step] * 8, "trainer_version": step}
            with session.step(step):
                probe.samples(lengths, log_probs=train, rollout_log_probs=rollout, mask=mask, **versions)
    return directory


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sampled(tmp_path_factory.mktemp("cut") / "run", cut=2)


def test_15_4_a_page_is_told_the_cause_those_it_isnt_and_single_answers(cut: Path) -> None:
    with Run(cut) as run:
        told = kept(run)
        assert told is not None
        first = run.sql("select step, row from token_blocks")
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert not told["agree"]
    assert told["sentence"].startswith("Training uses other tokens than were sampled, in ")
    cause = told["causes"][0]
    assert (cause["name"], cause["state"]) == ("Text that was tokenised again", "yes")
    assert cause["word"].startswith("yes, ")
    states = {one["name"]: one["state"] for one in told["causes"]}
    assert states["Stale weights"] == "no"
    assert told["notes"][-1] == f"Looked at: {len(first)} answers of steps 0 to 7, of which every token is kept."
    strips = told["strips"]
    assert 1 <= len(strips) <= 12
    assert strips[0]["concerned"]
    assert max(one["share"] for one in strips) == 1
    for one in strips:
        assert len(one["levels"]) == min(int(np.ceil(PARTS * one["share"])), one["tokens"])
        assert one["levels"][0] is None  # outside the loss
        assert len(one["tops"]) == len(one["levels"])
        assert one["tops"] == sorted(one["tops"])
        assert one["name"] == f"step {one['step']}, answer {one['key'][2]}"
    assert 118 <= strips[0]["token"] <= 122  # a concerned answer is looked at where it begins to differ
    quiet = next(one for one in strips if not one["concerned"])
    assert quiet["token"] in quiet["tops"]
    longest = next(one["levels"] for one in strips if one["share"] == 1 and one["concerned"])
    assert {*longest[3:56]} == {0}  # up to token 120 of 200 it is noise
    assert {-4, 4} <= {*longest[56:]}


def test_15_4_answers_that_go_on_with_other_tokens_are_aligned_at_the_first_of_them(cut: Path) -> None:
    with Run(cut) as run:
        told = kept(run)
    assert told is not None
    curve = told["curve"]
    begin = -curve["begin"] // curve["width"]
    assert 118 <= curve["place"] <= 122
    assert len(curve["concerned"]) == len(curve["others"]) <= POINTS
    before, after = curve["concerned"][: begin - 1], curve["concerned"][begin + 1 :]
    assert max(one for one in before if one is not None) < 0.02
    assert np.mean([one for one in after if one is not None]) > 1
    assert max(one for one in curve["others"] if one is not None) < 0.02
    assert curve["answers"][0] == len([one for one in told["strips"] if one["concerned"]]) or curve["answers"][0] > 8


def test_15_4_of_another_cause_no_curve_is_told(tmp_path: Path) -> None:
    drawing = np.random.default_rng(3)
    with probe.start("p", "hot", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for step in range(8):
            train = [-drawing.exponential(2.0, 100) - 0.02 for _ in range(8)]
            with session.step(step):
                probe.samples([100] * 8, log_probs=train, rollout_log_probs=[1.4 * one for one in train])
    with Run(tmp_path / "run") as run:
        told = kept(run)
    assert told is not None
    assert not told["agree"]
    assert told["curve"] is None


def test_15_4_where_they_agree_a_page_is_told_what_was_looked_for_and_no_strips(tmp_path: Path) -> None:
    with Run(sampled(tmp_path / "run")) as run:
        told = kept(run)
    assert told is not None
    assert told["agree"]
    assert told["strips"] == []
    assert told["curve"] is None
    assert told["causes"][0] == told["causes"][0] | {"name": "Kernels", "state": "noise"}
    assert {one["state"] for one in told["causes"][1:]} <= {"no", "unknown"}


def test_15_4_causes_of_which_the_same_is_said_stand_in_one_line(tmp_path: Path) -> None:
    with Run(sampled(tmp_path / "run", cut=8)) as run:
        told = kept(run)
    assert told is not None
    (line,) = [one for one in told["causes"] if one["seen"] == "Too few other answers are left to tell."]
    assert line["name"].startswith("Another temperature; stale weights; ")
    assert line["word"] == "can't be told"


def test_15_4_nothing_is_told_where_nothing_can_be_judged(tmp_path: Path) -> None:
    with Run(told_samples(tmp_path / "few")) as run:
        assert kept(run) is None  # too few tokens
    with probe.start("p", run_dir=tmp_path / "none", rank=0, world_size=1) as session, session.step(0):
        pass
    with Run(tmp_path / "none") as run:
        assert kept(run) is None


def test_15_4_who_looks_for_findings_tells_it_and_says_what_it_couldnt_work_out(
    cut: Path, monkeypatch: pytest.MonkeyPatch, lenient: None
) -> None:
    looker = Looker(str(cut))
    answer = looker.answer({"attempt": None, "whole": True, "live": False})
    (mismatch,) = [one for one in answer["findings"] if one["name"] == "mismatch"]
    assert answer["disagreement"]["sentence"] == mismatch["sentence"]

    def broken(_run: Run) -> None:
        raise ValueError("no")

    monkeypatch.setattr(looking.disagree, "kept", broken)
    answer = looker.answer({"attempt": None, "whole": True, "live": False})
    assert answer["disagreement"] is None
    assert answer["failed"] == ["disagreement: ValueError: no"]
