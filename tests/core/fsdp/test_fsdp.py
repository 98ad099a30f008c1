"""Whatever is sharded gives what the whole model gives: forward, gradients, norms, state dicts, after loading too."""

from __future__ import annotations

import dataclasses
import gc
import threading
import types
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
from torch.testing._internal.distributed.fake_pg import FakeStore

from probe import hooks
from probe.core import fsdp
from probe.core.fsdp.offload import _move_flat, _own_tensors
from probe.core.fsdp.wrapping import _parameters_on_meta
from probe.errors import InputError, InputTypeError, MissingKeyError, PeerError, ShapeError, UnknownNameError
from tests.ranks import run_ranks

WIDTH, VOCABULARY = 7, 11  # neither is a multiple of the ranks


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 5)
        self.down = nn.Linear(5, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).tanh())


class Model(nn.Module):
    _no_split_modules = ("Layer",)

    def __init__(self, tied=False):
        super().__init__()
        self.config = types.SimpleNamespace(tie_word_embeddings=tied)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("scale", torch.full((1,), 1.5))
        self.register_buffer("shift", torch.arange(VOCABULARY) / 10, persistent=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * self.scale + self.shift


class WithExtra(nn.Linear):
    extra = 0

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def make_model(seed=1, tied=False):
    torch.manual_seed(seed)
    return Model(tied)


def make_ids():
    return torch.randint(0, VOCABULARY, (4, 6), generator=torch.Generator().manual_seed(2))


def loss_of(model, ids):
    return model(ids).log_softmax(-1).square().mean()


def assert_same_state(state, expected):
    assert list(state) == list(expected)
    for name, value in expected.items():
        assert type(state[name]) is torch.Tensor
        assert torch.equal(state[name], value), name


class Hear(hooks.Listener):
    def __init__(self):
        self.calls = []

    def leave(self, event, state):
        self.calls.append((event.point.name, event.result))


# ------------------------------------------------------------------------------------------------------ wrap policies


def wrapped_by(policy, model):
    """Names of the parts that a policy would wrap."""
    return [
        name
        for name, part in model.named_modules()
        if policy(module=part, recurse=False, nonwrapped_numel=sum(one.numel() for one in part.parameters()))
    ]


@dataclasses.dataclass
class WrapConfig:
    disable: bool = False
    min_num_params: int = 0
    transformer_layer_cls_to_wrap: list[str] | None = None


LAYERS = ["layers.0", "layers.1"]


@pytest.mark.parametrize(
    ("config", "wrapped"),
    [
        (None, LAYERS),
        ({}, LAYERS),
        ({"transformer_layer_cls_to_wrap": "Layer"}, LAYERS),
        ({"transformer_layer_cls_to_wrap": ["Embedding"]}, ["embed"]),
        ({"transformer_layer_cls_to_wrap": {"Layer", "Embedding"}}, ["embed", *LAYERS]),
        ({"transformer_layer_cls_to_wrap": Layer}, LAYERS),
        ({"wrap_policy": {"transformer_layer_cls_to_wrap": "Embedding"}, "fsdp_size": -1}, ["embed"]),
        ({"_target_": "x", "transformer_layer_cls_to_wrap": None}, LAYERS),
        (OmegaConf.create({"transformer_layer_cls_to_wrap": ["Layer", "Embedding"]}), ["embed", *LAYERS]),
        (WrapConfig(transformer_layer_cls_to_wrap=["Embedding"]), ["embed"]),
        (WrapConfig(), LAYERS),
        # The size wins over the classes.
        ({"min_num_params": 80, "transformer_layer_cls_to_wrap": "Embedding"}, ["", *LAYERS]),
    ],
)
def test_what_a_configuration_wraps(config, wrapped):
    model = make_model()
    policy = fsdp.get_fsdp_wrap_policy(model, config)
    assert [name for name in wrapped_by(policy, model) if name not in {"embed", "head"} or name in wrapped] == wrapped


@pytest.mark.parametrize("config", [{"disable": True, "min_num_params": 5}, WrapConfig(disable=True)])
def test_a_disabled_policy_is_none(config):
    assert fsdp.get_fsdp_wrap_policy(make_model(), config, is_lora=True) is None


def test_nothing_to_wrap_by_is_none():
    plain = nn.Sequential(nn.Linear(2, 2))
    assert fsdp.get_fsdp_wrap_policy(plain) is None
    assert fsdp.get_fsdp_wrap_policy(plain, {"transformer_layer_cls_to_wrap": []}) is None
    plain._no_split_modules = None
    assert fsdp.get_fsdp_wrap_policy(plain) is None


def test_c_by_size_no_lora_leaf_is_a_unit_of_its_own():
    def layer():
        made = nn.Module()
        made.base = nn.Linear(16, 16, bias=False).requires_grad_(False)
        made.lora_A, made.lora_B = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
        return made

    model = nn.Module()
    model.layers = nn.ModuleList([layer() for _ in range(4)])
    policy = fsdp.get_fsdp_wrap_policy(model, {"min_num_params": 300}, is_lora=True)
    assert not [name for name in wrapped_by(policy, model) if "lora" in name]
    assert len(wrapped_by(fsdp.get_fsdp_wrap_policy(model, {}, is_lora=True), model)) == 8
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = FSDP(model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))
        assert len(FSDP.fsdp_modules(wrapped)) == 5  # four layers, and what is around them
    finally:
        dist.destroy_process_group()


