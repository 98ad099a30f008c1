from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from probe import hooks
from probe.core import codec
from probe.core.batched_data_dict import BatchedDataDict
from probe.recorders.padding_rows import Field, padding_rows
from probe.recorders.padding_tax import PREFIX, PaddingTaxRecorder
from probe.records import GIB, Incident
from probe.testing import Collect

PARTITION = hooks.point("seqlen_balancing.partition")


@pytest.fixture
def collect():
    listener = Collect(PaddingTaxRecorder())
    with hooks.subscribe(listener, *PaddingTaxRecorder.points):
        yield listener


def batch_of(lengths, width, **extra):
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(-1)).long()
    fields = {
        "input_ids": torch.zeros(len(lengths), width, dtype=torch.int64),
        "attention_mask": mask,
        "hidden": torch.zeros(len(lengths), width, 3, dtype=torch.bfloat16),
        "reward": torch.zeros(len(lengths)),
        "responses": torch.zeros(len(lengths), width - 1, dtype=torch.int32),
        **extra,
    }
    return TensorDict(fields, batch_size=[len(lengths)])


def proto(batch):
    """What a DataProto of any framework has."""
    return SimpleNamespace(batch=batch, non_tensor_batch={"uid": np.array(["a"] * len(batch), object)}, meta_info={})


@hooks.observed("data_proto.from_dict")
def from_dict(batch):
    return proto(batch)


@hooks.observed("data_proto.concat")
def concat(parts):
    return proto(torch.cat(parts))


@hooks.observed("data_proto.pad_to_divisor")
def pad_to_divisor(data, divisor):
    missing = -len(data.batch) % divisor
    return (proto(torch.cat([data.batch, data.batch[:missing]])) if missing else data), missing


def partition(batch, lengths, parts, width, *, packed=False):
    hooks.emit(
        PARTITION,
        lengths=lengths,
        partitions=parts,
        cap_tokens=None,
        width_tokens=width,
        packed=packed,
        batch=batch,
        workload=None,
        source="rearrange_micro_batches",
        strict=True,
    )


def by_cause(rows, field="input_ids"):
    found = {}
    for row in rows:
        if row.field == field:
            found[row.cause] = found.get(row.cause, 0) + row.tokens
    return found


def assert_identity(rows):
    groups = {}
    for row in rows:
        groups.setdefault((row.batch_id, row.field), []).append(row)
    for group in groups.values():
        assert len({(row.rectangle_tokens, row.valid_tokens, row.source) for row in group}) == 1
        assert sum(row.tokens for row in group) == group[0].rectangle_tokens - group[0].valid_tokens
        assert len({row.cause for row in group}) == len(group)
        assert [row.cause for row in group] == ["none"] or all(row.tokens > 0 for row in group)


