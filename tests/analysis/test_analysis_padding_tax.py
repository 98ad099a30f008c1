"""Padding: the causes sum exactly to rectangle − valid tokens, however the rows are grouped."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.analysis import padding_tax
from probe.analysis.quantities import course
from probe.records import Padding, Row
from tests.sample_run import clock, open_run

PARTITION = "seqlen_balancing.partition"


def ledger(
    batch_id: int,
    lengths: list[int],
    width: int,
    *,
    fields: dict[str, int] | None = None,
    step: int = 0,
    rank: int = 0,
    source: str = PARTITION,
) -> list[Row]:
    """Rows of one batch as the recorder writes them; ``fields`` gives bytes per token."""
    rows, valid, longest = len(lengths), sum(lengths), max(lengths, default=0)
    causes = {"longest_row": rows * longest - valid, "fixed_width": rows * (width - longest)}
    present = {cause: tokens for cause, tokens in causes.items() if tokens} or {"none": 0}
    return [
        Padding(
            rank=rank,
            time_ns=clock(rank) + batch_id,
            step=step,
            batch_id=batch_id,
            source=source,
            field=field,
            cause=cause,
            tokens=tokens,
            bytes=tokens * size,
            rectangle_tokens=rows * width,
            valid_tokens=valid,
            rows=rows,
            width_tokens=width,
        )
        for field, size in (fields or {"input_ids": 8}).items()
        for cause, tokens in present.items()
    ]


def test_tokens_are_counted_once_and_bytes_for_each_field(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: ledger(1, [3, 5], 8, fields={"input_ids": 8, "mask": 1})}) as run:
        steps = padding_tax.by_step(run).set_index("cause")
        assert steps["tokens"].to_dict() == {"longest_row": 2, "fixed_width": 6}
        assert steps["rectangle_tokens"].tolist() == [16, 16]
        assert steps["valid_tokens"].tolist() == [8, 8]
        fields = padding_tax.by_field(run)
        assert fields.set_index(["field", "cause"])["bytes"].to_dict() == {
            ("input_ids", "fixed_width"): 48,
            ("input_ids", "longest_row"): 16,
            ("mask", "fixed_width"): 6,
            ("mask", "longest_row"): 2,
        }
        assert course(run, "padding_tax").values == [0.5]
        causes = padding_tax.by_cause(run)
        assert causes["cause"].tolist() == ["fixed_width", "longest_row"]
        assert causes["share_ratio"].tolist() == [6 / 8, 2 / 8]


def test_the_same_tokens_told_at_two_moments_are_counted_once(tmp_path: Path) -> None:
    rows = [*ledger(1, [3, 5], 8, source="data_proto.from_dict"), *ledger(2, [3], 8), *ledger(3, [5], 8)]
    with open_run(tmp_path, {0: rows}) as run:
        assert padding_tax.by_step(run)[["rectangle_tokens", "valid_tokens"]].to_numpy().tolist() == [[16, 8]]


def test_steps_without_micro_batches_count_their_batches(tmp_path: Path) -> None:
    rows = [*ledger(1, [3], 8, step=0), *ledger(2, [4], 8, step=1, source="data_proto.concat")]
    with open_run(tmp_path, {0: rows}) as run:
        assert padding_tax.by_step(run)["tokens"].tolist() == [5, 4]


def test_a_batch_without_padding_has_no_tax(tmp_path: Path) -> None:
    with open_run(tmp_path, {0: ledger(1, [8, 8], 8)}) as run:
        assert padding_tax.by_cause(run).empty
        assert course(run, "padding_tax").values == [0]
        assert padding_tax.by_field(run).empty


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 1), st.lists(st.integers(0, 20), max_size=4)),
        min_size=1,
        max_size=8,
    )
)
def test_causes_sum_exactly(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int, list[int]]]
) -> None:
    rows: dict[int, list[Row]] = {0: [], 1: []}
    for index, (step, rank, lengths) in enumerate(batches):
        rows[rank] += ledger(index, lengths, 20, step=step, rank=rank, fields={"a": 2, "input_ids": 4})
    with open_run(tmp_path_factory.mktemp("run"), rows) as run:
        for _, part in padding_tax.by_step(run).groupby("step"):
            assert part["tokens"].sum() == part["rectangle_tokens"].iloc[0] - part["valid_tokens"].iloc[0]
        total = sum(20 * len(lengths) - sum(lengths) for _, _, lengths in batches)
        assert padding_tax.by_step(run)["tokens"].sum() == total
        assert padding_tax.by_field(run)["bytes"].sum() == 6 * total
