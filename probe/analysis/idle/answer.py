"""What both sides' time went for as it is shown: a sentence, frames and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from probe import text as words
from probe.analysis.idle.markup import html_of
from probe.analysis.idle.sides import REPLICA, TRAINER, Parts, Step
from probe.analysis.idle.wording import MEANT, table

if TYPE_CHECKING:
    import pandas as pd

#: Steps that the sentence is about, the newest.
NEWEST: Final = 20

#: Both sides work at the same time where they overlap for this share of the shorter one's work; else they take turns.
OVERLAP: Final = 0.3


@dataclass(frozen=True)
class Idle:
    """The time of the trainer and of each replica, in some steps.

    Attributes:
        steps: In their order, at least one.
    """

    steps: Sequence[Step] = field(repr=False)

    @property
    def newest(self) -> list[Step]:
        """The newest steps, the first left out where there are others: it starts engines, and takes longer."""
        return list(self.steps[1:] or self.steps)[-NEWEST:]

    @property
    def asynchronous(self) -> bool:
        """Whether training and sampling go on at the same time."""
        newest = self.newest
        shorter = min(sum(one.trainer["work"] for one in newest), sum(one.sampling_ns for one in newest))
        return shorter > 0 and sum(one.overlap_ns for one in newest) >= OVERLAP * shorter

    @property
    def sentence(self) -> str:
        """What is to be said first."""
        waits, idle = waiting(self.newest), idling(self.newest)
        how = "go on at the same time" if self.asynchronous else "take turns"
        many = len(self.newest)
        return (
            f"Training and sampling {how}: the trainer waits for answers {words.percent(waits)} of the time, and "
            f"replicas have no request under way {words.percent(idle)} of it ({many} step{'s' * (many > 1)})."
        )

    @property
    def trainer(self) -> Parts:
        """Nanoseconds of the trainer in the newest steps, by what they went for; they sum to these steps' time."""
        return added([one.trainer for one in self.newest], TRAINER)

    @property
    def replicas(self) -> Mapping[str, Parts]:
        """The same of each replica, in those of these steps in which it was there."""
        names = sorted({name for one in self.newest for name in one.replicas})
        told = ([one.replicas[name] for one in self.newest if name in one.replicas] for name in names)
        return {name: added(parts, REPLICA) for name, parts in zip(names, told, strict=True)}

    def to_frame(self) -> pd.DataFrame:
        """A row for each step: its time and the trainer's parts of it, seconds, and the parts of all replicas together,
        replica-seconds.
        """
        import pandas as pd

        return pd.DataFrame([_step(one) for one in self.steps])

    def by_replica(self) -> pd.DataFrame:
        """A row for each step and replica: the parts of its time, seconds, which sum to the step's."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"step": one.step, "replica": name, "wall_s": one.wall_ns / 1e9, **_seconds(parts)}
                for one in self.steps
                for name, parts in one.replicas.items()
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON can say it."""
        return {
            "sentence": self.sentence,
            "asynchronous": self.asynchronous,
            "trainer": _seconds(self.trainer),
            "replicas": {name: _seconds(parts) for name, parts in self.replicas.items()},
            "steps": [_step(one) for one in self.steps],
        }

    def __repr__(self) -> str:
        lines = table(self.trainer, self.replicas)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        told = [[name.ljust(widths[0]), *map(str.rjust, shares, widths[1:])] for name, *shares in lines]
        return "\n".join([self.sentence, "", *("  ".join(line).rstrip() for line in told), "", MEANT])

    def _repr_html_(self) -> str:
        return html_of(self)


def added(parts: Sequence[Parts], names: Sequence[str]) -> dict[str, int]:
    """Some steps' parts together.

    Args:
        parts: Nanoseconds by name, of each step.
        names: Of the parts.
    """
    return {name: sum(one[name] for one in parts) for name in names}


def waiting(steps: Sequence[Step]) -> float:
    """The share of some steps' time in which the trainer waits for answers."""
    return sum(one.trainer["answers"] for one in steps) / sum(one.wall_ns for one in steps)


def idling(steps: Sequence[Step]) -> float:
    """The share of the replicas' time in some steps in which they have no request under way."""
    every = [parts for one in steps for parts in one.replicas.values()]
    return 1 - sum(one["sampling"] for one in every) / sum(sum(one.values()) for one in every)


def _seconds(parts: Parts) -> dict[str, float]:
    return {f"{name}_s": value / 1e9 for name, value in parts.items()}


def _step(one: Step) -> dict[str, Any]:
    together = _seconds(added(list(one.replicas.values()), REPLICA))
    return {
        "step": one.step,
        "wall_s": one.wall_ns / 1e9,
        "replicas": len(one.replicas),
        **{f"trainer_{name}": value for name, value in _seconds(one.trainer).items()},
        **{f"replicas_{name}": value for name, value in together.items()},
        "waits": one.waits,
        "idle": one.idle,
    }
