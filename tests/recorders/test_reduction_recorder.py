from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from probe import hooks, testing
from probe.core.metric import Metric, reduce_metrics
from probe.errors import InputTypeError
from probe.recorders.reduction import PREFIX, ReductionRecorder

NAN = float("nan")


class Collect(testing.Collect):
    def by_key(self):
        return {row.key: row for row in self.rows()}


@pytest.fixture
def collect():
    listener = Collect(ReductionRecorder())
    with hooks.subscribe(listener, *ReductionRecorder.points):
        yield listener


def test_what_went_in_and_what_came_out(collect):
    metrics = {
        "loss": [1.0, 2.0, 6.0],
        "max_reward": [3, 7],
        "timing/admin": [4.0, 5.0],
        "empty": [],
        "poisoned": [1.0, NAN, 3.0],
        "tokens": Metric("sum", [3, 4]),
        "array": np.array([1.0, 2.0]),
        "tensors": [torch.tensor(1.0), torch.tensor(3.0)],
        "merged": [Metric("mean", [1.0]), Metric("mean", [2.0, 3.0])],
        "ragged": [[1.0], [2.0, 6.0]],
    }
    reduced = reduce_metrics(metrics)
    metrics["loss"].clear()
    metrics["tokens"].append(100)
    metrics["tensors"][0].fill_(100.0)
    rows = collect.by_key()
    assert list(rows) == list(reduced)
    seen = {key: (r.reducer, r.chosen_by, r.count, r.smallest, r.largest, r.nan_count) for key, r in rows.items()}
    assert seen == {
        "loss": ("mean", "name", 3, 1.0, 6.0, 0),
        "max_reward": ("max", "name", 2, 3.0, 7.0, 0),
        "timing/admin": ("min", "name", 2, 4.0, 5.0, 0),
        "empty": ("mean", "name", 0, None, None, 0),
        "poisoned": ("mean", "name", 3, 1.0, 3.0, 1),
        "tokens": ("sum", "type", 2, 3.0, 4.0, 0),
        "array": ("mean", "name", 2, 1.0, 2.0, 0),
        "tensors": ("mean", "name", 2, 1.0, 3.0, 0),
        "merged": ("mean", "type", 3, 1.0, 3.0, 0),
        "ragged": ("mean", "name", 3, 1.0, 6.0, 0),
    }
    for key, row in rows.items():
        assert row.value == reduced[key] or (math.isnan(row.value) and math.isnan(reduced[key]))


def test_a_reduction_that_changes_its_argument(collect):
    @hooks.observed("metric.reduce_metrics")
    def theirs(metrics):
        for key, value in metrics.items():
            metrics[key] = np.mean(getattr(value, "values", value))
        return metrics

    foreign = SimpleNamespace(aggregation=SimpleNamespace(value="sum"), values=[1.0, 5.0])
    named = SimpleNamespace(aggregation="last", values=[2.0, 4.0, 6.0], chosen_by="name")
    theirs({"loss": [1.0, 3.0], "typed": foreign, "found in the name": named})
    rows = collect.by_key()
    last = rows["found in the name"]
    assert (last.reducer, last.chosen_by, last.count) == ("last", "name", 3)
    assert (rows["loss"].count, rows["loss"].largest, rows["loss"].value) == (2, 3.0, 2.0)
    assert (rows["typed"].reducer, rows["typed"].chosen_by, rows["typed"].count) == ("sum", "type", 2)


def test_the_metrics_are_the_argument_of_that_name_else_the_first_one(collect):
    @hooks.observed("metric.reduce_metrics")
    def named_otherwise(data, prefix=""):
        return {key: max(value) for key, value in data.items()}

    @hooks.observed("metric.reduce_metrics")
    def not_first(prefix, metrics):
        return {key: max(value) for key, value in metrics.items()}

    named_otherwise({"first": [1.0, 2.0]})
    named_otherwise(data={"by another name": [1.0]})  # neither is there: no row, and no failure
    not_first({"a prefix": [1.0]}, {"second": [3.0, 4.0, 5.0]})
    not_first({"a prefix": [1.0]}, metrics={"third": [6.0]})
    assert {key: (row.count, row.value) for key, row in collect.by_key().items()} == {
        "first": (2, 2.0),
        "second": (3, 5.0),
        "third": (1, 6.0),
    }


def test_tensors_on_a_device_are_not_read(collect):
    @hooks.observed("metric.reduce_metrics")
    def lazy(metrics):
        return metrics

    lazy({"loss": [torch.zeros((), device="meta"), torch.zeros(3, device="meta")]})
    row = collect.by_key()["loss"]
    assert (row.count, row.smallest, row.largest, row.value) == (4, None, None, None)


def test_a_call_that_raised_gives_no_row(collect):
    with pytest.raises(InputTypeError):
        reduce_metrics({"loss": None})
    with pytest.raises(InputTypeError):
        reduce_metrics(None)
    assert collect.by_key() == {}


def test_metrics(collect):
    reduce_metrics({"loss": [NAN, NAN, 1.0], "kl": [1.0]})
    found = {key: metric.aggregate() for key, metric in collect.recorder.metrics(collect.rows()).items()}
    assert found == {f"{PREFIX}keys": 2.0, f"{PREFIX}nan_values": 2.0}
    assert set(found) == set(ReductionRecorder.keys)
    assert collect.recorder.metrics([]) == {}
