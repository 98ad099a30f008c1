"""verl's functions and probe's on the same inputs: the same results, and misuse ends in errors that one handler takes.

verl lives in an environment of its own (``make test-verl``). Where probe is stricter on purpose, ``docs/drop_in.md``
says so, and nothing here compares it.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn

if importlib.util.find_spec("verl") is None:
    pytest.skip("needs verl, which lives in its own environment", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what verl and its dependencies warn of when imported is theirs to mend
    import verl.protocol as their_protocol
    import verl.utils.fs as their_fs
    import verl.utils.fsdp_utils as their_fsdp
    import verl.utils.metric as their_metric
    import verl.utils.py_functional as their_functional
    import verl.utils.seqlen_balancing as their_balancing
    import verl.utils.torch_functional as their_torch
    import verl.utils.ulysses as their_ulysses
    from omegaconf import OmegaConf
    from verl.trainer.config import CheckpointConfig
    from verl.utils.checkpoint import checkpoint_manager as their_checkpoint
    from verl.workers.config.checkpoint import McoreCheckpointConfig

from benchmarks import balance
from benchmarks.measure import Size
from probe.core import checkpoint, fs, fsdp, metric, protocol, seqlen_balancing, torch_functional, ulysses
from probe.core.columns.equality import same

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]

numbers = st.floats(-1e6, 1e6, allow_nan=False)
lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


def plain(value: Any) -> Any:
    """A result without the class that it came in."""
    if isinstance(value, protocol.DataProto | their_protocol.DataProto):
        batch = {} if value.batch is None else {key: plain(column) for key, column in value.batch.items()}
        arrays = {key: column.tolist() for key, column in (value.non_tensor_batch or {}).items()}
        return {"batch": batch, "arrays": arrays, "meta": dict(value.meta_info), "rows": len(value)}
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [plain(row) for row in value.unbind()]
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), str(value.dtype), value.tolist())
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def outcome(call: Any) -> Any:
    """What a call gives, or what it raises."""
    try:
        return plain(call())
    except Exception as error:
        return error


def check_alike(theirs: Any, ours: Any) -> None:
    """One call of verl's function and one of probe's have the same outcome, or end in errors that one handler takes."""
    expected, got = outcome(theirs), outcome(ours)
    if isinstance(expected, Exception):
        assert isinstance(got, type(expected)), (expected, got)
        return
    if isinstance(got, Exception):
        raise got
    assert same(expected, got), (expected, got)


# ------------------------------------------------------------------------------------------------------------- metrics


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(["mean", "sum", "min", "max"]), st.lists(numbers, min_size=1, max_size=8), st.integers(1, 4))
def test_c_metric(aggregation, values, ranks):
    theirs, ours = their_metric.Metric(aggregation, values[0]), metric.Metric(aggregation, values[0])
    for one in (theirs, ours):
        one.extend(values[1:])
        one.append(torch.tensor(2.0))
        one.append(np.float64(0.5))
        one.append(one.init_list())
    assert ours.values == theirs.values
    assert ours.aggregate() == pytest.approx(float(theirs.aggregate()), rel=1e-12, abs=1e-9)
    made = [kind.Metric.from_dict({"a": 1, "b": values[0]}, aggregation) for kind in (their_metric, metric)]
    assert {key: one.values for key, one in made[1].items()} == {key: one.values for key, one in made[0].items()}
    expected = their_metric.Metric.aggregate_dp(metric_lists=[theirs] * ranks)
    assert metric.Metric.aggregate_dp(metric_lists=[ours] * ranks) == pytest.approx(
        float(expected), rel=1e-12, abs=1e-9
    )


def metrics_misused():
    yield "unequal counts", lambda kind: kind.aggregate_dp(metric_lists=[kind("mean", 1.0), kind("mean")])
    yield "no ranks", lambda kind: kind.aggregate_dp(metric_lists=[])
    yield "two aggregations", lambda kind: kind("sum", 1.0).extend(kind("max", 1.0))
    yield "a text", lambda kind: kind("sum").append("many")
    yield "many values for one", lambda kind: kind("sum").append(torch.zeros(3))
    yield "no such aggregation", lambda kind: kind("median")


@pytest.mark.parametrize(("_name", "misuse"), [pytest.param(*one, id=one[0]) for one in metrics_misused()])
def test_c_metric_misused(_name, misuse):
    check_alike(lambda: misuse(their_metric.Metric), lambda: misuse(metric.Metric))


# ------------------------------------------------------------------------------------------------------------ balancing


@settings(deadline=None, max_examples=60)
@example(seqlens=[64 + 5 * row % 37 for row in range(56)], parts=25)
@given(seqlens=lengths, parts=st.integers(1, 30))
def test_c_log_seqlen_unbalance(seqlens, parts):
    parts = min(parts, len(seqlens))
    partitions = [list(range(part, len(seqlens), parts)) for part in range(parts)]
    check_alike(
        lambda: their_balancing.log_seqlen_unbalance(seqlen_list=seqlens, partitions=partitions, prefix="s"),
        lambda: seqlen_balancing.log_seqlen_unbalance(seqlen_list=seqlens, partitions=partitions, prefix="s"),
    )


@settings(deadline=None, max_examples=30)
@given(lengths)
def test_c_calculate_workload(seqlens):
    given = torch.tensor(seqlens)
    check_alike(
        lambda: their_balancing.calculate_workload(seqlen_list=given),
        lambda: seqlen_balancing.calculate_workload(seqlen_list=given),
    )


# ---------------------------------------------------------------------------------------------------- torch functionals


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_c_get_cosine_schedule_with_warmup(data):
    steps = data.draw(st.integers(1, 40))
    options = {
        "num_warmup_steps": data.draw(st.integers(0, steps)),
        "num_training_steps": steps,
        "min_lr_ratio": data.draw(st.sampled_from([None, 0.0, 0.1, 1.0])),
        "num_cycles": data.draw(st.sampled_from([0.5, 1.0])),
        "init_lr_ratio": data.draw(st.sampled_from([None, 0.0, 0.3, 1.0])),
        "zero_indexed_step": data.draw(st.booleans()),
    }

    def factors(module):
        schedule = module.get_cosine_schedule_with_warmup(torch.optim.SGD([torch.zeros(1)], lr=1.0), **options)
        return [schedule.lr_lambdas[0](step) for step in range(steps)]  # after the last step probe's stays

    assert factors(torch_functional) == pytest.approx(factors(their_torch), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("options", [{"init_lr_ratio": 1.5}, {"init_lr_ratio": -0.1}, {"min_lr_ratio": 2}])
def test_c_get_cosine_schedule_with_warmup_misused(options):
    def made(module):
        return module.get_cosine_schedule_with_warmup(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1, 2, **options)

    check_alike(lambda: made(their_torch), lambda: made(torch_functional))


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, 3),
    st.integers(0, 8),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from(["left", "right", "middle", "error", "front"]),
)
def test_c_postprocess_data(rows, width, wanted, left_pad, truncation):
    ids = torch.arange(rows * width).reshape(rows, width)
    arguments = (ids, torch.ones_like(ids), wanted, 7, left_pad, truncation)
    check_alike(lambda: their_torch.postprocess_data(*arguments), lambda: torch_functional.postprocess_data(*arguments))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), max_size=3), st.integers(1, 6))
def test_c_gather_from_labels(shape, vocabulary):
    data = torch.randn(*shape, vocabulary)
    label = torch.randint(0, vocabulary, shape)
    check_alike(
        lambda: their_torch.gather_from_labels(data=data, label=label),
        lambda: torch_functional.gather_from_labels(data=data, label=label),
    )


def test_c_expand_as_nested():
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(0), torch.zeros(3)], layout=torch.jagged)
    for tensor, like in (
        (torch.arange(3.0), nested),
        (torch.arange(3.0), torch.zeros(3, 2)),
        (torch.arange(2.0), nested),
        (torch.zeros(3, 2), nested),
    ):
        check_alike(
            functools.partial(their_torch.expand_as_nested, tensor, like),
            functools.partial(torch_functional.expand_as_nested, tensor, like),
        )


# ----------------------------------------------------------------------------------------------------------- DataProto

values = st.one_of(st.integers(-3, 3), st.sampled_from(["a", "b", None]), st.lists(st.integers(0, 2), max_size=2))
dicts = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@settings(deadline=None, max_examples=60)
@given(dicts, dicts)
def test_c_union_two_dict(one, two):
    check_alike(
        lambda: their_functional.union_two_dict(dict(one), dict(two)),
        lambda: protocol.union_two_dict(dict(one), dict(two)),
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(dicts, max_size=4))
def test_c_list_of_dict_to_dict_of_list(all_of_them):
    check_alike(
        lambda: their_functional.list_of_dict_to_dict_of_list(list_of_dict=all_of_them),
        lambda: protocol.list_of_dict_to_dict_of_list(list_of_dict=all_of_them),
    )


def batch_of(module: Any, **meta: Any) -> Any:
    tensors = {"obs": torch.arange(24).reshape(4, 6), "reward": torch.tensor([0.0, 1.0, 0.5, 2.0])}
    objects = {"uid": ["a", "b", "c", "d"], "labels": [[1, "x"], [2, "y"], [3, "z"], [4, "w"]]}
    return module.DataProto.from_dict(tensors, objects, meta_info={"temperature": 1.0, **meta})


def on_batches():
    """Name of a use, and the use: verl's module or ours in, a result out."""
    yield "no arrays", lambda m: len(m.DataProto(non_tensor_batch=None))
    yield (
        "no arrays but tensors",
        lambda m: len(m.DataProto(batch=TensorDict({"a": torch.zeros(3)}, [3]), non_tensor_batch=None)),
    )
    yield "two batch dimensions", lambda m: m.DataProto.from_dict({"a": torch.zeros(2, 3)}, num_batch_dims=2)
    yield (
        "two batch dimensions and arrays",
        lambda m: m.DataProto.from_dict({"a": torch.zeros(2, 3)}, {"b": np.zeros(2)}, num_batch_dims=2),
    )
    yield (
        "a TensorDict of two batch dimensions",
        lambda m: m.DataProto.from_tensordict(TensorDict({"a": torch.zeros(2, 3)}, [2, 3]), num_batch_dims=2),
    )
    yield "a batch of two batch dimensions", lambda m: m.DataProto(batch=TensorDict({"a": torch.zeros(2, 3)}, [2, 3]))
    yield "no batch dimension", lambda m: m.DataProto.from_dict({"a": torch.zeros(2)}, num_batch_dims=0)
    yield "different rows", lambda m: m.DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)})
    yield "select", lambda m: batch_of(m).select(["reward"], ["uid"], ["temperature"])
    yield "select what isn't there", lambda m: batch_of(m).select(non_tensor_batch_keys=["uid", "absent"])
    yield "select no fact", lambda m: batch_of(m).select(meta_info_keys=["absent"])
    yield "select no such tensor", lambda m: batch_of(m).select(batch_keys=["absent"])
    yield "unfold", lambda m: batch_of(m).unfold_column_chunks(2, split_keys=["obs"])
    yield "unfold lists", lambda m: batch_of(m).unfold_column_chunks(2, split_keys=["obs", "labels"])
    yield "chunk", lambda m: batch_of(m).chunk(2)
    yield "chunk unevenly", lambda m: batch_of(m).chunk(3)
    yield "iterate unevenly", lambda m: batch_of(m).make_iterator(3, 1)
    yield "pop", lambda m: batch_of(m).pop(["obs"], ["uid"], ["temperature"])
    yield "pop what isn't there", lambda m: batch_of(m).pop(["absent"])
    yield "pop no such array", lambda m: batch_of(m).pop(non_tensor_batch_keys=["absent"])
    yield "pop no such fact", lambda m: batch_of(m).pop(meta_info_keys=["absent"])
    yield "union of what differs", lambda m: batch_of(m).union(batch_of(m, temperature=2.0))
    yield "concat of what differs", lambda m: m.DataProto.concat([batch_of(m), batch_of(m, temperature=2.0)])
    yield "fold unevenly", lambda m: m.fold_batch_dim(batch_of(m), 3)
    yield "a list for an array", lambda m: m.DataProto(non_tensor_batch={"uid": ["a"]})
    yield "pad", lambda m: m.pad_dataproto_to_divisor(batch_of(m), 3)[0]


