"""Issue 15, part 2: samples as rows, bounded and without waiting; and the fates that part 3's ledger adds up."""

from __future__ import annotations

import random
import warnings
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

import probe
from probe import hooks, testing
from probe.analysis.quantities import course
from probe.analysis.token_blocks import unpack
from probe.errors import InputError, UnknownNameError
from probe.recorders.rollout_rows import times_of
from probe.recorders.sample_choice import Seen, chosen
from probe.recorders.samples import PREFIX, SamplesRecorder
from probe.records import FATES, Sample, TokenBlock, TokenFate
from probe.runs.reader import Run

NAN = float("nan")


def recorded(tell, **options):
    """The rows of one step in which ``tell`` was called."""
    collect = testing.Collect(SamplesRecorder(**options))
    with hooks.subscribe(collect, *SamplesRecorder.points), hooks.scope("step", "step", step=3):
        tell()
    return collect.rows()


def of(rows, kind):
    return [row for row in rows if isinstance(row, kind)]


def by_fate(rows):
    return {row.fate: row.tokens for row in of(rows, TokenFate)}


def test_each_token_has_one_fate_the_first_that_applies():
    mask = [[1, 1, 0, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 0, 0, 0, 0]]

    def tell():
        probe.samples(
            [5, 3, 2, 4, 1],
            mask=torch.tensor(mask),
            groups=["a", "a", "b", "b", "c"],
            rewards=[1.0, 0.0, 1.0, 1.0, 0.5],
            advantages=np.array([0.7, -0.7, 0.0, 0.0, 0.3]),
            dropped=[None, None, None, "truncated", None],
        )
        probe.trained([0, 1], clipped=[[1, 0, 0, 0, 1], [0, 0, 0, 0, 0]])
        with hooks.scope("micro_batch", "4", micro_batch=4):
            probe.trained([0, 1, 2], clipped=[[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])

    rows = recorded(tell)
    # Row 2 is held back in its one pass, but has no advantage, which comes first; nobody trained row 4.
    assert by_fate(rows) == {"truncated": 4, "masked": 1, "no_advantage": 2, "clipped": 1, "carried": 6, "dropped": 1}
    first, second, third, fourth, fifth = of(rows, Sample)
    assert (first.passes, first.micro_batches, first.clipped_tokens, first.carried_tokens) == (2, [-1, 4], 1, 3)
    assert (second.carried_tokens, second.masked_tokens) == (3, 0)
    assert (third.no_advantage_tokens, third.passes) == (2, 1)
    assert (fourth.dropped, fourth.dropped_tokens) == ("truncated", 4)
    assert (fifth.dropped, fifth.passes) == ("untrained", 0)
    assert {row.step for row in rows} == {3}
    equal = {row.fate: row.equal_tokens for row in of(rows, TokenFate)}
    assert equal == {"truncated": 4, "masked": 0, "no_advantage": 2, "clipped": 0, "carried": 0, "dropped": 0}


def test_15_8_an_answer_alone_in_its_group_has_no_equal_rewards():
    told = {"rewards": [1.0, 0.5, 0.5, 1.0], "advantages": [0.2, 0.0, 0.0, -0.1], "clipped": False}
    for groups, equal in [("abcd", {0}), ("abbc", {0, 5}), (["", "", "", "c"], {0}), ([""] * 4, {None})]:
        rows = recorded(lambda named=list(groups): probe.samples([4, 2, 3, 1], groups=named, **told))
        assert {row.equal_tokens for row in of(rows, TokenFate)} == equal, groups


@pytest.mark.parametrize("infinite", [NAN, float("inf")])
def test_15_2_nan_and_infinities_take_no_row_where_warnings_are_errors(infinite):
    values = np.full((2, 4), infinite)
    values[1, 1] = -1e300  # too large for half precision
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = recorded(
            lambda: probe.samples(
                [3, 4],
                groups=["a", "a"],
                rewards=[infinite, 1.0],
                advantages=values,
                log_probs=values,
                rollout_log_probs=values,
                entropies=values,
                weight_versions=[infinite, 1],
                clipped=False,
            )
        )
    assert [row.row for row in of(rows, Sample)] == [0, 1]
    assert len(of(rows, TokenBlock)) == 2
    assert {row.equal_tokens for row in of(rows, TokenFate)} == {0}


def test_a_batch_without_answers_leaves_no_row():
    assert recorded(lambda: probe.samples([], mask=[], rewards=[], response_ids=[], sampled_ids=[])) == []


def test_what_is_not_known_is_a_fate_of_its_own():
    assert by_fate(recorded(lambda: probe.samples([3, 2]))) == {"carried": 0, "unknown": 5}
    advantages = np.array([1.0, 0.0])
    assert by_fate(recorded(lambda: probe.samples([3, 2], advantages=advantages))) == {
        "no_advantage": 2,
        "carried": 0,
        "clip_unknown": 3,
    }
    known = recorded(lambda: probe.samples([3, 2], advantages=advantages, clipped=False))
    assert by_fate(known) == {"no_advantage": 2, "carried": 3}

    def tell():  # the second pass doesn't say what it clipped
        probe.samples([3], advantages=[1.0])
        probe.trained([0], clipped=[[1, 1, 0]])
        probe.trained([0])

    assert by_fate(recorded(tell)) == {"carried": 1, "clip_unknown": 2}


def test_a_nan_advantage_is_no_advantage_of_zero_and_is_counted():
    rows = recorded(lambda: probe.samples([2, 1], advantages=[NAN, 1.0], rewards=[NAN, 0.0], clipped=False))
    assert by_fate(rows) == {"carried": 3}
    assert [row.nan_count for row in of(rows, Sample)] == [3, 0]


@st.composite
def batches(draw):
    count = draw(st.integers(1, 12))
    lengths = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    width = max(lengths)
    told = {"response_tokens": lengths}
    flags = st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=count, max_size=count)
    if draw(st.booleans()):
        told["mask"] = np.array(draw(flags)).reshape(count, width)
    if draw(st.booleans()):
        some = st.sampled_from([0.0, 0.5, -1.0, NAN])
        told["advantages"] = np.array(draw(st.lists(some, min_size=count, max_size=count)))
    if draw(st.booleans()):
        told["groups"] = draw(st.lists(st.sampled_from("ab"), min_size=count, max_size=count))
        told["rewards"] = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=count, max_size=count))
    if draw(st.booleans()):
        words = st.sampled_from([None, *FATES[:4], "late"])
        told["dropped"] = draw(st.lists(words, min_size=count, max_size=count))
    if draw(st.booleans()):
        told["prompt_tokens"] = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    passes = []
    for _ in range(draw(st.integers(0, 3))):
        rows = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1, max_size=count))
        clipped = np.array(draw(flags)).reshape(count, width)[rows] if draw(st.booleans()) else None
        passes.append((rows, clipped))
    return told, passes


