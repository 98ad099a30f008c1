"""Part 1 of the auditor: the arithmetic of the traps, in exact fractions, and by random batches."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest

from probe.analysis.audit.judging import TRAPS, Part, judge, mean_of, near, weighted_mean


def part(values, tokens=None, sequences=None, reducer="mean", **more):
    """What a call reduces of exact values, by the reducer's own rule."""
    ends = {"mean": sum(values) / Fraction(len(values)), "sum": sum(values), "max": max(values), "min": min(values)}
    weighed = {}
    for name, weights in (("token", tokens), ("sequence", sequences)):
        if weights is not None:
            weighed[f"{name}s"] = sum(weights)
            weighed[f"{name}_mean"] = Fraction(sum(v * w for v, w in zip(values, weights, strict=True)), sum(weights))
    return Part(
        len(values),
        ends[reducer],
        total=sum(values),
        smallest=min(values),
        largest=max(values),
        last=values[-1],
        reducer=reducer,
        **weighed,
        **more,
    )


def rank(number, values, **more):
    return part(values, process=f"rank-{number:05}", rank=number, **more)


@pytest.mark.parametrize("seed", range(40))
def test_15_1_property_the_token_weighted_mean_is_the_mean_over_all_tokens_exactly(seed):
    draw = random.Random(seed)
    tokens, of_sequences, parts = [], [], []
    for process in range(draw.randint(1, 5)):
        means, lengths, counts = [], [], []
        for _ in range(draw.randint(1, 6)):  # micro-batches
            rows = [
                [Fraction(draw.randint(-99, 99), draw.randint(1, 40)) for _ in range(draw.randint(1, 9))]
                for _ in range(draw.randint(1, 4))
            ]
            inside = [one for row in rows for one in row]
            tokens += inside
            means.append(sum(inside) / len(inside))
            lengths.append(len(inside))
            counts.append(len(rows))
            of_sequences += [means[-1]] * len(rows)
        parts.append(rank(process, means, tokens=lengths, sequences=counts))
    plain = sum((one.value for one in parts), Fraction()) / len(parts)
    said = judge("loss", plain, parts, ranks=len(parts))
    assert said.token_weighted == sum(tokens) / len(tokens)
    assert said.sequence_weighted == sum(of_sequences) / len(of_sequences)
    assert said.error == plain - said.expected
    assert said.trap in (None, "mean_of_unequal_means")
    if said.trap is not None:
        assert said.expected == said.token_weighted != plain


@pytest.mark.parametrize("seed", range(20))
def test_15_1_property_a_weighted_number_is_never_in_a_trap(seed):
    draw = random.Random(seed)
    parts = []
    for process in range(draw.randint(1, 4)):
        values = [Fraction(draw.randint(1, 999), 1000) for _ in range(draw.randint(1, 5))]
        weights = [draw.randint(1, 400) for _ in values]
        parts.append(rank(process, values, tokens=weights, sequences=[1] * len(values)))
    for by in ("token", "sequence"):
        mean = weighted_mean(parts, by)
        said = judge("loss", mean, parts, ranks=len(parts))
        assert (said.trap, said.error) == (None, 0)
    assert judge("x", mean_of([parts[0]]), [replace(parts[0], tokens=None, sequences=None)]).trap is None


# --------------------------------------------------------------------------------------------------- known cases
# Where our sources describe a case, it is built from that. Of the others they name no more than the number:
# there the class of the trap is built, and nothing is said of the number.


def test_15_1_verl_7501_minibatch_loss_is_reduced_to_its_smallest_value():
    """Described: "`minibatch_loss` → min", since the documented rule finds "min" in "minibatch"."""
    values = [Fraction(1, 2), Fraction(3, 4), Fraction(5, 2)]
    said = judge("actor/minibatch_loss", Fraction(1, 2), [part(values, reducer="min", tokens=[1, 1, 2])])
    assert said.trap == "accidental_reducer"
    assert (said.token_weighted, said.expected) == (Fraction(25, 16), Fraction(25, 16))
    assert said.error == Fraction(-17, 16)
    assert said.relative_error == Fraction(-17, 25)


