"""The tables samples, token_blocks, rollouts, token_fates, later_passes, token_identity and group_baselines: what was
sampled in a step, and what became of it.

The training thread only copies what it is told; everything else happens in the session's writer thread, when the step
has ended and all its passes are known. Those of later steps are told as these end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from probe.core.metric import Metric
from probe.hooks import SCOPE, Event
from probe.recorders.later_passes import Following, Pass
from probe.recorders.recorder import Recorder, Rows, rows_of
from probe.recorders.rollout_rows import MEASURES, mismatch, times_of
from probe.recorders.sample_arrays import Taken, ready
from probe.recorders.sample_rows import rows_of_batch
from probe.recorders.told_batch import Told
from probe.records import (
    NOT_KNOWN,
    Deferred,
    GroupBaseline,
    LaterPasses,
    Rollout,
    Row,
    Sample,
    TokenBlock,
    TokenFate,
    TokenIdentity,
)

PREFIX = "probe/samples/"

#: Samples of one told batch that get a row; of larger ones they are chosen (see probe/recorders/sample_choice.py).
SAMPLES_KEPT: Final = 128

#: Samples of one told batch whose tokens are kept, and how many bytes these may take together as they are written.
BLOCKS_KEPT: Final = 4
BLOCK_BYTES: Final = 128 * 1024

#: Which of what is told is copied as flags, and which as numbers.
_FLAGS: Final = ("mask", "response_mask", "truncated", "has_error")
_NUMBERS: Final = (
    "response_tokens",
    "prompt_tokens",
    "rewards",
    "advantages",
    "rollout_log_probs",
    "log_probs",
    "entropies",
    "turns",
    "tools",
    "weight_versions",
)
#: Fates of tokens that reached the loss with an advantage: at most these carried policy gradient.
REACHED: Final = ("clipped", "carried", "clip_unknown")

_TEXTS: Final = ("prompts", "responses")


class SamplesRecorder(Recorder):
    """Rows of what ``probe.samples`` and adapters tell.

    Args:
        text: Whether texts and token ids are kept.
        kept: Samples of a told batch that get a row, at most.
        blocks: Samples of a told batch whose tokens are kept, at most.
        block_bytes: What these may take together.
    """

    rows: ClassVar[tuple[type[Row], ...]] = (
        Sample,
        TokenBlock,
        Rollout,
        TokenFate,
        LaterPasses,
        TokenIdentity,
        GroupBaseline,
    )
    points: ClassVar[tuple[str, ...]] = ("samples.told", "samples.trained", SCOPE.name)
    keys: ClassVar[tuple[str, ...]] = (
        f"{PREFIX}sampled_tokens",
        f"{PREFIX}carried_ratio",
        f"{PREFIX}reached_ratio",
        f"{PREFIX}rollout_longest_s",
        *(f"{PREFIX}mismatch_{name}" for name in MEASURES),
    )

    def __init__(
        self,
        text: bool = False,
        kept: int = SAMPLES_KEPT,
        blocks: int = BLOCKS_KEPT,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.text = text
        self._limits = (kept, blocks, block_bytes)
        self._batches = itertools.count()
        self._open: dict[int, list[Told]] = {}  # by step
        self._last: Following | None = None  # of the batch that was told last, where later steps may train it
        self._later: dict[int, _Later] = {}  # by step, what trained a batch of an earlier one

    def fire(self, event: Event) -> Rows:
        """Copy what is told; outside of a step what follows isn't known, so that the rows are written at once."""
        if event.point.name == "samples.trained":
            self._train(event)
            return None
        told = self._told(event)
        step, self._last = event.scope.step, None
        if step is None:
            return self._deferred([told])
        if told.expected is not None:
            told.following = self._last = Following()
        self._open.setdefault(step, []).append(told)
        return None

    def leave(self, event: Event, state: Any) -> Rows:
        """A step has ended: what became of its tokens is known."""
        del state  # none was made
        now = event.scope.step
        if not (self._open or self._later) or event.scope.kind != "step" or now is None:
            return None
        told = self._open.pop(now, None)
        for stale in [step for step in self._open if step < now]:
            told = [*self._open.pop(stale), *(told or ())]
        ended = [] if not told else [self._deferred(told)]
        later = [self._later.pop(step).moved(step) for step in sorted(self._later) if step <= now]
        return [*later, *ended]  # what was sampled before stands before

    def metrics(self, rows: Sequence[Row]) -> dict[str, Metric]:
        """Sampled tokens of the step, which share of them carried policy gradient and which reached the loss with an
        advantage, each where it is known of all, the longest request, and how far the log-probabilities of rollout and
        training are from each other.
        """
        fates, told = rows_of(rows, TokenFate), rows_of(rows, Rollout)
        if not fates:
            return {}
        total = sum(row.tokens for row in fates)
        found = {f"{PREFIX}sampled_tokens": Metric("sum", total)}
        found |= {f"{PREFIX}mismatch_{name}": Metric("mean", value) for name, value in mismatch(told).items()}
        longest = [row.longest_ns for row in told if row.longest_ns is not None]
        if longest:
            found[f"{PREFIX}rollout_longest_s"] = Metric("max", max(longest) / 1e9)
        for name, of in (("carried", ("carried",)), ("reached", REACHED)):
            known = not any(row.tokens for row in fates if row.fate in NOT_KNOWN and row.fate not in of)
            if total and known:
                tokens = sum(row.tokens for row in fates if row.fate in of)
                found[f"{PREFIX}{name}_ratio"] = Metric("mean", tokens / total)
        return found

    def _told(self, event: Event) -> Told:
        given = event.values
        waiting: list[Any] = []
        arrays = {name: Taken(given[name], waiting, flags=True) for name in _FLAGS}
        arrays |= {name: Taken(given[name], waiting) for name in _NUMBERS}
        clipped = given["clipped"]
        nothing_clipped = clipped is False
        arrays["clipped"] = Taken(None if nothing_clipped else clipped, waiting, flags=True)
        compared = given["sampled_ids"] is not None
        wanted = {"prompt_ids": self.text, "response_ids": self.text or compared, "sampled_ids": compared}
        arrays |= {name: Taken(given[name] if one else None, waiting) for name, one in wanted.items()}
        groups = given["groups"]
        return Told(
            batch_id=next(self._batches),
            answers=given["count"],
            step=event.scope.step,
            source=given["source"],
            arrays=arrays,
            asked={name for name in arrays if given[name] is not None},
            nothing_clipped=nothing_clipped,
            expected=given["passes"],
            groups=None if groups is None else _words(_plain(groups)),
            uids=None if given["uids"] is None else _words(given["uids"]),
            ended=None if given["ended"] is None else _words(given["ended"]),
            dropped=given["dropped"] if isinstance(given["dropped"], str | None) else list(given["dropped"]),
            replicas=_names(given["replicas"], given["count"]),
            times=times_of(given["begin_ns"], given["end_ns"], given["count"]),
            trainer_version=given["trainer_version"],
            loss_terms=[str(one) for one in given["loss_terms"]],
            keeps_ids=self.text,
            texts={name: list(given[name]) for name in _TEXTS if self.text and given[name] is not None},
            waiting=waiting,
        )

    def _train(self, event: Event) -> None:
        step = event.scope.step
        if step is None:
            return
        batches = self._open.get(step)
        if batches:
            into: Told | _Later = batches[-1]
        elif self._last is not None:
            into = self._later.setdefault(step, _Later(self._last))
        else:
            return
        rows, clipped = event.values["rows"], event.values["clipped"]
        taken = Taken(rows, into.waiting), Taken(clipped, into.waiting, flags=True)
        into.passes.append((*taken, event.scope.micro_batch))

    def _deferred(self, told: list[Told]) -> Deferred:
        waiting = [one for each in told for one in each.waiting]
        build: Callable[[], list[Row]] = partial(_built, told, self._limits)
        return Deferred(build, ready(waiting))


