"""One process alone, and two and three ranks over gloo. One spawn runs every check: starting ranks is what costs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict
from torch import nn

from probe.core.distributed import statistics as distributed_math
from probe.core.timing import gather_timing, reduce_timing, topk_reduce_ratio_min_max
from probe.core.torch_functional import (
    allgather_dict_into_dict,
    allgather_dict_tensors,
    broadcast_dict_tensor,
    compute_grad_norm,
    compute_squared_grad_norm,
    distributed_masked_mean,
    distributed_mean_max_min_std,
    masked_mean,
)
from probe.errors import InputError, InputTypeError, MissingKeyError, PeerError, ShapeError
from tests.ranks import run_ranks

NAN, INF = float("nan"), float("inf")

# ------------------------------------------------------------------------------------------------- one process alone


@settings(deadline=None, max_examples=30)
@given(count=st.integers(0, 30), seed=st.integers(0, 999), share=st.floats(0, 1))
def test_alone_it_is_the_masked_mean(count, seed, share):
    generator = torch.Generator().manual_seed(seed)
    values, mask = torch.randn(count, generator=generator), torch.rand(count, generator=generator) < share
    values[~mask] = NAN
    torch.testing.assert_close(distributed_masked_mean(values, mask), masked_mean(values, mask))


@settings(deadline=None, max_examples=30)
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    seed=st.integers(0, 999),
    offset=st.sampled_from([0.0, 1e6]),
)
def test_parts_are_put_together_exactly(counts, seed, offset):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(count, generator=generator, dtype=torch.float64) + offset for count in counts]
    told = torch.stack([distributed_math._moments(part) for part in parts])
    mean, highest, lowest, deviation = distributed_math._joined(told)
    everything = torch.cat(parts)
    if not everything.numel():
        assert all(one.isnan() for one in (mean, highest, lowest, deviation))
        return
    torch.testing.assert_close(mean, everything.mean())
    assert (highest, lowest) == (everything.max(), everything.min())
    if everything.numel() > 1:
        torch.testing.assert_close(deviation, everything.std())
    else:
        assert deviation.isnan()


def test_dtypes_and_what_is_left_out():
    mean, highest, lowest, deviation = distributed_mean_max_min_std(torch.tensor([1, 2**40 + 1]), compute_std=False)
    assert (mean.item(), highest.item(), lowest.item(), deviation) == (2**39 + 1, 2**40 + 1, 1, None)
    got = distributed_mean_max_min_std(torch.tensor([[1.0, 3.0]], dtype=torch.bfloat16, requires_grad=True))
    assert [one.dtype for one in got] == [torch.float32] * 4
    assert not any(one.requires_grad for one in got)
    assert distributed_mean_max_min_std(torch.ones(2), False, False, False)[1:] == (None, None, None)
    poisoned = distributed_mean_max_min_std(torch.tensor([1.0, NAN, 2.0]))
    assert all(one.isnan() for one in poisoned)
    infinite = distributed_mean_max_min_std(torch.tensor([1.0, INF]))
    assert [one.item() for one in infinite[:3]] == [INF, INF, 1.0]
    half = torch.ones(3000, dtype=torch.bfloat16)
    assert distributed_masked_mean(half, half).dtype is torch.bfloat16
    assert distributed_masked_mean(half, half).item() == 1.0


@pytest.mark.parametrize("bad", [[1.0], torch.ones(2, dtype=torch.complex64)])
def test_bad_values(bad):
    with pytest.raises(InputTypeError, match="local_tensor"):
        distributed_mean_max_min_std(bad)
    with pytest.raises(InputTypeError):
        distributed_masked_mean(bad, torch.ones(2))
    with pytest.raises(ShapeError):
        distributed_masked_mean(torch.ones(2, 3), torch.ones(3))


def test_the_norm_and_its_square():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Embedding(5, 2, sparse=True))
    assert compute_grad_norm(model) == 0.0
    model[1](model[0](torch.ones(2, 3))).square().sum().backward()
    model[2](torch.tensor([1, 1, 3])).sum().backward()
    model[0].bias.grad = None
    flat = torch.cat([one.grad.to_dense().flatten() for one in model.parameters() if one.grad is not None]).double()
    assert compute_grad_norm(model) == pytest.approx(flat.norm().item(), rel=1e-6)
    assert compute_squared_grad_norm(model) == pytest.approx(flat.square().sum().item(), rel=1e-6)


def test_a_norm_is_not_lost_in_half_precision():
    layer = nn.Linear(4096, 1, bias=False, dtype=torch.bfloat16)
    layer.weight.grad = torch.ones_like(layer.weight)
    assert compute_grad_norm(layer) == 64.0
    layer = nn.Linear(1, 1)
    layer.weight.grad, layer.bias.grad = torch.tensor([[1.2e19]]), torch.tensor([1.6e19])
    assert compute_grad_norm(layer) == pytest.approx(2e19)  # its square is beyond float32
    layer.weight.grad[0, 0] = NAN
    assert math.isnan(compute_grad_norm(layer))
    with pytest.raises(InputTypeError, match="model"):
        compute_grad_norm(layer.weight)


def test_dicts_of_one_process():
    tensors = {"b": torch.ones(2), "a": torch.arange(3)}
    got = allgather_dict_tensors(tensors, 1)
    assert list(got) == ["b", "a"]
    assert got["b"].data_ptr() != tensors["b"].data_ptr()
    assert allgather_dict_into_dict({"x": 1, "y": [2, 3]}) == {"x": [1], "y": [[2, 3]]}
    broadcast_dict_tensor(tensors, 0)
    assert tensors["a"].tolist() == [0, 1, 2]


def with_objects():
    return TensorDict({"in": TensorDict({"text": NonTensorStack("x", "y"), "a": torch.ones(2)}, [2])}, [2])


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: allgather_dict_tensors({"a": torch.ones(2)}, 2), InputError, "size"),
        (
            lambda: allgather_dict_tensors({"a": torch.ones(2)}, 1, dim=1),
            PeerError,
            "dim: got 1, expected a dimension of tensors",
        ),
        (lambda: allgather_dict_tensors({"a": torch.tensor(1)}, 1), PeerError, "dim: got 0"),
        (lambda: allgather_dict_tensors({"a": [1]}, 1), PeerError, r"tensors\['a'\]: got list"),
        (lambda: allgather_dict_tensors({1: torch.ones(2)}, 1), PeerError, "the key 1"),
        (lambda: allgather_dict_tensors([torch.ones(2)], 1), PeerError, "got list"),
        (lambda: allgather_dict_tensors(TensorDict({}, [2]), 1, dim=-1), InputError, "dim"),
        (lambda: broadcast_dict_tensor({"a": torch.ones(2)}, 1), InputError, "src"),
        (lambda: broadcast_dict_tensor({"a": ragged([1, 2])}, 0), PeerError, "jagged"),
        (lambda: allgather_dict_into_dict([1]), InputTypeError, "data"),
        (lambda: allgather_dict_tensors(with_objects(), 1), PeerError, r"tensors\['in\.text'\]"),
        (lambda: broadcast_dict_tensor(with_objects(), 0), PeerError, r"tensors\['in\.text'\]"),
    ],
)
def test_bad_dicts(call, error, named):
    with pytest.raises(error, match=named):
        call()


# ------------------------------------------------------------------------------------------------------------- ranks


def ragged(lengths, start=0):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(torch.arange(start, start + sum(lengths)), offsets)


def outcome(function, *arguments, **options):
    try:
        return function(*arguments, **options)
    except Exception as error:
        return type(error).__name__, str(error)


def means(rank, world):
    """A rank with nothing selected, one with nothing at all, NaN outside the mask, weights."""
    values = [torch.tensor([[1.0, NAN], [3.0, 4.0]]), torch.tensor([NAN, NAN]), torch.tensor([8.0])][rank]
    mask = [torch.tensor([[1, 0], [1, 1]]), torch.tensor([0, 0]), torch.tensor([2])][rank]
    nothing = torch.zeros(0)
    return {
        "mean": distributed_masked_mean(values.requires_grad_(), mask).item(),
        "nobody": distributed_masked_mean(values, torch.zeros_like(mask)).item(),
        "poisoned": distributed_masked_mean(values, torch.ones_like(mask)).item(),
        "stats": [
            one.item()
            for one in distributed_mean_max_min_std([torch.tensor([1.0, 5.0]), nothing, torch.tensor([[9.0]])][rank])
        ],
        "one_value": [one.item() for one in distributed_mean_max_min_std(torch.ones(1) if rank == 0 else nothing)],
        "infinite": [one.item() for one in distributed_mean_max_min_std(torch.tensor([INF]) if rank == 0 else nothing)],
        "no_value": [one.item() for one in distributed_mean_max_min_std(nothing)],
    }


def times(rank, world):
    seconds = {"gen": rank + 1.0, **({"save": 5.0} if rank == 0 else {"update": 2.0})}
    return {
        "gathered": gather_timing(seconds),
        "mean": reduce_timing(seconds),
        "most": reduce_timing(seconds, dist.ReduceOp.MAX),
        "least": reduce_timing(seconds, "min"),
        "sum": reduce_timing(seconds, dist.ReduceOp.SUM),
        "slow": topk_reduce_ratio_min_max(100.0 if rank == world - 1 else 1.0, 10),
        "alike": topk_reduce_ratio_min_max(1.0),
        "half": topk_reduce_ratio_min_max(float(rank), 50),
        "nan": topk_reduce_ratio_min_max(NAN if rank == 0 else 1.0),
        "kept": seconds,
    }


def broadcasts(rank, world):
    base = torch.full((3, 4), float(rank))
    tensors = {
        "flag": torch.tensor([rank == 1, True]),
        "half": torch.full((2,), float(rank)).bfloat16(),
        "view": base[:, 1:3],
    }
    tensors["number"], tensors["empty"] = torch.tensor(rank), torch.zeros(0, 2)
    if rank == 1:  # another order
        tensors = dict(reversed(tensors.items()))
    broadcast_dict_tensor(tensors, src=1)
    nested = TensorDict({"in": {"x": torch.full((2,), rank)}, "y": torch.full((2, 2), rank)}, [2])
    broadcast_dict_tensor(nested, src=world - 1, group=dist.group.WORLD)
    leaf = nn.Parameter(torch.full((2,), float(rank)))
    broadcast_dict_tensor({"leaf": leaf}, src=1)
    complex_base = torch.tensor([1 + 2j, 3 + 4j]) * (rank + 1)
    broadcast_dict_tensor({"conjugate": complex_base.conj(), "negative": complex_base.conj().imag}, src=1)
    odd = {"a": torch.ones(2 + rank)}
    return {
        "complex": complex_base.tolist(),
        "values": {key: tensors[key].tolist() for key in sorted(tensors)},
        "around": [base[:, 0].tolist(), base[:, 3].tolist()],
        "nested": [nested["in", "x"].tolist(), nested["y"].tolist()],
        "leaf": leaf.tolist(),
        "odd_shape": outcome(broadcast_dict_tensor, odd, 0),
        "odd_key": outcome(broadcast_dict_tensor, {"ab"[rank > 0]: torch.ones(2)}, 0),
        "no_tensor": outcome(broadcast_dict_tensor, {"a": torch.ones(2) if rank else "x"}, 0),
        "no_rank": outcome(broadcast_dict_tensor, odd, 9),
    }


def gathers(rank, world):
    rows = torch.arange(rank + 1) + 10 * rank  # another number of rows on every rank
    plain = allgather_dict_tensors({"rows": rows, "flag": rows > 10, "half": rows.bfloat16()}, world)
    wide = allgather_dict_tensors({"x": torch.full((2, rank), float(rank))}, world, dim=1)
    last = allgather_dict_tensors({"x": torch.full((2, 1), float(rank), requires_grad=True)}, world, None, -1)
    lengths = [[2, 0], [], [3]][rank]
    jagged = {"ids": ragged(lengths, 100 * rank), "mask": ragged(lengths, 200 * rank)}
    jagged = allgather_dict_tensors(jagged, world)
    batch = TensorDict({"in": {"x": rows}, "ids": ragged([rank] * (rank + 1))}, [rank + 1])
    batch = allgather_dict_tensors(batch, world)
    return {
        "plain": {key: value.tolist() for key, value in plain.items()},
        "dtypes": [str(value.dtype) for value in plain.values()],
        "wide": wide["x"].tolist(),
        "last": (last["x"].tolist(), last["x"].requires_grad),
        "ids": [row.tolist() for row in jagged["ids"].unbind()],
        "masks": [row.tolist() for row in jagged["mask"].unbind()],
        "shared": jagged["ids"].offsets() is jagged["mask"].offsets(),
        "longest": jagged["ids"]._maybe_max_seqlen,
        "batch": (tuple(batch.batch_size), batch["in", "x"].tolist(), [row.tolist() for row in batch["ids"].unbind()]),
        "empty": allgather_dict_tensors({}, world),
        "objects": allgather_dict_into_dict({"loss": rank, **({"first": [1]} if rank == 0 else {})}),
        "odd_dtype": outcome(
            allgather_dict_tensors, {"a": torch.ones(2, dtype=[torch.long, torch.int][rank > 0])}, world
        ),
        "odd_shape": outcome(allgather_dict_tensors, {"a": torch.ones(2, 3 + rank)}, world),
        "odd_kind": outcome(allgather_dict_tensors, {"a": ragged([2]) if rank else torch.arange(2)}, world),
        "odd_key": outcome(allgather_dict_tensors, {"a": 1, **({"b": torch.ones(1)} if rank else {})}, world),
        "missing": outcome(
            allgather_dict_tensors, {"a": torch.ones(1), **({"b": torch.ones(1)} if rank else {})}, world
        ),
    }


def norms(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3, bias=False))
    sharded = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3, bias=False))
    sharded.load_state_dict(whole.state_dict())
    fully_shard(sharded, mesh=init_device_mesh("cpu", (world,)))
    for model in (whole, sharded):
        model(torch.ones(2, 5)).square().sum().backward()
    flat = nn.Linear(2, 1, bias=False)
    flat.weight.grad = torch.tensor([[3.0, 4.0]])  # a part, as under FSDP1
    strided = nn.Linear(2, 2, bias=False)
    strided.weight = nn.Parameter(_as_under_tensor_parallelism(torch.zeros(2, 2), world))
    strided.weight.grad = _as_under_tensor_parallelism(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), world)
    partly = nn.Linear(2, 1, bias=False)
    partly.weight.grad = torch.tensor([[3.0, 4.0]]) if rank == 0 else None
    return {
        "whole": compute_grad_norm(whole),
        "sharded": compute_grad_norm(sharded),
        "squared": compute_squared_grad_norm(sharded),
        "parts": compute_squared_grad_norm(flat, group=dist.group.WORLD),
        "strided": compute_squared_grad_norm(strided),
        "partly": compute_squared_grad_norm(partly, group=dist.group.WORLD),
    }


def _as_under_tensor_parallelism(local, world):
    """A part of a DTensor as FSDP2 lays it out over tensor parallelism; that placement isn't a ``Shard``."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import _StridedShard

    placements = [_StridedShard(0, split_factor=2)]
    shape = torch.Size([local.shape[0] * world, *local.shape[1:]])
    mesh = init_device_mesh("cpu", (world,))
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=local.stride())


