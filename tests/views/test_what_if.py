"""What a page is handed for what-ifs, and what the process beside a panel answers about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probe.analysis.advice.adjustable import adjustable, parallel_key
from probe.analysis.what_if.answering import Replayer
from probe.runs.reader import Run
from probe.views.panel import what_if
from probe.views.panel.browsing import Browsing
from probe.views.panel.looking import Looker
from probe.views.panel.samples import question_of
from tests.analysis.planted_batches import Planted, planted
from tests.analysis.test_what_if_in_pages import CONFIG
from tests.sample_run import open_run, sample_rows

ACTOR = "actor_rollout_ref.actor"


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cut") / "run"
    planted(path, Planted(steps=3, rows=64, config=CONFIG)).close()
    return path


def settings_of(run: Run) -> dict[str, Any]:
    return {one.name: one for one in adjustable(run, Replayer(run, models=False).dealings[0])}


def test_2_the_settings_of_verl_are_its_own_keys_and_begin_at_what_was_recorded(cut: Path) -> None:
    with Run(cut) as run:
        found = settings_of(run)
    assert {name: (one.key, one.value) for name, one in found.items()} == {
        "cap_tokens": (f"{ACTOR}.ppo_max_token_len_per_gpu", 8192),
        "rows_each": (f"{ACTOR}.ppo_micro_batch_size_per_gpu", 8),
        "dynamic": (f"{ACTOR}.use_dynamic_bsz", True),
        "sp_size": (f"{ACTOR}.ulysses_sequence_parallel_size", 1),
        "balance": ("trainer.balance_batch", True),
    }
    cap = found["cap_tokens"]
    assert cap.free
    assert cap.value in cap.choices
    assert cap.choices == tuple(sorted(set(cap.choices)))
    assert found["rows_each"].choices == (1, 2, 4, 8)
    assert not found["rows_each"].known  # nothing was cut into fixed rows
    assert found["sp_size"].choices == (1, 2, 4)


@pytest.mark.parametrize(
    ("phase", "part", "engine"),
    [("update_actor", ACTOR, "fsdp_config"), ("update_critic", "critic", "fsdp")],
)
def test_2_the_key_of_sequence_parallelism_is_the_one_that_verl_reads(
    tmp_path: Path, phase: str, part: str, engine: str
) -> None:
    name = "ulysses_sequence_parallel_size"
    for number, (old, new) in enumerate([(1, 1), (2, 1), (1, None)]):
        told = {name: old} if new is None else {name: old, engine: {name: new}}
        config = {"critic": told} if part == "critic" else {"actor_rollout_ref": {"actor": told}}
        made = Planted(ranks=1, steps=1, rows=4, mini_batches=1, config=config)
        with planted(tmp_path / str(number), made) as run:
            beside = new is None or (old > 1 and part != "critic")  # which overrides an actor's engine alone
            assert parallel_key(run, phase) == (f"{part}.{name}" if beside else f"{part}.{engine}.{name}")
            assert parallel_key(run, "rollout") is None


def test_2_verl_s_actor_and_rollout_are_turned_together_where_they_say_the_same(tmp_path: Path) -> None:
    config = json.loads(json.dumps(CONFIG))
    for said, beside in ((True, ("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz",)), (False, ())):
        config["actor_rollout_ref"].setdefault("rollout", {})["log_prob_use_dynamic_bsz"] = said
        made = Planted(ranks=2, steps=2, rows=16, mini_batches=1, config=config)
        with planted(tmp_path / str(said), made) as run:
            assert settings_of(run)["dynamic"].beside == beside


def test_2_fixed_rows_of_trl_go_with_the_micro_batches_that_are_accumulated(tmp_path: Path) -> None:
    config = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 4, "beta": 0.0}
    made = Planted(ranks=2, steps=2, rows=32, mini_batches=1, cap=None, config=config)
    with planted(tmp_path / "run", made) as run:
        (found,) = [one for one in settings_of(run).values() if one.name == "rows_each"]
    assert (found.key, found.value, found.rows) == ("per_device_train_batch_size", 4, 1)
    assert found.product == ("gradient_accumulation_steps", 16)
    assert found.choices == (1, 2, 4, 8, 16)


def test_2_where_nobody_told_of_the_packer_nothing_can_be_turned_and_it_says_so(tmp_path: Path) -> None:
    with open_run(tmp_path, sample_rows(ranks=2, steps=3)) as run:
        packet = what_if.kept(run)
    assert packet is not None
    for phase in packet["phases"]:
        assert (phase["settings"], phase["lengths"]) == ([], "")
        assert phase["why"] == "Which packer cut these batches wasn't recorded."


def test_2_what_travels_is_bounded(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run(cut) as run:
        whole = what_if.kept(run)
        assert whole is not None
        letters = len(whole["phases"][0]["lengths"])
        assert 0 < letters < 64 * 8  # deflated: 64 rows are not more than four bytes each, in base64
        assert len(json.dumps(whole)) < 10_000
        monkeypatch.setattr(what_if, "MOST_LETTERS", letters - 1)
        (phase,) = what_if.WhatIfs(run).batches(3)["phases"]
    assert (phase["lengths"], phase["in_page"]) == ("", False)
    assert phase["why"] == "More sequences than a page is handed."


def test_2_the_step_that_is_handed_over_has_ended_on_every_process(tmp_path: Path) -> None:
    with planted(tmp_path / "run", Planted(ranks=2, steps=3, rows=16, mini_batches=1, config=CONFIG)) as run:
        assert what_if.last_ended(run) == 3
        tail = tmp_path / "run" / "rank-00001.jsonl"
    lines = tail.read_text().splitlines(keepends=True)
    tail.write_text("".join(lines[:-1]))  # its step 3 hasn't ended
    with Run(tmp_path / "run") as run:
        assert what_if.last_ended(run) == 2


def test_2_who_looks_for_findings_hands_the_batches_over_for_a_kernel_that_is_busy(cut: Path) -> None:
    looker = Looker(str(cut), looks=(), often=())
    told = looker.answer({"attempt": None, "whole": True})
    assert told["what_if"]["step"] == 3
    assert told["failed"] == []
    assert json.loads(json.dumps(told, allow_nan=False))["what_if"] == told["what_if"]


def test_2_the_process_beside_a_panel_answers_and_refuses_with_the_reason(cut: Path) -> None:
    browsing = Browsing(str(cut))
    where = ["actor", "update_actor"]
    asked = {"attempt": None, "of": "what_if", "step": 3, "where": where}
    found = browsing.answer({**asked, "changes": {"sp_size": 2}})
    assert found["done"] == found["total"] == 1
    assert found["after"]["micro_batches"] > 0
    assert found["saved"] is None
    assert any("sequence-parallel" in one for one in found["notes"])
    for changes, reason in (({"colour": 1}, "colour"), ({"cap_tokens": 1}, "below the"), ({"sp_size": 3}, "divisor")):
        assert reason in browsing.answer({**asked, "changes": changes})["refused"]
    assert browsing.answer({"attempt": None, "of": "batches", "step": 99})["phases"] == []
    browsing.close()


def test_2_a_page_cant_ask_a_what_if_that_isnt_one() -> None:
    good = {"of": "what_if", "step": 2, "where": ["actor", None], "changes": {"cap_tokens": 1, "balance": "batch"}}
    assert question_of({**good, "v": 1, "ask": "samples"}) == good
    wrong: list[dict[str, Any]] = [
        {"where": "actor"},
        {"where": [1, 2]},
        {"changes": [1]},
        {"changes": {"a": [1]}},
        {"changes": {str(at): at for at in range(17)}},
        {"changes": {"packer": "x" * 10_001}},
        {"steps": 0},
        {"of": ["what_if"]},
    ]
    assert [question_of({**good, **one}) for one in wrong] == [None] * len(wrong)
    del good["where"]
    assert question_of(good) is None
