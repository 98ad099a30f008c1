"""Futures, and the rows of all ranks."""

from __future__ import annotations

import pickle
import sys
import threading
import types
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict

from probe.core.protocol import DataProto, DataProtoFuture, all_gather_data_proto
from probe.errors import InputError, InputTypeError, SessionError
from tests.ranks import run_ranks


def proto(*values):
    return DataProto.from_dict({"a": torch.tensor(values)}, {"u": [f"u{value}" for value in values]})


# -------------------------------------------------------------------------------- futures


def test_futures_are_joined_when_asked():
    with ThreadPoolExecutor(2) as pool:
        release = threading.Event()
        futures = [pool.submit(lambda v=value: release.wait(60) and proto(v, v + 1)) for value in (0, 2)]
        joined = DataProtoFuture.concat(futures)
        halves = joined.chunk(2)
        quarter = halves[1].chunk(2)[0]
        assert not any(future.done() for future in futures)
        release.set()
        assert joined.get() == proto(0, 1, 2, 3)
        assert [half.get() for half in halves] == [proto(0, 1), proto(2, 3)]
        assert quarter.get() == proto(2)


def test_futures_may_be_nested_or_there_already():
    done = Future()
    done.set_result(proto(1))
    inner = DataProtoFuture.concat([done])
    assert DataProtoFuture.concat([proto(0), inner]).get() == proto(0, 1)
    both = DataProtoFuture(collect_fn=torch.cat, futures=[TensorDict({"a": torch.zeros(1)}, [1])] * 2)
    assert both.get().batch_size == (2,)


def test_what_a_future_raises_is_raised_and_what_isnt_a_batch_is_refused():
    failed, odd = Future(), Future()
    failed.set_exception(RuntimeError("worker died"))
    odd.set_result({"a": 1})
    with pytest.raises(RuntimeError, match="worker died"):
        DataProtoFuture.concat([proto(0), failed]).get()
    with pytest.raises(InputTypeError, match=r"futures\[1\].*dict"):
        DataProtoFuture.concat([proto(0), odd]).get()
    with pytest.raises(InputError, match="chunks"):
        DataProtoFuture.concat([]).chunk(0)


def test_ray_references_are_fetched_in_one_call_and_ray_is_never_imported(monkeypatch):
    assert DataProtoFuture.concat([proto(0)]).get() == proto(0)
    assert "ray" not in sys.modules
    calls = []

    class ObjectRef:
        def __init__(self, value):
            self.value = value

    def get(references):
        calls.append(len(references))
        return [reference.value for reference in references]

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(ObjectRef=ObjectRef, get=get))
    got = DataProtoFuture.concat([ObjectRef(proto(0)), proto(1), ObjectRef(proto(2))]).get()
    assert got == proto(0, 1, 2)
    assert calls == [2]


def test_a_future_can_be_handed_to_another_process():
    future = DataProtoFuture.concat([proto(0, 1)]).chunk(2)[1]
    assert pickle.loads(pickle.dumps(future)).get() == proto(1)


# -------------------------------------------------------------------------------- the rows of all


def test_no_process_group_is_said_so():
    with pytest.raises(SessionError, match="process group"):
        all_gather_data_proto(proto(0))


def _jagged(lengths, base):
    offsets = torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])
    values = base + torch.arange(float(offsets[-1]))
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, min_seqlen=min(lengths, default=0), max_seqlen=max(lengths, default=0)
    )


def _attempt(data):
    try:
        return all_gather_data_proto(data)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _rank(rank, address, out):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    lengths = [[2, 1, 3], [4]][rank]
    rows = len(lengths)
    same = _jagged(lengths, 10 * rank)
    data = DataProto.from_dict(
        {
            "a": torch.arange(rows) + 10 * rank,
            "bf16": torch.full((rows, 2), rank + 0.5, dtype=torch.bfloat16),
            "mask": torch.ones(rows, 2, dtype=torch.bool),
            "fp8": torch.ones(rows).to(torch.float8_e4m3fn),
            "empty": torch.zeros(rows, 0),
            "j": same,
            "k": same * 2,
        },
        {"u": [f"{rank}.{row}" for row in range(rows)]},
        {"rank": rank},
    )
    results = {"returned": all_gather_data_proto(data) is data, "data": data}
    results["no rows"] = _attempt(DataProto.from_dict({"j": _jagged([1, 2] if rank else [], 0.0)}))
    results["objects"] = _attempt(DataProto.from_dict(non_tensors={"u": [rank]}))
    results["widths"] = _attempt(DataProto.from_dict({"a": torch.zeros(2, 3 + rank)}))
    results["dtypes"] = _attempt(DataProto.from_dict({"a": torch.zeros(2, dtype=[torch.int64, torch.float32][rank])}))
    results["keys"] = _attempt(DataProto.from_dict({"ab"[rank]: torch.zeros(2)}))
    results["arrays"] = _attempt(DataProto.from_dict(non_tensors={"ab"[rank]: [1]}))
    results["none"] = _attempt(DataProto.from_dict({"a": torch.zeros(2)}) if rank else DataProto(None, {}))
    results["bad"] = _attempt("not a batch" if rank else DataProto.from_dict({"a": torch.zeros(2)}))
    results["unpicklable"] = _attempt(DataProto.from_dict(non_tensors={"f": [(lambda: 1) if rank else 2]}))
    results["after"] = _attempt(DataProto.from_dict({"a": torch.zeros(1)}))
    with open(f"{out}/{rank}", "wb") as file:
        pickle.dump(results, file)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.multiprocess
def test_all_ranks_get_all_rows_or_the_same_error(tmp_path):
    run_ranks(_rank, (f"file://{tmp_path}/store", str(tmp_path)), 2)
    one, two = (pickle.loads((tmp_path / str(rank)).read_bytes()) for rank in range(2))
    for rank, results in enumerate((one, two)):
        data = results["data"]
        assert results["returned"]
        assert data.batch["a"].tolist() == [0, 1, 2, 10]
        assert data.batch["bf16"].tolist() == [[0.5, 0.5]] * 3 + [[1.5, 1.5]]
        assert data.batch["fp8"].float().tolist() == [1.0] * 4
        assert data.batch["empty"].shape == (4, 0)
        rows = [[0.0, 1.0], [2.0], [3.0, 4.0, 5.0], [10.0, 11.0, 12.0, 13.0]]
        assert [row.tolist() for row in data.batch["j"].unbind()] == rows
        assert data.batch["j"].offsets() is data.batch["k"].offsets()
        assert data.batch["k"]._maybe_max_seqlen == 4
        assert data.non_tensor_batch["u"].tolist() == ["0.0", "0.1", "0.2", "1.0"]
        assert data.meta_info == {"rank": rank}
        assert [row.tolist() for row in results["no rows"].batch["j"].unbind()] == [[0.0], [1.0, 2.0]]
        assert results["objects"].non_tensor_batch["u"].tolist() == [0, 1]
        assert len(results["after"]) == 2
    for case, words in {
        "widths": ["ShapeError", "batch['a']", "rank 0", "(2, 3)", "rank 1", "(2, 4)"],
        "dtypes": ["ShapeError", "int64", "float32"],
        "keys": ["MissingKeyError", "'a'"],
        "arrays": ["MissingKeyError", "'a'"],
        "none": ["MissingKeyError", "'a'"],
        "unpicklable": ["PeerError", "rank 1", "pickle"],
        "bad": ["PeerError", "rank 1", "can't take part"],
    }.items():
        assert one[case] == two[case]
        assert all(word in one[case] for word in words), one[case]
