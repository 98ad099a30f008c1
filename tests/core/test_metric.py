from __future__ import annotations

import enum
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probe import hooks
from probe.core.metric import AggregationType, Metric, append_to_dict, reduce_metrics, reducer_for
from probe.errors import InputError, InputTypeError, UnknownNameError

NAN = float("nan")
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


# -------------------------------------------------------------------------------------- reduce_metrics


def test_the_documented_example():
    metrics = {
        "loss": [1.0, 2.0, 3.0],
        "accuracy": [0.8, 0.9, 0.7],
        "max_reward": [5.0, 8.0, 6.0],
        "min_error": [0.1, 0.05, 0.2],
    }
    before = {key: list(values) for key, values in metrics.items()}
    reduced = reduce_metrics(metrics)
    assert reduced == {"loss": 2.0, "accuracy": pytest.approx(0.8), "max_reward": 8.0, "min_error": 0.05}
    assert metrics == before
    assert reduced is not metrics
    assert all(type(value) is float for value in reduced.values())


@pytest.mark.parametrize(
    ("key", "reducer"),
    [
        ("softmax_temp", "max"),
        ("global_seqlen/minmax_diff", "max"),
        ("minibatch/loss", "min"),
        ("timing/admin", "min"),
        ("MAX_reward", "mean"),
        ("", "mean"),
    ],
)
def test_the_rule_reads_the_key(key, reducer):
    assert reducer_for(key) == reducer
    assert reduce_metrics({key: [1.0, 2.0, 6.0]})[key] == {"mean": 3.0, "max": 6.0, "min": 1.0}[reducer]


@pytest.mark.parametrize("key", ["loss", "max_reward", "min_error"])
def test_no_value_and_nan_give_nan(key):
    assert math.isnan(reduce_metrics({key: []})[key])
    assert math.isnan(reduce_metrics({key: [1.0, NAN, 2.0]})[key])
    assert math.isnan(reduce_metrics({key: [NAN, 1.0]})[key])


def test_every_kind_of_number():
    reduced = reduce_metrics(
        {
            "scalar": 3,
            "flag": [True, False],
            "numpy": np.array([[1, 2], [3, 6]]),
            "numpy_scalars": [np.float32(0.5), np.int64(2), np.bool_(True)],
            "tensor": torch.tensor([1.0, 3.0], dtype=torch.bfloat16, requires_grad=True),
            "tensors": [torch.tensor(1), torch.tensor([2.0, 6.0])],
            "ragged": [[1.0], [2.0, 3.0], []],
            "tuple": (1.0, 3.0),
        }
    )
    assert reduced == {
        "scalar": 3.0,
        "flag": 0.5,
        "numpy": 3.0,
        "numpy_scalars": pytest.approx(3.5 / 3),
        "tensor": 2.0,
        "tensors": 3.0,
        "ragged": 2.0,
        "tuple": 2.0,
    }
    assert all(type(value) is float for value in reduced.values())


@pytest.mark.parametrize("value", [None, "1.0", [1.0, None], ["a"], {"a": 1}, object(), [1j], np.array(["a"]), 10**400])
def test_what_is_no_number_is_named(value):
    with pytest.raises(InputTypeError, match="actor/loss"):
        reduce_metrics({"fine": [1.0], "actor/loss": value})


def test_not_a_dict():
    with pytest.raises(InputTypeError, match="metrics: got list"):
        reduce_metrics([1.0])


def test_infinities_follow_ieee():
    inf = math.inf
    reduced = reduce_metrics({"a": [inf, 1.0], "b": [inf, -inf], "c": [1e308, 1e308], "max": [-inf, inf]})
    assert reduced["a"] == inf
    assert math.isnan(reduced["b"])
    assert reduced["c"] == inf
    assert reduced["max"] == inf


def test_a_typed_metric_wins_over_the_name():
    metrics = {
        "max_tokens": Metric("sum", [3, 4]),
        "min_loss": [Metric("mean", [1.0, 2.0]), Metric("mean", [6.0])],
    }
    assert reduce_metrics(metrics) == {"max_tokens": 7.0, "min_loss": 3.0}
    assert metrics["max_tokens"].count == 2
    assert metrics["min_loss"][0].count == 2
    with pytest.raises(InputTypeError, match="mixed"):
        reduce_metrics({"mixed": [Metric("sum", 1), 2.0]})