class _Later:
    """Passes of one step over a batch of an earlier one.

    Args:
        following: The batch.

    Attributes:
        passes: Rows, clipped tokens and micro-batch of each.
        waiting: Events of what travels from a device.
    """

    def __init__(self, following: Following) -> None:
        self._following = following
        self.passes: list[Pass] = []
        self.waiting: list[Any] = []

    def moved(self, step: int) -> Deferred:
        """What they move, when the rows of the batch's own step are made."""
        arrived = ready(self.waiting)
        build: Callable[[], list[Row]] = partial(self._following.moved, self.passes, step)
        return Deferred(build, lambda: self._following.begun and (arrived is None or arrived()))


def _built(told: list[Told], limits: tuple[int, int, int]) -> list[Row]:
    try:
        return [row for one in told for row in rows_of_batch(one, *limits)]
    finally:  # what waits for these rows waits no longer, whatever became of them
        for one in told:
            if one.following is not None:
                one.following.begun = True


def _names(replicas: str | Sequence[str] | None, count: int) -> list[str] | None:
    if replicas is None or isinstance(replicas, str):
        return None if replicas is None else [replicas] * count
    return _words(replicas)


def _words(values: Sequence[Any]) -> list[str]:
    """Names, "" where there is none."""
    return ["" if one is None else str(one) for one in values]


def _plain(values: Any) -> list[Any]:
    if getattr(getattr(values, "device", None), "type", "cpu") != "cpu":  # naming groups would wait for the device
        return [""] * len(values)
    return values.tolist() if isinstance(values, np.ndarray) or hasattr(values, "tolist") else list(values)
