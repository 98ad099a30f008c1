"""Learning rates over the steps of a training: warm-up, then constant, cosine, or stable and then decaying.

Each rate is the optimizer's own times a factor from 0 to 1, and depends on the step alone: a training that is resumed
with ``last_epoch``, or from the schedule's ``state_dict``, goes on where it was.
"""

from __future__ import annotations

import functools
import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from probe.errors import InputError, InputTypeError


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """A learning rate that rises linearly from 0 over ``num_warmup_steps`` and then stays.

    Args:
        optimizer: The optimizer whose learning rates are scaled.
        num_warmup_steps: Steps of the warm-up; 0 or less means none, and fractions work.
        last_epoch: Steps already done, when a training is resumed.

    Raises:
        InputTypeError: It is not an optimizer, or a number isn't one.

    >>> from torch import zeros
    >>> from torch.optim import SGD
    >>> schedule = get_constant_schedule_with_warmup(SGD([zeros(1)], lr=1.0), num_warmup_steps=2)
    >>> [schedule.lr_lambdas[0](step) for step in range(4)]
    [0.0, 0.5, 1.0, 1.0]
    """
    _check_optimizer(optimizer)
    _check_number("num_warmup_steps", num_warmup_steps)
    return LambdaLR(optimizer, functools.partial(_warmup_factor, num_warmup_steps), last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    min_lr_ratio: float | None = 0.0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    init_lr_ratio: float | None = None,
    zero_indexed_step: bool = True,
) -> LambdaLR:
    """A learning rate that rises linearly, then follows a cosine down to ``min_lr_ratio`` of itself.

    After the warm-up the factor is ``m + (1 − m) · (1 + cos(2π · num_cycles · t)) / 2`` with m the ``min_lr_ratio``
    and t going from 0 to 1 (Loshchilov & Hutter 2017). After ``num_training_steps`` it stays where it then is, where
    the known implementations let half a cycle rise again.

    Args:
        optimizer: The optimizer whose learning rates are scaled.
        num_warmup_steps: As for :func:`get_constant_schedule_with_warmup`.
        num_training_steps: Step at which the cosine ends, warm-up included.
        min_lr_ratio: Lowest factor after the warm-up, from 0 to 1; None means 0.
        num_cycles: Waves of the cosine; 0.5 goes down once.
        last_epoch: Steps already done, when a training is resumed.
        init_lr_ratio: The factor that the warm-up begins with, from 0 to 1; None means 0.
        zero_indexed_step: Whether the first step is step 0. False counts from 1, as torchtitan does: the first step's
            rate is then the second one's otherwise.

    Raises:
        InputTypeError: It is not an optimizer, or a number isn't one.
        InputError: ``num_training_steps`` or ``num_cycles`` is negative, or a ratio is outside 0 to 1.

    >>> from torch import zeros
    >>> from torch.optim import SGD
    >>> schedule = get_cosine_schedule_with_warmup(SGD([zeros(1)], lr=1.0), 2, 6, min_lr_ratio=0.5)
    >>> [round(schedule.lr_lambdas[0](step), 4) for step in range(8)]
    [0.0, 0.5, 1.0, 0.9268, 0.75, 0.5732, 0.5, 0.5]
    """
    lowest = 0.0 if min_lr_ratio is None else min_lr_ratio  # None is what verl's configurations have
    first = 0.0 if init_lr_ratio is None else init_lr_ratio
    _check(optimizer, num_warmup_steps, num_training_steps, lowest, num_cycles)
    _check_ratio("init_lr_ratio", first)
    numbers = (num_warmup_steps, num_training_steps, lowest, num_cycles, first, 0 if zero_indexed_step else 1)
    factor = functools.partial(_cosine_factor, *numbers)
    return LambdaLR(optimizer, factor, last_epoch)