@settings(max_examples=75, deadline=None)
@given(batches())
def test_random_batches_sum_exactly(case):
    told, passes = case

    def tell():
        probe.samples(**told)
        for rows, clipped in passes:
            probe.trained(rows, clipped=clipped)

    rows = recorded(tell, kept=5)
    fates, kept = of(rows, TokenFate), of(rows, Sample)
    total = sum(told["response_tokens"])
    assert sum(row.tokens for row in fates) == total
    assert {row.batch_tokens for row in fates} == {total}
    assert "carried" in by_fate(rows)
    assert {row.kept_samples for row in fates} == {len(kept)} == {min(5, len(told["response_tokens"]))}
    own = ("masked", "no_advantage", "clipped", "carried", "clip_unknown", "unknown", "dropped")
    for row in kept:
        assert sum(getattr(row, f"{fate}_tokens") for fate in own) == row.response_tokens
    if len(kept) == len(told["response_tokens"]):
        assert sum(row.carried_tokens for row in kept) == by_fate(rows)["carried"]


def test_numbers_of_a_sample_are_over_the_tokens_that_the_loss_counts():
    rollout = torch.tensor([[-1.0, -9.0, -2.0, 0.0], [-3.0, 0.0, 0.0, 0.0]])
    train = torch.tensor([[-1.5, -1.0, -1.0, 0.0], [NAN, 0.0, 0.0, 0.0]])
    rows = recorded(
        lambda: probe.samples(
            [3, 1],
            mask=torch.tensor([[1, 0, 1, 0], [1, 0, 0, 0]]),
            rollout_log_probs=rollout,
            log_probs=train,
            entropies=train.abs(),
            uids=["u", "v"],
            turns=[2, 1],
            ended=["length", ""],
            weight_versions=[7, 8],
            prompt_tokens=torch.tensor([4, 5]),
        )
    )
    one, two = of(rows, Sample)
    assert (one.rollout_log_prob_mean, one.rollout_log_prob_smallest) == (-1.5, -2.0)
    assert (one.log_prob_mean, one.log_prob_smallest, one.entropy_mean) == (-1.25, -1.5, 1.25)
    assert (one.difference_mean, one.difference_largest, one.difference_at) == (0.25, 1.0, 2)
    assert (one.uid, one.turns, one.ended, one.truncated, one.weight_version) == ("u", 2, "length", True, 7)
    assert (one.prompt_tokens, one.response_tokens, one.loss_tokens, one.nan_count) == (4, 3, 2, 0)
    assert (two.log_prob_mean, two.difference_largest, two.truncated, two.nan_count) == (None, None, None, 2)


