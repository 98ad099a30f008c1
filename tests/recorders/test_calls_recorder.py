from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from probe import hooks, recorders
from probe.core.batched_data_dict import BatchedDataDict
from probe.errors import UnknownNameError
from probe.recorders.calls import PREFIX, CallsRecorder, covered_ns
from probe.recorders.recorder import Recorder
from probe.records import Call


class Collect(hooks.Listener):
    def __init__(self, recorder):
        self.recorder, self.rows, self.errors = recorder, [], []

    def enter(self, event):
        return self.recorder.enter(event)

    def leave(self, event, state):
        self.rows.append(self.recorder.leave(event, state))

    def fire(self, event):
        assert self.recorder.fire(event) is None

    def failed(self, event, error, count, switched_off):
        self.errors.append(error)


@pytest.fixture
def rows():
    listener = Collect(CallsRecorder())
    with hooks.subscribe(listener, *CallsRecorder.points):
        yield listener.rows
    assert listener.errors == []


def batch(count, *names):
    return TensorDict({name: torch.zeros(count, 4) for name in names}, batch_size=[count])


def proto(count, *names, **others):
    return SimpleNamespace(batch=batch(count, *names), non_tensor_batch=others, meta_info={})


def call(function, *args, **kwargs):
    return hooks.observed("calls_test.call")(function)(*args, **kwargs)


def test_a_batched_data_dict_is_a_batch(rows):
    given = BatchedDataDict({"a": torch.zeros(3, 4), "words": ["x", "y", "z"]})
    call(lambda one: BatchedDataDict({**one, "b": torch.zeros(3, dtype=torch.int64)}), given)
    (row,) = rows
    assert (row.rows_in, row.rows_out, row.bytes_in, row.bytes_out) == (3, 3, 48, 72)
    assert (row.keys_added, row.keys_removed) == (["b"], [])


def test_rows_bytes_and_keys(rows):
    def union(mine, other):
        return batch(3, "a", "b", "c")

    call(union, batch(3, "a", "b"), other=batch(3, "c"))
    (row,) = rows
    assert isinstance(row, Call)
    assert (row.point, row.name) == ("calls_test.call", union.__qualname__)
    assert (row.rows_in, row.rows_out) == (3, 3)
    assert (row.bytes_in, row.bytes_out) == (3 * 3 * 16, 3 * 3 * 16)
    assert (row.keys_added, row.keys_removed, row.error) == (["c"], [], None)
    assert row.begin_ns > 0
    assert row.duration_ns >= 0


def test_lists_and_tuples_of_batches(rows):
    parts = [proto(2, "a"), proto(3, "a")]
    call(lambda data: proto(5, "a"), parts)
    call(lambda data: (data, 2), proto(4, "a", "b"))
    call(lambda data: ([batch(1, "a"), batch(3, "a")], [[0], [1, 2, 3]]), batch(4, "a"))
    call(lambda data: [batch(1, "a")] * 20, batch(20, "a"))
    seen = [(row.rows_in, row.rows_out, row.bytes_in, row.bytes_out) for row in rows]
    assert seen == [(5, 5, 80, 80), (4, 4, 128, 128), (4, 4, 64, 64), (20, 20, 320, None)]


def test_objects_are_not_counted_and_numbers_are(rows):
    words = np.array(["x", "y"], object)
    call(lambda data: data, proto(2, "a", uid=words, score=np.zeros(2)))
    assert (rows[0].bytes_in, rows[0].keys_added) == (2 * 16 + 16, [])


def test_in_place_functions(rows):
    def pop(data):
        del data.batch["b"]

    call(pop, proto(2, "a", "b"))
    assert (rows[0].keys_removed, rows[0].bytes_in, rows[0].bytes_out) == (["b"], 64, 32)


def test_dicts_of_tensors(rows):
    call(lambda tensors: proto(2, "a", "b"), tensors={"a": torch.zeros(2, 4)})
    assert (rows[0].rows_in, rows[0].rows_out, rows[0].keys_added) == (2, 2, ["b"])


