"""Grids of rows by step: continued in place, they say what they say when they are made at once."""

from __future__ import annotations

import numpy as np
import pytest

from probe.analysis.grid import Grid, grid


def of_steps(begin: int, end: int, ranks: tuple[int, ...] = (0, 1, 2)) -> Grid:
    steps = list(range(begin, end))
    told = {"ranks": [list(ranks)] * len(steps), "s": [[step + rank / 10 for rank in ranks] for step in steps]}
    return grid({"step": steps, "name": [f"step {one}" for one in steps], **told}, "ranks", ["s"])


def same(one: Grid, other: Grid) -> None:
    assert one.keys == other.keys
    assert one.columns.keys() == other.columns.keys()
    for left, right in zip(one._arrays(), other._arrays(), strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


def test_a_grid_that_grows_step_by_step_is_the_one_that_is_made_at_once_and_copies_little() -> None:
    found, held = of_steps(0, 20), set()
    for step in range(20, 200):
        found = found.between(step - 20, step - 1).followed_by(of_steps(step, step + 1))
        same(found, of_steps(step - 20, step + 1))
        held.add(id(found.room))
    assert len(held) < 10  # a copy at each step would be 180


def test_what_was_given_before_stays_as_it_was_whatever_follows() -> None:
    before = of_steps(0, 5).followed_by(of_steps(5, 6))
    after = before.followed_by(of_steps(6, 8))
    other = before.followed_by(of_steps(100, 103))  # another one, where `after` has its rows
    cut = after.between(0, 6).followed_by(of_steps(7, 9))
    same(before, of_steps(0, 6))
    same(after, of_steps(0, 8))
    same(other.between(100, 102), of_steps(100, 103))
    assert cut.steps.tolist() == [*range(7), 7, 8]
    same(cut, of_steps(0, 9))


def test_ranks_that_come_later_and_other_types_are_taken_in() -> None:
    found = of_steps(0, 3).followed_by(of_steps(3, 4)).followed_by(of_steps(4, 5, (1, 2, 7)))
    assert found.keys == [0, 1, 2, 7]
    assert np.isnan(found.values["s"][4, 0])
    assert np.isnan(found.values["s"][:4, 3]).all()
    whole = grid({"step": [0], "n": [1]}).followed_by(grid({"step": [1], "n": np.array([0.5])}))
    assert whole.columns["n"].tolist() == [1.0, 0.5]


@pytest.mark.parametrize("rows", [[True, False, True], [True] * 3, [False] * 3])
def test_some_rows_are_chosen_with_all_that_they_have(rows: list[bool]) -> None:
    found = of_steps(4, 7).chosen(np.array(rows))
    kept = [step for step, one in zip((4, 5, 6), rows, strict=True) if one]
    assert found.steps.tolist() == kept
    assert found.columns["name"].tolist() == [f"step {one}" for one in kept]
    assert found.values["s"].shape == (len(kept), 3)