@pytest.mark.parametrize("how", ["rectangle", "left-padded", "rows", "nested"])
def test_every_layout_of_a_batch_gives_the_same_rows(how):
    lengths, values = [3, 1], [[0.5, -1.0, 2.0], [4.0]]
    loss = [[1, 0, 1], [1]]
    if how == "rectangle":
        told = {
            "response_tokens": lengths,
            "advantages": torch.tensor([[0.5, -1.0, 2.0, 9.0], [4.0, 9.0, 9.0, 9.0]], dtype=torch.bfloat16),
            "mask": torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]),
        }
    elif how == "left-padded":
        told = {
            "response_mask": torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1]]),
            "advantages": torch.tensor([[9.0, 0.5, -1.0, 2.0], [9.0, 9.0, 9.0, 4.0]]),
            "mask": torch.tensor([[0, 1, 0, 1], [0, 0, 0, 1]]),
        }
    elif how == "rows":
        told = {"response_tokens": lengths, "advantages": [*map(torch.tensor, values)], "mask": [*map(np.array, loss)]}
    else:
        told = {
            "response_tokens": lengths,
            "advantages": torch.nested.nested_tensor([*map(torch.tensor, values)], layout=torch.jagged),
            "mask": torch.nested.nested_tensor([*map(torch.tensor, loss)], layout=torch.jagged),
        }
    rows = recorded(lambda: probe.samples(**told, clipped=False))
    assert by_fate(rows) == {"masked": 1, "carried": 3}
    assert [row.advantage_mean for row in of(rows, Sample)] == [1.25, 4.0]
    (first, second) = of(rows, TokenBlock)
    assert unpack({name: getattr(first, name) for name in first.__struct_fields__})["advantages"].tolist() == values[0]
    assert unpack({name: getattr(second, name) for name in first.__struct_fields__})["mask"].tolist() == [1]