@pytest.mark.parametrize(("_name", "use"), [pytest.param(*one, id=one[0]) for one in on_batches()])
def test_c_data_proto(_name, use):
    check_alike(lambda: use(their_protocol), lambda: use(protocol))


# ------------------------------------------------------------------------------------------------------------- ulysses


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 5), st.sampled_from([None, 1, 3]))
def test_c_ulysses_pad(tokens, size, kinds):
    ids = torch.arange(tokens).unsqueeze(0)
    positions = ids if kinds is None else ids.expand(kinds, 1, tokens)
    check_alike(
        lambda: their_ulysses.ulysses_pad(input_ids_rmpad=ids, position_ids_rmpad=positions, sp_size=size, pad_value=9),
        lambda: ulysses.ulysses_pad(input_ids_rmpad=ids, position_ids_rmpad=positions, sp_size=size, pad_value=9),
    )


def test_c_seq_all_to_all_and_gather(tmp_path):
    # By path: a package that verl needs brings a folder called tests, by which name a rank would look for this file.
    script, store = Path(__file__).with_name("verl_exchanges.py"), tmp_path / "store"
    commands = [[sys.executable, str(script), str(rank), "2", str(store)] for rank in range(2)]
    ranks = [subprocess.Popen(one, stderr=subprocess.PIPE, text=True) for one in commands]
    said = [one.communicate(timeout=300)[1] for one in ranks]
    assert [one.returncode for one in ranks] == [0, 0], said


