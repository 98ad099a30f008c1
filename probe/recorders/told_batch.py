"""One told batch, worked out: where its tokens are, what became of each, and the numbers of its answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from probe.recorders.later_passes import Following
from probe.recorders.rollout_rows import Times
from probe.recorders.sample_arrays import Array, Layout, Taken
from probe.recorders.sample_fates import Given, Passes, counts, dropped_codes, fates
from probe.recorders.sample_stats import CountedTokens, Stats

_PER_TOKEN: Final = ("rollout_log_probs", "log_probs", "entropies", "advantages")


@dataclass
class Told:
    """What one call told, and what was told of it since.

    Attributes:
        batch_id: Unique in the process.
        answers: How many.
        step: It was told in.
        source: Who told.
        arrays: By argument of ``probe.samples``.
        asked: Which of them were given, whether or not they could be read.
        nothing_clipped: Whether the loss never clips.
        expected: Passes over each answer, those in later steps included; None where these are all told.
        groups: Of each answer.
        uids: Likewise.
        ended: Likewise.
        dropped: One word for all, or one each.
        replicas: Of each.
        times: When they were sampled.
        trainer_version: Of the weights that train them.
        loss_terms: Beside the policy's.
        keeps_ids: Whether token ids are kept in rows; else they are only compared.
        texts: By argument, where they are kept.
        waiting: Events of what travels from a device.
        following: Learns what is known as the step ends, where later steps may train the batch; None elsewhere.
        passes: Rows, clipped tokens and micro-batch of each.
    """

    batch_id: int
    answers: int
    step: int | None
    source: str
    arrays: dict[str, Taken]
    asked: set[str]
    nothing_clipped: bool
    expected: int | None
    groups: list[str] | None
    uids: list[str] | None
    ended: list[str] | None
    dropped: str | list[str | None] | None
    replicas: list[str] | None
    times: Times | None
    trainer_version: int | None
    loss_terms: list[str]
    keeps_ids: bool
    texts: dict[str, list[Any]]
    waiting: list[Any]
    following: Following | None = None
    passes: list[tuple[Taken, Taken, int | None]] = field(default_factory=list)


class Batch:
    """A told batch, worked out.

    Args:
        told: What was told.
    """

    def __init__(self, told: Told) -> None:
        self.told = told
        self._read: dict[str, Array | None] = {}
        inside = told.arrays["response_mask"].rows()
        self.layout = Layout(told.arrays["response_tokens"].array(), inside)
        if len(self.layout.lengths) != told.answers:  # on a device that can't be read: nothing is known
            self.layout = Layout(np.zeros(told.answers, np.int64), None)
        self.flat = {name: self._per_token(name) for name in _PER_TOKEN}
        mask = self._per_token("mask")
        whole = "mask" not in told.asked
        self.loss: Array | None = np.ones(self.layout.tokens, bool) if whole else None if mask is None else mask != 0
        self.passes = Passes(self.layout, told.expected)
        for rows, clipped, micro_batch in told.passes:
            found = rows.array()
            if found is not None:
                self.passes.add(found, clipped.rows(), micro_batch)
        self.given = self._given()
        self.fates = fates(self.given)
        self.counts = counts(self.fates, self.layout)

    def _per_token(self, name: str) -> Array | None:
        return self.layout.flat(self.told.arrays[name].rows())

    def _given(self) -> Given:
        clipped: Array | None = np.zeros(self.layout.tokens, bool) if self.told.nothing_clipped else None
        if "clipped" in self.told.asked and not self.told.nothing_clipped:
            clipped = self._per_token("clipped")
        dropped = dropped_codes(self._left_out(), self.told.answers)
        return Given(self.layout, self.loss, self.flat["advantages"], clipped, self.passes, dropped)

    def _left_out(self) -> list[str | None]:
        """Of each answer why it never reaches the loss: a failed one that a mask leaves out failed."""
        told, inside = words_of(self.told), self.loss_tokens
        errors = self.told.arrays["has_error"].array()
        if errors is None or inside is None or errors.shape != inside.shape or not errors.any():
            return told
        failed = (errors & (inside == 0)).tolist()
        return [word or ("failed" if out else word) for word, out in zip(told, failed, strict=True)]

    def number(self, name: str) -> Array | None:
        """A number of each answer, float64 (n,)."""
        if name not in self._read:
            found = self.told.arrays[name].array()
            if found is not None and (found.shape[:1] != (self.told.answers,) or found.size != self.told.answers):
                found = None  # of several numbers an answer none is its own
            first = None if found is None else found.astype(np.float64).reshape(self.told.answers, -1)[:, 0]
            self._read[name] = first
        return self._read[name]

    @cached_property
    def counted(self) -> Array:
        """Which tokens the answers' numbers are over."""
        return np.ones(self.layout.tokens, bool) if self.loss is None else self.loss

    @cached_property
    def difference(self) -> Array | None:
        """Training minus rollout, of each token."""
        train, rollout = self.flat["log_probs"], self.flat["rollout_log_probs"]
        return None if train is None or rollout is None else train.astype(np.float64) - rollout

    @cached_property
    def _sizes(self) -> Stats | None:
        return None if self.difference is None else self.stats(np.abs(self.difference))

    @cached_property
    def largest_difference(self) -> tuple[Array, Array] | None:
        """The difference of the largest magnitude among each answer's counted tokens, and at which of its tokens the
        first such one stands: float64 (n,), NaN where it has none, and int64 (n,), -1 there.
        """
        if self.difference is None or self._sizes is None:
            return None
        of, largest = self.layout.row_of, self._sizes.largest
        reached = np.flatnonzero(self.counted & (np.abs(self.difference) == largest[of]))
        answers, first = np.unique(of[reached], return_index=True)
        values, places = np.full(self.told.answers, np.nan), np.full(self.told.answers, -1)
        values[answers] = self.difference[reached[first]]
        places[answers] = reached[first] - self.layout.begins[answers]
        return values, places

    @cached_property
    def _tokens(self) -> CountedTokens:
        return CountedTokens(self.counted, self.layout.row_of, self.told.answers)

    def stats(self, values: Array | None) -> Stats | None:
        """Mean, smallest and largest of each answer's counted tokens."""
        return None if values is None else self._tokens.stats(values)

    @cached_property
    def nan(self) -> Array:
        """NaN of each answer, among its rewards and the numbers of its counted tokens."""
        found = np.zeros(self.told.answers, np.int64)
        for values in self.flat.values():
            if values is not None:
                bad = self.counted & np.isnan(values)
                found += np.bincount(self.layout.row_of[bad], minlength=self.told.answers)
        rewards = self.number("rewards")
        return found if rewards is None else found + np.isnan(rewards)

    @cached_property
    def groups(self) -> Array | None:
        """A number for the group of each answer, one without a name stands alone, int64 (n,); None where groups aren't
        known.
        """
        if self.told.groups is None or not any(self.told.groups):
            return None
        names = [name or at for at, name in enumerate(self.told.groups)]
        number = {name: at for at, name in enumerate(dict.fromkeys(names))}
        return np.array(list(map(number.__getitem__, names)), np.int64)

    @cached_property
    def equal(self) -> Array | None:
        """Which answers are of a group of two or more whose rewards are all equal; None where groups or rewards aren't
        known.
        """
        rewards = self.number("rewards")
        if self.groups is None or rewards is None:
            return None
        kinds = int(self.groups.max(initial=-1)) + 1
        low, high = np.full(kinds, np.inf), np.full(kinds, -np.inf)
        np.minimum.at(low, self.groups, rewards)
        np.maximum.at(high, self.groups, rewards)
        return np.asarray((low == high) & (np.bincount(self.groups, minlength=kinds) > 1))[self.groups]

    @cached_property
    def loss_tokens(self) -> Array | None:
        """Tokens of each answer that the loss counts, int64 (n,)."""
        if self.loss is None:
            return None
        return np.bincount(self.layout.row_of[self.loss], minlength=self.told.answers)

    @cached_property
    def advantages(self) -> Stats | None:
        """Of each answer."""
        return self.stats(self.flat["advantages"])

    @cached_property
    def advantage(self) -> Array | None:
        """The one advantage of each answer's counted tokens, float64 (n,); NaN where they have several, or none."""
        stats = self.advantages
        if stats is None:
            return None
        alike = stats.largest - stats.smallest <= 1e-6 * np.abs(stats.largest)
        return np.where(alike, stats.mean, np.nan)

    def worst(self) -> Array:
        """How bad each answer is: by the better of its ranks in the largest and in the mean difference of its
        log-probabilities, else by how low its reward is.
        """
        stats = self._sizes
        if stats is not None:
            ranks = [_ranks(-values) for values in (stats.largest, stats.mean)]
            return np.where(np.isnan(stats.mean), np.nan, -np.minimum(2.0 * ranks[0], 2.0 * ranks[1] + 1))
        rewards = self.number("rewards")
        return np.full(self.told.answers, np.nan) if rewards is None else -rewards


def _ranks(values: Array) -> Array:
    """The place of each in rising order, of equal ones the earlier first, int64 (n,)."""
    found = np.empty(len(values), np.int64)
    found[np.argsort(values, kind="stable")] = np.arange(len(values))
    return found


def words_of(told: Told) -> list[str | None]:
    """Of each answer why it is dropped."""
    return told.dropped if isinstance(told.dropped, list) else [told.dropped] * told.answers