def test_jagged_and_nested_columns(rows):
    jagged = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(1)], layout=torch.jagged)
    inner = TensorDict({"x": torch.zeros(2, 2)}, batch_size=[2])
    call(lambda data: 1, TensorDict({"a": jagged, "inner": inner}, batch_size=[2]))
    assert (rows[0].rows_in, rows[0].bytes_in, rows[0].rows_out, rows[0].bytes_out) == (
        2,
        16 + 16,
        None,
        None,
    )


def test_what_is_no_batch_stays_unknown(rows):
    call(lambda *_: None, 3, "text", [], {}, {"loss": [1.0]}, None)
    row = rows[0]
    assert (row.rows_in, row.rows_out, row.bytes_in, row.bytes_out) == (None, None, None, None)
    call(lambda data: data, proto(0))
    call(lambda data: data, SimpleNamespace(batch=None, non_tensor_batch={}, meta_info={}))
    assert (rows[1].rows_in, rows[2].rows_in) == (0, None)


def test_an_error_passes_and_is_recorded(rows):
    def fail(data):
        raise ValueError("x" * 1000)

    with pytest.raises(ValueError, match="xxx"):
        call(fail, batch(1, "a"))
    assert rows[0].error == "ValueError: " + "x" * 488
    assert (rows[0].rows_in, rows[0].rows_out, rows[0].keys_removed) == (1, None, [])


def test_scopes(rows):
    with pytest.raises(KeyError), hooks.scope("step", "step", step=3), hooks.phase("update", role="actor"):
        raise KeyError("gone")
    assert [(row.point, row.name, row.error) for row in rows] == [
        ("scope.phase", "update", "KeyError: 'gone'"),
        ("scope.step", "step", "KeyError: 'gone'"),
    ]
    assert rows[1].duration_ns >= rows[0].duration_ns


def test_the_real_data_proto(rows):
    from probe.core.protocol import DataProto

    data = DataProto.from_single_dict({"a": torch.zeros(4, 4), "uid": np.array(list("wxyz"), object)})
    DataProto.concat(data.chunk(2)).union(DataProto.from_dict({"b": torch.zeros(4)}))
    data.pop(batch_keys=["a"])
    seen = {row.point.partition(".")[2]: row for row in rows}
    assert (seen["chunk"].rows_in, seen["chunk"].rows_out, seen["chunk"].bytes_in) == (4, 4, 64)
    assert (seen["concat"].rows_in, seen["concat"].rows_out, seen["concat"].bytes_out) == (4, 4, 64)
    assert (seen["union"].rows_in, seen["union"].bytes_in, seen["union"].keys_added) == (4, 80, ["b"])
    assert seen["pop"].rows_in == 4


def test_moments_have_no_row(rows):
    hooks.emit(hooks.point("calls_test.moment"), value=1)
    assert rows == []


def test_metrics_count_time_once():
    rows = [
        Call(point="data_proto.a", begin_ns=0, duration_ns=2_000_000_000),
        Call(point="data_proto.b", begin_ns=500_000_000, duration_ns=1_000_000_000, error="ValueError: x"),
        Call(point="data_proto.c", begin_ns=5_000_000_000, duration_ns=1_000_000_000),
        Call(point="scope.step", begin_ns=0, duration_ns=9_000_000_000),
    ]
    found = {key: metric.aggregate() for key, metric in CallsRecorder().metrics(rows).items()}
    assert found == {f"{PREFIX}observed_calls": 3.0, f"{PREFIX}failed_calls": 1.0, f"{PREFIX}time_s": 3.0}
    assert set(found) == set(CallsRecorder.keys)
    assert CallsRecorder().metrics(rows[3:]) == {}
    assert covered_ns([]) == 0


@pytest.mark.parametrize("name", ["token_balance", "padding_tax", "reduction", "calls"])
def test_recorders_are_loaded_by_name(name):
    kind = recorders.load(name)
    assert issubclass(kind, Recorder)
    assert kind().keys
    assert all(key.startswith(f"probe/{name}/") for key in kind.keys)


def test_an_unknown_recorder_lists_the_names():
    with pytest.raises(UnknownNameError, match="padding_tax"):
        recorders.load("padding")
