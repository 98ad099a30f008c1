"""Issues 13 (supplement) and 15: whether the ids that are trained are those that were sampled, exactly."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe import hooks, testing
from probe.errors import InputError
from probe.opened import Run
from probe.recorders.samples import SamplesRecorder
from probe.records import Sample, TokenIdentity
from probe.same_tokens import compared

IDS = st.lists(st.integers(0, 3), max_size=6)


def recorded(tell, **options):
    """The row of one step in which ``tell`` was called, and all rows."""
    collect = testing.Collect(SamplesRecorder(**options))
    with hooks.subscribe(collect, *SamplesRecorder.points), hooks.scope("step", "step", step=3):
        tell()
    rows = collect.rows()
    return next((row for row in rows if isinstance(row, TokenIdentity)), None), rows


def first_change(ids, counted, sampled, parts, aligned):
    """Which counted token is the first changed one, None where none is, and which sampled one belongs there: by trying
    every way to leave tokens out.
    """
    places = [at for at, yes in enumerate(counted) if yes]
    trained = [ids[at] for at in places]
    if parts and aligned and len(ids) == len(sampled):
        beside = [at for at, yes in enumerate(counted) if not yes and ids[at] != sampled[at]]
        wrong = [at for at in places if ids[at] != sampled[at]]
        if not wrong or (beside and trained == sampled[: len(trained)]):
            return None
        return places.index(wrong[0]), wrong[0]
    for many in range(len(trained), -1, -1):
        ways = [tuple(range(many))] if many <= len(sampled) else []
        if parts and len(trained) < len(sampled):
            ways = combinations(range(len(sampled)), many)
        fits = [way for way in ways if [sampled[at] for at in way] == trained[:many]]
        if fits:
            return None if many == len(trained) else (many, min(way[-1] + 1 if way else 0 for way in fits))
    raise AssertionError("no tokens at all always fit")


@settings(max_examples=600, deadline=None)
@given(IDS, st.data(), IDS, st.booleans(), st.booleans())
def test_an_answer_is_the_same_where_its_counted_tokens_are_sampled_ones_in_their_order(
    ids, data, sampled, parts, aligned
):
    counted = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    trained = [one for one, yes in zip(ids, counted, strict=True) if yes]
    found = compared(ids, counted, sampled, parts=parts, aligned=aligned)
    assert (found.trained, found.sampled) == (len(trained), len(sampled))
    expected = first_change(ids, counted, sampled, parts, aligned)
    if expected is None:
        assert found[2:] == (0, None, None, None)
        return
    at, there = expected
    place = [at for at, yes in enumerate(counted) if yes][at]
    there_id = sampled[there] if there < len(sampled) else None
    assert found[2:] == (len(trained) - at, place, there_id, ids[place])


def test_15_3_the_sampled_token_is_that_behind_the_last_one_that_is_trained():
    sampled = [*range(17), 999]
    for masked in ([14, 15, 16], [1, 5, 9], [0, 1, 16]):
        counted = [at not in masked for at in range(18)]
        found = compared(list(range(18)), counted, sampled, parts=True)
        assert (found.token, found.sampled_id, found.trained_id) == (17, 999, 17)
    # Cut off, so that the places aren't known.
    found = compared([0, 1, 2, 3, 60], [1, 0, 1, 1, 1], [0, 1, 2, 3, 4, 5, 6], parts=True)
    assert (found.token, found.sampled_id, found.trained_id) == (4, 4, 60)


def test_15_3_where_each_token_stands_in_its_place_order_is_not_enough():
    swapped = [1, 2, 1, 3], [1, 0, 1, 1], [1, 1, 2, 3]
    found = compared(*swapped, parts=True)
    assert (found.token, found.sampled_id, found.trained_id, found.changed) == (2, 2, 1, 2)
    row, _ = recorded(lambda: probe.samples([4], response_ids=swapped[:1], mask=swapped[1:2], sampled_ids=swapped[2:]))
    assert (row.changed_answers, row.first_token) == (1, 2)
    # verl's agent loops leave nothing out of their mask but what tools say, and may throw away a first try.
    assert compared(*swapped, parts=True, aligned=False).token is None
    # A tool said 2, and 9 was cut off at the limit.
    assert compared([1, 2, 1], [1, 0, 1], [1, 1, 9], parts=True).token is None
    assert compared([1, 1, 1], [1, 0, 1], [1, 1, 9], parts=True).token == 2


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(["lists", "rectangle"]))
def test_a_batch_is_compared_as_its_answers_are_one_by_one(data, laid_out):
    count = data.draw(st.integers(1, 5))
    few = st.lists(st.integers(0, 1), max_size=4)
    ids, sampled = ([data.draw(few) for _ in range(count)] for _ in range(2))
    masks = [data.draw(st.lists(st.booleans(), min_size=len(one), max_size=len(one))) for one in ids]
    dropped = [data.draw(st.sampled_from([None, "stale"])) for _ in range(count)]
    told = sampled if laid_out == "lists" else np.array([[-1, *one, *[-1] * (4 - len(one))] for one in sampled])
    row, _ = recorded(
        lambda: probe.samples(
            [len(one) for one in ids], response_ids=ids, mask=masks, sampled_ids=told, dropped=dropped
        ),
        text=True,
    )
    answers = [at for at in range(count) if not dropped[at]]
    found = [compared(ids[at], masks[at], sampled[at], parts=not all(masks[at])) for at in answers]
    changed = [(at, one) for at, one in zip(answers, found, strict=True) if one.token is not None]
    assert (row.answers, row.trained_tokens) == (len(found), sum(one.trained for one in found))
    assert row.sampled_tokens == sum(one.sampled for one in found)
    assert (row.changed_rows, row.changed_tokens) == ([at for at, _ in changed], sum(one.changed for one in found))
    if changed:
        assert (row.first_token, row.sampled_id, row.trained_id) == changed[0][1][3:]
        assert all(type(one) is int for one in (row.trained_id, row.sampled_id) if one is not None)


@pytest.mark.parametrize("laid_out", ["lists", "arrays", "rectangles"])
def test_each_answer_of_a_batch_is_compared_however_its_ids_are_laid_out(laid_out):
    answers = [[5, 6, 7], [5, 9, 9, 6, 7], [5, 60, 7, 8]]
    masks = [[1, 1, 1], [1, 0, 0, 1, 1], [1, 1, 1, 1]]
    sampled = [[5, 6, 7], [5, 6, 7], [5, 6, 7]]

    def tell():
        told = {"mask": masks, "response_ids": answers, "sampled_ids": sampled}
        if laid_out == "arrays":
            told = {name: [np.array(one) for one in rows] for name, rows in told.items()}
        if laid_out == "rectangles":
            told = {
                name: torch.tensor([[*one, *[-1 if name == "sampled_ids" else 0] * (5 - len(one))] for one in rows])
                for name, rows in told.items()
            }
        probe.samples([3, 5, 4], uids=["a", "b", "c"], **told)

    row, rows = recorded(tell)
    assert (row.answers, row.trained_tokens, row.sampled_tokens) == (3, 3 + 3 + 4, 9)
    assert (row.changed_answers, row.changed_tokens, row.changed_rows) == (1, 3, [2])
    assert (row.first_uid, row.first_token, row.sampled_id, row.trained_id) == ("c", 1, None, None)
    # Without samples="text" no id is kept, not even where two differ.
    assert all(one.response_ids == [] for one in rows if isinstance(one, Sample))
    with_ids, _ = recorded(tell, text=True)
    assert (with_ids.sampled_id, with_ids.trained_id) == (6, 60)


def test_a_left_padded_rectangle_is_read_by_its_response_mask():
    def tell():
        probe.samples(
            response_mask=torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]]),
            mask=torch.tensor([[0, 1, 1, 0], [0, 1, 0, 1]]),
            response_ids=torch.tensor([[9, 1, 2, 0], [9, 3, 4, 5]]),
            sampled_ids=[[1, 2], [3, 6]],
        )

    row, _ = recorded(tell)
    # Of the second answer 4 isn't counted; 5 is, in the place of 6.
    assert (row.changed_answers, row.changed_rows, row.first_token) == (1, [1], 2)


def test_what_is_dropped_is_not_trained_and_what_was_not_told_is_not_compared():
    row, _ = recorded(
        lambda: probe.samples(
            [2, 2], response_ids=[[1, 2], [3, 4]], sampled_ids=[[1, 2], [9, 9]], dropped=[None, "truncated"]
        )
    )
    assert (row.answers, row.changed_answers) == (1, 0)
    assert recorded(lambda: probe.samples([2], response_ids=[[1, 2]]))[0] is None
    assert recorded(lambda: probe.samples([2], sampled_ids=[[1, 2]]))[0] is None
    # The loss counts nothing of it: nothing of it is trained.
    row, _ = recorded(lambda: probe.samples([2], mask=[[0, 0]], response_ids=[[1, 2]], sampled_ids=[[3]]))
    assert (row.answers, row.trained_tokens, row.changed_answers) == (1, 0, 0)


@pytest.mark.parametrize("name", ["sampled_ids", "response_ids", "rollout_log_probs", "mask"])
@pytest.mark.parametrize("missing", [0, 1])
def test_what_is_not_known_of_one_answer_takes_no_row_of_the_others(name, missing):
    told = {"response_ids": [[1, 2], [3, 4]], "sampled_ids": [[1, 2], [3, 4]], name: [[1, 1], [1, 1]]}
    told[name][missing] = None
    row, rows = recorded(lambda: probe.samples([2, 2], rewards=[1.0, 0.0], **told))
    assert [one.reward for one in rows if isinstance(one, Sample)] == [1.0, 0.0]
    assert (row is None) == (name != "rollout_log_probs")


def test_another_number_of_answers_is_an_error():
    with (
        hooks.subscribe(testing.Collect(SamplesRecorder()), *SamplesRecorder.points),
        pytest.raises(InputError, match="sampled_ids: got 1 of them, expected 2, as many as response_tokens"),
    ):
        probe.samples([2, 2], response_ids=[[1, 2], [3, 4]], sampled_ids=[[1, 2]])


def test_what_is_told_is_as_it_was_when_it_was_told():
    """A trainer goes on with its lists before the step has ended."""
    ids, sampled = [[1, 2]], [[1, 2]]

    def tell():
        probe.samples([2], response_ids=ids, sampled_ids=sampled)
        ids[0][0], sampled[0][1] = 7, 8

    row, _ = recorded(tell)
    assert row.changed_answers == 0


# ------------------------------------------------------------------------------------------------------ what is said


def ran(place, steps, rank=0, world_size=1, **options):
    """A run whose steps told of these answers: a list of (response ids, sampled ids) each."""
    with probe.start("p", run_dir=place, rank=rank, world_size=world_size, **options) as session:
        for step, answers in enumerate(steps):
            with session.step(step):
                ids, sampled = zip(*answers, strict=True)
                probe.samples([len(one) for one in ids], response_ids=ids, sampled_ids=sampled, uids=["u"] * len(ids))


GOOD, BAD = ([1, 2, 3], [1, 2, 3]), ([1, 5, 3], [1, 2, 3])


def test_the_finding_says_since_when_how_many_and_where_the_first_stands(tmp_path):
    ran(tmp_path / "run", [[GOOD, GOOD], [GOOD, GOOD], [GOOD, BAD], [GOOD, GOOD], [BAD, BAD]])
    with Run(tmp_path / "run") as run:
        found = run.findings().named("not_sampled")
        rows = run.sql(found.evidence_sql)
    assert found.kind == "alarm"
    assert found.sentence == "3 of 6 answers of rank 0 since step 2 are trained on tokens that weren't sampled."
    assert found.why.startswith("The first is token 1 of answer 1 (u) of step 2 on rank 0. ")
    assert (found.since.step, found.where.rank, found.cost.tokens, found.cost.steps) == (2, 0, 6, 2)
    assert (found.where.step, found.where.token) == (None, None)  # nothing of single tokens is kept
    assert found.cost.share == pytest.approx(6 / 18)
    assert rows["step"].tolist() == [2, 4]
    assert "token ids" in found.change.advice


def test_where_it_began_before_the_newest_steps_it_says_when(tmp_path):
    ran(tmp_path / "run", [[GOOD], *[[BAD]] * 40])
    with Run(tmp_path / "run") as run:
        found = run.findings()[0]
    said = "30 of 30 answers of rank 0 in the last 30 steps are trained on tokens that weren't sampled"
    assert found.sentence == f"{said}; it began in step 1."
    assert (found.since.step, found.where.step, found.where.token) == (1, None, None)


def test_one_rank_of_two_is_named(tmp_path):
    for rank, answers in enumerate([[GOOD], [BAD]]):
        ran(tmp_path / "run", [answers, answers], rank, 2)
    with Run(tmp_path / "run") as run:
        found = run.findings()
    assert found[0].name == "not_sampled"
    assert found[0].where.rank == 1
    assert found[0].sentence == "2 of 2 answers of rank 1 since step 0 are trained on tokens that weren't sampled."


def test_with_texts_kept_the_two_ids_and_the_text_stand_there(tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1, samples="text") as session, session.step(1):
        probe.samples([3], response_ids=[BAD[0]], sampled_ids=[BAD[1]], responses=["to be or"])
    with Run(tmp_path / "run") as run:
        why = run.findings()[0].why
        found = run.findings()[0]
    assert "token 1 of answer 0 of step 1 on rank 0: the engine sampled 2, and 5 is trained. " in why
    assert (found.since.step, found.where.token) == (1, 1)  # the token can be looked at
    assert "The answer reads “to be or”." in why


def test_where_all_are_the_same_it_says_so(tmp_path):
    ran(tmp_path / "run", [[GOOD, GOOD], [GOOD, ([1, 2], [1, 2, 3])]])
    with Run(tmp_path / "run") as run:
        found = run.findings()
    assert not found.alarms
    (fine,) = [one for one in found if one.name == "identity"]
    assert fine.kind == "fine"
    assert fine.sentence == "All 11 tokens trained in the last 2 steps are those that were sampled."
    assert fine.why == "The ids of 4 answers were compared, one by one."


def test_a_run_that_tells_no_ids_says_nothing_of_them(tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(0):
        probe.samples([2], response_ids=[[1, 2]])
    with Run(tmp_path / "run") as run:
        assert not {"identity", "not_sampled"} & {one.name for one in run.findings()}


def test_what_was_repaired_long_ago_is_not_told_again(tmp_path):
    ran(tmp_path / "run", [[BAD]] + [[GOOD]] * 30)
    with Run(tmp_path / "run") as run:
        assert run.findings().named("not_sampled") is None
