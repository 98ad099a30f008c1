"""Both log-probabilities of the tokens of some answers, as flat arrays, and what is known of each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from probe.text import missing

Array = npt.NDArray[Any]

#: What is known of an answer as a whole number.
WHOLE: Final = ("step", "rank", "weight_version", "trainer_version", "batch_id", "row", "micro_batch")

#: A whole number that isn't known.
NOT_KNOWN: Final = -(2**31)


@dataclass(frozen=True)
class Answer:
    """One answer: arrays of one length, an entry a response token.

    Attributes:
        rollout: Log-probabilities of the engine that sampled.
        train: Those of the model that trains.
        mask: Which tokens the loss counts.
        entropy: Of the model that trains, in nats; None where it isn't known.
        advantage: Of each token; None where it isn't known.
        known: What else is known of it: numbers of :data:`WHOLE`, ``replica`` and ``process`` (names).
        weight: How many answers of its batch it stands for in a mean, itself among them; 0 counts in none.
    """

    rollout: Array
    train: Array
    mask: Array
    entropy: Array | None = None
    advantage: Array | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0


class Tokens:
    """The tokens of some answers, one behind the other.

    Args:
        answers: The answers; one without tokens is left out.

    Attributes:
        answers: Those with tokens.
        rollout: Float64 (n,).
        train: Likewise.
        mask: Bool (n,).
        row: Of each token its answer, int64 (n,).
        position: Of each token its place in its response, from 0.
        lengths: Tokens of each answer.
        entropy: Float64 (n,); None unless each answer has it.
        advantage: Likewise.
        log_ratio: Training minus rollout.
        compared: Which tokens the loss counts and both sides tell a finite number of.
        impossible: Which tokens the loss counts and one side alone gives a probability of 0.
    """

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = [one for one in answers if len(one.rollout)]
        self.lengths = np.array([len(one.rollout) for one in self.answers], np.int64)
        self.row = np.repeat(np.arange(len(self.answers)), self.lengths)
        begins = np.cumsum(self.lengths) - self.lengths
        self.begins = begins
        self.position = np.arange(int(self.lengths.sum())) - np.repeat(begins, self.lengths)
        self.rollout = _joined([one.rollout for one in self.answers])
        self.train = _joined([one.train for one in self.answers])
        self.mask = _joined([one.mask for one in self.answers]) != 0
        self.entropy = self._where_all("entropy")
        self.advantage = self._where_all("advantage")
        with np.errstate(invalid="ignore"):
            self.log_ratio = self.train - self.rollout
        self.compared = self.mask & np.isfinite(self.log_ratio)
        self.impossible = self.mask & np.isinf(self.log_ratio) & (np.minimum(self.rollout, self.train) == -np.inf)

    def _where_all(self, name: str) -> Array | None:
        each = [getattr(one, name) for one in self.answers]
        return None if not each or any(one is None for one in each) else _joined(each)

    def known(self, name: str) -> Array:
        """A whole number of each answer, :data:`NOT_KNOWN` where it isn't known; (answers,)."""
        found: list[Any] = [one.known.get(name) for one in self.answers]
        return np.array([NOT_KNOWN if missing(one) else int(one) for one in found], np.int64)

    def named(self, name: str) -> list[str]:
        """A name of each answer, "" where it isn't known."""
        return ["" if one.known.get(name) is None else str(one.known[name]) for one in self.answers]

    def of(self, keep: Array) -> Tokens:
        """Some of the answers.

        Args:
            keep: Bool (answers,).
        """
        return Tokens([one for one, kept in zip(self.answers, keep.tolist(), strict=True) if kept])

    @cached_property
    def weights(self) -> Array:
        """How many answers each stands for, float64 (answers,); where those with compared tokens stand for none, 1
        each.
        """
        told = np.array([one.weight for one in self.answers], np.float64)
        return told if (told[self.row[self.compared]] > 0).any() else np.ones(len(told))

    @cached_property
    def held(self) -> Array:
        """Which tokens count in means, each with the weight of its answer: compared ones of answers that stand for
        any; (tokens,).
        """
        return np.asarray(self.compared & (self.weights[self.row] > 0))

    @cached_property
    def weight(self) -> Array:
        """Of each token the weight of its answer, float64 (tokens,)."""
        return np.asarray(self.weights[self.row])

    @cached_property
    def turn(self) -> Array:
        """The turn of each token, from 0: a stretch of tokens that the loss counts; −1 between them."""
        first = np.zeros(len(self.mask), bool)
        first[self.begins] = True
        before = np.concatenate([[False], self.mask[:-1]]) & ~first
        begins = self.mask & ~before
        count = np.cumsum(begins)
        of_row = count[self.begins] - begins[self.begins] if len(self.begins) else count
        return np.where(self.mask, count - np.repeat(of_row, self.lengths) - 1, -1)


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate(arrays).astype(np.float64) if arrays else np.empty(0)