def test_it_is_observed():
    class Keep(hooks.Listener):
        def leave(self, event, state):
            heard.append((dict(event.argument("metrics")), dict(event.result)))

    heard = []
    with hooks.subscribe(Keep(), "metric.*"):
        reduce_metrics({"loss": [1.0, 3.0]})
    assert heard == [({"loss": [1.0, 3.0]}, {"loss": 2.0})]


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=30))
def test_it_agrees_with_numpy(values):
    reduced = reduce_metrics({"loss": values, "max": values, "min": values})
    rounding = 1e-13 * max(map(abs, values))  # numpy's: what large values of both signs leave of their last bits
    assert reduced["loss"] == pytest.approx(np.mean(values, dtype=np.float64), rel=1e-12, abs=rounding)
    assert reduced["max"] == np.max(values)
    assert reduced["min"] == np.min(values)


# -------------------------------------------------------------------------------------- append_to_dict


def test_lists_extend_and_others_append():
    data = {"a": [1]}
    new = {"a": [2, 3], "b": 4, "c": (5, 6), "d": [], "e": None}
    assert append_to_dict(data, new) is None
    assert data == {"a": [1, 2, 3], "b": [4], "c": [(5, 6)], "d": [], "e": [None]}
    new["a"].append(9)
    data["d"].append(9)
    assert data["a"] == [1, 2, 3]
    assert new["d"] == []


def test_two_names_for_one_key_meet():
    data = {}
    append_to_dict(data, {"loss": 1.0, "actor/loss": [2.0]}, prefix="actor/")
    assert data == {"actor/loss": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("data", "new", "error"),
    [
        ({"a": [1], "b": (2.0,)}, {"a": 1, "b": 2}, InputTypeError),
        ({"a": [1], "b": [2.0]}, {"a": 1, "b": Metric("sum", 1)}, InputTypeError),
        ({"a": [1], "b": Metric("sum", 1)}, {"a": 1, "b": Metric("mean", 1)}, InputError),
        ({"a": [1], "b": Metric("sum", 1)}, {"a": 1, "b": "x"}, InputTypeError),
        ({"a": [1], "b": Metric("sum", 1)}, {"a": 1, "b": [1.0, None]}, InputTypeError),
    ],
)
def test_all_or_nothing(data, new, error):
    before = pickle.loads(pickle.dumps(data))
    with pytest.raises(error):
        append_to_dict(data, new)
    assert data == before


@pytest.mark.parametrize(("data", "new"), [([], {}), ({}, [("a", 1)])])
def test_append_needs_dicts(data, new):
    with pytest.raises(InputTypeError, match="expected a dict"):
        append_to_dict(data, new)


def test_metrics_are_copied_then_extended():
    data, mine = {}, Metric("weighted_mean")
    mine.append(1.0, weight=3)
    append_to_dict(data, {"loss": mine})
    append_to_dict(data, {"loss": mine})
    assert data["loss"] == Metric.merge([mine, mine])
    assert mine.count == 1
    append_to_dict(data, {"loss": [5.0, 5.0]})
    assert data["loss"].count == 4


def test_a_dict_appended_to_itself():
    data = {"a": [1, 2]}
    append_to_dict(data, data)
    assert data == {"a": [1, 2, 1, 2]}


# ---------------------------------------------------------------------------------------------- Metric


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("mean", 3.0), ("sum", 9.0), ("min", 1.0), ("max", 6.0), ("weighted_mean", 3.0)],
)
def test_initial_values(aggregation, expected):
    metric = Metric(aggregation, torch.tensor([1, 2, 6]))
    assert metric.aggregate() == expected
    assert (metric.count, metric.smallest, metric.largest) == (3, 1.0, 6.0)


@pytest.mark.parametrize("aggregation", list(AggregationType))
def test_empty_and_nan(aggregation):
    empty = Metric(aggregation)
    assert math.isnan(empty.aggregate())
    assert (empty.count, empty.smallest, empty.largest) == (0, None, None)
    poisoned = Metric(aggregation, [1.0, NAN, 3.0])
    assert math.isnan(poisoned.aggregate())
    assert (poisoned.count, poisoned.nan_count, poisoned.smallest, poisoned.largest) == (3, 1, 1.0, 3.0)
    assert Metric(aggregation, NAN) == Metric(aggregation, NAN)


