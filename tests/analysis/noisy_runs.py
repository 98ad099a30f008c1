"""Pairs of series whose true difference is 0, by how the steps of a training vary: logarithms of what a step takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe.analysis.noise import change

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]

#: Spread of the noise of a step, of its logarithm.
SPREAD: Final = 0.1


def remembering(random: np.random.Generator, count: int, memory: float) -> Array:
    """Autoregressive noise of the first order, stationary from the first value on, with variance 1."""
    values = random.standard_normal(count)
    for at in range(1, count):
        values[at] = memory * values[at - 1] + np.sqrt(1 - memory**2) * values[at]
    return values


def stragglers(random: np.random.Generator, count: int) -> Array:
    """One step in twenty takes two to six times as long."""
    return np.where(random.random(count) < 0.05, np.log(random.uniform(2, 6, count)), 0.0)


def autoregressive(memory: float, *, odd: bool = False, white: float = 0.0) -> Draw:
    def draw(random: np.random.Generator, count: int) -> tuple[Array, Array]:
        one, other = (
            SPREAD * remembering(random, count, memory)
            + (stragglers(random, count) if odd else 0.0)
            + white * random.standard_normal(count)
            for _ in range(2)
        )
        return one, other

    return draw


def heavy(random: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Student's t with two degrees of freedom: its variance is infinite."""
    one, other = (SPREAD * random.standard_t(2, count) for _ in range(2))
    return one, other


def same_batches(random: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Batches differ far more than the noise of a step, and both runs have the same ones."""
    sizes = 0.5 * random.standard_normal(count)
    one, other = (sizes + 0.2 * SPREAD * remembering(random, count, 0.5) for _ in range(2))
    return one, other


def growing(random: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Answers get longer as both runs go on."""
    trend = np.linspace(0, 1, count)
    one, other = (trend + SPREAD * remembering(random, count, 0.3) for _ in range(2))
    return one, other


WORLDS: Final[dict[str, Draw]] = {
    "independent steps, log-normal": autoregressive(0.0),
    "correlation 0.3 with the step before": autoregressive(0.3),
    "correlation 0.6": autoregressive(0.6),
    "correlation 0.8": autoregressive(0.8),
    "independent, one step in 20 takes 2 to 6 times as long": autoregressive(0.0, odd=True),
    "correlation 0.8, one step in 20 takes 2 to 6 times as long": autoregressive(0.8, odd=True),
    "correlation 0.8, and independent noise half as large": autoregressive(0.8, white=SPREAD / 2),
    "heavy tails (Student's t, 2 degrees of freedom)": heavy,
    "the same batches in both runs, of very different sizes": same_batches,
    "answers get longer in both runs": growing,
}


def levels(random: np.random.Generator, count: int) -> tuple[Array, Array]:
    """The pace of each run changes every 25 steps, by 3 %, as where others use the machine."""
    one, other = (
        0.3 * SPREAD * np.repeat(random.standard_normal(count // 25 + 1), 25)[:count]
        + SPREAD / 2 * random.standard_normal(count)
        for _ in range(2)
    )
    return one, other


#: What is outside the promise.
HARDER: Final[dict[str, Draw]] = {
    "correlation 0.9": autoregressive(0.9),
    "correlation 0.9, and independent noise as large": autoregressive(0.9, white=SPREAD),
    "the pace changes by 3 % every 25 steps, with independent noise of 5 %": levels,
}


def wrong(
    draw: Draw, steps: int, draws: int, *, margin: float, confidence: float, paired: bool
) -> tuple[int, int, float]:
    """How many pairs whose true change is the margin are called within, how many beyond; and the median reach."""
    random = np.random.default_rng(steps)
    said, reach = [], []
    for _ in range(draws):
        one, other = draw(random, steps)
        found = change(np.exp(one), (1 + margin) * np.exp(other), confidence, paired=paired)
        said.append(found.verdict(margin, "max"))
        reach.append(found.interval[1] - found.value)
    return said.count("within"), said.count("beyond"), float(np.median(reach))
