"""Levels of memory of healthy runs, 40 GiB high: each kind has noise that a test for leaks is easily taken in by."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MIB: Final = 1024**2
GIB: Final = 1024**3
BASE: Final = 40 * GIB
NOISE: Final = 256 * MIB

KINDS: Final = (
    "white",
    "with_memory",
    "random_walk",
    "warm_up",
    "running_maximum",
    "hidden_maximum",
    "largest_sequence",
    "curriculum",
    "curriculum_and_walk",
    "once_at_a_checkpoint",
)


class Series(NamedTuple):
    """What :func:`probe.analysis.growth.judge` takes."""

    steps: Array
    level: Array
    tokens: Array
    longest: Array


def healthy(kind: str, count: int, *seed: int) -> Series:
    """A series without a leak, the same for the same seed."""
    rng = np.random.default_rng([KINDS.index(kind), *seed])
    steps, tokens = np.arange(float(count)), rng.normal(60_000, 6_000, count)
    longest, noise = rng.normal(2_500, 400, count), NOISE * rng.normal(size=count)
    if kind.startswith("curriculum"):
        tokens *= np.linspace(0.5, 1.5, count)
    level = BASE + _above(kind, steps, tokens, longest, noise, rng)
    return Series(steps, level, tokens, longest)


def _above(kind: str, steps: Array, tokens: Array, longest: Array, noise: Array, rng: np.random.Generator) -> Array:
    if kind in ("white", "with_memory", "random_walk"):
        return _noise(kind, noise, rng)
    if kind in ("running_maximum", "hidden_maximum", "largest_sequence"):
        return _largest(kind, tokens, longest, rng) + noise / 8
    count = len(steps)
    if kind == "warm_up":
        constant = rng.uniform(1, count / 4)
        return rng.uniform(1, 10) * GIB * (1 - np.exp(-steps / constant)) + noise / 4
    if kind == "once_at_a_checkpoint":
        return rng.uniform(1, 8) * GIB * (steps >= rng.integers(2, count - 2)) + noise / 4
    batches = tokens * rng.uniform(0.05, 0.3) * MIB
    return batches + (np.cumsum(noise) if kind == "curriculum_and_walk" else noise) / 4


def _noise(kind: str, noise: Array, rng: np.random.Generator) -> Array:
    if kind == "white":
        return noise
    return _with_memory(noise, rng.uniform(0.5, 0.97)) if kind == "with_memory" else np.cumsum(noise)


def _largest(kind: str, tokens: Array, longest: Array, rng: np.random.Generator) -> Array:
    """A cache that follows the largest batch so far; a hidden one follows something that isn't recorded."""
    if kind == "largest_sequence":
        return np.maximum.accumulate(longest) * rng.uniform(0.5, 4) * MIB
    followed = tokens if kind == "running_maximum" else rng.permutation(tokens)
    return np.maximum.accumulate(followed) * rng.uniform(0.1, 0.6) * MIB


def _with_memory(noise: Array, memory: float) -> Array:
    level = np.zeros_like(noise)
    for at in range(1, len(noise)):
        level[at] = memory * level[at - 1] + noise[at]
    return level


def leaking(rate_bytes: float, kind: str, count: int, *seed: int, since: int = 0) -> Series:
    """A healthy series with a leak on top; noise that no tokens explain is a quarter as large."""
    series = healthy(kind, count, *seed)
    quarter = 1.0 if kind not in ("white", "with_memory", "random_walk") else 0.25
    level = BASE + quarter * (series.level - BASE) + rate_bytes * np.maximum(series.steps - since, 0)
    return series._replace(level=level)
