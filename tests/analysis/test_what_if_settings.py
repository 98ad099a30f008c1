"""Each setting of a what-if beside a replay by hand: neighbours in fixed rows, and of few rows every way to share them.

The rows are those that the run was planted with. Nothing here knows how the analysis or its packers work.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from probe.analysis.what_if import what_if
from probe.analysis.what_if.answering import Replayer
from probe.analysis.what_if.settings import Order, Settings
from probe.opened import Run
from tests.analysis.planted_batches import Planted, planted

STEPS, RANKS, MINI_BATCHES = 4, 4, 2

Parts = list[list[int]]
#: Of each round the micro-batches of each rank.
Rounds = list[list[Parts]]


@dataclass
class Known:
    """A run and the rows of each of its steps."""

    run: Run
    steps: list[list[int]]


@contextlib.contextmanager
def made(path: Path, most: int = 1000, **changes: Any) -> Iterator[Known]:
    steps: list[list[int]] = []

    def drawn(random: Any, rows: int) -> list[int]:
        steps.append([int(one) for one in random.integers(20, most, rows)])
        return steps[-1]

    shape: dict[str, Any] = {"ranks": RANKS, "mini_batches": MINI_BATCHES, "balanced": False, "seed": 1}
    with planted(path, Planted(steps=STEPS, lengths=drawn, **{**shape, **changes})) as run:
        yield Known(run, steps)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """Two rows in each micro-batch, four of each rank in each mini-batch."""
    with made(tmp_path_factory.mktemp("fixed") / "run", rows=32, cap=None, rows_each=2) as known:
        yield known


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """verl's packer under 1,500 tokens, four rows of each rank in each mini-batch."""
    with made(tmp_path_factory.mktemp("capped") / "run", rows=32, cap=1500) as known:
        yield known


def dealt(lengths: Sequence[int], ranks: int, mini_batches: int = MINI_BATCHES) -> list[list[list[int]]]:
    """Of each round the rows of each rank: a stretch for each rank, a stretch of that for each mini-batch."""
    each = len(lengths) // (ranks * mini_batches)
    begins = [[(rank * mini_batches + number) * each for rank in range(ranks)] for number in range(mini_batches)]
    return [[list(lengths[begin : begin + each]) for begin in one] for one in begins]


def neighbours(rows: list[int], each: int) -> Parts:
    return [rows[begin : begin + each] for begin in range(0, len(rows), each)]


def fits(rows: list[int], count: int, cap: int, sums: tuple[int, ...] = ()) -> bool:
    """Whether so many parts, none empty, can hold the rows: each row is tried in every part, and in a new one."""
    if not rows:
        return len(sums) == count
    length, *others = rows
    into = [(*sums[:at], one + length, *sums[at + 1 :]) for at, one in enumerate(sums) if one + length <= cap]
    if len(sums) < count and length <= cap:
        into.append((*sums, length))
    return any(fits(others, count, cap, one) for one in into)


def fewest(ranks: list[list[int]], cap: int, least: int = 1, step: int = 1) -> int:
    """The smallest number of parts under which the cap holds on every rank: a multiple of ``step``."""
    most = min(map(len, ranks))
    return next(n for n in range(step, most + 1, step) if n >= least and all(fits(rows, n, cap) for rows in ranks))


