"""verl's functions and probe's on the same inputs: the same results, and misuse ends in errors that one handler takes.

verl lives in an environment of its own (``make test-verl``). Where probe is stricter on purpose, ``docs/drop_in.md``
says so, and nothing here compares it.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

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
    from verl.utils.checkpoint import checkpoint_manager as their_checkpoint

from benchmarks import balance
from benchmarks.measure import Size
from probe.core import checkpoint, fs, fsdp, metric, protocol, seqlen_balancing, torch_functional, ulysses
from tests.frameworks.verl_alike import check_alike

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]


numbers = st.floats(-1e6, 1e6, allow_nan=False)
lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


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


def drawn(random: random.Random) -> list[int]:
    """Lengths of some rows: even, long-tailed, or mostly short with a few giants."""
    width = random.choice([64, 512, 2048])
    draw = random.choice(
        [
            lambda: random.uniform(1, width),
            lambda: random.lognormvariate(0, 1) * width / 6,
            lambda: width * (0.9 if random.random() < 0.1 else 0.01 + 0.1 * random.random()),
        ]
    )
    return [max(1, min(width, int(draw()))) for _ in range(random.randint(1, 80))]


@pytest.mark.parametrize("seed", range(4))
def test_e_there_are_never_more_micro_batches_than_verl_s_and_of_as_many_none_is_heavier(seed):
    chance, fewer, lighter = random.Random(seed), 0, 0
    for _ in range(50):
        rows = drawn(chance)
        cap = int(chance.choice([1, 1.3, 2, 4]) * max(rows))
        batch = balance.batch_of(rows)
        (_, ours), (_, theirs) = (of.rearrange_micro_batches(batch, cap) for of in (seqlen_balancing, their_balancing))
        assert max(sum(rows[at] for at in part) for part in ours) <= cap
        assert len(ours) <= len(theirs)
        fewer += len(ours) < len(theirs)
        if len(ours) == len(theirs):
            mine, its = (balance.heaviest(rows, cut) for cut in (ours, theirs))
            assert mine <= its * (1 + 1e-9)
            lighter += mine < its * (1 - 1e-9)
    assert fewer
    assert lighter  # else it compares nothing
