"""The answers of a step as they are browsed: groups side by side, the worst first, searched and narrowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.analysis.step_samples import StepSamples, Wish, key_of, near, searched, tokens_of
from probe.errors import InputError
from probe.recorders.token_identity import identity, together
from probe.runs.reader import Run
from probe.same_tokens import compared
from tests.told_samples import told_samples


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Run(told_samples(tmp_path_factory.mktemp("samples") / "run")) as found:
        yield found


def names(found: StepSamples, wish: Wish, run: Run | None = None) -> list[str]:
    """The lines of a wish: groups by their name, answers by their place in the batch."""
    hits = searched(run, found.step, wish.search) if run is not None else None
    lines = found.arranged(wish, hits).lines
    return [found.groups[at].name if kind == "group" else str(found.answers[at]["row"]) for kind, at in lines]


def test_answers_of_a_prompt_stand_side_by_side_and_the_worst_group_comes_first(run: Run) -> None:
    found = StepSamples.read(run, 2)
    assert names(found, Wish()) == ["b", "4", "5", "3", "a", "1", "0", "2"]  # 4 has NaN, 1 the largest difference
    assert names(found, Wish(sort="batch")) == ["a", "0", "1", "2", "b", "3", "4", "5"]
    assert names(found, Wish(sort="tokens")) == ["b", "5", "3", "4", "a", "2", "1", "0"]
    assert names(found, Wish(sort="reward")) == ["a", "1", "2", "0", "b", "3", "4", "5"]
    assert names(found, Wish(sort="advantage"))[:3] == ["a", "0", "1"]
    assert [group.equal for group in found.groups] == [False, True]
    assert found.sampled == 6


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (Wish(only="truncated"), ["b", "5"]),
        (Wish(only="dropped"), ["b", "5"]),
        (Wish(only="nan"), ["b", "4"]),
        (Wish(only="no_advantage", sort="batch"), ["b", "3", "4", "5"]),
        (Wish(group="a", sort="batch"), ["a", "0", "1", "2"]),
        (Wish(micro_batch=1, sort="batch"), ["b", "3", "4"]),
        (Wish(micro_batch=1, process="rank-00000", only="nan"), ["b", "4"]),
        (Wish(micro_batch=7), []),
    ],
)
def test_a_list_is_narrowed(run: Run, wish: Wish, expected: list[str]) -> None:
    assert names(StepSamples.read(run, 2), wish) == expected


def test_which_answers_a_micro_batch_had_is_never_guessed(run: Run) -> None:
    """One of another phase, or where nobody told what was trained, gives all answers and says so."""
    found = StepSamples.read(run, 2)
    elsewhere = found.arranged(Wish(micro_batch=1, phase="old_log_prob"))
    assert elsewhere.answers == 6
    assert (
        elsewhere.note
        == "Which answers were in micro-batch 1 of old_log_prob isn't recorded: these are all of the step."
    )
    untold = StepSamples.read(run, 1).arranged(Wish(micro_batch=0))
    assert (untold.answers, untold.note[:27]) == (6, "Which micro-batch trained w")


def test_rewards_of_a_group_are_called_equal_only_where_all_of_them_are_known() -> None:
    def answer(row: int, reward: float | None, chosen_by: str) -> dict[str, Any]:
        return {"process": "p", "batch_id": 0, "row": row, "group": "g", "reward": reward, "chosen_by": chosen_by}

    def equal(*rewards: float | None, chosen_by: str = "all") -> bool | None:
        answers = [answer(row, reward, chosen_by) for row, reward in enumerate(rewards)]
        return StepSamples(0, answers).groups[0].equal

    assert (equal(1.0, 1.0), equal(1.0, 0.0), equal(1.0, None), equal(1.0)) == (True, False, None, None)
    assert (equal(1.0, 1.0, chosen_by="worst"), equal(1.0, 0.0, chosen_by="worst")) == (None, False)


SAMPLED = [[1, 2, 3], [1, 2, 3], [4, 5, 6], [4, 5, 6]]


def recorded(directory: Path, trained: list[list[int]], **told: Any) -> StepSamples:
    """The answers of a step that is trained on ``trained`` where :data:`SAMPLED`, again and again, were sampled."""
    with probe.start("p", run_dir=directory, rank=0, world_size=1) as session, session.step(3):
        sampled = [SAMPLED[row % len(SAMPLED)] for row in range(len(trained))]
        probe.samples([3] * len(trained), response_ids=trained, sampled_ids=sampled, **told)
    with Run(directory) as run:
        return StepSamples.read(run, 3)


def test_15_5_answers_trained_on_other_tokens_are_seen_alone_with_the_first_such_token(tmp_path: Path) -> None:
    trained = [[1, 2, 3], [1, 2, 9], [4, 5, 6], [8, 5, 6]]
    found = recorded(tmp_path / "run", trained, groups=["a", "a", "b", "b"])
    told = found.arranged(Wish(only="changed"))
    assert names(found, Wish(only="changed", sort="batch")) == ["a", "1", "b", "3"]
    assert (told.answers, told.note) == (2, "")
    assert [(one["changed"], one["changed_at"]) for one in found.answers] == [
        (False, None),
        (True, 2),  # of the first of them alone it is recorded
        (False, None),
        (True, None),
    ]


def test_15_5_of_more_changed_answers_than_a_batch_names_it_says_so(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", [[7, 7, 7]] * 90)
    told = found.arranged(Wish(only="changed"))
    assert told.answers == 64
    assert told.note == (
        "90 answers of this step are trained on tokens that weren't sampled; 64 of them have a row. "
        "A batch names its first 64."
    )
    assert found.arranged(Wish()).note == ""


def test_15_5_where_it_isnt_known_which_answers_changed_all_are_shown_and_it_says_so(tmp_path: Path) -> None:
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(3):
        probe.samples([3, 3])
        # As agent loops of verl tell it, who know of no batch.
        one = compared([7, 7, 7], [True] * 3, [7, 8, 7], parts=False)
        row = identity(together([one]), None, -1, "verl.AgentLoopWorker", None, keeps_ids=False)
        session.recording.writer.add_rows([row], session.recording.sample_scope(), 0)
    with Run(tmp_path / "run") as run:
        found = StepSamples.read(run, 3)
    told = found.arranged(Wish(only="changed"))
    assert told.answers == 2
    assert told.note == (
        "1 answer sampled for this step is trained on tokens that weren't sampled. "
        "Which ones isn't recorded: these are all of the step."
    )


def by_name(directory: Path, step: int, uids: list[str], changed: set[str]) -> None:
    """Another process compares answers that it knows by their names, as agent loops of verl do."""
    with probe.start("p", run_dir=directory, role="agent_loop") as session:
        found = [compared([7, 7, 7], [True] * 3, [7, 8 if one in changed else 7, 7], parts=False) for one in uids]
        row = identity(together(found), None, -1, "verl.AgentLoopWorker", uids, keeps_ids=False)
        row.step = step
        session.recording.writer.add_rows([row], session.recording.sample_scope(), 0)


@pytest.mark.parametrize("sampled_for", [3, 2])  # 2: the answers are trained in the step after
def test_15_5_answers_that_agent_loops_compared_are_found_by_their_names(
    tmp_path: Path, sampled_for: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_ATTEMPT", "1")
    uids = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
    dropped = [None, None, None, "stale"]
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for step, names_of in ((2, ["z_0_0"] * 4), (3, uids)):
            with session.step(step):
                probe.samples([3] * 4, uids=names_of, groups=[one[0] for one in names_of], dropped=dropped)
    by_name(tmp_path / "run", sampled_for, uids, {"a_1_0", "b_0_0", "b_1_0"})
    with probe.open(tmp_path / "run") as run:
        found, other = StepSamples.read(run, 3), StepSamples.read(run, 2)
        finding = run.findings().named("not_sampled")
    assert [(one["changed"], one["changed_at"]) for one in found.answers] == [
        (False, None),
        (True, 1),  # of the first of them alone it is recorded
        (True, None),
        (False, None),  # nobody trains it
    ]
    assert not any(one["changed"] for one in other.answers)
    note = found.arranged(Wish(only="changed")).note
    three = "3 answers sampled for this step are trained on tokens that weren't sampled; 2 of this step's named ones "
    assert note == (f"{three}have a row." if sampled_for == 3 else "")
    assert (finding.where.step, finding.where.token) == (3, None)  # where it is trained; no token of it is kept
    assert finding.why.startswith(f"The first is token 1 of a_1_0 of step {sampled_for}. ")


def test_15_5_a_run_that_compared_no_ids_has_no_changed_answers(run: Run) -> None:
    assert names(StepSamples.read(run, 2), Wish(only="changed")) == []


def test_a_search_finds_names_and_texts_that_are_recorded_and_no_sql(run: Run) -> None:
    found = StepSamples.read(run, 2)
    assert names(found, Wish(search="LENGTH"), run) == ["b", "5"]  # why it ended
    assert names(found, Wish(search="answer 3"), run) == ["b", "3"]  # its text
    assert names(found, Wish(search="'; drop table samples; --"), run) == []
    assert names(found, Wish(search="%"), run) == []


def test_an_unknown_order_is_named(run: Run) -> None:
    found = StepSamples.read(run, 2)
    with pytest.raises(InputError, match="sort: got 'colour', expected one of difference"):
        found.arranged(Wish(sort="colour"))
    with pytest.raises(InputError, match="only: got 'red'"):
        found.arranged(Wish(only="red"))


def test_tokens_of_an_answer_are_those_that_were_told(run: Run) -> None:
    found = StepSamples.read(run, 2)
    held = next(one for one in found.answers if one["row"] == 1)
    assert held["block"]
    tokens = tokens_of(run, 2, key_of(held))
    assert tokens is not None
    difference = tokens.arrays["log_probs"].astype(np.float64) - tokens.arrays["rollout_log_probs"]
    assert np.abs(difference).argmax() == held["difference_at"] == 2
    assert abs(np.abs(difference).max() - abs(held["difference_largest"])) < 0.01  # half precision
    assert (tokens.ids, tokens.text) == ([11] * 4, "answer 1")
    assert tokens_of(run, 2, ("nobody", 0, 0)) is None


def test_the_nearest_step_with_samples_is_known_where_a_step_has_none(run: Run, tmp_path: Path) -> None:
    assert (near(run, 2), near(run, 99), near(run, -5)) == (2, 2, 1)
    with probe.start("p", "nothing", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(1):
        pass
    with Run(tmp_path / "run") as empty:
        assert near(empty, 1) is None
        assert StepSamples.read(empty, 1).arranged(Wish()).lines == []