def numbers(rounds: Rounds, round_to: int = 1) -> dict[str, float]:
    """What packed micro-batches come to, from what the numbers are said to be."""
    ranks = range(len(rounds[0]))
    computed = [[[-(-sum(part) // round_to) * round_to for part in own] for own in one] for one in rounds]
    tokens = [[sum(map(sum, own)) for own in one] for one in rounds]
    of_rank = [sum(one[rank] for one in tokens) for rank in ranks]
    mean = sum(sum(map(sum, one)) for one in computed) / len(ranks)
    in_step = sum(sum(map(max, itertools.zip_longest(*one, fillvalue=0))) for one in computed)
    return {
        "micro_batches": max(sum(len(one[rank]) for one in rounds) for rank in ranks),
        "largest_tokens": max(sum(part) for one in rounds for own in one for part in own),
        "rank_imbalance_ratio": max(of_rank) / (sum(of_rank) / len(ranks)),
        "mini_batch_imbalance_ratio": sum(map(max, tokens)) / sum(sum(one) / len(ranks) for one in tokens),
        "padding_tokens": sum(sum(map(sum, one)) for one in computed) - sum(of_rank),
        "waiting_ratio": 1 - mean / sum(max(map(sum, one)) for one in computed),
        "micro_batch_waiting_ratio": 1 - mean / in_step,
    }


def over_steps(told: list[dict[str, float]]) -> dict[str, float]:
    """Means over steps; the largest of ``largest_tokens``."""
    return {
        name: max(one[name] for one in told)
        if name == "largest_tokens"
        else math.fsum(one[name] for one in told) / len(told)
        for name in told[0]
    }


def answered(known: Known, changes: dict[str, Any], names: Sequence[str]) -> dict[str, float]:
    answer = what_if(known.run, changes)
    assert answer.steps == STEPS
    return {name: answer.number(name)[1] for name in names}


# --------------------------------------------------------------------------------------------------------- fixed rows

#: What is asked, the ranks, the rows of each micro-batch, the order and the multiple.
FIXED: list[tuple[dict[str, Any], int, int, str | None, int]] = [
    ({}, 4, 2, None, 1),
    ({"rows_each": 1}, 4, 1, None, 1),
    ({"rows_each": 4, "dynamic": False}, 4, 4, None, 1),
    ({"packer": "trl.fixed_rows", "rows_each": 3}, 4, 3, None, 1),
    ({"group_size": 2}, 4, 4, None, 1),
    ({"dp_size": 2}, 2, 2, None, 1),
    ({"dp_size": 8, "balance": "none"}, 8, 2, None, 1),
    ({"sp_size": 2}, 2, 2, None, 1),
    ({"sp_size": 4, "rows_each": 8}, 1, 8, None, 1),
    ({"round_to": 128}, 4, 2, None, 128),
    ({"order": "largest_first"}, 4, 2, "largest_first", 1),
    ({"order": "smallest_first"}, 4, 2, "smallest_first", 1),
    ({"order": "by_work"}, 4, 2, None, 1),  # fixed rows have no other order than theirs
    ({"order": "largest_first", "rows_each": 1, "dp_size": 2, "round_to": 64}, 2, 1, "largest_first", 64),
]


@pytest.mark.parametrize(("changes", "ranks", "each", "order", "round_to"), FIXED)
def test_2_fixed_rows_come_to_what_they_do_by_hand(
    fixed: Known, changes: dict[str, Any], ranks: int, each: int, order: str | None, round_to: int
) -> None:
    told = []
    for lengths in fixed.steps:
        rounds = [[neighbours(rows, each) for rows in one] for one in dealt(lengths, ranks)]
        if order is not None:
            rounds = [[sorted(own, key=sum, reverse=order == "largest_first") for own in one] for one in rounds]
        told.append(numbers(rounds, round_to))
    expected = over_steps(told)
    assert answered(fixed, changes, list(expected)) == pytest.approx(expected, rel=1e-12)


# ---------------------------------------------------------------------------------------------------------- under a cap

#: What is asked, the ranks, the cap that they hold, the least number of micro-batches and what it is a multiple of.
CAPPED: list[tuple[dict[str, Any], int, int, int, int]] = [
    ({}, 4, 1500, 1, 1),
    ({"cap_tokens": 1000}, 4, 1000, 1, 1),
    ({"cap_tokens": 2500}, 4, 2500, 1, 1),
    ({"cap_tokens": 4000}, 4, 4000, 1, 1),
    ({"minimum_count": 3, "cap_tokens": 4000}, 4, 4000, 3, 1),
    ({"divisor": 2}, 4, 1500, 1, 2),
    ({"dp_size": 2}, 2, 1500, 1, 1),
    ({"dp_size": 8}, 8, 1500, 1, 1),
    ({"sp_size": 2}, 2, 3000, 1, 1),  # two ranks hold a sequence together, and so twice the cap
    ({"sp_size": 2, "cap_tokens": 1000}, 2, 2000, 1, 1),
]


@pytest.mark.parametrize(("changes", "ranks", "cap", "least", "step"), CAPPED)
def test_2_under_a_cap_there_are_as_many_micro_batches_as_some_way_to_share_the_rows_needs(
    capped: Known, changes: dict[str, Any], ranks: int, cap: int, least: int, step: int
) -> None:
    counts, told = [], []
    for lengths in capped.steps:
        rounds = dealt(lengths, ranks)
        counts.append(sum(fewest(one, cap, least, step) for one in rounds))
        told.append(numbers([[[rows] for rows in one] for one in rounds]))
    expected = over_steps(told)
    answer = what_if(capped.run, changes)
    assert answer.number("micro_batches")[1] == math.fsum(counts) / STEPS
    assert answer.number("over_cap")[1] == 0
    assert answer.number("largest_tokens")[1] <= cap
    for name in ("rank_imbalance_ratio", "mini_batch_imbalance_ratio", "waiting_ratio", "padding_tokens"):
        assert answer.number(name)[1] == pytest.approx(expected[name], rel=1e-12)


def test_2_a_loose_cap_takes_as_many_micro_batches_as_the_tokens_need(capped: Known) -> None:
    counts = [
        sum(max(-(-sum(rows) // 1500) for rows in one) for one in dealt(lengths, RANKS)) for lengths in capped.steps
    ]
    loose = what_if(capped.run, strict=False)
    assert loose.number("micro_batches")[1] == math.fsum(counts) / STEPS
    assert loose.number("micro_batches")[1] < loose.number("micro_batches")[0]
    assert loose.number("over_cap")[1] > 0


@pytest.mark.parametrize("cap", [1200, 2500])
def test_2_rows_that_were_fixed_are_cut_by_tokens_and_the_other_way_round(
    fixed: Known, capped: Known, cap: int
) -> None:
    counts = [sum(fewest(one, cap) for one in dealt(lengths, RANKS)) for lengths in fixed.steps]
    by_tokens = what_if(fixed.run, dynamic=True, cap_tokens=cap)
    assert by_tokens.number("micro_batches") == (4, math.fsum(counts) / STEPS)
    assert by_tokens.number("largest_tokens")[1] <= cap
    by_rows = over_steps(
        [numbers([[neighbours(rows, 2) for rows in one] for one in dealt(lengths, RANKS)]) for lengths in capped.steps]
    )
    assert answered(capped, {"dynamic": False, "rows_each": 2}, list(by_rows)) == pytest.approx(by_rows, rel=1e-12)


@pytest.mark.parametrize("cap", [1800, 2200])
def test_2_groups_that_are_kept_together_are_shared_as_one_row(capped: Known, cap: int) -> None:
    counts = []
    for lengths in capped.steps:
        rounds = [[list(map(sum, neighbours(rows, 2))) for rows in one] for one in dealt(lengths, RANKS)]
        if max(max(rows) for one in rounds for rows in one) > cap:
            counts.append(math.nan)  # a pair is above the cap: refused
            continue
        counts.append(sum(fewest(one, cap) for one in rounds))
    known = [one for one in counts if not math.isnan(one)]
    answer = what_if(capped.run, group_size=2, cap_tokens=cap)
    assert known
    assert (answer.steps, len(answer.refused)) == (len(known), STEPS - len(known))
    assert answer.number("micro_batches")[1] == math.fsum(known) / len(known)


def work(part: list[int]) -> int:
    """verl's: 24,576 × tokens + tokens², summed."""
    return sum(24_576 * one + one * one for one in part)


def in_order(parts: Parts, order: str) -> Parts:
    heaviest = sorted(parts, key=work, reverse=True)
    if order == "by_work":  # the lightest at both ends
        return heaviest[::2][::-1] + heaviest[1::2]
    return heaviest if order == "as_packed" else sorted(parts, key=sum, reverse=order == "largest_first")


@pytest.mark.parametrize("order", ["by_work", "as_packed", "largest_first", "smallest_first"])
def test_2_the_order_is_that_of_what_recorded_micro_batches_hold(capped: Known, order: Order) -> None:
    """Ranks that agree on a count wait as long in each order of theirs; fixed rows above don't."""
    frame = capped.run.micro_batches.sort_values(["step", "batch_id", "rank", "micro_batch"])
    steps: list[Rounds] = []
    for _, of_step in frame.groupby("step"):
        of_rounds = [here for _, here in of_step.groupby("batch_id")]
        steps.append([[[list(one) for one in own["lengths"]] for _, own in here.groupby("rank")] for here in of_rounds])
    assert [[len(one) for one in rounds] for rounds in steps] == [[RANKS] * MINI_BATCHES] * STEPS
    replayer = Replayer(capped.run)
    found = [replayer.cut(at, Settings(order=order))[0] for at in range(STEPS)]
    assert found == [[[in_order(own, order) for own in one] for one in rounds] for rounds in steps]
    assert (found == steps) is (order == "by_work")  # as verl has them
    expected = over_steps([numbers(rounds) for rounds in found])
    assert answered(capped, {"order": order}, list(expected)) == pytest.approx(expected, rel=1e-12)


# ------------------------------------------------------------------------------------------------------------ balance


def splits(rows: list[int], *sizes: int) -> list[Parts]:
    """Every way to make two parts of the rows, the first with one of so many rows."""
    chosen = [set(one) for size in sizes for one in itertools.combinations(range(len(rows)), size)]
    return [
        [[rows[at] for at in range(len(rows)) if (at in one) is first] for first in (True, False)] for one in chosen
    ]


@pytest.mark.parametrize("how", ["batch", "mini_batch"])
def test_2_of_four_rows_for_two_ranks_the_best_share_is_dealt(tmp_path: Path, how: str) -> None:
    """Over a whole batch, and over each of its two mini-batches: of all ways to give both two rows, the most even."""
    mini_batches = 1 if how == "batch" else 2
    shape = {"ranks": 2, "rows": 4 * mini_batches, "mini_batches": mini_batches, "cap": 4000}
    before, after = [], []
    with made(tmp_path / "run", **shape) as known:
        for lengths in known.steps:
            best = [min(splits(rows, 2), key=lambda both: max(map(work, both))) for rows in neighbours(lengths, 4)]
            after.append(sum(max(map(sum, both)) for both in best) / (sum(lengths) / 2))
            rounds = [[[rows] for rows in one] for one in dealt(lengths, 2, mini_batches)]
            before.append(numbers(rounds)["mini_batch_imbalance_ratio"])
        told = what_if(known.run, balance=how).number("mini_batch_imbalance_ratio")
    assert told == pytest.approx((math.fsum(before) / STEPS, math.fsum(after) / STEPS), rel=1e-12)
    assert told[1] < told[0]


def test_2_two_micro_batches_are_as_even_as_any_two_can_be(tmp_path: Path) -> None:
    """By probe's own packer, which has a choice: of all ways to share the rows, the one whose heavier part is least."""
    largest = {"tokens": 0, "workload": 0}
    shape = {"ranks": 1, "rows": 5, "mini_batches": 1, "cap": 200_000, "packer": "probe", "seed": 3}
    with made(tmp_path / "run", most=60_000, **shape) as known:
        for lengths in known.steps:
            for evened, weight in (("tokens", sum), ("workload", work)):
                best = min(splits(lengths, 1, 2), key=lambda both, weight=weight: max(map(weight, both)))
                largest[evened] = max(largest[evened], *map(sum, best))
        answers = {evened: what_if(known.run, evened=evened, minimum_count=2) for evened in largest}
    assert {evened: one.number("largest_tokens")[1] for evened, one in answers.items()} == largest
    assert largest["tokens"] < largest["workload"]
    assert {one.number("micro_batches")[1] for one in answers.values()} == {2}


def test_2_each_setting_is_asked_for_here() -> None:
    asked = {name for changes, *_ in [*FIXED, *CAPPED] for name in changes} | {"strict", "evened"}
    assert asked == {one.name for one in fields(Settings)}
