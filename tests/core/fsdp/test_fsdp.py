"""Whatever is sharded gives what the whole model gives: forward, gradients, norms, state dicts, after loading too."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from omegaconf import OmegaConf
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    OffloadPolicy,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor

from probe.core import fsdp
from probe.core.fsdp.offload import _move_flat, _own_tensors
from probe.errors import InputError, InputTypeError, MissingKeyError, PeerError, ShapeError, UnknownNameError
from tests.core.fsdp.small_model import LAYERS, VOCABULARY, assert_same_state, loss_of, make_ids, make_model
from tests.ranks import run_ranks


class WithExtra(nn.Linear):
    extra = 0

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


# ------------------------------------------------------------------------------------------------------- ranks: FSDP2


def shard(model, **kwargs):
    fsdp.apply_fsdp2(model, {"mesh": init_device_mesh("cpu", (2,)), **kwargs})
    return model


def train(model, ids, *, sharded=False, steps=2):
    """Losses and norms of a few steps; each rank has half of the rows."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    own = ids.chunk(2)[dist.get_rank()] if sharded else ids
    told = []
    for _ in range(steps):
        loss = loss_of(model, own)
        loss.backward()
        if sharded:
            norm = fsdp.fsdp2_clip_grad_norm_(model.parameters(), 0.02)
        else:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.02)
        assert norm > 0.02
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        if sharded:
            dist.all_reduce(loss)
            loss /= 2
        told.extend([loss, norm.detach()])
    return torch.stack(told), optimizer


def close(one, other):
    torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


def check_wrapping(rank):
    mesh = init_device_mesh("cpu", (2,))
    linears = ["layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down"]
    every = ["layers.0", *linears[:2], "layers.1", *linears[2:]]
    nested = {"wrap_policy": {"transformer_layer_cls_to_wrap": "Layer"}, "offload_policy": False}
    cases = [
        (None, False, ["embed", *LAYERS]),
        (None, True, LAYERS),
        (nested, False, ["embed", *LAYERS]),
        (OmegaConf.create({"wrap_policy": {"disable": True}}), False, []),
        ({"min_num_params": 80}, False, LAYERS),
        ({"min_num_params": 35}, False, ["embed", *linears, "head"]),
        ({"transformer_layer_cls_to_wrap": ["Layer", "Linear"]}, True, every),
    ]
    for config, tied, expected in cases:
        model = make_model(tied=tied)
        names = fsdp.apply_fsdp2(model, {"mesh": mesh}, config)
        assert fsdp.fsdp_version(model) == 2
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        wrapped = {name for name, part in model.named_modules() if isinstance(part, torch.distributed.fsdp.FSDPModule)}
        assert wrapped == {*names, ""}
        assert names == expected
        close(model(make_ids()), make_model(tied=tied)(make_ids()))
    with pytest.raises(InputError, match="config: got no transformer_layer_cls_to_wrap"):
        fsdp.apply_fsdp2(nn.Linear(2, 2), {"mesh": mesh})
    with pytest.raises(UnknownNameError, match="Lost"):
        fsdp.apply_fsdp2(make_model(), {"mesh": mesh}, {"wrap_policy": {"transformer_layer_cls_to_wrap": "Lost"}})
    with pytest.raises(InputTypeError, match="fsdp_kwargs"):
        fsdp.apply_fsdp2(make_model(), None)


def check_training(rank):
    for tied in (False, True):
        expected, model = make_model(tied=tied), shard(make_model(tied=tied))
        assert fsdp.fsdp_version(nn.Sequential(model)) == 2
        told, optimizer = train(model, make_ids(), sharded=True)
        close(told, train(expected, make_ids())[0])
        state = fsdp.get_fsdp_full_state_dict(model, rank0_only=False)
        close(state, dict(expected.state_dict()))
        assert fsdp.offload_fsdp_model_to_cpu(model) == fsdp.load_fsdp_model_to_gpu(model) == 0
        assert fsdp.offload_fsdp_optimizer(optimizer) == fsdp.load_fsdp_optimizer(optimizer) == 0
        assert_same_state(fsdp.get_fsdp_full_state_dict(model, rank0_only=False), state)
        local = sum(parameter.to_local().nbytes for parameter in model.parameters())
        assert fsdp.load_fsdp_optimizer(optimizer, "meta") == 2 * local


