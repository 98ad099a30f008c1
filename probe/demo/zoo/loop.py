"""A small training on a fake clock and a fake device, whose ranks are run one after the other.

Everything that is recorded comes out of probe's own core and hooks, as in a real training: batches are cut by
``micro_batches``, metrics go through ``reduce_metrics``, memory is taken from a device that counts it. Only time and
memory are made up, so that forty steps of four ranks take a second. Where ranks would wait for each other, each of
them knows beforehand how long the slowest takes: what a rank does follows from the seed alone.

A fault is a subclass that overrides one of the methods below :class:`Training`'s heading "what a fault changes".
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from probe.analysis.verdict.finding import Findings
from probe.core.metric import append_to_dict, reduce_metrics
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import micro_batches
from probe.demo.zoo.clock import fake_time
from probe.hooks import Event, phase
from probe.recorders.memory import MemoryRecorder
from probe.records import GIB
from probe.session import Session, start
from probe.testing import FakeAllocation, FakeClock, FakeDevice

MIB = 1024**2
SECOND = 1_000_000_000

OTHERS = ("token_balance", "padding_tax", "reduction", "scalars", "samples")

#: Second 0 of every run on the fake clock, in nanoseconds since the epoch.
WALL_NS = 1_790_000_000 * SECOND


@dataclass(frozen=True)
class Shape:
    """How large a training is. Times are of an invented device; only their proportions matter."""

    ranks: int = 2
    steps: int = 24
    sequences: int = 16  #: of a rank in a step
    mini_batches: int = 2
    mean_tokens: int = 300  #: of a sequence
    spread: float = 0.35  #: of the logarithm of lengths
    width: int = 900  #: no sequence is longer
    cap: int = 1000  #: tokens of a micro-batch
    token_s: float = 200e-6  #: seconds that a token takes in an update
    noise: float = 0.03  #: of times, as a share
    weights_gib: float = 20.0
    token_kib: float = 2048.0  #: memory of a micro-batch for each token
    device_gib: float = 80.0
    first_step: float = 3.0  #: how many times longer the first step takes


class Training:
    """One training, healthy unless a subclass plants a fault. ``run`` writes the runs of all ranks into a directory.

    Args:
        strength: How plain the fault is: 1 plain, less is weaker. A healthy training has none.
        seed: Everything that is drawn follows from it.
    """

    shape: ClassVar[Shape] = Shape()
    packed: ClassVar[bool] = True
    config: ClassVar[dict[str, Any]] = {"max_token_len": 1000}
    first: ClassVar[int] = 0  #: step
    device: ClassVar[bool] = True  #: else memory is the process's own

    finds: ClassVar[str] = ""  #: the name of the finding that must come first; "" for none that is wrong
    kind: ClassVar[str] = "alarm"  #: and its kind
    about: ClassVar[str] = "Nothing is wrong."
    rank: ClassVar[int | None] = None  #: the rank that must be named
    phase: ClassVar[str | None] = None  #: and the phase
    micro_batch: ClassVar[int | None] = None
    step: ClassVar[int | None] = None

    without: ClassVar[dict[str, Any]] = {}  #: what else of the class is the fault: what it is without it

    def __init__(self, strength: float = 1.0, seed: int = 0) -> None:
        self.strength = strength
        self.seed = seed

    def is_named_by(self, found: Findings) -> bool:
        """Whether the first of the findings is the right one, at the right place. Where nothing is wrong, whether
        nothing is said to be, and what looks wrong is said to be in order.
        """
        if not self.finds:
            return not found.alarms
        if self.kind == "fine":
            return not found.of("alarm", "tuning") and found.named(self.finds) is not None
        asked = self.place()
        if not found or found[0].name != self.finds or found[0].kind == "fine":
            return False
        return all(getattr(found[0].where, name) == value for name, value in asked.items() if value is not None)

    def place(self) -> dict[str, int | str | None]:
        """Where the finding must be: rank, phase, micro-batch and step; None where it needn't be told."""
        return {name: getattr(self, name) for name in ("rank", "phase", "micro_batch", "step")}

    # ------------------------------------------------------------------------------------- what a fault changes

    def lengths(self, step: int, rank: int) -> list[int]:
        """Tokens of the sequences of a rank in a step; mini-batches are even parts of them, in order."""
        shape, drawing = self.shape, self._drawing(step, rank, 1)
        scale = math.log(shape.mean_tokens) - shape.spread**2 / 2
        drawn = np.exp(drawing.normal(scale, shape.spread, shape.sequences))
        return self._evened([int(one) for one in drawn], step)

    def token_s(self, step: int, rank: int, what: str) -> float:
        """Seconds that a token takes on a rank; ``what`` is a phase."""
        return self.shape.token_s * {"generate": 4.0, "old_log_prob": 0.35, "update": 1.0}[what]

    def data_s(self, step: int, rank: int) -> float:
        """Seconds for which a rank waits for its data before a step's work."""
        return 0.01

    def kept(self, step: int, rank: int, what: str) -> int:
        """Bytes of the device that a phase doesn't give back."""
        return 0

    def held(self, step: int, rank: int) -> None:
        """What else a rank holds from a step on: memory of the host, or of others on the device."""

    def working(self, tokens: int, sequences: int, longest: int) -> int:
        """Bytes that a micro-batch takes while it runs."""
        slots = tokens if self.packed else sequences * longest
        return int(slots * self.shape.token_kib * 1024)

    def least(self, lengths: list[int]) -> int:
        """How many micro-batches are cut at least, which all ranks agree on."""
        return min(len(lengths), math.ceil(self.shape.mean_tokens * len(lengths) / self.shape.cap) + 1)

    def batch(self, running: Rank, step: int, index: int) -> None:
        """Is called in every micro-batch of an update, once its memory is taken."""

    def generated_s(self, running: Rank, step: int, begin_ns: int, alone_s: float) -> float:
        """Seconds from a step's begin until all answers are there; the slowest rank takes ``alone_s``."""
        return alone_s

    def sampled(self, running: Rank, step: int, begin_ns: int) -> None:
        """Is called at the end of generate, which began at ``begin_ns``, to tell what was sampled."""

    def losses(self, step: int, rank: int, count: int) -> list[float]:
        """A loss for each micro-batch of the step's updates."""
        return [float(one) for one in 0.1 + 0.02 * np.abs(self._drawing(step, rank, 5).normal(size=count))]

    def metrics(self, step: int, rank: int) -> dict[str, Any]:
        """What the step logs besides, as lists to be reduced."""
        drawing = self._drawing(step, 0, 6)
        return {
            "reward/mean": [float(0.3 + 0.005 * step + 0.02 * drawing.normal())],
            "frac_reward_zero_std": [float(0.1 + 0.03 * abs(drawing.normal()))],
            "critic/advantages/max": [float(1.5 + 0.2 * abs(drawing.normal()))],
            "critic/advantages/min": [float(-1.5 - 0.2 * abs(drawing.normal()))],
            "response_length/clip_ratio": [float(0.02 + 0.01 * abs(drawing.normal()))],
            "actor/grad_norm": [float(0.8 * math.exp(0.15 * drawing.normal()))],
        }

    def log(self, session: Session, values: dict[str, float], step: int, rank: int) -> None:
        """Log what the step has reduced."""
        if rank == 0:
            session.log(values, step)

    def after_step(self, rank: Rank, step: int) -> None:
        """What a step does at its end: validation, a checkpoint."""

    # -------------------------------------------------------------------------------------------- how it is run

    def run(self, directory: Path) -> Path:
        """Run all ranks into a run directory.

        Returns:
            ``directory``.
        """
        for rank in range(self.shape.ranks):
            Rank(self, rank, directory).run()
        return directory

    def found(self, directory: Path) -> Findings:
        """Run it, and say what was found.

        Args:
            directory: A new run directory.
        """
        from probe.opened import Run

        with Run(self.run(directory)) as run:
            return run.findings()

    def seconds(self, step: int, rank: int, what: str, tokens: float, index: int = 0) -> float:
        """How long a rank computes on so many tokens, with the noise of its time."""
        noise = math.exp(self.shape.noise * self._drawing(step, rank, 100 + index, what).normal())
        slow = self.shape.first_step if step == 0 else 1.0
        return tokens * self.token_s(step, rank, what) * noise * slow

    def rows(self, step: int, rank: int) -> list[int]:
        """The lengths of a rank's sequences, none longer than is allowed."""
        return [max(8, min(one, self.shape.width)) for one in self.lengths(step, rank)]

    def mini_batches(self, step: int, rank: int) -> list[list[int]]:
        """The lengths of each mini-batch of a rank."""
        lengths, many = self.rows(step, rank), self.shape.mini_batches
        size = len(lengths) // many
        return [lengths[at * size : (at + 1) * size if at < many - 1 else len(lengths)] for at in range(many)]

    def update_s(self, step: int, rank: int, at: int) -> float:
        """How long a rank computes in a mini-batch of the update, alone."""
        return self.seconds(step, rank, "update", self.computed(self.mini_batches(step, rank)[at]), at)

    def computed(self, lengths: list[int]) -> float:
        """Token slots that are computed for these sequences, were they one micro-batch."""
        return float(sum(lengths)) if self.packed else float(len(lengths) * max(lengths))

    def _drawing(self, step: int, rank: int, purpose: int, what: str = "") -> np.random.Generator:
        return np.random.default_rng([self.seed, step, rank, purpose, len(what), sum(map(ord, what))])

    def _evened(self, lengths: list[int], step: int) -> list[int]:
        """A data loader that balances: each mini-batch of each rank has nearly the mean number of tokens."""
        shape = self.shape
        target = shape.mean_tokens * shape.sequences / shape.mini_batches
        size, found = shape.sequences // shape.mini_batches, []
        for at in range(shape.mini_batches):
            part = lengths[at * size : (at + 1) * size if at < shape.mini_batches - 1 else len(lengths)]
            scale = target / sum(part)
            found += [round(one * scale) for one in part]
        return found