def test_15_1_verl_metrics_aggregator_sums_summary_quality():
    """Described: `reward/summary_quality/mean` → sum, 0.2 and 0.8 became 1.0."""
    values = [Fraction(1, 5), Fraction(4, 5)]
    said = judge("reward/summary_quality/mean", Fraction(1), [part(values, reducer="sum", sequences=[1, 3])])
    assert (said.trap, said.sequence_weighted) == ("accidental_reducer", Fraction(13, 20))
    assert said.expected == Fraction(13, 20)
    without = judge("reward/summary_quality/mean", Fraction(1), [part(values, reducer="sum")])
    assert (without.expected, without.expected_by) == (Fraction(1, 2), "mean of all values")


def test_15_1_nemo_rl_230_a_mean_of_means():
    """Described as the same mistake as in other frameworks: largest values averaged, and means of means. No more."""
    parts = [rank(0, [Fraction(1, 100)] * 9), rank(1, [Fraction(1)])]
    said = judge("train/loss", Fraction(101, 200), parts, ranks=2)
    assert (said.trap, said.expected, said.error) == ("mean_of_unequal_means", Fraction(109, 1000), Fraction(396, 1000))
    averaged = [rank(0, [Fraction(3), Fraction(7)], reducer="max"), rank(1, [Fraction(20)], reducer="max")]
    said = judge("generation/max_length", Fraction(27, 2), averaged, ranks=2)
    assert (said.trap, said.expected, said.error) == ("averaged_extreme", Fraction(20), Fraction(-13, 2))


def test_15_1_the_class_of_verl_7823_means_of_micro_batches_with_unlike_tokens():
    """Not described in our sources: this is the trap's class, and nothing is claimed of the number."""
    said = judge("actor/pg_loss", Fraction(3), [part([Fraction(1), Fraction(5)], tokens=[900, 100], sequences=[3, 1])])
    assert said.trap == "mean_of_unequal_means"
    assert (said.token_weighted, said.sequence_weighted) == (Fraction(7, 5), Fraction(2))
    assert said.error == Fraction(8, 5)


@pytest.mark.parametrize(
    ("reported", "factor", "of"),
    [(Fraction(6, 5), "accumulation", 4), (Fraction(3, 40), "accumulation", 4), (Fraction(3, 5), "ranks", 2)],
)
def test_15_1_the_class_of_trl_6380_a_number_scaled_by_accumulation_or_ranks(reported, factor, of):
    """Not described in our sources: this is the trap's class, and nothing is claimed of the number."""
    values = [Fraction(1, 5), Fraction(2, 5), Fraction(1, 10), Fraction(1, 2)]
    said = judge("loss", reported, [rank(0, values), rank(1, values[::-1])], ranks=2)
    assert (said.trap, said.factor, said.expected) == ("scaled_sum", factor, Fraction(3, 10))
    assert f"by {of}, the number of" in said.why


def test_15_1_the_class_of_trl_7100_only_the_last_micro_batch_is_kept():
    """Not described in our sources: this is the trap's class, and nothing is claimed of the number."""
    values = [Fraction(1, 4), Fraction(1, 3), Fraction(1, 7)]
    said = judge("kl", Fraction(1, 7), [part(values, tokens=[5, 3, 2])])
    assert (said.trap, said.expected) == ("last_one_wins", Fraction(5 * 21 + 3 * 28 + 2 * 12, 840))
    logged = judge("kl", Fraction(1, 7), [], logged=values)
    assert (logged.trap, logged.expected) == ("last_one_wins", sum(values) / 3)


def test_15_1_the_class_of_open_instruct_1808_uneven_counts_of_ranks():
    """Not described in our sources: this is the trap's class, and nothing is claimed of the number."""
    parts = [rank(0, [Fraction(1, 4), Fraction(3, 4)]), rank(2, [Fraction(1, 2), Fraction(1)])]
    said = judge("reward/tool", Fraction(5, 16), parts, ranks=4)
    assert (said.trap, said.expected, said.error) == ("uneven_counts", Fraction(5, 8), Fraction(-5, 16))
    assert "2 of 4 ranks" in said.why


