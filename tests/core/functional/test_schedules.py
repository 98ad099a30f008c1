from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core.torch_functional import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_wsd_schedule_with_warmup,
)
from probe.errors import InputError, InputTypeError

NAN = float("nan")
MAKERS = [get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup, get_wsd_schedule_with_warmup]


def rates(warmup, steps, last_epoch=-1):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    if last_epoch >= 0:
        optimizer.param_groups[0]["initial_lr"] = 2.0
    schedule = get_constant_schedule_with_warmup(optimizer, warmup, last_epoch)
    found = []
    for _ in range(steps):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


def test_warm_up():
    assert rates(4, 6) == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates(0, 2) == rates(-3, 2) == [2.0, 2.0]
    assert rates(2.5, 4) == pytest.approx([0.0, 0.8, 1.6, 2.0])
    assert rates(0.5, 2) == [0.0, 2.0]
    assert rates(4, 3, last_epoch=1) == [1.0, 1.5, 2.0]


def test_the_schedule_can_be_saved():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    state = get_constant_schedule_with_warmup(optimizer, 4).state_dict()
    assert pickle.loads(pickle.dumps(state))["last_epoch"] == 0


@pytest.mark.parametrize(("optimizer", "steps"), [("adam", 3), (None, None), (None, NAN)])
def test_bad_schedule_input(optimizer, steps):
    optimizer = optimizer or torch.optim.SGD([torch.zeros(1)], lr=2.0)
    with pytest.raises(InputTypeError):
        get_constant_schedule_with_warmup(optimizer, steps)


# --------------------------------------------------------------------------------------- cosine, and stable then decay


def factors(make, *arguments, steps, last_epoch=-1, **options):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    if last_epoch >= 0:
        optimizer.param_groups[0]["initial_lr"] = 1.0
    schedule = make(optimizer, *arguments, last_epoch=last_epoch, **options)
    found = []
    for _ in range(steps):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


def test_cosine():
    got = factors(get_cosine_schedule_with_warmup, 4, 12, steps=15)
    down = [(1 + math.cos(math.pi * step / 8)) / 2 for step in range(9)]
    assert got == pytest.approx([0.0, 0.25, 0.5, 0.75, *down, 0.0, 0.0], abs=1e-12)
    lowest = factors(get_cosine_schedule_with_warmup, 0, 4, 0.1, steps=6)
    assert lowest == pytest.approx(
        [1.0, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, 0.55, 0.1 + 0.9 * (1 - math.sqrt(0.5)) / 2, 0.1, 0.1]
    )
    waves = factors(get_cosine_schedule_with_warmup, 0, 4, steps=6, num_cycles=1)
    assert waves == pytest.approx([1.0, 0.5, 0.0, 0.5, 1.0, 1.0], abs=1e-12)


def test_a_cosine_never_rises_after_the_training():
    got = factors(get_cosine_schedule_with_warmup, 0, 3, 0.2, steps=12)
    assert got[3:] == pytest.approx([0.2] * 9)


