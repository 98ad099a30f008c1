"""What other code tells of its batches without a batch object: `probe.moments`."""

from __future__ import annotations

import json

import pytest
import torch
from tensordict import TensorDict

import probe
from probe import moments
from probe.moments import TokenField

FIELDS = [TokenField("input_ids", 8), TokenField("loss_mask", 1)]


@pytest.fixture
def session(tmp_path):
    with probe.start("told", run_dir=tmp_path / "run", recorders=["token_balance", "padding_tax"]) as opened:
        yield opened


def test_5_a_partition_without_a_batch_has_micro_batches_padding_and_its_packer(session):
    with session.step(4):
        moments.tell_partition(
            lengths=[5, 3, 9, 2],
            partitions=[[2], [0, 1, 3]],
            cap_tokens=10,
            width_tokens=12,
            widths=[9, 6],
            fields=FIELDS,
            effective=[2, 1, 4, 2],
            source="acme.cut",
            packer="acme 1.0",
            arguments={"max_token_len": 10, "dp_size": 2, "group": None},
        )
    run = session.run
    parts = run.table("micro_batches")
    assert parts["lengths"].tolist() == [[9], [5, 3, 2]]
    assert parts["width_tokens"].tolist() == [9, 6]
    assert parts["effective_tokens"].tolist() == [4, 5]
    assert parts["source"].tolist() == ["acme.cut"] * 2
    (cut,) = run.table("partitions").to_dict("records")
    assert (cut["level"], cut["parts"], cut["sequences"], cut["packer"]) == ("micro_batches", 2, 4, "acme 1.0")
    assert json.loads(cut["arguments"]) == {"max_token_len": 10, "dp_size": 2, "group": None}
    assert cut["parts_tokens"] == [9, 10]
    assert cut["batch_id"] == parts["batch_id"][0]
    assert cut["step"] == 4
    padding = run.table("padding")
    for field in FIELDS:
        rows = padding[padding["field"] == field.name]
        spare = rows["tokens"].sum()
        assert spare == (9 - 9) + (18 - 10)
        assert rows["bytes"].sum() == spare * field.bytes_per_token


def test_5_what_the_model_packs_has_no_padding(session):
    moments.tell_partition(
        lengths=[5, 3], partitions=[[0, 1]], width_tokens=12, packed=True, fields=FIELDS, source="acme.cut"
    )
    padding = session.run.table("padding")
    assert padding["cause"].tolist() == ["none"] * 2
    assert padding["tokens"].sum() == 0
    assert session.run.table("partitions").empty


def test_5_a_told_micro_batch_has_its_effective_tokens(session):
    with session.step(1):
        moments.tell_micro_batch(
            0, lengths=[4, 2], width_tokens=5, fields=FIELDS, effective=[3, 1], source="acme.loop", indices=[6, 1]
        )
    (part,) = session.run.table("micro_batches").to_dict("records")
    assert (part["tokens"], part["effective_tokens"], part["width_tokens"]) == (6, 4, 5)
    padding = session.run.table("padding")
    assert set(padding["field"]) == {"input_ids", "loss_mask"}
    assert set(padding["reason"]) == {"acme.loop"}


def test_5_dealing_to_ranks_keeps_what_replays_it(session):
    with session.step(2):
        moments.tell_dealt(
            lengths=[9, 1, 5, 4, 1],
            partitions=[[0, 1], [2, 3, 4]],
            padded_rows=1,
            source="acme.balance",
            packer="acme 1.0",
            arguments={"equal_size": False},
        )
    (dealt,) = session.run.table("partitions").to_dict("records")
    assert dealt["level"] == "ranks"
    assert dealt["lengths"] == [9, 1, 5, 4, 1]
    assert dealt["assignment"] == [0, 0, 1, 1, 1]
    assert dealt["parts_tokens"] == [10, 10]
    assert dealt["padded_rows"] == 1
    assert session.run.table("micro_batches").empty


def test_5_added_tokens_have_their_cause_and_are_no_part_of_the_tax(session):
    with session.step(3):
        moments.tell_partition(lengths=[4, 2], partitions=[[0, 1]], width_tokens=4, fields=FIELDS, source="acme.cut")
        moments.tell_added(
            cause="rounding", tokens=6, pad_tokens=2, rows=2, fields=[TokenField("input_ids", 8)], source="acme.pad"
        )
    run = session.run
    (added,) = run.sql("select * from padding where source = 'padding.added'").to_dict("records")
    assert (added["cause"], added["tokens"], added["bytes"], added["rectangle_tokens"]) == ("rounding", 2, 16, 8)
    assert added["reason"] == "acme.pad"
    counted = run.sql("select sum(tokens) as t from padding_counted where counted = 2")
    assert counted["t"][0] == 2  # 2 rows × 4 columns − 6 tokens


def test_5_probes_own_packer_says_what_it_was_given(session):
    mask = (torch.arange(8) < torch.tensor([[5], [3], [8], [2]])).long()
    batch = TensorDict({"attention_mask": mask, "input_ids": mask}, batch_size=[4])
    with session.step(0):
        probe.rearrange_micro_batches(batch, max_token_len=9, min_num_micro_batch=2)
    (cut,) = session.run.table("partitions").to_dict("records")
    told = json.loads(cut["arguments"])
    assert cut["packer"] == "probe"
    assert (told["max_token_len"], told["min_num_micro_batch"], told["counts_agreed"]) == (9, 2, False)
    assert (told["balance"], told["strict"], told["force_group_size"]) == ("workload", True, 1)