def test_15_1_a_sum_over_ranks_that_is_divided_by_them_or_counted_twice():
    parts = [rank(0, [Fraction(1000), Fraction(2001)], reducer="sum"), rank(1, [Fraction(4000)], reducer="sum")]
    assert judge("tokens/total", Fraction(7001), parts, ranks=2).trap is None
    assert judge("tokens/total", parts[0].value, parts, ranks=2, process="rank-00000").trap is None  # a rank's own
    for wrong in (Fraction(7001, 2), Fraction(14002)):
        said = judge("tokens/total", wrong, parts, ranks=2)
        assert (said.trap, said.expected, said.factor) == ("scaled_sum", Fraction(7001), "ranks")


def test_15_1_one_nan_among_the_values():
    poisoned = replace(part([Fraction(1), Fraction(3)]), count=3, nan_count=1, value=math.nan, last=math.nan)
    said = judge("kl", math.nan, [poisoned])
    assert (said.trap, said.expected, said.error, said.why[:16]) == ("nan", None, None, "1 of 3 values ar")


def test_15_1_small_whole_numbers_are_multiples_by_chance():
    parts = [rank(0, [Fraction(1)]), rank(1, [Fraction(3)])]
    assert judge("rows", Fraction(4), parts, ranks=2).trap is None


def test_15_1_what_is_reduced_once_more_from_what_ranks_had_reduced_is_judged_by_their_values():
    ranks = [rank(0, [Fraction(1, 100)] * 9), rank(1, [Fraction(1)])]
    driver = part([Fraction(1, 100), Fraction(1)], process="driver")
    said = judge("loss", driver.value, [*ranks, driver], ranks=2, process="driver")
    assert (said.trap, said.expected) == ("mean_of_unequal_means", Fraction(109, 1000))


def test_15_1_what_all_ranks_reduced_alike_counts_once():
    copies = [rank(one, [Fraction(1), Fraction(2)], reducer="sum") for one in range(3)]
    assert judge("tokens", Fraction(3), copies, ranks=3).expected == 3


def test_15_1_calls_in_micro_batches_are_pooled_by_their_weights():
    parts = [part([Fraction(2)], tokens=[30], micro_batch=0), part([Fraction(4)], tokens=[10], micro_batch=1)]
    assert judge("loss", Fraction(3), parts).token_weighted == Fraction(5, 2)


def test_15_1_what_is_not_known_is_none():
    said = judge("loss", Fraction(3), [part([Fraction(2), Fraction(4)])])
    assert (said.token_weighted, said.sequence_weighted, said.expected) == (None, None, 3)
    unknown = judge("loss", Fraction(3), [])
    assert (unknown.expected, unknown.error, unknown.relative_error, unknown.trap) == (None, None, None, None)
    assert not near(None, 1.0)
    assert set(TRAPS) >= {"nan", "scaled_sum"}


@pytest.mark.parametrize("key", ["perf/samples_per_min", "rollout/reached_max_length_ratio"])
def test_15_1_a_mean_of_a_limit_s_share_or_of_a_rate_per_minute_is_no_averaged_extreme(key):
    said = judge(key, Fraction(3, 10), [part([Fraction(1, 5), Fraction(2, 5)], chosen_by="type")])
    assert (said.trap, said.expected) == (None, Fraction(3, 10))


def test_15_1_an_infinity_among_the_values_is_no_mean_of_unequal_means():
    parts = [
        Part(2, math.inf, total=math.inf, smallest=1.0, largest=math.inf, last=math.inf, tokens=9, token_mean=math.inf)
    ]
    assert judge("actor/loss", math.inf, parts).trap is None
    assert judge("actor/loss", math.inf, [replace(parts[0], tokens=None, token_mean=None)]).trap is None