# ---------------------------------------------------------------------------------------------------------------- FSDP


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)


class Model(nn.Module):
    _no_split_modules = ("Layer", "NotThere")

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 16).requires_grad_(False)
        self.layers = nn.ModuleList([Layer() for _ in range(4)])


@pytest.mark.parametrize("is_lora", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"min_num_params": 0},
        {"min_num_params": 300},
        {"min_num_params": 10**9},
        {"transformer_layer_cls_to_wrap": ["Embedding"]},
        {"transformer_layer_cls_to_wrap": ["Layer"], "min_num_params": 300},
        {"disable": True},
        {"transformer_layer_cls_to_wrap": ["NotThere"]},
    ],
)
def test_c_get_fsdp_wrap_policy(is_lora, config):
    model = Model()

    def wrapped(module):
        policy = module.get_fsdp_wrap_policy(model, config, is_lora)
        return policy and [
            name
            for name, part in model.named_modules()
            if policy(module=part, recurse=False, nonwrapped_numel=sum(one.numel() for one in part.parameters()))
        ]

    expected, got = outcome(lambda: wrapped(their_fsdp)), outcome(lambda: wrapped(fsdp))
    assert isinstance(got, Exception) if isinstance(expected, Exception) else expected == got


# ---------------------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture
def alone(tmp_path):
    """A process group of this process: verl's managers need one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def verls_configurations():
    """Every configuration of checkpoints that verl has: its classes, and its generated configurations' sections."""
    yield CheckpointConfig()
    yield CheckpointConfig(load_contents=["model"], save_contents=["model", "hf_model"], save_lora_only=True)
    yield McoreCheckpointConfig(async_save=True, mbridge_config={"memory_efficient": True})
    yield None

    def sections(node, path=()):
        if isinstance(node, dict):
            if path[-1:] == ("checkpoint",) and "save_contents" in node:
                yield ".".join(path)
            for key, value in node.items():
                yield from sections(value, (*path, key))

    for path in sorted(Path(inspect.getfile(CheckpointConfig)).parent.glob("_generated_*.yaml")):
        whole = OmegaConf.load(path)
        for place in sections(OmegaConf.to_container(whole)):
            yield OmegaConf.select(whole, place)