class SampledMemory(MemoryRecorder):
    """Samples the device at the end of each step: the writer's thread, which does so every second, lives in real time.

    A device's use by others stands in samples alone.
    """

    def leave(self, event: Event, state: Any) -> Any:
        found: Any = super().leave(event, state)
        sampled: Any = self.sample()
        return [*(sampled or ()), found] if event.scope.kind == "step" and found is not None else found


@dataclass
class Rank:
    """One rank of a training, run on its own."""

    training: Training
    rank: int
    directory: Path
    clock: FakeClock = field(default_factory=FakeClock)
    kept: list[FakeAllocation] = field(default_factory=list)
    host: list[Any] = field(default_factory=list)  #: what the process itself holds

    @cached_property
    def device(self) -> FakeDevice:
        """The device of the rank."""
        return FakeDevice(int(self.training.shape.device_gib * GIB), non_torch_bytes=int(0.6 * GIB))

    def run(self) -> None:
        """All steps, or as many as the fault leaves."""
        with fake_time(self.clock, WALL_NS):
            self.clock.advance(SECOND * (1 + 10_000 * (self.training.first > 0)))  # a later attempt is later
            session = start(
                "zoo",
                run_dir=self.directory,
                rank=self.rank,
                world_size=self.training.shape.ranks,
                config=self.training.config,
                device=self.device if self.training.device else None,
                recorders=[SampledMemory(self.device if self.training.device else None), *OTHERS],
            )
            with contextlib.suppress(RuntimeError, ValueError), session:  # what a fault raises ends this rank alone
                self.kept.append(self.device.allocate(int(self.training.shape.weights_gib * GIB)))
                for step in range(self.training.first, self.training.shape.steps):
                    with session.step(step):
                        values = self.step(step)
                        self.training.after_step(self, step)
                    self.training.log(session, values, step, self.rank)

    def step(self, step: int) -> dict[str, float]:
        """One step, of which the ends of generate and of each mini-batch are the same on all ranks."""
        training, ranks = self.training, range(self.training.shape.ranks)
        metrics: dict[str, Any] = {}
        begin = self.clock.time_ns
        alone = [
            training.data_s(step, one) + training.seconds(step, one, "generate", sum(training.rows(step, one)))
            for one in ranks
        ]
        with phase("data"):
            self.wait(training.data_s(step, self.rank))
        with phase("generate"):
            asked = self.clock.time_ns
            generated = training.generated_s(self, step, begin, max(alone))
            self.until(begin, generated)
            training.sampled(self, step, asked)
            self.keep(step, "generate")
        with phase("old_log_prob"):
            self.compute(training.rows(step, self.rank), step, "old_log_prob", 0, None)
            self.until(begin, generated + self.slowest(step, "old_log_prob"))
        losses = training.losses(step, self.rank, 4096)
        counted = 0
        with phase("update"):
            for at, lengths in enumerate(training.mini_batches(step, self.rank)):
                before = self.clock.time_ns
                counted += self.compute(lengths, step, "update", at, counted)
                self.until(before, max(training.update_s(step, one, at) for one in ranks) + 1e-4)
        for loss in losses[:counted]:
            append_to_dict(metrics, {"actor/pg_loss": loss})
        with phase("sync_weights"):
            self.wait(0.02)
            self.keep(step, "sync_weights")
        training.held(step, self.rank)
        append_to_dict(metrics, training.metrics(step, self.rank))
        return reduce_metrics(metrics)

    def slowest(self, step: int, what: str) -> float:
        """How long the slowest rank computes on its whole batch."""
        training = self.training
        whole = (training.rows(step, one) for one in range(training.shape.ranks))
        return (
            max(training.seconds(step, one, what, training.computed(lengths)) for one, lengths in enumerate(whole))
            + 1e-4
        )

    def compute(self, lengths: list[int], step: int, what: str, at: int, first: int | None) -> int:
        """Run the micro-batches of some rows; their seconds sum to what the rank needs for all of them.

        Returns:
            How many they were.
        """
        training = self.training
        whole = training.seconds(step, self.rank, what, training.computed(lengths), at)
        cuts = micro_batches(
            DataProto.from_dict(tensors=tensors_of(lengths)),
            training.shape.cap,
            packed=training.packed,
            min_num_micro_batch=training.least(lengths),
        )
        parts = [[lengths[row] for row in rows] for rows in cuts.indices]
        shares = [training.computed(part) for part in parts]
        for index, _ in enumerate(cuts):
            part = parts[index]
            used = self.device.allocate(training.working(sum(part), len(part), max(part)))
            try:
                if first is not None:
                    training.batch(self, step, first + index)
                self.wait(whole * shares[index] / sum(shares))
            finally:
                used.free()
        return len(parts)

    def keep(self, step: int, what: str) -> None:
        """Take what the fault doesn't give back."""
        size = self.training.kept(step, self.rank, what)
        if size:
            self.kept.append(self.device.allocate(size))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(max(0, int(seconds * SECOND)))

    def until(self, begin_ns: int, seconds: float) -> None:
        """Wait for the others: until so many seconds after ``begin_ns``."""
        self.clock.advance(max(0, begin_ns + int(seconds * SECOND) - self.clock.time_ns))


def tensors_of(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Columns (B, S) of a batch with rows of these lengths."""
    width = max(lengths)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).to(torch.uint8)
    return {"input_ids": mask.clone(), "attention_mask": mask}
