"""Healthy trainings, on which no alarm may sound."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from probe.demo.zoo.ahead import Ahead
from probe.demo.zoo.loop import MIB, Rank, Shape, Training
from probe.demo.zoo.served import Served
from probe.hooks import phase
from probe.records import GIB


class One(Training):
    """One rank."""

    shape: ClassVar[Shape] = Shape(ranks=1)


class Many(Training):
    """Four ranks with more and longer sequences."""

    shape: ClassVar[Shape] = Shape(ranks=4, sequences=32, mean_tokens=400, steps=16)


class SlowFirst(Training):
    """The first step takes 30 times as long as the others."""

    shape: ClassVar[Shape] = Shape(first_step=30.0)


class Noisy(Training):
    """Times vary by a fifth."""

    shape: ClassVar[Shape] = Shape(ranks=4, noise=0.2, steps=40)


class Resumed(Training):
    """The training stops after 14 steps and resumes from step 10."""

    shape: ClassVar[Shape] = Shape(steps=14)

    def run(self, directory: Path) -> Path:
        super().run(directory)
        return Later(self.strength, self.seed).run(directory)


class Later(Training):
    """The second attempt of a run."""

    shape: ClassVar[Shape] = Shape(steps=24)
    first = 10


class Fast(Training):
    """Steps take a few milliseconds."""

    shape: ClassVar[Shape] = Shape(token_s=1e-6, steps=60)


class Growing(Training):
    """Sequences grow threefold over the curriculum."""

    shape: ClassVar[Shape] = Shape(steps=40, mean_tokens=150)

    def lengths(self, step: int, rank: int) -> list[int]:
        return [int(one * (1 + 2 * step / self.shape.steps)) for one in super().lengths(step, rank)]


class Checkpoints(Training):
    """Every eighth step saves a checkpoint, which is slow and briefly takes memory."""

    def after_step(self, rank: Rank, step: int) -> None:
        if step % 8 == 7:
            with phase("save_checkpoint"):
                used = rank.device.allocate(GIB)
                rank.wait(6.0)
                used.free()


class WarmUp(Training):
    """Caches fill within the first ten steps."""

    shape: ClassVar[Shape] = Shape(steps=40)

    def kept(self, step: int, rank: int, what: str) -> int:
        return int(400 * MIB * 0.6**step) if what == "update" and step < 10 else 0


class Host(Training):
    """The machine has no accelerator."""

    shape: ClassVar[Shape] = Shape(ranks=2, steps=20)
    device: ClassVar[bool] = False


HEALTHY: Final[dict[str, type[Training]]] = {
    "one rank": One,
    "four ranks": Many,
    "slow first step": SlowFirst,
    "noisy times": Noisy,
    "resumed": Resumed,
    "fast steps": Fast,
    "growing curriculum": Growing,
    "checkpoints": Checkpoints,
    "warm-up": WarmUp,
    "without an accelerator": Host,
    "engines that report times": Served,
    "sampling ahead": Ahead,
}