def get_wsd_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    stable_ratio: float = 0.9,
) -> LambdaLR:
    """Warm-up, stable, decay: rises linearly from 0, stays, and at the end follows a cosine down to ``min_lr_ratio``.

    The stable part is the first ``int(stable_ratio · n)`` of the n steps after the warm-up (Hu et al. 2024, MiniCPM).

    Args:
        optimizer: The optimizer whose learning rates are scaled.
        num_warmup_steps: As for :func:`get_constant_schedule_with_warmup`.
        num_training_steps: Step from which the rate is ``min_lr_ratio`` of itself.
        min_lr_ratio: Lowest factor, from 0 to 1.
        num_cycles: Waves of the cosine that the decay follows; 0.5 goes down once.
        last_epoch: Steps already done, when a training is resumed.
        stable_ratio: Part of the steps after the warm-up that isn't decay, from 0 to 1.

    Raises:
        InputError: As :func:`get_cosine_schedule_with_warmup`.
        InputTypeError: As :func:`get_cosine_schedule_with_warmup`.

    >>> from torch import zeros
    >>> from torch.optim import SGD
    >>> schedule = get_wsd_schedule_with_warmup(SGD([zeros(1)], lr=1.0), 1, 5, stable_ratio=0.5)
    >>> [round(schedule.lr_lambdas[0](step), 4) for step in range(7)]
    [0.0, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0]
    """
    _check(optimizer, num_warmup_steps, num_training_steps, min_lr_ratio, num_cycles)
    _check_ratio("stable_ratio", stable_ratio)
    stable = int(max(0, num_training_steps - max(0, num_warmup_steps)) * stable_ratio)
    factor = functools.partial(_wsd_factor, num_warmup_steps, stable, num_training_steps, min_lr_ratio, num_cycles)
    return LambdaLR(optimizer, factor, last_epoch)


def _warmup_factor(warmup_steps: float, step: int) -> float:
    return step / max(1.0, warmup_steps) if step < warmup_steps else 1.0


def _cosine_factor(
    warmup_steps: float, steps: float, lowest: float, cycles: float, first: float, ahead: int, step: int
) -> float:
    step += ahead
    if step < warmup_steps:
        return first + (1 - first) * _warmup_factor(warmup_steps, step)
    return _decayed(warmup_steps, steps, lowest, cycles, step)


def _wsd_factor(warmup_steps: float, stable: int, steps: float, lowest: float, cycles: float, step: int) -> float:
    begin = max(0, warmup_steps) + stable
    if step < begin:
        return _warmup_factor(warmup_steps, step)
    return lowest if step >= steps else _decayed(begin, steps, lowest, cycles, step)


def _decayed(begin: float, end: float, lowest: float, cycles: float, step: int) -> float:
    """The cosine between ``begin`` and ``end``, and its last value afterwards."""
    begin = max(0, begin)
    done = min(1.0, (step - begin) / max(1, end - begin))
    return lowest + (1 - lowest) * (1 + math.cos(2 * math.pi * cycles * done)) / 2


def _check(optimizer: Optimizer, warmup_steps: float, steps: float, lowest: float, cycles: float) -> None:
    _check_optimizer(optimizer)
    _check_number("num_warmup_steps", warmup_steps)
    for name, given in (("num_training_steps", steps), ("num_cycles", cycles)):
        _check_number(name, given)
        if not 0 <= given < math.inf:
            raise InputError(f"{name}: got {given!r}, expected at least 0")
    _check_ratio("min_lr_ratio", lowest)


def _check_optimizer(optimizer: Optimizer) -> None:
    if not isinstance(optimizer, Optimizer):
        raise InputTypeError(f"optimizer: got {type(optimizer).__name__}, expected a torch Optimizer")


def _check_number(name: str, given: float) -> None:
    if not isinstance(given, int | float) or math.isnan(given):
        raise InputTypeError(f"{name}: got {given!r}, expected a number")


def _check_ratio(name: str, given: float) -> None:
    _check_number(name, given)
    if not 0 <= given <= 1:
        raise InputError(f"{name}: got {given!r}, expected 0 to 1")
