"""``with probe.micro_batch(…)``: code that cuts batches itself gets the rows that ``probe.micro_batches`` makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import probe
from probe import hooks
from probe.core.seqlen_balancing import PARTITION
from probe.errors import InputError, InputTypeError
from probe.runs.reader import Run
from probe.session import start

OWN = {"batch_id", "source", "reason", "time_ns", "wall_ns", "scope_id", "process", "pid", "begin_ns", "end_ns"}


def batch_of(lengths, width):
    mask = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).long()
    columns = {"input_ids": mask.clone(), "attention_mask": mask, "reward": torch.zeros(len(lengths))}
    return TensorDict(columns, batch_size=[len(lengths)])


def recorded(directory, work):
    """Rows of both tables, without what tells one run or one point from another, and the step's metrics."""
    with start("p", run_dir=directory) as session:
        for step in range(2):
            with session.step(step), probe.phase("update"):
                work(step)
    with Run(directory) as run:
        found = {}
        for table in ("micro_batches", "padding"):
            frame = run.table(table)
            frame = frame[[column for column in frame.columns if column not in OWN]]
            found[table] = [{k: str(v) for k, v in row.items()} for row in frame.to_dict("records")]
        metrics = run.sql(
            "select step, key, value from scalars where key like '%padding_tax%' or key like '%token_balance%' "
            "order by all"
        )
        rounds = run.sql("select count(distinct batch_id) as n from micro_batches")["n"][0]
        pairs = run.sql("select distinct source, reason from padding")
        return found, metrics.to_dict("records"), rounds, pairs


def test_d_own_micro_batches_have_the_rows_of_micro_batches_on_the_same_batches(tmp_path):
    lengths = [[5, 9, 3, 7, 1, 12, 2, 8], [12, 12, 1, 1, 4, 6, 7, 3]]

    def probes(step):
        for _ in range(2):  # two batches in one scope
            for _ in probe.micro_batches(batch_of(lengths[step], 14), max_token_len=20):
                pass

    cuts = [probe.micro_batches(batch_of(one, 14), max_token_len=20).indices for one in lengths]

    def own(step):
        for _ in range(2):
            for index, rows in enumerate(cuts[step]):
                collated = batch_of([lengths[step][row] for row in rows], 14)
                held = [lengths[step][row] for row in rows]
                with probe.micro_batch(
                    index, lengths=held, width=14, cap=20, batch=collated, count=len(cuts[step]), indices=rows
                ) as opened:
                    assert opened.scope.micro_batch == index

    theirs, their_metrics, their_rounds, _ = recorded(tmp_path / "a", probes)
    ours, our_metrics, our_rounds, pairs = recorded(tmp_path / "b", own)
    assert theirs["micro_batches"]
    assert theirs["padding"]
    key = lambda row: sorted(row.items())  # noqa: E731
    assert sorted(ours["micro_batches"], key=key) == sorted(theirs["micro_batches"], key=key)
    assert sorted(ours["padding"], key=key) == sorted(theirs["padding"], key=key)
    assert our_metrics == their_metrics
    assert our_rounds == their_rounds == 4
    assert pairs.to_dict("records") == [{"source": "micro_batch.told", "reason": "micro_batch"}]


def test_d_the_causes_sum_to_the_rectangle_and_memory_finds_its_batch(tmp_path):
    with start("p", run_dir=tmp_path) as session, session.step(0), probe.phase("update"):
        for index, lengths in enumerate([[4, 2], np.array([3]), torch.tensor([1, 1, 1]), ()]):
            with probe.micro_batch(index, lengths=lengths, width=6, source="my collate"):
                pass
    with Run(tmp_path) as run:
        micro = run.micro_batches
        assert micro["source"].unique().tolist() == ["my collate"]
        assert micro["tokens"].tolist() == [6, 3, 3, 0]
        assert micro["micro_batches"].isna().all()
        assert [list(one) for one in micro["indices"]] == [[], [], [], []]
        sums = run.sql(
            "select micro_batch, sum(tokens) as t, any_value(rectangle_tokens - valid_tokens) as spare, "
            "any_value(field) as field, any_value(reason) as reason from padding group by 1 order by 1"
        )
        assert sums["t"].tolist() == sums["spare"].tolist() == [6, 3, 15, 0]
        assert set(sums["field"]) == {"tokens"}
        assert set(sums["reason"]) == {"my collate"}
        from probe.analysis import memory

        # An empty one has no place in it. They are in the order of their peaks, which is the resident set here.
        assert sorted(memory.by_tokens(run)["tokens"]) == [3, 3, 6]


def test_d_where_nothing_is_padded_nothing_is_counted_as_padding(tmp_path):
    with start("p", run_dir=tmp_path) as session, session.step(0), probe.micro_batch(0, lengths=[4, 2], cap=5):
        pass
    with Run(tmp_path) as run:
        (padding,) = run.padding.to_dict("records")
        assert (padding["cause"], padding["tokens"], padding["valid_tokens"]) == ("none", 0, 6)
        assert run.micro_batches["over_cap"].tolist() == [True]


def test_d_a_partition_that_other_code_tells_of_has_padding_and_keeps_its_source(tmp_path):
    with start("p", run_dir=tmp_path) as session, session.step(0):
        probe.emit(PARTITION, lengths=[5, 3], partitions=[[0], [1]], cap_tokens=9, width_tokens=8, source="my trainer")
    with Run(tmp_path) as run:
        assert run.padding["tokens"].sum() == 16 - 8
        assert set(run.padding["reason"]) == {"my trainer"}
        assert set(run.micro_batches["source"]) == {"my trainer"}


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"lengths": [9], "width": 8}, InputError, "width: got 8, expected at least 9"),
        ({"lengths": [-1]}, InputError, r"lengths\[0\]: got -1"),
        ({"lengths": [1.5]}, InputTypeError, r"lengths\[0\]: got 1.5"),
        ({"lengths": 3}, InputTypeError, "lengths: got int"),
        ({"lengths": torch.zeros(2, device="meta")}, InputTypeError, "lengths: got a tensor on meta"),
        ({"lengths": [1], "cap": 0}, InputError, "cap: got 0"),
        ({"lengths": [1], "indices": [0, 1]}, InputError, "indices: got 2 of them, expected 1"),
    ],
)
def test_d_what_can_t_be_is_refused_whether_anybody_listens_or_not(options, error, says, tmp_path):
    with pytest.raises(error, match=says):
        probe.micro_batch(0, **options)
    with start("p", run_dir=tmp_path), pytest.raises(error, match=says):
        probe.micro_batch(0, **options)
    assert hooks.current_scope().micro_batch is None