def test_micro_batches_by_cause_and_field(collect):
    lengths = [4, 2, 3, 6]
    partition(batch_of(lengths, 6), lengths, [[0, 1], [2], [3]], 6)
    rows = collect.rows()
    assert_identity(rows)
    assert {row.field for row in rows} == {"input_ids", "attention_mask", "hidden"}
    assert by_cause(rows) == {"longest_row": 2, "fixed_width": 2 * 2 + 3, "none": 0}
    assert len({row.batch_id for row in rows}) == 3
    sizes = {(row.field, row.bytes // row.tokens) for row in rows if row.tokens}
    assert sizes == {("input_ids", 8), ("attention_mask", 8), ("hidden", 6)}
    assert {row.micro_batch: row.rectangle_tokens for row in rows} == {0: 12, 1: 6, 2: 6}
    assert {row.micro_batch: (row.rows, row.width_tokens) for row in rows} == {
        0: (2, 6),
        1: (1, 6),
        2: (1, 6),
    }
    assert {row.source for row in rows} == {"seqlen_balancing.partition"}


def test_d_micro_batches_that_the_model_packs_compute_no_padding(collect):
    lengths = [4, 2, 3]
    partition(batch_of(lengths, 6), lengths, [[0, 1], [2]], 6, packed=True)
    rows = collect.rows()
    assert_identity(rows)
    assert {row.field for row in rows} == {"input_ids", "attention_mask", "hidden"}
    assert {(row.cause, row.tokens, row.bytes) for row in rows} == {("none", 0, 0)}
    assert {row.micro_batch: (row.rectangle_tokens, row.valid_tokens) for row in rows} == {0: (6, 6), 1: (3, 3)}


def test_jagged_micro_batches_have_no_padding(collect):
    lengths = [3, 1]
    jagged = torch.nested.nested_tensor([torch.zeros(n) for n in lengths], layout=torch.jagged)
    batch = TensorDict({"input_ids": jagged, "reward": torch.zeros(2)}, batch_size=[2])
    partition(batch, lengths, [[0], [1]], None)
    rows = collect.rows()
    assert_identity(rows)
    assert [(row.field, row.cause, row.tokens, row.valid_tokens) for row in rows] == [
        ("input_ids", "none", 0, 3),
        ("input_ids", "none", 0, 1),
    ]


def test_without_a_batch_the_tokens_are_the_only_field(collect):
    partition(None, [3], [[0]], 4)
    (row,) = collect.rows()
    assert (row.field, row.cause, row.tokens, row.bytes, row.rectangle_tokens) == ("tokens", "fixed_width", 1, 0, 4)


@pytest.mark.parametrize("width", [8, 9000])  # summed at once, and in the writer thread
def test_a_formed_batch(collect, width):
    from_dict(batch_of([4, 2], width))
    rows = collect.rows()
    assert_identity(rows)
    assert by_cause(rows) == {"longest_row": 2, "fixed_width": 2 * (width - 4)}
    assert {row.source for row in rows} == {"data_proto.from_dict"}
    assert {row.field for row in rows} == {"input_ids", "attention_mask", "hidden"}


def test_concat(collect):
    concat([batch_of([4, 2], 4), batch_of([1], 4)])
    rows = collect.rows()
    assert_identity(rows)
    assert by_cause(rows) == {"longest_row": 12 - 7}


def test_rows_that_fill_up_count_as_a_whole(collect):
    pad_to_divisor(proto(batch_of([4, 2, 1], 5)), 4)
    rows = collect.rows()
    assert_identity(rows)
    assert by_cause(rows) == {"longest_row": 12 - 7, "fixed_width": 3, "filler_rows": 5}
    assert {(row.rows, row.rectangle_tokens, row.valid_tokens) for row in rows} == {(4, 20, 7)}


def test_a_batch_that_is_made_in_two_layers_counts_once(collect):
    hooks.observed("data_proto.from_single_dict")(lambda batch: from_dict(batch))(batch_of([4, 2], 5))
    rows = collect.rows()
    assert {row.source for row in rows} == {"data_proto.from_single_dict"}
    assert by_cause(rows) == {"longest_row": 2, "fixed_width": 2}
    from_dict(batch_of([4, 2], 5))
    assert collect.rows()


def test_rows_that_are_added_in_place(collect):
    padded = hooks.point("data_proto.padded")
    for source in ("data_proto.padding", "data_proto.pad_to_divisor"):
        hooks.emit(padded, data=proto(batch_of([4, 2, 2], 5)), rows=2, pad_rows=1, source=source)
    rows = collect.rows()
    assert_identity(rows)
    assert by_cause(rows) == {"longest_row": 2, "fixed_width": 2, "filler_rows": 5}
    assert {row.source for row in rows} == {"data_proto.padding"}


def test_the_real_data_proto(collect):
    from probe.core.protocol import DataProto, pad_dataproto_to_divisor

    columns = dict(batch_of([4, 2, 1], 5).items())
    data = DataProto.from_single_dict({**columns, "uid": np.array(["a", "b", "c"], object)})
    assert {row.source for row in collect.rows()} == {"data_proto.from_single_dict"}
    pad_dataproto_to_divisor(data, 4)
    rows = collect.rows()
    assert_identity(rows)
    assert {row.source for row in rows} == {"data_proto.pad_to_divisor"}
    assert by_cause(rows) == {"longest_row": 12 - 7, "fixed_width": 3, "filler_rows": 5}
    DataProto.concat([data, data])
    rows = collect.rows()
    assert_identity(rows)
    assert by_cause(rows) == {"longest_row": 2 * (12 - 7), "fixed_width": 6}


def test_nothing_to_fill_up_is_no_batch(collect):
    pad_to_divisor(proto(batch_of([4, 2], 5)), 2)
    assert collect.rows() == []


@pytest.mark.parametrize(
    "batch",
    [
        TensorDict({"input_ids": torch.zeros(2, 3)}, batch_size=[2]),
        TensorDict({"input_ids": torch.zeros(2, 3), "attention_mask": torch.ones(2, 1, 3)}, batch_size=[2]),
        TensorDict({}, batch_size=[2]),
        TensorDict(
            {
                "input_ids": torch.zeros(2, 3, device="meta"),
                "attention_mask": torch.ones(2, 3, device="meta"),
            },
            [2],
        ),
    ],
)
def test_lengths_that_cant_be_known_give_no_rows(collect, batch):
    from_dict(batch)
    assert collect.rows() == []


def test_a_failed_call_gives_no_rows(collect):
    with pytest.raises(AttributeError):
        pad_to_divisor(None, 2)
    assert collect.rows() == []


def test_a_mask_that_was_changed_is_counted_and_not_guessed(collect):
    batch = batch_of([4, 2], 9000)
    from_dict(batch)
    batch["attention_mask"][0] = 0
    (told,) = collect.rows()
    assert (told.kind, told.where) == ("unread_mask", "data_proto.from_dict")
    assert collect.recorder.unread == 1


def test_a_mask_made_in_inference_mode(collect):
    with torch.inference_mode():
        from_dict(batch_of([4, 2], 9000))
    assert by_cause(collect.rows()) == {"longest_row": 2, "fixed_width": 2 * 8996}


def test_an_empty_batch(collect):
    from_dict(batch_of([], 4))
    rows = collect.rows()
    assert_identity(rows)
    assert by_cause(rows) == {"none": 0}
    assert collect.recorder.metrics(rows) == {}


def test_metrics_look_at_micro_batches_where_there_are_any(collect):
    lengths = [4, 2, 3, 6]
    batch = batch_of(lengths, 6)
    from_dict(batch)
    formed = collect.rows()
    partition(batch, lengths, [[0, 1], [2], [3]], 6)
    cut = collect.rows()
    metrics = {key: one.aggregate() for key, one in collect.recorder.metrics(formed + cut).items()}
    assert metrics == {
        f"{PREFIX}rank_ratio": pytest.approx(9 / 24),
        f"{PREFIX}padding_gib": pytest.approx(9 * (8 + 8 + 6) / GIB),
        f"{PREFIX}longest_row/padding_tokens": 2.0,
        f"{PREFIX}fixed_width/padding_tokens": 7.0,
    }
    declared = {
        key.replace("{cause}", cause) for key in PaddingTaxRecorder.keys for cause in ("longest_row", "fixed_width")
    }
    assert set(metrics) <= declared
    alone = {key: one.aggregate() for key, one in collect.recorder.metrics(formed).items()}
    assert alone[f"{PREFIX}rank_ratio"] == pytest.approx(9 / 24)
    assert alone[f"{PREFIX}longest_row/padding_tokens"] == 9.0


def test_both_recorders_know_a_formed_batch_by_one_number():
    first, second = Collect(PaddingTaxRecorder()), Collect(PaddingTaxRecorder())
    with hooks.subscribe(first, "data_proto.*"), hooks.subscribe(second, "data_proto.*"):
        from_dict(batch_of([4, 2], 5))
        from_dict(batch_of([4, 2], 5))
    ids = [[row.batch_id for row in one.rows()] for one in (first, second)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=12), st.integers(0, 20), st.integers(0, 5), st.integers(1, 16))
def test_causes_sum_exactly(lengths, extra, padded, size):
    width = max(lengths, default=0) + extra
    rows = padding_rows(lengths, width, [Field("x", size)], padded_rows=padded, batch_id=1, source="s")
    assert_identity(rows)
    assert sum(row.bytes for row in rows) == size * ((len(lengths) + padded) * width - sum(lengths))


# -------------------------------------------------------------------------------------------------------- the codec


def rows_of_codec(collect, lengths, width, *, token_aligned_fields=("input_ids", "hidden"), **options):
    fields = {
        "input_ids": torch.ones(len(lengths), width, dtype=torch.int64),
        "hidden": torch.ones(len(lengths), width, 3, dtype=torch.bfloat16),
        "reward": torch.ones(len(lengths)),
        "uid": np.array([str(row) for row in range(len(lengths))], dtype=object),
    }
    wire = codec.pack_jagged_fields(
        fields, lengths=torch.tensor(lengths), token_aligned_fields=set(token_aligned_fields)
    )
    packed = collect.rows()
    codec.materialize(wire, token_aligned_fields=set(token_aligned_fields), **options)
    return packed, collect.rows()


def test_what_was_packed_has_no_padding_and_says_what_was_stripped(collect):
    packed, _ = rows_of_codec(collect, [4, 2, 1], 6, token_aligned_fields=("input_ids", "hidden", "reward"))
    assert_identity(packed)
    assert {row.source for row in packed} == {"codec.packed"}
    found = {row.field: (row.decision, row.reason, row.stripped_tokens, row.stripped_bytes) for row in packed}
    assert found == {
        "input_ids": ("jagged", "named", 11, 88),
        "hidden": ("jagged", "named", 11, 66),
        "reward": ("fallback", "one_dimension", 0, 0),
        "uid": ("object", "objects", 0, 0),
    }
    assert {row.field: (row.cause, row.rectangle_tokens, row.valid_tokens) for row in packed if row.field != "uid"} == {
        "input_ids": ("none", 7, 7),
        "hidden": ("none", 7, 7),
        "reward": ("none", 0, 0),
    }


def test_what_was_materialised_by_cause(collect):
    options = {"pad_to_seqlen": 16, "pad_to_multiple": 8, "width_from": "all_ranks"}
    _, rows = rows_of_codec(collect, [4, 2, 1], 6, **options)
    assert_identity(rows)
    assert by_cause(rows) == {"longest_row": 12 - 7, "rounding": 3 * 4, "fixed_width": 3 * 8}
    assert {row.source for row in rows} == {"codec.materialized"}
    tokens = [row for row in rows if row.field == "hidden"]
    assert {(row.rectangle_tokens, row.valid_tokens, row.rows, row.width_tokens) for row in tokens} == {(48, 7, 3, 16)}
    assert {row.reason for row in tokens} == {"fixed_width; all_ranks"}
    assert sum(row.bytes for row in tokens) == 41 * 6
    assert [row.decision for row in rows if row.field in ("reward", "uid")] == ["rectangular", "object"]
    assert len({row.batch_id for row in rows}) == 1


def test_a_field_without_a_cached_longest_row_says_so(collect):
    values, offsets = torch.arange(5), torch.tensor([0, 1, 5])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    codec.materialize(TensorDict({"input_ids": nested}, [2]))
    (row,) = collect.rows()
    assert row.reason == "longest_row; its longest row was not cached"
    assert (row.cause, row.tokens) == ("longest_row", 3)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 20), st.integers(1, 8), st.integers(0, 3))