class _Watching(TorchFunctionMode):
    """A user's own, that sees torch's functions."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", ["one tensor", "scalars", "rows", "nested"])
@pytest.mark.parametrize("watched", [False, True])
def test_half_precision_is_read_however_it_is_told(how, watched):
    half = partial(torch.tensor, dtype=torch.bfloat16)
    rewards = [half(1.0), half(0.5)] if how == "scalars" else half([1.0, 0.5])
    advantages: Any = [half([0.5, -1.0]), half([4.0])]
    if how == "nested":
        advantages = torch.nested.nested_tensor(advantages, layout=torch.jagged)
    elif how != "rows":
        advantages = half([[0.5, -1.0], [4.0, 9.0]])
    mode = _Watching() if watched else nullcontext()
    with mode:
        rows = recorded(lambda: probe.samples([2, 1], rewards=rewards, advantages=advantages, clipped=False))
    assert [(row.reward, row.advantage_smallest) for row in of(rows, Sample)] == [(1.0, -1.0), (0.5, 4.0)]


def test_what_is_told_may_change_afterwards():
    advantages, mask = torch.tensor([1.0, 1.0]), torch.ones(2, 2)

    def tell():
        probe.samples([2, 2], advantages=advantages, mask=mask, clipped=False)
        advantages.zero_()
        mask.zero_()

    assert by_fate(recorded(tell)) == {"carried": 4}


def test_of_a_large_batch_some_are_kept_by_the_documented_choice_and_the_number_left_out_is_recorded():
    count = 400
    rewards = np.linspace(0, 1, count)
    rollout = np.full((count, 2), -1.0)
    train = rollout.copy()
    train[7] = -5.0  # the worst
    advantages = np.ones(count)
    advantages[11] = NAN
    advantages[20:30] = 0.0
    lengths = [2] * count

    def tell():
        probe.samples(
            lengths, rewards=rewards, rollout_log_probs=rollout, log_probs=train, advantages=advantages, clipped=False
        )

    state = torch.random.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    rows = recorded(tell, kept=40)
    assert torch.equal(torch.random.get_rng_state(), state[0])
    assert (random.getstate(), repr(np.random.get_state())) == state[1:]  # noqa: NPY002
    kept = of(rows, Sample)
    assert len(kept) == 40
    (fate,) = [row for row in of(rows, TokenFate) if row.fate == "carried"]
    assert (fate.batch_samples, fate.kept_samples, fate.batch_tokens, fate.tokens) == (400, 40, 800, 780)
    why = {row.row: row.chosen_by for row in kept}
    assert (why[11], why[7]) == ("nan", "worst")
    assert sum(reason == "no_advantage" for reason in why.values()) == 5
    assert sum(reason == "random" for reason in why.values()) > 10
    again = {row.row: row.chosen_by for row in of(recorded(tell, kept=40), Sample)}
    assert again == why
    assert [*why] == sorted(why)


def test_15_5_tokens_are_kept_of_the_answer_that_differs_most_at_one_token_and_of_that_in_the_mean():
    train = np.zeros((40, 30))
    train[17, 4] = -2.5  # the browser's first, sorted by the largest difference
    train[23] = -0.3
    rows = recorded(lambda: probe.samples([30] * 40, rollout_log_probs=0 * train, log_probs=train), blocks=8)
    assert {row.row for row in of(rows, TokenBlock) if row.chosen_by == "worst"} == {17, 23}
    rows = recorded(lambda: probe.samples([30] * 40, rollout_log_probs=0 * train, log_probs=train), blocks=4)
    assert [row.row for row in of(rows, TokenBlock) if row.chosen_by == "worst"] == [17]


def test_the_random_part_differs_from_step_to_step():
    nothing = np.zeros(300)
    seen = Seen(nothing, np.full(300, NAN), nothing, nothing)
    first, second = (set(chosen(seen, 30, step)) for step in (1, 2))
    assert first != second
    assert len(first) == len(second) == 30


def test_token_blocks_of_the_chosen_few_hold_the_arrays_within_their_room():
    rng = np.random.default_rng(0)
    train, rollout = -rng.random((9, 50)), -rng.random((9, 50))

    def tell():
        probe.samples([50] * 9, log_probs=train, rollout_log_probs=rollout, advantages=rng.random(9))
        probe.trained(range(9), clipped=np.ones((9, 50)))

    blocks = of(recorded(tell, blocks=3), TokenBlock)
    assert len(blocks) == 3
    for block in blocks:
        found = unpack({name: getattr(block, name) for name in block.__struct_fields__})
        assert [*found] == ["rollout_log_probs", "log_probs", "advantages", "mask", "clipped_passes"]
        assert np.abs(found["log_probs"] - train[block.row]).max() < 1e-3  # half precision
        assert (found["clipped_passes"] == 1).all()
    rows = recorded(tell, blocks=9, block_bytes=700)
    kept = of(rows, TokenBlock)
    assert sum(len(one.data) for one in kept) <= 700
    assert {row.kept_blocks for row in of(rows, TokenFate)} == {len(kept)}
    assert len(kept) < 9


def test_what_is_drawn_never_takes_the_room_of_the_worst() -> None:
    train = -np.random.default_rng(1).random((9, 50))
    train[8, 3] = -9.0
    rows = recorded(
        lambda: probe.samples([50] * 9, rollout_log_probs=0 * train, log_probs=train), blocks=4, block_bytes=300
    )
    (block,) = of(rows, TokenBlock)
    assert (block.row, block.chosen_by) == (8, "worst")


def test_texts_and_ids_only_when_asked(tmp_path):
    def tell():
        probe.samples(
            [2], prompts=["12+3="], responses=["15"], prompt_ids=[[3, 4]], response_ids=[torch.tensor([5, 1])]
        )

    (row,) = of(recorded(tell), Sample)
    assert (row.prompt_text, row.response_text, row.prompt_ids, row.response_ids) == (None, None, [], [])
    for number, (asked, text) in enumerate([({}, None), ({"samples": "text"}, "15")]):
        session = probe.start("p", run_dir=tmp_path / str(number), rank=0, world_size=1, **asked)
        with session, session.step(1):
            tell()
        with Run(tmp_path / str(number)) as run:
            assert run.samples["response_text"].tolist() == [text]
            assert list(run.samples["response_ids"][0]) == ([5, 1] if text else [])
        written = b"".join(one.read_bytes() for one in (tmp_path / str(number)).rglob("*") if one.is_file())
        assert (b"12+3=" in written) == bool(text)
    with pytest.raises(UnknownNameError, match="samples: got 'all', expected one of text"):
        probe.start("p", run_dir=tmp_path / "no", samples="all")


def test_rows_of_a_run_and_metrics_of_the_step(tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1, track=["file"]) as session:
        with session.step(4):
            probe.samples([3, 1], advantages=[1.0, 0.0], clipped=False, groups=["a", "b"], rewards=[1.0, 0.0])
            probe.samples([4], dropped="stale")
        probe.samples([2], source="outside of a step")  # is written all the same
    with Run(tmp_path / "run") as run:
        assert run.incidents.empty
        found = run.sql("select step, source, batch_id, fate, tokens from token_fates order by batch_id, fate")
        assert found.fillna(-1).values.tolist() == [
            [4, "probe.samples", 0, "carried", 3],
            [4, "probe.samples", 0, "no_advantage", 1],
            [4, "probe.samples", 1, "carried", 0],
            [4, "probe.samples", 1, "stale", 4],
            [-1, "outside of a step", 2, "carried", 0],
            [-1, "outside of a step", 2, "unknown", 2],
        ]
        metrics = run.scalars.set_index("key")["value"]
        assert metrics[f"{PREFIX}sampled_tokens"] == 8
        assert metrics[f"{PREFIX}carried_ratio"] == metrics[f"{PREFIX}reached_ratio"] == 3 / 8
        assert run.samples["batch_id"].tolist() == [0, 0, 1, 2]


def test_what_reached_the_loss_is_known_where_clipping_is_not(tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1, track=["file"]) as session:
        with session.step(1):
            probe.samples([3, 1], advantages=[1.0, 0.0])
        with session.step(2):
            probe.samples([3, 1], advantages=[1.0, 0.0])
            probe.samples([4])  # of which nothing is known
    with Run(tmp_path / "run") as run:
        found = run.scalars[run.scalars["key"].isin([f"{PREFIX}carried_ratio", f"{PREFIX}reached_ratio"])]
        assert found[["step", "key", "value"]].values.tolist() == [[1, f"{PREFIX}reached_ratio", 3 / 4]]
        assert not run.token_fates["complete"][run.token_fates["step"] == 1].any()
        told = run.sql(
            "select step, batch_id, bool_and(reach_known) as known from token_fates group by all order by all"
        )
        assert told.values.tolist() == [[1, 0, True], [2, 1, True], [2, 2, False]]


def test_the_quantity_is_of_the_batches_of_which_it_is_known(tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        with session.step(1):
            probe.samples([3, 1], advantages=[1.0, 0.0])
        with session.step(2):
            probe.samples([4])
        with session.step(3):
            probe.samples([3, 1], advantages=[1.0, 0.0], clipped=False)
    with Run(tmp_path / "run") as run:
        told = {name: course(run, name) for name in ("reached_tokens", "carried_tokens")}
        known = {name: dict(zip(one.steps, one.values, strict=True)) for name, one in told.items()}
    assert known == {"reached_tokens": {1: 0.75, 3: 0.75}, "carried_tokens": {3: 0.75}}


def test_passes_of_a_later_step_leave_open_what_they_may_still_change():
    def tell():
        probe.samples([2, 2, 1], advantages=[1.0, 1.0, 1.0], passes=2)
        probe.trained([0, 1], clipped=[[1, 0], [1, 1]])
        probe.trained([1], clipped=[[1, 0]])

    rows = recorded(tell)
    # Row 0 is clipped in one of two passes, row 1 in both of them at one token, and row 2 comes later.
    assert by_fate(rows) == {"carried": 2, "clipped": 1, "clip_unknown": 2}
    assert [(row.passes, row.dropped) for row in of(rows, Sample)] == [(1, ""), (2, ""), (0, "")]


def test_what_does_not_fit_together_is_told_by_name(tmp_path):
    with hooks.subscribe(hooks.Listener(), "samples.*"):
        with pytest.raises(InputError, match="rewards: got 1 of them, expected 2, as many as response_tokens"):
            probe.samples([1, 2], rewards=[1.0])
        with pytest.raises(InputError, match="dropped: got 1 of them, expected 2"):
            probe.samples([1, 2], dropped=["stale"])
        with pytest.raises(InputError, match="response_tokens: got None"):
            probe.samples(rewards=[1.0])
        with pytest.raises(InputError, match="passes: got 0, expected 1 or more, or None"):
            probe.samples([1], passes=0)
        with pytest.raises(InputError, match="clipped: got 1 rows, expected 2"):
            probe.trained([0, 1], clipped=[[1]])


def test_numbers_on_a_device_that_cannot_be_read_without_waiting_are_left_out():
    def tell():
        probe.samples([2, 2], advantages=torch.ones(2, device="meta"), clipped=False)

    rows = recorded(tell)
    assert by_fate(rows) == {"carried": 0, "unknown": 4}
    masked = recorded(lambda: probe.samples([2], advantages=[1.0], mask=torch.ones(1, 2, device="meta"), clipped=False))
    assert by_fate(masked) == {"carried": 0, "unknown": 2}


def test_15_6_times_on_a_device_are_left_out_and_never_waited_for() -> None:
    class OnDevice:
        device = SimpleNamespace(type="cuda")

        def __len__(self) -> int:
            return 2

        def tolist(self) -> list[int]:
            raise AssertionError("this waits for the device")

    assert times_of(OnDevice(), OnDevice(), 2) is None
    assert times_of([1, 2], OnDevice(), 2) is None