def test_weights():
    metric = Metric("weighted_mean")
    metric.extend([1.0, 5.0], weights=[3, 1])
    assert metric.aggregate() == 2.0
    metric.append(NAN, weight=0)
    assert metric.aggregate() == 2.0
    assert (metric.count, metric.nan_count) == (3, 1)
    assert math.isnan(Metric.merge([Metric("weighted_mean")]).aggregate())
    nothing = Metric("weighted_mean")
    nothing.append(3.0, weight=0)
    assert math.isnan(nothing.aggregate())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Metric("median"), UnknownNameError),
        (lambda: Metric("mean", "x"), InputTypeError),
        (lambda: Metric("mean").append([1.0, 2.0]), InputError),
        (lambda: Metric("mean").append([]), InputError),
        (lambda: Metric("mean").append(1.0, weight=2), InputError),
        (lambda: Metric("weighted_mean").append(1.0, weight=-1), InputError),
        (lambda: Metric("weighted_mean").append(1.0, weight=NAN), InputError),
        (lambda: Metric("weighted_mean").append(1.0, weight=[]), InputError),
        (lambda: Metric("weighted_mean").extend([1.0], weights=[1, 2]), InputError),
        (lambda: Metric("weighted_mean").append(Metric("weighted_mean"), weight=1), InputError),
        (lambda: Metric("mean").extend(Metric("sum")), InputError),
        (lambda: Metric.merge([1.0]), InputTypeError),
        (lambda: Metric.aggregate_dp([Metric("sum"), Metric("max")]), InputError),
    ],
)
def test_bad_input(call, error):
    with pytest.raises(error):
        call()


def test_ranks_with_unequal_counts_are_merged():
    mean = [Metric("mean", [1.0, 1.0, 1.0]), Metric("mean", [5.0]), Metric("mean")]
    assert Metric.merge(mean).aggregate() == 2.0
    assert Metric.merge([Metric("max", [1, 2]), Metric("max", [7])]).aggregate() == 7.0
    assert [metric.count for metric in mean] == [3, 1, 0]
    assert math.isnan(Metric.aggregate_dp([Metric("sum"), Metric("sum")]))


def test_c_a_metric_has_the_list_like_face_of_verls():
    metric = Metric("mean", [1.0, 2])
    assert metric.values == [1.0, 2.0]
    metric.append(torch.tensor(3.0))
    metric.append(Metric("mean", 4.0))
    metric.extend([5, NAN])
    assert metric.values[:-1] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert Metric("max").values == []
    metric.extend(metric)
    assert len(metric.values) == 12
    assert Metric.from_dict({"tokens": [3, 4], "loss": 2.5}, "sum")["tokens"].values == [3.0, 4.0]
    with pytest.raises(ValueError, match="expected numbers"):  # verl's error for what isn't a number
        metric.append("x")


def test_c_aggregate_dp_raises_on_unequal_counts():
    assert Metric.aggregate_dp(metric_lists=[Metric("sum", [1, 2]), Metric("sum", [5, 0])]) == 4.0
    assert Metric.aggregate_dp(metrics=[Metric("max", [1, 2]), Metric("max", [5, 0])]) == 5.0
    for aggregation in ("mean", "sum", "min", "max"):
        with pytest.raises(ValueError, match=r"\[2, 1\] values, expected equally many"):
            Metric.aggregate_dp(metric_lists=[Metric(aggregation, [1, 2]), Metric(aggregation, 5)])
    with pytest.raises(ValueError, match="none"):
        Metric.aggregate_dp(metric_lists=[])
    heavy, light = Metric("weighted_mean"), Metric("weighted_mean")
    heavy.extend([1.0, 2.0], weights=[30, 10])
    light.append(4.0, weight=10)
    assert Metric.aggregate_dp([heavy, light]) == 1.8  # its weights say what each rank counts


def test_from_dict_and_init_list():
    made = Metric.from_dict({"a": 1.0, "b": [1, 2]}, "max")
    assert made == {"a": Metric("max", 1.0), "b": Metric("max", [1, 2])}
    assert made["b"].init_list() == Metric("max")


def test_another_packages_enum():
    class Theirs(enum.Enum):
        SUM = "sum"

    assert Metric(Theirs.SUM, [1, 2]).aggregate() == 3.0


def test_equality_pickle_repr():
    metric = Metric("weighted_mean", [1.0, NAN])
    assert pickle.loads(pickle.dumps(metric)) == metric
    assert metric != Metric("mean", [1.0, NAN])
    assert metric != "metric"
    assert repr(Metric("sum", [1, 2])) == "Metric('sum', 3.0, count=2)"
    with pytest.raises(TypeError):
        hash(metric)


@settings(deadline=None)
@example(parts=[[3e38, 1.0], [-3e38, 1.0]], aggregation=AggregationType.MEAN)
@given(st.lists(st.lists(numbers, max_size=8), min_size=1, max_size=6), st.sampled_from(list(AggregationType)))
def test_merging_is_pooling(parts, aggregation):
    merged = Metric.merge([Metric(aggregation, part) for part in parts])
    pooled = Metric(aggregation, parts)
    assert merged.count == pooled.count
    assert (merged.smallest, merged.largest) == (pooled.smallest, pooled.largest)
    rounding = 1e-13 * sum(abs(one) for part in parts for one in part)  # another order, where large values cancel
    assert merged.aggregate() == pytest.approx(pooled.aggregate(), rel=1e-12, abs=rounding, nan_ok=True)
