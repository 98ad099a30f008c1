"""Part 1 of the auditor: weights travel with values, from the micro-batch to the row of a reduction."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
import torch

from probe import hooks, testing
from probe.core.metric import Metric, append_to_dict, reduce_metrics
from probe.core.micro_batch import micro_batch
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import micro_batches
from probe.errors import InputError, InputTypeError, UnknownNameError
from probe.recorders.reduction import ReductionRecorder
from probe.recorders.weights import mean_by


class Collect(testing.Collect):
    def by_key(self):
        return {row.key: row for row in self.rows()}


@pytest.fixture
def collect():
    listener = Collect(ReductionRecorder())
    with hooks.subscribe(listener, *ReductionRecorder.points):
        yield listener


def weighed(row):
    return row.tokens, row.token_mean, row.sequences, row.sequence_mean, row.weights_from


def test_15_1_inside_a_micro_batch_scope_the_weights_are_its_tokens_and_rows(collect):
    metrics = {}
    for index, (lengths, loss) in enumerate((([30], 2.0), ([4, 6], 6.0))):
        with micro_batch(index, lengths=lengths):
            append_to_dict(metrics, {"loss": loss, "kl": Metric("mean", loss)}, prefix="actor/")
    assert reduce_metrics(metrics) == {"actor/loss": 4.0, "actor/kl": 4.0}
    rows = collect.by_key()
    for key in ("actor/loss", "actor/kl"):
        assert weighed(rows[key]) == (40.0, 3.0, 3.0, 14 / 3, "scope")
        assert (rows[key].total, rows[key].last) == (8.0, 6.0)


def test_15_1_they_travel_on_into_the_metrics_of_the_step(collect):
    step = {}
    for first in (0, 2):
        of_mini_batch = {}
        for index, tokens in enumerate((10, 30)):
            with micro_batch(first + index, lengths=[tokens]):
                append_to_dict(of_mini_batch, {"loss": float(first + index)})
        append_to_dict(step, of_mini_batch, prefix="actor/")
    reduce_metrics(step)
    assert weighed(collect.by_key()["actor/loss"]) == (
        80.0,
        (0 * 10 + 1 * 30 + 2 * 10 + 3 * 30) / 80,
        4.0,
        1.5,
        "scope",
    )


def test_15_1_the_iterator_s_micro_batches_count_too_and_as_many_values_as_rows_are_one_of_each(collect):
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.uint8)
    batch, metrics = DataProto.from_dict({"input_ids": mask.long(), "attention_mask": mask}), {}
    for part in micro_batches(batch, max_token_len=4):
        lengths = part.batch["attention_mask"].sum(1).tolist()
        append_to_dict(metrics, {"longest": float(max(lengths)), "score": [float(one) for one in lengths]})
    reduce_metrics(metrics)
    rows = collect.by_key()
    assert rows["longest"].tokens == 6.0
    assert rows["longest"].sequences == 3.0
    assert weighed(rows["score"])[2:4] == (3.0, 2.0)


def test_15_1_a_call_inside_a_micro_batch_stands_for_all_of_it(collect):
    with micro_batch(0, lengths=[5, 7]):
        reduce_metrics({"loss": [2.0], "score": [1.0, 4.0], "three": [1.0, 2.0, 3.0]})
    rows = collect.by_key()
    assert weighed(rows["loss"]) == (12.0, 2.0, 2.0, 2.0, "scope")
    assert weighed(rows["score"]) == (None, None, 2.0, 2.5, "scope")
    assert weighed(rows["three"]) == (None, None, None, None, None)


def test_15_1_no_weight_is_guessed(collect):
    """Values without a micro-batch, lists that others changed, and tensors, which would be kept alive."""
    outside, changed, before, tensors = {}, {}, {"loss": [9.0]}, {}
    append_to_dict(outside, {"loss": 1.0})
    with micro_batch(0, lengths=[5]):
        append_to_dict(changed, {"loss": 1.0})
        append_to_dict(before, {"loss": 1.0})
        append_to_dict(tensors, {"loss": torch.tensor(1.0)})
    changed["loss"].append(2.0)
    for metrics in (outside, changed, before, tensors):
        reduce_metrics(metrics)
    with micro_batch(1, lengths=[5]):
        append_to_dict(changed, {"loss": 3.0})
    reduce_metrics(changed)
    assert [weighed(row) for row in collect.rows()] == [(None, None, None, None, None)] * 5


def test_15_1_nothing_is_kept_from_one_step_to_the_next(collect):
    metrics = {}
    with hooks.scope("step", "1", step=1), micro_batch(0, lengths=[5]):
        append_to_dict(metrics, {"loss": 1.0})
    assert len(collect.recorder._collected._held) == 1
    with hooks.scope("step", "2", step=2):
        append_to_dict({}, {"other": 1.0})
    assert not collect.recorder._collected._held


def test_15_1_given_weights_go_before_the_scope_s(collect):
    loss = Metric("weighted_mean")
    loss.append(2.0, weight=30)
    loss.append(4.0, weight=10)
    with micro_batch(0, lengths=[100]):
        reduce_metrics({"loss": loss, "kl": [1.0, 2.0]}, weights={"kl": [1, 3]})
    rows = collect.by_key()
    assert weighed(rows["loss"])[:2] == (40.0, 2.5)
    assert (rows["kl"].reducer, rows["kl"].chosen_by, rows["kl"].value) == ("weighted_mean", "weights", 1.75)
    assert weighed(rows["kl"]) == (4.0, 1.75, None, None, "given")


def test_15_1_reduce_metrics_takes_weights():
    assert reduce_metrics({"loss": [2.0, 4.0], "kl": [1.0, 2.0]}, weights={"loss": [30, 10]}) == {
        "loss": 2.5,
        "kl": 1.5,
    }
    assert reduce_metrics({"loss/max": [2.0, 4.0]}, weights={"loss/max": [30, 10]}) == {"loss/max": 4.0}
    assert reduce_metrics({"loss": [2.0, float("nan")]}, weights={"loss": [1, 0]}) == {"loss": 2.0}
    for weights, error in (
        ({"loss": [1]}, InputError),
        ({"loss": [1, -1]}, InputError),
        ({"los": [1, 1]}, UnknownNameError),
        ([1, 1], InputTypeError),
    ):
        with pytest.raises(error, match="weight"):
            reduce_metrics({"loss": [2.0, 4.0]}, weights=weights)
    with pytest.raises(InputError, match="has its own"):
        reduce_metrics({"loss": Metric("mean", [1.0])}, weights={"loss": [1]})


@pytest.mark.parametrize("seed", range(10))
def test_15_1_without_weights_and_in_a_micro_batch_it_is_bit_for_bit_what_it_was(seed):
    """Against the documented rule, written out: the exact sum of the values ÷ how many they are."""
    draw = random.Random(seed)
    values = [draw.uniform(-1, 1) * 10 ** draw.randint(-8, 8) for _ in range(draw.randint(1, 50))]
    expected = {"loss": float(sum(map(Fraction, values))) / len(values), "a_max": max(values), "timing": min(values)}
    metrics = {key: list(values) for key in expected}
    assert reduce_metrics(metrics) == reduce_metrics(metrics, weights=None) == expected
    listener = Collect(ReductionRecorder())
    with hooks.subscribe(listener, *ReductionRecorder.points), micro_batch(0, lengths=[3, 4]):
        collected = {}
        append_to_dict(collected, metrics)
        assert reduce_metrics(collected) == expected
        assert collected == metrics
    assert type(collected["loss"]) is list


@pytest.mark.parametrize("seed", range(20))
def test_15_1_property_of_whole_numbers_the_row_s_mean_is_the_exact_one(seed):
    draw = random.Random(seed)
    values = [draw.randint(-(2**20), 2**20) / 1024 for _ in range(draw.randint(1, 30))]
    tokens = [draw.randint(1, 9000) for _ in values]
    exact = sum(Fraction(v) * t for v, t in zip(values, tokens, strict=True)) / sum(tokens)
    assert mean_by(values, [float(one) for one in tokens]) == (sum(tokens), float(exact))


def test_15_1_a_mean_leaves_nan_out():
    assert mean_by([1.0, float("nan")], [2.0, 5.0]) == (2.0, 1.0)
    assert mean_by([1.0], None) == mean_by([1.0], [0.0]) == mean_by([1.0], [1.0, 2.0]) == (None, None)
