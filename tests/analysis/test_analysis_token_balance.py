"""Token balance against numbers worked out by hand: imbalance is largest ÷ mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.analysis import token_balance
from probe.records import MicroBatch
from tests.sample_run import clock, open_run


def batch(
    rank: int,
    batch_id: int,
    tokens: list[int],
    *,
    step: int = 0,
    phase: str | None = "update",
    cap: int | None = 100,
):
    """One batch of one rank, one sequence in each micro-batch that has tokens."""
    return [
        MicroBatch(
            rank=rank,
            time_ns=clock(rank) + batch_id,
            step=step,
            phase=phase,
            micro_batch=index,
            batch_id=batch_id,
            micro_batches=len(tokens),
            sequences=int(n > 0),
            lengths=[n] if n else [],
            tokens=n,
            cap_tokens=cap,
            over_cap=cap is not None and n > cap,
        )
        for index, n in enumerate(tokens)
    ]


@pytest.fixture
def run(tmp_path: Path):
    """Step 0: rank 1 has 180 of 240 tokens. Step 1: even ranks; rank 0 has one micro-batch over the cap."""
    rows = {
        0: [*batch(0, 5, [40, 20]), *batch(0, 6, [110, 10], step=1)],
        1: [*batch(1, 8, [90, 90]), *batch(1, 9, [60, 60], step=1)],
    }
    with open_run(tmp_path, rows) as opened:
        yield opened


def test_rounds_join_the_batches_of_the_ranks(run) -> None:
    first, second = token_balance.rounds(run).to_dict("records")
    assert first["tokens"] == 240
    assert first["rank_imbalance_ratio"] == pytest.approx(180 / 120)
    assert first["micro_batch_imbalance_ratio"] == pytest.approx(40 / 30)
    assert first["sync_wait_ratio"] == pytest.approx((90 + 90) / (65 + 55))
    assert first["straggler"] == 1
    assert second["rank_imbalance_ratio"] == 1
    assert second["micro_batch_imbalance_ratio"] == pytest.approx(110 / 60)
    assert second["sync_wait_ratio"] == pytest.approx((110 + 60) / (85 + 35))
    assert second["over_cap"] == 1


def test_several_batches_of_a_phase_are_several_rounds(tmp_path: Path) -> None:
    rows = {0: [*batch(0, 1, [10]), *batch(0, 2, [30])], 1: [*batch(1, 7, [10]), *batch(1, 9, [10])]}
    with open_run(tmp_path, rows) as run:
        frame = token_balance.rounds(run)
        assert frame["round"].tolist() == [1, 2]
        assert frame["rank_imbalance_ratio"].tolist() == [1.0, 1.5]
        assert "batch 2" in token_balance.choices(run)["label"][0]
        assert token_balance.heat(run)["tokens"].tolist() == [30, 10]


def test_a_step_is_as_uneven_as_its_worst_round(run) -> None:
    frame = token_balance.imbalance(run)
    assert frame["step"].tolist() == [0, 1]
    assert frame["rank_imbalance_ratio"].tolist() == [1.5, 1.0]
    assert frame["straggler"][0] == 1
    assert frame["over_cap"].tolist() == [0, 1]


def test_heat_shows_the_most_uneven_round_unless_told(run) -> None:
    frame = token_balance.heat(run)
    assert frame["step"].unique().tolist() == [0]
    assert frame[["rank", "micro_batch", "tokens"]].to_numpy().tolist() == [
        [0, 0, 40],
        [0, 1, 20],
        [1, 0, 90],
        [1, 1, 90],
    ]
    other = token_balance.heat(run, step=1, phase="update", round=1)
    assert other["tokens"].tolist() == [110, 10, 60, 60]
    assert other["over_cap"].tolist() == [True, False, False, False]


def test_choices_start_with_the_most_uneven_and_then_say_what_is_over_the_cap(run) -> None:
    frame = token_balance.choices(run)
    assert frame["label"].tolist() == [
        "step 0 · update · 1.50× (most uneven)",
        "step 1 · update · 1.42× · 1 over the cap",
    ]
    chosen = frame.iloc[1]
    assert not token_balance.heat(run, chosen["step"], chosen["phase"], chosen["round"]).empty


def test_a_phase_with_a_quote_in_its_name_is_only_a_name(tmp_path: Path) -> None:
    name = "it's' or true --"
    with open_run(tmp_path, {0: [*batch(0, 1, [3], phase=name), *batch(0, 2, [9], phase="other")]}) as run:
        assert token_balance.heat(run, 0, name, 1)["tokens"].tolist() == [3]


def test_rows_outside_steps_and_phases_are_found(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: batch(0, 1, [3, 4], step=None, phase=None)}) as run:  # type: ignore[arg-type]
        assert token_balance.heat(run)["tokens"].tolist() == [3, 4]
        assert token_balance.choices(run)["label"][0].startswith("outside steps")


def test_stragglers_name_the_rank(run) -> None:
    worst, other = token_balance.stragglers(run).to_dict("records")
    assert (worst["rank"], worst["largest_in"], worst["rounds"]) == (
        1,
        1,
        2,
    )  # an even round has no straggler
    assert worst["share_ratio"] == pytest.approx(300 / 240)
    assert other["share_ratio"] == pytest.approx(180 / 240)


def test_one_rank_has_no_straggler(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: batch(0, 1, [3, 4])}) as run:
        assert token_balance.stragglers(run).empty


def test_violations_and_totals(run) -> None:
    row = token_balance.violations(run).iloc[0]
    assert (row["rank"], row["step"], row["micro_batch"], row["excess_tokens"], row["longest"]) == (
        0,
        1,
        0,
        10,
        110,
    )
    total = token_balance.totals(run).iloc[0]
    assert (total["micro_batches"], total["tokens"], total["over_cap"]) == (8, 480, 1)
    assert total["utilisation_ratio"] == pytest.approx(480 / 800)


def test_empty_micro_batches_count_in_the_mean_but_not_in_utilisation(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: batch(0, 1, [60, 0])}) as run:
        assert token_balance.rounds(run)["micro_batch_imbalance_ratio"][0] == 2
        total = token_balance.totals(run).iloc[0]
        assert (total["empty_micro_batches"], total["utilisation_ratio"]) == (1, 0.6)


def test_a_batch_without_tokens_has_no_imbalance(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: [*batch(0, 1, [0, 0]), *batch(0, 2, [4, 4], step=1)], 1: batch(1, 1, [0])}) as run:
        assert token_balance.rounds(run)["step"].tolist() == [1]
        assert len(token_balance.choices(run)) == 1


def test_no_cap_gives_no_utilisation(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: batch(0, 1, [60], cap=None)}) as run:
        assert token_balance.totals(run)["utilisation_ratio"].isna().all()


def test_d_of_a_lone_rank_no_round_is_called_uneven_and_no_rank_a_straggler(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", {0: [*batch(0, 1, [10, 30]), *batch(0, 2, [10, 10], step=1)]}) as run:
        assert token_balance.choices(run)["label"].tolist() == ["step 0 · update", "step 1 · update"]
        frame = token_balance.imbalance(run)
    assert frame["straggler"].isna().all()
    assert frame["rank_imbalance_ratio"].isna().all()
    assert frame["micro_batch_imbalance_ratio"].tolist() == [1.5, 1.0]