def test_c_init_fn_takes_its_module_as_x():
    assert not fsdp.init_fn(x=nn.Linear(2, 1, device="meta")).weight.is_meta
    assert not fsdp.init_fn(module=nn.Linear(2, 1, device="meta")).weight.is_meta


@pytest.mark.parametrize("config", [None, {"transformer_layer_cls_to_wrap": []}])
def test_lora_leaves_are_wrapped_whatever_else_is(config):
    model = make_model().requires_grad_(False)
    model.layers[1].up.requires_grad_()
    wrapped = wrapped_by(fsdp.get_fsdp_wrap_policy(model, config, is_lora=True), model)
    assert wrapped == (["layers.0", "layers.1", "layers.1.up"] if config is None else ["layers.1.up"])


def test_a_missing_class_is_named_in_a_warning():
    model = make_model()
    config = {"transformer_layer_cls_to_wrap": ["Layer", "Lost"]}
    with pytest.warns(UserWarning, match="no module of class Lost in Model"):
        policy = fsdp.get_fsdp_wrap_policy(model, config)
    assert wrapped_by(policy, model) == LAYERS


@pytest.mark.parametrize(
    ("config", "kind", "words"),
    [
        ({"transformer_layer_cls_to_wrap": "Lost"}, UnknownNameError, "got 'Lost', expected one of Embedding, Layer"),
        ({"transformer_layer_cls_to_wrap": ["Lost", "Gone"]}, UnknownNameError, "got 'Gone, Lost'"),
        ({"transformer_layer_cls": "Layer"}, UnknownNameError, "config: got 'transformer_layer_cls'"),
        ({"transformer_layer_cls_to_wrap": 3}, InputTypeError, "transformer_layer_cls_to_wrap: got 3"),
        ({"transformer_layer_cls_to_wrap": [3]}, InputTypeError, "got 3, expected class names"),
        ({"min_num_params": "many"}, InputTypeError, "min_num_params"),
        ({"min_num_params": -1}, InputError, "min_num_params"),
        ({"disable": "no"}, InputTypeError, "disable"),
        ("Layer", InputTypeError, "config: got str"),
    ],
)
def test_configurations_that_cannot_be_used(config, kind, words):
    with pytest.raises(kind, match=words):
        fsdp.get_fsdp_wrap_policy(make_model(), config)


# ------------------------------------------------------------------------------------------------------------- making


def test_the_first_rank_makes_real_weights():
    for context in (
        fsdp.get_init_weight_context_manager(),
        fsdp.get_init_weight_context_manager(use_meta_tensor=False),
    ):
        with context(), context():
            assert not any(tensor.is_meta for tensor in make_model().state_dict().values())


def test_parameters_without_memory_keep_buffers_ties_and_other_threads():
    made = []
    with _parameters_on_meta():
        model = make_model(tied=True)
        model.head.extra = nn.Parameter(torch.ones(2), requires_grad=False)
        thread = threading.Thread(target=lambda: made.append(make_model()))
        thread.start()
        thread.join()
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.head.weight is model.embed.weight
    assert not model.head.extra.requires_grad
    assert torch.equal(model.shift, torch.arange(VOCABULARY) / 10)
    assert not any(parameter.is_meta for parameter in made[0].parameters())
    assert not any(parameter.is_meta for parameter in make_model().parameters())