def check_norms(rank):
    ids = make_ids()
    for kind in (1.0, 2.0, 3, torch.inf):
        expected, model = make_model(), shard(make_model())
        # Plain weights and a second mesh beside the first one.
        for one in (expected, model):
            one.plain = nn.Parameter(torch.full((3,), 2.0))
            one.plain.grad = torch.full((3,), 0.5)
        other, whole = shard(make_model(7), mesh=one_rank_mesh()), make_model(7)
        loss_of(expected, ids).backward()
        loss_of(model, ids).backward()
        (loss_of(whole, ids) * 3).backward()
        (loss_of(other, ids) * 3).backward()
        norm = fsdp.fsdp2_clip_grad_norm_([*model.parameters(), *other.parameters()], 0.1, kind)
        assert type(norm) is torch.Tensor
        close(norm, nn.utils.clip_grad_norm_([*expected.parameters(), *whole.parameters()], 0.1, kind))
        for one, two in zip(model.parameters(), expected.parameters(), strict=True):
            grad = one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad
            close(grad, two.grad)


def check_broken_gradients(rank):
    model = shard(make_model())
    loss_of(model, make_ids()).backward()
    if rank == 0:  # seen by one rank alone, told by all
        model.head.weight.grad.to_local()[0, 0] = torch.nan
    before = model.embed.weight.grad.to_local().clone()
    with pytest.raises(fsdp.NonFiniteNormError, match="norm is nan"):
        fsdp.fsdp2_clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)
    assert issubclass(fsdp.NonFiniteNormError, RuntimeError)
    assert torch.equal(model.embed.weight.grad.to_local(), before)
    assert fsdp.fsdp2_clip_grad_norm_(model.parameters(), 0.1).isnan()


def check_full_state(rank):
    expected, model = make_model().state_dict(), shard(make_model())
    for offload in (True, False):
        assert_same_state(fsdp.get_fsdp_full_state_dict(model, offload, rank0_only=False), expected)
        state = fsdp.get_fsdp_full_state_dict(model, offload)
        assert_same_state(state, expected if rank == 0 else {})
    for value in fsdp.get_fsdp_full_state_dict(model, rank0_only=False).values():
        value.zero_()
    assert_same_state(fsdp.get_fsdp_full_state_dict(model, rank0_only=False), expected)
    # A mesh of one rank: what is gathered is nevertheless a copy.
    alone = shard(make_model(), mesh=one_rank_mesh())
    fsdp.get_fsdp_full_state_dict(alone, False, False)["head.weight"].zero_()
    assert alone.head.weight.to_local().any()


def one_rank_mesh():
    return init_device_mesh("cpu", (2, 1), mesh_dim_names=("apart", "shard"))["shard"]


def check_loading(rank):
    full = make_model(5).state_dict()
    expected = make_model(5)
    mesh = init_device_mesh("cpu", (2,))
    offload = CPUOffloadPolicy(pin_memory=False)
    kinds = [
        (None, None),
        (mesh, False),
        (None, OffloadPolicy()),
        (mesh, True),
        (None, offload),
        (None, CPUOffload(True)),
    ]
    for index, (device_mesh, policy) in enumerate(kinds):
        with fsdp.get_init_weight_context_manager(mesh=device_mesh)():
            model = make_model()
        assert model.head.weight.is_meta == (rank != 0)
        if rank != 0:
            model.shift.fill_(9)  # the first rank's is the one that counts
        kwargs = {"offload_policy": offload} if policy is offload else {}
        fsdp.apply_fsdp2(model, {"mesh": mesh, "reshard_after_forward": bool(index % 2), **kwargs})
        given = {name: value.double() for name, value in full.items()} if index == 1 else full
        fsdp.fsdp2_load_full_state_dict(model, given if rank == 0 else None, device_mesh, policy)
        assert_same_state(fsdp.get_fsdp_full_state_dict(model, rank0_only=False), full)
        assert torch.equal(model.shift, torch.arange(VOCABULARY) / 10)
        close(train(model, make_ids(), sharded=True)[0], train(expected, make_ids())[0])
        expected = make_model(5)


def check_loading_all_on_meta_and_tied(rank):
    for names in ({"head.weight", "embed.weight"}, {"head.weight"}, {"embed.weight"}):
        whole = make_model(5, tied=True)
        with torch.device("meta"):
            model = make_model(tied=True)
        shard(model)
        full = {
            name: value for name, value in whole.state_dict().items() if name.split(".")[0] not in {"head", "embed"}
        }
        full |= {name: whole.state_dict()[name] for name in names}
        with pytest.raises((MissingKeyError, PeerError), match="full_state: got no shift"):
            fsdp.fsdp2_load_full_state_dict(model, full)
        assert model.head.weight.to_local().is_meta
        model.shift = torch.arange(VOCABULARY) / 10
        fsdp.fsdp2_load_full_state_dict(model, full)
        assert model.head.weight is model.embed.weight
        close(train(model, make_ids(), sharded=True)[0], train(whole, make_ids())[0])
        assert torch.equal(model.head.weight.full_tensor(), model.embed.weight.full_tensor())