def test_c_every_configuration_of_verls_is_taken(alone):
    found = list(verls_configurations())
    assert len(found) > 10
    for config in found:
        theirs = their_checkpoint.BaseCheckpointManager(nn.Linear(1, 1), None, checkpoint_config=config)
        ours = checkpoint.BaseCheckpointManager(nn.Linear(1, 1), object(), checkpoint_config=config)
        for name in dir(theirs):
            if name.startswith("should_"):
                assert getattr(ours, name) == getattr(theirs, name), (name, config)
        assert (ours.rank, ours.world_size) == (theirs.rank, theirs.world_size)
        checkpoint.FSDPCheckpointManager(nn.Linear(1, 1), None, None, None, config, trust_remote_code=False)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([None, 0, 1, 2, 3]), min_size=1, max_size=8))
def test_c_retention_of_the_base_manager(tmp_path_factory, limits):
    def kept(module, manager):
        place = tmp_path_factory.mktemp("checkpoints")
        seen = []
        for step, limit in enumerate(limits):
            manager.ensure_checkpoint_capacity(limit)
            seen.append(sorted(path.name for path in place.iterdir()))
            path = place / f"global_step_{step}" / "actor"
            path.mkdir(parents=True)
            (path / "shard.pt").write_text("weights")
            manager.register_checkpoint(str(path), limit)
            seen.append([Path(one).relative_to(place).as_posix() for one in manager.previous_saved_paths])
            seen.append(sorted(one.relative_to(place).as_posix() for one in place.rglob("shard.pt")))
        return [[name.removesuffix("/actor") for name in names] for names in seen]

    theirs = object.__new__(their_checkpoint.BaseCheckpointManager)  # its constructor wants a process group
    theirs.previous_saved_paths = []
    expected = kept(their_checkpoint, theirs)
    got = kept(checkpoint, checkpoint.BaseCheckpointManager(None))
    # verl leaves the step's empty directory behind, probe doesn't: what is in them is compared.
    assert got[1::3] == expected[1::3]
    assert got[2::3] == expected[2::3]


