"""15.5: where findings lead among the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import probe
from probe.opened import Run
from probe.views.panel.browsing import Browsing, kept
from probe.views.panel.disagree import kept as kept_disagreement
from probe.views.panel.looking import Looker
from probe.views.panel.places import places
from tests.views.test_disagree import sampled


def changed(directory: Path, *, blocks: bool = True, many: int = 6) -> Path:
    """A step of six answers; of the others than the first the tokens from 21 on are others than were sampled."""
    with probe.start("p", run_dir=directory, rank=0, world_size=1) as session, session.step(2):
        rollout = np.full((many, 40), -1.0)
        trained = rollout.copy()
        trained[1:, 21:] -= 2
        ids = np.tile(np.arange(40), (many, 1))
        ids[1:, 21:] += 1
        both: dict[str, Any] = {"log_probs": trained, "rollout_log_probs": rollout} if blocks else {}
        probe.samples([40] * many, response_ids=ids, sampled_ids=[range(40)] * many, **both)
    return directory


def told(directory: Path) -> dict[str, dict[str, Any]]:
    with Run(directory) as run:
        return places(run, run.findings(), kept_disagreement(run))


def test_a_token_that_wasnt_sampled_is_of_the_first_such_answer_and_all_of_them_are_counted(tmp_path: Path) -> None:
    directory = changed(tmp_path / "run")
    (process,) = {one["key"][0] for one in told(directory).values()}
    assert told(directory) == {
        "not_sampled": {"step": 2, "answers": 5, "key": [process, 0, 1], "token": 21},
    }
    found = Looker(str(directory)).answer({"attempt": None, "whole": True, "live": False})["findings"]
    ways = {one["name"]: one["samples"] for one in found}
    assert ways.pop("not_sampled") == told(directory)["not_sampled"]
    assert set(ways.values()) <= {None}


def test_a_mismatch_leads_to_the_answer_that_shows_it_best_and_to_those_whose_tokens_are_kept(tmp_path: Path) -> None:
    directory = sampled(tmp_path / "run", cut=2)
    with Run(directory) as run:
        disagreement = kept_disagreement(run)
        place = places(run, run.findings(), disagreement)["mismatch"]
        step = place["step"]
        blocks = run.sql(f"select count(*) as n from token_blocks where step = {step}")["n"][0]
        assert places(run, run.findings(), None) == {}
    assert disagreement is not None
    first = disagreement["strips"][0]
    assert place == {"step": first["step"], "answers": blocks, "key": first["key"], "token": first["token"]}


def test_without_an_answer_to_look_at_token_by_token_nothing_is_told(tmp_path: Path) -> None:
    assert told(changed(tmp_path / "run", blocks=False)) == {}


def test_the_list_says_where_the_line_of_an_answer_stands(tmp_path: Path) -> None:
    browsing = Browsing(str(changed(tmp_path / "run")))
    question = {"of": "rows", "attempt": None, "step": 2, "from": 0, "count": 1}
    process = browsing.answer(question)["lines"][0]["key"][0]
    for only, row, place in (("all", 0, 5), ("changed", 3, 2), ("changed", 0, None), ("all", 77, None)):
        answer = browsing.answer({**question, "only": only, "key": [process, 0, row]})
        assert answer["place"] == place, (only, row)
    assert browsing.answer(question)["place"] is None
    browsing.close()


def test_a_saved_copy_keeps_the_answer_that_a_finding_leads_to(tmp_path: Path) -> None:
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(1):
        rollout = np.full((60, 10), -1.0)
        trained = rollout + np.linspace(3, 0.2, 60)[:, None]  # what is changed differs least
        ids = np.tile(np.arange(10), (60, 1))
        ids[58:, 4:] += 1
        probe.samples(
            [10] * 60, log_probs=trained, rollout_log_probs=rollout, response_ids=ids, sampled_ids=[range(10)] * 60
        )
    with Run(tmp_path / "run") as run:
        few = kept(run)
    assert few is not None
    lines = few["rows"]["lines"]
    assert len(lines) == 24
    assert [one["row"] for one in lines if one["changed"]] == [58, 59]
    assert [one["row"] for one in lines[:3]] == [0, 1, 2]