def test_stable_then_decay():
    got = factors(get_wsd_schedule_with_warmup, 2, 12, 0.2, steps=15, stable_ratio=0.6)
    down = [0.2 + 0.8 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    assert got == pytest.approx([0.0, 0.5, *[1.0] * 6, *down, 0.2, 0.2, 0.2])
    assert factors(get_wsd_schedule_with_warmup, 0, 3, steps=4, stable_ratio=1.0) == [1.0, 1.0, 1.0, 0.0]
    assert factors(get_wsd_schedule_with_warmup, 4, 2, steps=6) == [0.0, 0.25, 0.5, 0.75, 0.0, 0.0]
    default = factors(get_wsd_schedule_with_warmup, 0, 20, steps=21)
    assert default == pytest.approx([*[1.0] * 19, 0.5, 0.0])


@settings(deadline=None, max_examples=30)
@given(
    warmup=st.integers(-2, 12),
    steps=st.integers(0, 20),
    lowest=st.floats(0, 1),
    stable=st.floats(0, 1),
    wsd=st.booleans(),
)
def test_a_factor_stays_between_its_bounds_and_ends_at_the_lowest(warmup, steps, lowest, stable, wsd):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    if wsd:
        schedule = get_wsd_schedule_with_warmup(optimizer, warmup, steps, lowest, stable_ratio=stable)
    else:
        schedule = get_cosine_schedule_with_warmup(optimizer, warmup, steps, lowest)
    (factor,) = schedule.lr_lambdas
    values = [factor(step) for step in range(30)]
    after = values[max(warmup, 0) :]
    assert all(lowest - 1e-12 <= value <= 1 + 1e-12 for value in after)
    assert after == sorted(after, reverse=True)
    end = max(steps, warmup, 0) + 1
    assert values[end:] == pytest.approx([lowest] * len(values[end:]), abs=1e-9)


@pytest.mark.parametrize("make", MAKERS)
def test_a_resumed_training_goes_on_where_it_was(make):
    arguments = (3,) if make is get_constant_schedule_with_warmup else (3, 9)
    whole = factors(make, *arguments, steps=12)
    assert factors(make, *arguments, steps=7, last_epoch=4) == whole[5:]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = make(optimizer, *arguments)
    for _ in range(5):
        optimizer.step()
        schedule.step()
    state = pickle.loads(pickle.dumps(schedule.state_dict()))
    other = make(torch.optim.SGD([torch.zeros(1)], lr=1.0), *arguments)
    other.load_state_dict(copy.deepcopy(state))
    assert other.get_last_lr() == [whole[5]]


@pytest.mark.parametrize("make", [get_cosine_schedule_with_warmup, get_wsd_schedule_with_warmup])
@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        (("2", 5), InputTypeError, "num_warmup_steps"),
        ((2, None), InputTypeError, "num_training_steps"),
        ((2, -1), InputError, "num_training_steps"),
        ((2, math.inf), InputError, "num_training_steps"),
        ((2, 5, 1.5), InputError, "min_lr_ratio"),
        ((2, 5, NAN), InputTypeError, "min_lr_ratio"),
        ((2, 5, 0.0, -1), InputError, "num_cycles"),
    ],
)
def test_bad_arguments_are_named(make, arguments, error, named):
    with pytest.raises(error, match=named):
        make(torch.optim.SGD([torch.zeros(1)], lr=1.0), *arguments)
    with pytest.raises(InputTypeError, match="optimizer"):
        make("adam", 1, 2)


def test_a_bad_stable_ratio():
    with pytest.raises(InputError, match="stable_ratio"):
        get_wsd_schedule_with_warmup(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1, 2, stable_ratio=1.2)


def cosine(steps, **options):
    schedule = get_cosine_schedule_with_warmup(torch.optim.SGD([torch.zeros(1)], lr=1.0), 4, 12, **options)
    return [schedule.lr_lambdas[0](step) for step in range(steps)]


def test_c_a_warm_up_may_begin_above_zero():
    assert cosine(5, init_lr_ratio=0.2) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert cosine(14, init_lr_ratio=None) == cosine(14, init_lr_ratio=0.0) == cosine(14)
    assert cosine(14, init_lr_ratio=0.7)[4:] == cosine(14)[4:]
    assert cosine(14, min_lr_ratio=None) == cosine(14)
    for wrong in (-0.1, 1.1):
        with pytest.raises(AssertionError, match="init_lr_ratio"):
            cosine(1, init_lr_ratio=wrong)


def test_c_steps_may_be_counted_from_one():
    assert cosine(13, zero_indexed_step=False) == cosine(14, zero_indexed_step=True)[1:]
    assert cosine(2, zero_indexed_step=False, init_lr_ratio=0.5) == pytest.approx([0.625, 0.75])
    schedule = get_cosine_schedule_with_warmup(
        torch.optim.SGD([torch.zeros(1)], lr=1.0), 4, 12, init_lr_ratio=0.5, zero_indexed_step=False
    )
    again = pickle.loads(pickle.dumps(schedule.lr_lambdas[0]))
    assert [again(step) for step in range(14)] == [schedule.lr_lambdas[0](step) for step in range(14)]