def test_identities_of_the_codec(lengths, least, multiple, wider):
    listener = Collect(PaddingTaxRecorder())
    with hooks.subscribe(listener, *PaddingTaxRecorder.points):
        width = max(lengths) + wider
        packed, rows = rows_of_codec(listener, lengths, width, pad_to_seqlen=least, pad_to_multiple=multiple)
    assert_identity(packed)
    assert_identity(rows)
    stripped = {row.field: row.stripped_tokens for row in packed}
    assert stripped["input_ids"] == len(lengths) * width - sum(lengths)


def test_metrics_leave_the_wire_out(collect):
    packed, rows = rows_of_codec(collect, [4, 2], 4)
    metrics = {key: one.aggregate() for key, one in collect.recorder.metrics(packed + rows).items()}
    assert metrics[f"{PREFIX}rank_ratio"] == pytest.approx(2 / 8)
    assert collect.recorder.metrics(packed) == {}


def test_payloads_that_the_wire_lost_become_an_incident(collect):
    codec.materialize(TensorDict({"uid": TensorDict({}, [3]), "reward": torch.ones(3)}, [3]))
    incidents = [row for row in collect.rows() if isinstance(row, Incident)]
    assert [(one.kind, one.where, one.count) for one in incidents] == [("wire", "codec.stripped_payload", 3)]
    assert incidents[0].message == "3 of 3 objects of field 'uid' were lost on the wire and read as None"
    assert codec.unwrap_wire_stripped_payload({"data": 1, "_metadata": None, "_is_non_tensor": True}) == 1
    assert collect.rows() == []