@pytest.mark.parametrize("left_s", [-(10**6), -3600, -5, 50, 100, 200, 10**6])
@pytest.mark.parametrize("durations", [(1, 0, 0), (60, 60, 0), (0, 60, 0), (30, 60, 50)])
def test_c_should_save_ckpt_esi(monkeypatch, left_s, durations):
    monkeypatch.setenv("MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP", str(time.time() + left_s))
    check_alike(
        lambda: their_checkpoint.should_save_ckpt_esi(*durations), lambda: checkpoint.should_save_ckpt_esi(*durations)
    )


# --------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B", "gpt2", "meta-llama/Llama-3.1-8B-Instruct"])
def test_c_copy_to_local(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for src in (name, str(tmp_path / "model"), "model"):
        check_alike(functools.partial(their_fs.copy_to_local, src), functools.partial(fs.copy_to_local, src))
    assert os.listdir(tmp_path) == ["model"]


def test_c_verl_takes_what_the_table_says_that_it_takes(alone, tmp_path, monkeypatch):
    """The second column of the table in ``docs/drop_in.md``; the third is asked in the ordinary tests."""
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
    from verl.utils.dataset import rl_dataset

    from tests.stricter import OF_VERL

    monkeypatch.chdir(tmp_path)
    checkpoints = SimpleNamespace(
        FSDPCheckpointManager=FSDPCheckpointManager, should_save_ckpt_esi=their_checkpoint.should_save_ckpt_esi
    )
    modules = {
        "checkpoint": checkpoints,
        "fs": their_fs,
        "fsdp": their_fsdp,
        "metric": their_metric,
        "protocol": their_protocol,
        "rl_dataset": rl_dataset,
        "seqlen_balancing": their_balancing,
        "torch_functional": their_torch,
        "ulysses": their_ulysses,
    }
    refused = {}
    for name, (module, use) in OF_VERL.items():
        try:
            use(modules[module])
        except Exception as error:
            refused[name] = error
    assert not refused


def test_every_keyword_of_verls_is_taken():
    """What both have under one name takes the same arguments, in the same order, by the same names."""
    pairs = [
        (their_protocol, protocol),
        (their_torch, torch_functional),
        (their_balancing, seqlen_balancing),
        (their_ulysses, ulysses),
        (their_fsdp, fsdp),
        (their_fs, fs),
        (their_checkpoint, checkpoint),
    ]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for theirs, ours in pairs:
        for name, function in vars(theirs).items():
            if not inspect.isfunction(function) or function.__module__ != theirs.__name__ or not hasattr(ours, name):
                continue
            known = inspect.signature(getattr(ours, name)).parameters
            takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
            for parameter in inspect.signature(function).parameters.values():
                if parameter.kind in kinds and not takes_any:
                    assert parameter.name in known, f"{theirs.__name__}.{name} takes {parameter.name}"


def test_the_benchmark_of_balance_runs_in_its_smallest_form():
    (row,) = balance.rows(Size.SMALL)
    assert min(row["ours_s"], row["theirs_s"]) > 0
    assert row["name"].startswith("cut 512 lognormal rows")