CHECKS = (means, times, broadcasts, gathers, norms)


def _rank(rank, world, store, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        results[rank] = {check.__name__: check(rank, world) for check in CHECKS}
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    world = request.param
    with mp.Manager() as manager:
        results = manager.dict()
        run_ranks(_rank, (world, tmp_path_factory.mktemp("gloo") / "store", results), world)
        return [results[rank] for rank in range(world)]


def same_on_all(ranks, check, but=""):
    """What the check gave on every rank; ``but`` is what they may have different."""
    first, *others = ({key: value for key, value in one[check].items() if key != but} for one in ranks)
    assert all(repr(other) == repr(first) for other in others)
    return first


@pytest.mark.multiprocess
@pytest.mark.slow
def test_means_over_ranks(ranks):
    got, third = same_on_all(ranks, "means"), len(ranks) == 3
    assert got["mean"] == pytest.approx((8 + 16) / 5 if third else 8 / 3)
    assert got["nobody"] == 0.0
    assert math.isnan(got["poisoned"])
    values = torch.tensor([1.0, 5.0, 9.0] if third else [1.0, 5.0])
    expected = [values.mean(), values.max(), values.min(), values.std()]
    assert got["stats"] == pytest.approx([one.item() for one in expected])
    assert got["one_value"][:3] == [1.0, 1.0, 1.0]
    assert math.isnan(got["one_value"][3])
    assert got["infinite"][:3] == [INF, INF, INF]
    assert all(math.isnan(one) for one in got["no_value"])


@pytest.mark.multiprocess
@pytest.mark.slow
def test_times_over_ranks(ranks):
    world = len(ranks)
    for rank, one in enumerate(ranks):
        assert one["times"]["kept"] == {"gen": rank + 1.0, **({"save": 5.0} if rank == 0 else {"update": 2.0})}
    got = same_on_all(ranks, "times", but="kept")
    numbers = [rank + 1.0 for rank in range(world)]
    assert list(got["gathered"]) == ["gen", "save", "update"]
    assert got["gathered"]["gen"] == numbers
    assert repr(got["gathered"]["save"]) == repr([5.0] + [NAN] * (world - 1))
    assert got["mean"] == {"gen": sum(numbers) / world, "save": 5.0, "update": 2.0}
    assert got["most"] == {"gen": numbers[-1], "save": 5.0, "update": 2.0}
    assert got["least"] == {"gen": 1.0, "save": 5.0, "update": 2.0}
    assert got["sum"] == {"gen": sum(numbers), "save": 5.0, "update": 2.0 * (world - 1)}
    assert got["slow"] == (1 / world, 1.0, 100.0)
    assert got["alike"] == (0.0, 1.0, 1.0)
    times = torch.arange(world, dtype=torch.float64)
    assert got["half"] == ((times > times.quantile(0.5)).double().mean().item(), 0.0, world - 1.0)
    assert all(math.isnan(one) for one in got["nan"])


@pytest.mark.multiprocess
@pytest.mark.slow
def test_broadcast_over_ranks(ranks):
    world = len(ranks)
    for rank, one in enumerate(ranks):
        assert one["broadcasts"]["around"] == [[float(rank)] * 3] * 2  # next to the view nothing is touched
    got = same_on_all(ranks, "broadcasts", but="around")
    assert got["values"] == {
        "empty": [],
        "flag": [True, True],
        "half": [1.0, 1.0],
        "number": 1,
        "view": [[1.0, 1.0]] * 3,
    }
    assert got["nested"] == [[world - 1] * 2, [[world - 1] * 2] * 2]
    assert got["leaf"] == [1.0, 1.0]
    assert got["complex"] == [2 + 4j, 6 + 8j]  # lazily conjugated and negated tensors are written through
    name, text = got["odd_shape"]
    assert name == ShapeError.__name__
    assert "tensors['a']: rank 0 of the group has float32 (2), rank 1 has float32 (3)" in text
    assert got["odd_key"] == (
        MissingKeyError.__name__,
        "broadcast_dict_tensor: only one of ranks 0 and 1 of the group has 'a', expected it on all",
    )
    assert got["no_tensor"][0] == PeerError.__name__
    assert "rank 0 of the group can't take part: tensors['a']: got str" in got["no_tensor"][1]
    assert got["no_rank"][0] == InputError.__name__


@pytest.mark.multiprocess
@pytest.mark.slow
def test_gather_over_ranks(ranks):
    got, third = same_on_all(ranks, "gathers"), len(ranks) == 3
    rows = [0, 10, 11, *([20, 21, 22] if third else [])]
    assert got["plain"] == {"rows": rows, "flag": [row > 10 for row in rows], "half": [float(row) for row in rows]}
    assert got["dtypes"] == ["torch.int64", "torch.bool", "torch.bfloat16"]
    assert got["wide"] == [[1.0, *([2.0, 2.0] if third else [])]] * 2
    assert got["last"] == ([[float(rank) for rank in range(len(ranks))]] * 2, False)
    assert got["ids"] == [[0, 1], [], *([[200, 201, 202]] if third else [])]
    assert got["masks"] == [[0, 1], [], *([[400, 401, 402]] if third else [])]
    assert got["shared"]
    assert got["longest"] == (3 if third else 2)
    assert got["batch"] == ((len(rows),), rows, [[], [0], [1], *([[0, 1], [2, 3], [4, 5]] if third else [])])
    assert got["empty"] == {}
    assert got["objects"] == {"loss": list(range(len(ranks))), "first": [[1]]}


@pytest.mark.multiprocess
@pytest.mark.slow
def test_ranks_that_do_not_fit_all_raise_the_same(ranks):
    got = same_on_all(ranks, "gathers")
    for key, error, text in (
        ("odd_dtype", ShapeError, "rank 0 of the group has int64 (any), rank 1 has int32 (any)"),
        ("odd_shape", ShapeError, "rank 0 of the group has float32 (any, 3), rank 1 has float32 (any, 4)"),
        ("odd_kind", ShapeError, "rank 0 of the group has int64 (any), rank 1 has jagged int64 (any)"),
        ("odd_key", PeerError, "rank 0 of the group can't take part: tensors['a']: got int"),
        ("missing", MissingKeyError, "only one of ranks 0 and 1 of the group has 'b'"),
    ):
        assert got[key][0] == error.__name__
        assert text in got[key][1]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_norms_over_ranks(ranks):
    got = same_on_all(ranks, "norms")
    assert got["whole"] > 0
    assert got["sharded"] == pytest.approx(got["whole"], rel=1e-6)
    assert got["squared"] == pytest.approx(got["whole"] ** 2, rel=1e-6)
    assert got["parts"] == pytest.approx(25.0 * len(ranks))
    assert got["strided"] == pytest.approx(25.0 * len(ranks))
    assert got["partly"] == pytest.approx(25.0)
