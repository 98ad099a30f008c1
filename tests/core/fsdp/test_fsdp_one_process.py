"""FSDP in one process: wrap policies, models that are made, and what a model that isn't sharded gives."""

from __future__ import annotations

import dataclasses
import threading
import warnings

import pytest
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import (
    StateDictType,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from probe import hooks
from probe.core import fsdp
from probe.core.fsdp.wrapping import _parameters_on_meta
from probe.errors import InputError, InputTypeError, UnknownNameError
from tests.core.fsdp.small_model import LAYERS, VOCABULARY, Layer, assert_same_state, loss_of, make_ids, make_model


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