def test_what_sequence_parallelism_adds(collect):
    point = hooks.point("ulysses.padded")
    for field, size, pad in (("input_ids", 8, 3), ("position_ids", 8, 3), ("input_ids", 8, 0)):
        hooks.emit(point, field=field, rows=1, tokens=13, pad_tokens=pad, bytes_per_token=size, sp_size=4)
    rows = collect.rows()
    assert_identity(rows)
    assert [(row.field, row.cause, row.tokens, row.rectangle_tokens, row.width_tokens) for row in rows] == [
        ("input_ids", "sequence_parallel", 3, 16, 16),
        ("position_ids", "sequence_parallel", 3, 16, 16),
        ("input_ids", "none", 0, 13, 13),
    ]
    assert {row.bytes for row in rows} == {24, 0}
    assert {row.reason for row in rows} == {"sp_size 4"}
    metrics = {key: one.aggregate() for key, one in collect.recorder.metrics(rows).items()}
    assert metrics == {f"{PREFIX}sequence_parallel/padding_tokens": 3.0}


def test_planned_micro_batches_are_the_ones_that_count(collect):
    lengths = torch.tensor([5, 3, 8, 2])
    ids = torch.zeros(4, 8, dtype=torch.int64)
    batch = BatchedDataDict({"input_ids": ids, "input_lengths": lengths})
    options = {
        "max_tokens_per_microbatch": 16,
        "input_key": "input_ids",
        "input_lengths_key": "input_lengths",
        "algorithm": "first_fit_decreasing",
        "sequence_length_pad_multiple": 4,
    }
    batch.shard_by_batch_size(1, 4, sequence_packing_args=options)
    rows = [row for row in collect.rows() if row.source == "packing.packed" and row.field == "input_ids"]
    assert sum(row.tokens for row in rows) == (8 - 5) + (4 - 3) + (4 - 2)
    assert {row.cause for row in rows} <= {"rounding", "none"}
    found = PaddingTaxRecorder().metrics(rows)
    assert found["probe/padding_tax/rank_ratio"].aggregate() == pytest.approx(6 / 24)