def test_init_fn_gives_memory_to_what_has_none_and_leaves_the_rest():
    with torch.device("meta"):
        empty = nn.BatchNorm1d(3)
    empty.running_mean = torch.ones(3)
    assert fsdp.init_fn(empty) is empty
    assert not any(tensor.is_meta for tensor in empty.state_dict().values())
    assert empty.running_mean.tolist() == [1, 1, 1]
    real = nn.Linear(2, 1)
    weight = real.weight
    assert fsdp.init_fn(real).weight is weight


def test_a_real_model_of_transformers_is_made_loaded_and_wrapped(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    assert wrapped_by(fsdp.get_fsdp_wrap_policy(model), model) == ["model.layers.0", "model.layers.1"]
    with _parameters_on_meta():
        empties = [transformers.LlamaForCausalLM(config), transformers.LlamaForCausalLM.from_pretrained(tmp_path)]
    for empty in empties:
        assert all(parameter.is_meta for parameter in empty.parameters())
        assert empty.lm_head.weight is empty.model.embed_tokens.weight
        assert torch.equal(empty.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)


# ------------------------------------------------------------------------------------------------------- one process


def test_a_plain_model_needs_no_process_group():
    model = make_model()
    assert fsdp.fsdp_version(model) == 0
    with fsdp.get_fsdp_state_ctx(model, StateDictType.FULL_STATE_DICT, None, None):
        state = fsdp.get_fsdp_full_state_dict(model)
    assert_same_state(state, model.state_dict())
    state["scale"].zero_()
    assert model.scale.item() == 1.5
    with pytest.raises(InputTypeError, match="model: got a Model without fully_shard"):
        fsdp.fsdp2_load_full_state_dict(model, state)


def test_without_an_accelerator_nothing_moves():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of(model, make_ids()).backward()
    optimizer.step()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    if not torch.accelerator.is_available():
        hear = Hear()
        with hooks.subscribe(hear, "fsdp.*"):
            assert fsdp.offload_fsdp_model_to_cpu(model) == fsdp.load_fsdp_model_to_gpu(model) == 0
            assert fsdp.offload_fsdp2_model_to_cpu(model) == fsdp.load_fsdp2_model_to_gpu(model) == 0
            assert fsdp.offload_fsdp_optimizer(optimizer) == fsdp.load_fsdp_optimizer(optimizer) == 0
        assert [name.removeprefix("fsdp.") for name, _ in hear.calls] == [
            "offload_fsdp_model_to_cpu",
            "load_fsdp_model_to_gpu",
            "offload_fsdp2_model_to_cpu",
            "load_fsdp2_model_to_gpu",
            "offload_fsdp_optimizer",
            "load_fsdp_optimizer",
        ]
        assert_same_state(model.state_dict(), before)
        assert pointers == [parameter.data_ptr() for parameter in model.parameters()]


def test_what_moves_is_counted_and_step_counters_stay():
    """The meta device stands in for another device: everything moves but the values."""
    model = make_model(tied=True)
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of(model, make_ids()).backward()
    optimizer.step()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert fsdp.load_fsdp_optimizer(optimizer, "meta") == 2 * weights
    for state in optimizer.state.values():
        assert (state["step"].device.type, state["exp_avg"].device.type) == ("cpu", "meta")
    assert fsdp.load_fsdp_model_to_gpu(model, "meta") == weights + model.scale.nbytes + model.shift.nbytes
    assert all(tensor.is_meta for tensor in model.state_dict().values())


def test_plain_gradients_are_clipped_as_torch_does():
    model, other = make_model(), make_model()
    for one in (model, other):
        loss_of(one, make_ids()).backward()
    model.embed.weight.grad = other.embed.weight.grad = None
    expected = nn.utils.clip_grad_norm_(other.parameters(), 0.01)
    assert torch.equal(fsdp.fsdp2_clip_grad_norm_(model.parameters(), 0.01), expected)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert one.grad is two.grad is None or torch.equal(one.grad, two.grad)
    assert fsdp.fsdp2_clip_grad_norm_([nn.Parameter(torch.ones(2))], 1.0) == 0
    assert fsdp.fsdp2_clip_grad_norm_(model.head.weight, torch.inf) > 0


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (([], -1.0), InputError, "max_norm"),
        (([], torch.nan), InputError, "max_norm"),
        (([], 1.0, 0), InputError, "norm_type"),
        (([3], 1.0), InputTypeError, "parameters: got int"),
    ],
)
def test_clipping_refuses(arguments, kind, words):
    with pytest.raises(kind, match=words):
        fsdp.fsdp2_clip_grad_norm_(*arguments)


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
        ({**full, "lost": full["scale"]}, InputError, "the model has no lost"),
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