def check_bad_states(rank):
    full, model = make_model(5).state_dict(), shard(make_model())
    before = fsdp.get_fsdp_full_state_dict(model, rank0_only=False)
    cases = [
        ({name: value for name, value in full.items() if "head" not in name}, MissingKeyError, "got no head.weight"),
        ({}, MissingKeyError, "it has nothing"),
        ({**full, "lost": full["scale"]}, InputError, "got lost, which the model lacks"),
        ({**full, "scale": torch.ones(2)}, ShapeError, r"scale has shape \(2,\), expected \(1,\)"),
        ({**full, "scale": 3}, InputTypeError, "scale is a int"),
        ([3], InputTypeError, "full_state: got list"),
    ]
    for state, kind, words in cases:
        with pytest.raises(kind if rank == 0 else PeerError, match=words):
            fsdp.fsdp2_load_full_state_dict(model, state if rank == 0 else {})
    with pytest.raises(InputTypeError, match="cpu_offload: got str"):
        fsdp.fsdp2_load_full_state_dict(model, full, cpu_offload="yes")
    assert_same_state(fsdp.get_fsdp_full_state_dict(model, rank0_only=False), before)


def check_extra_state(rank):
    model = nn.Sequential(WithExtra(3, 3))
    fsdp.apply_fsdp2(model, {"mesh": init_device_mesh("cpu", (2,))}, {"transformer_layer_cls_to_wrap": "WithExtra"})
    full = {"0.weight": torch.ones(3, 3), "0.bias": torch.ones(3), "0._extra_state": {"scale": 4}}
    fsdp.fsdp2_load_full_state_dict(model, full if rank == 0 else None)
    assert model[0].extra == {"scale": 4}
    state = fsdp.get_fsdp_full_state_dict(model, rank0_only=False)
    assert state["0._extra_state"] == {"scale": 4}


FSDP2_CHECKS = (
    check_wrapping,
    check_training,
    check_norms,
    check_broken_gradients,
    check_full_state,
    check_loading,
    check_loading_all_on_meta_and_tied,
    check_bad_states,
    check_extra_state,
)


# ------------------------------------------------------------------------------------------------------- ranks: FSDP1


def wrap(model, **options):
    policy = fsdp.get_fsdp_wrap_policy(model)
    return FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), **options)


def check_fsdp1(rank):
    for original in (True, False):
        expected, model = make_model(), wrap(make_model(), use_orig_params=original)
        assert fsdp.fsdp_version(model) == fsdp.fsdp_version(nn.Sequential(model)) == 1
        assert [isinstance(layer, FSDP) for layer in model.module.layers] == [True, True]
        fresh = FSDP(make_model(), device_id=torch.device("cpu"), use_orig_params=original)  # torch itself fails here
        assert_same_state(fsdp.get_fsdp_full_state_dict(fresh, rank0_only=False), expected.state_dict())
        close(model(make_ids()), expected(make_ids()))
        for offload in (True, False, True):
            state = fsdp.get_fsdp_full_state_dict(model, offload, rank0_only=False)
            assert_same_state(state, expected.state_dict())
            assert_same_state(fsdp.get_fsdp_full_state_dict(model, offload), expected.state_dict() if rank == 0 else {})
        for value in state.values():
            value.zero_()
        assert_same_state(fsdp.get_fsdp_full_state_dict(model, rank0_only=False), expected.state_dict())
        assert fsdp.offload_fsdp_model_to_cpu(model) == fsdp.load_fsdp_model_to_gpu(model) == 0
        close(model(make_ids()), expected(make_ids()))


def check_state_settings(rank):
    model = wrap(make_model())
    before = FSDP.get_state_dict_type(model)
    context = fsdp.get_fsdp_state_ctx(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), None)
    with pytest.raises(ZeroDivisionError), context:  # noqa: PT012  (what comes before the error is the case)
        assert FSDP.get_state_dict_type(model).state_dict_type is StateDictType.SHARDED_STATE_DICT
        raise ZeroDivisionError
    assert FSDP.get_state_dict_type(model) == before
    settings = (StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True), FullOptimStateDictConfig())
    with fsdp.get_fsdp_state_ctx(model, *settings):
        now = FSDP.get_state_dict_type(model)
        assert (now.state_dict_type, now.state_dict_config, now.optim_state_dict_config) == settings


def whole_bytes(model):
    """Memory of weights that FSDP1 has gathered and not freed yet."""
    started = [part._handle for part in FSDP.fsdp_modules(model) if hasattr(part._flat_param, "_local_shard")]
    gathered = [handle._get_padded_unsharded_flat_param() for handle in started]
    return sum(one.untyped_storage().size() for one in gathered)


def check_moving_fsdp1(rank):
    """What moving does to FSDP's own state, with the CPU at both ends: a training goes on as if nothing had been."""
    for original in (True, False):
        for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
            expected, model = make_model(), wrap(make_model(), use_orig_params=original, sharding_strategy=strategy)
            optimizers = [torch.optim.SGD(one.parameters(), lr=0.5) for one in (expected, model)]
            for step in range(3):
                _move_flat(model, torch.device("cpu"))
                assert whole_bytes(model) == 0
                for part in FSDP.fsdp_modules(model) if step else ():
                    assert part._flat_param._local_shard.data_ptr() == part._flat_param.data_ptr()
                for one, optimizer in zip((expected, model), optimizers, strict=True):
                    optimizer.zero_grad()
                    loss_of(one, make_ids()).backward()
                    optimizer.step()
                    one(make_ids())
                assert whole_bytes(model) > 0  # what a forward pass without a backward pass leaves behind
            close(fsdp.get_fsdp_full_state_dict(model, rank0_only=False), dict(expected.state_dict()))
    local = sum(part._flat_param.nbytes for part in FSDP.fsdp_modules(model))
    buffers = model.scale.nbytes + model.shift.nbytes
    assert sum(tensor.nbytes for tensor in _own_tensors(model, with_weights=True)) == local + buffers
    offloaded = wrap(make_model(), cpu_offload=CPUOffload(offload_params=True))
    assert sum(tensor.nbytes for tensor in _own_tensors(offloaded, with_weights=True)) == buffers


def check_fsdp1_from_meta(rank):
    with fsdp.get_init_weight_context_manager()():
        model = make_model(3)
    assert model.head.weight.is_meta == (rank != 0)
    model.apply(fsdp.init_fn)
    for tensor in (*model.parameters(), *model.buffers()):  # torch's sync_module_states refuses the CPU
        dist.broadcast(tensor.detach(), src=0)
    model = wrap(model)
    assert_same_state(fsdp.get_fsdp_full_state_dict(model, rank0_only=False), make_model(3).state_dict())
    close(model(make_ids()), make_model(3)(make_ids()))


FSDP1_CHECKS = (check_fsdp1, check_state_settings, check_moving_fsdp1, check_fsdp1_from_meta)


def _rank(rank, store, checks):
    warnings.simplefilter("error")
    # torch warns of views that an in-place operation could spoil; the model here has no such operation.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        for check in checks:
            check(rank)
    finally:
        gc.collect()  # FSDP holds the group in a cycle, and a group that outlives the interpreter aborts the process
        dist.destroy_process_group()


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("checks", [FSDP2_CHECKS, FSDP1_CHECKS], ids=["fsdp2", "fsdp1"])
def test_what_is_sharded_gives_what_the_whole_model_gives(tmp_path, checks):
    run_ranks(_rank, (tmp_path / "store", checks), 2)


# --------------------------------------------------------------------------------------------------------------- CUDA


def _cuda_rank(_, store):
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        for version in (1, 2):
            model, other = (_cuda_model(version) for _ in range(2))
            optimizers = [torch.optim.AdamW(one.parameters(), lr=0.05) for one in (model, other)]
            for _ in range(3):
                for one, optimizer in zip((model, other), optimizers, strict=True):
                    loss_of(one, make_ids().cuda()).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                moved = fsdp.offload_fsdp_model_to_cpu(model), fsdp.offload_fsdp_optimizer(optimizers[0])
                assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
                assert min(moved) > 0
                assert moved == (fsdp.load_fsdp_model_to_gpu(model), fsdp.load_fsdp_optimizer(optimizers[0]))
            state = fsdp.get_fsdp_full_state_dict(model)
            assert {value.device.type for value in state.values()} == {"cpu"}
            assert_same_state(state, fsdp.get_fsdp_full_state_dict(other))
    finally:
        gc.collect()  # FSDP holds the group in a cycle, and a group that outlives the interpreter aborts the process
        dist.destroy_process_group()


def _cuda_model(version):
    model = make_model().cuda()
    if version == 2:
        fsdp.apply_fsdp2(model, {"mesh": init_device_mesh("cuda", (1,))})
        return model
    return FSDP(model, auto_wrap_policy=fsdp.get_fsdp_wrap_policy(model), device_id=0, use_orig_params=True)


@pytest.mark.gpu
@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_training_goes_on_bitwise_after_the_cpu_and_back(tmp_path):
    mp.spawn(_cuda_rank, (tmp_path / "store",), nprocs=1)
