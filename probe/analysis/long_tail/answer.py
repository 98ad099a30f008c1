"""The long tail of a run's rollouts as it is shown: a sentence, frames and a picture."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from probe import text as words
from probe.analysis.long_tail.markup import html_of
from probe.analysis.long_tail.rules import Rule, rules_of
from probe.analysis.long_tail.tail import Step
from probe.analysis.long_tail.wording import RULE_COLUMNS, RULE_NOTE, cells, rule_cells

if TYPE_CHECKING:
    import pandas as pd

#: Steps that the sentence is about, the newest.
NEWEST: Final = 20

_STEP: Final = (
    *("step", "samples", "timed", "replicas", "median_s", "ninth_decile_s", "longest_s", "before_s", "tail_s"),
    *("idle_replica_s", "step_s", "share", "waited_s", "waited_share", "staleness_mean", "staleness_largest"),
)
_REPLICA: Final = (
    *("step", "replica", "samples", "median_s", "ninth_decile_s", "longest_s", "begin_s", "end_s", "late", "idle_s"),
)


@dataclass(frozen=True)
class LongTail:
    """The rollouts of some steps.

    Attributes:
        steps: In their order, at least one.
    """

    steps: Sequence[Step] = field(repr=False)

    @property
    def newest(self) -> list[Step]:
        """The newest steps whose tail is known, the run's first left out where there are others."""
        known = [one for one in self.steps if one.tail_ns is not None and one.step_ns]
        later = [one for one in known if one is not self.steps[0]]
        return (later or known)[-NEWEST:]

    @property
    def shown(self) -> Step:
        """The step that is drawn: of the newest that whose tail is in the middle; else the last with any time."""
        newest = sorted(self.newest, key=lambda one: (one.share or 0.0, one.step))
        if newest:
            return newest[len(newest) // 2]
        timed = [one for one in self.steps if one.begin_ns is not None]
        return (timed or list(self.steps))[-1]

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """What other rules for the longest answers would have saved the step that is drawn."""
        return rules_of(self.shown)

    @property
    def sentence(self) -> str:
        """What is to be said first."""
        newest = self.newest
        if not newest:
            return self._unknown()
        tail = median(one.tail_ns or 0 for one in newest) / 1e9
        share = median(one.share or 0.0 for one in newest)
        waited = median(one.waited_share or 0.0 for one in newest)
        many = f"median of {len(newest)} steps" if len(newest) > 1 else f"step {newest[0].step}"
        if not tail:
            return f"The last tenth of the answers ends at one time: there is no tail ({many})."
        said = f"The last tenth of the answers ends within {words.seconds(tail)}, "
        said += f"{words.percent(share)} of a step" if share else "outside the step that trains on them"
        if round(waited, 3) != round(share, 3):
            said += f"; the trainer waits for {words.percent(waited)} of the step"
        return f"{said} ({many}).{self._idle(newest)}"

    def _idle(self, newest: Sequence[Step]) -> str:
        whole = sum((one.tail_ns or 0) * len(one.replicas) for one in newest)
        if not whole or max(len(one.replicas) for one in newest) < 2:
            return ""
        share = sum(one.idle_ns or 0 for one in newest) / whole
        return f" Replicas are idle for {words.percent(share)} of that time."

    def _unknown(self) -> str:
        if any(one.tail_ns is not None for one in self.steps):
            return "No step with timed answers has ended yet."
        if any(one.begin_ns is not None for one in self.steps):
            return "Answers come in whole batches: when each of them ended isn't known, so there is no tail to measure."
        return "When answers began and ended wasn't recorded."

    @property
    def staleness(self) -> dict[int, int]:
        """Samples of all steps by how many versions their weights were behind the trainer's; {} where unknown."""
        found: dict[int, int] = defaultdict(int)
        for step in self.steps:
            for behind, samples in step.staleness.items():
                found[behind] += samples
        return dict(sorted(found.items()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What else has to be known to read the numbers."""
        found = []
        if self.staleness:
            total = sum(self.staleness.values())
            parts = [
                f"{behind} for {words.percent(samples / total)} of the answers"
                for behind, samples in list(self.staleness.items())
            ]
            more = f" and {len(parts) - 6} more" if len(parts) > 6 else ""
            found.append(
                f"How many versions the sampling weights were behind the trainer's: {', '.join(parts[:6])}{more}."
            )
        if any(not one.whole and one.ninth_ns is not None for one in self.steps):
            found.append(
                "In steps with more than 4,096 answers every k-th one is counted, in the order in which they end."
            )
        untimed = sum(one.samples - one.timed for one in self.steps if one.ninth_ns is not None)
        if untimed > 0:
            found.append(f"The end of {words.count(untimed)} answer{'s' * (untimed > 1)} wasn't recorded.")
        return tuple(found)

    def to_frame(self) -> pd.DataFrame:
        """A row for each step: samples, timed, replicas (how many), times in seconds, share and waited_share (of the
        step), staleness in versions. What isn't known is missing.
        """
        import pandas as pd

        return pd.DataFrame([_step(one) for one in self.steps], columns=list(_STEP)).convert_dtypes()

    def replicas(self) -> pd.DataFrame:
        """A row for each step and replica: samples, times from request to end, begin and end of its work after the
        first request of the step, its answers that ended in the tail (late), and how long it was idle in the tail.
        """
        import pandas as pd

        told = [_replica(step, at) for step in self.steps for at in range(len(step.replicas))]
        return pd.DataFrame(told, columns=list(_REPLICA)).convert_dtypes()

    def to_dict(self) -> dict[str, Any]:
        """All of it but the requests, as JSON can say it."""
        return {
            "sentence": self.sentence,
            "notes": list(self.notes),
            "staleness": {str(behind): samples for behind, samples in self.staleness.items()},
            "steps": [_step(one) for one in self.steps],
            "replicas": [_replica(step, at) for step in self.steps for at in range(len(step.replicas))],
            "rules": [_rule(one, self.shown) for one in self.rules],
        }

    def __repr__(self) -> str:
        head = ("replica", "answers", "median", "90 %", "longest", "in the tail", "idle in it")
        table = _table([head, *(cells(self.shown, at) for at in range(len(self.shown.replicas)))], ">" * 6)
        said = [self.sentence, "", f"step {self.shown.step}:", *table, "", *self.notes]
        if self.rules:
            rows = [RULE_COLUMNS, *(rule_cells(one, self.shown) for one in self.rules)]
            said += ["", *_table(rows, "><"), "", *textwrap.wrap(RULE_NOTE, 100)]
        return "\n".join(said).rstrip()

    def _repr_html_(self) -> str:
        return html_of(self)


def _table(lines: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Lines of columns, the first on the left side and the others as ``sides`` has them."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    shapes = [f"{side}{width}" for side, width in zip(f"<{sides}", widths, strict=True)]
    return ["  ".join(map(format, line, shapes)).rstrip() for line in lines]


def _seconds(value: int | None) -> float | None:
    return None if value is None else value / 1e9


def _step(one: Step) -> dict[str, Any]:
    samples = sum(one.staleness.values())
    behind = sum(versions * count for versions, count in one.staleness.items())
    return {
        "step": one.step,
        "samples": one.samples,
        "timed": one.timed,
        "replicas": len(one.replicas),
        "median_s": _seconds(one.median_ns),
        "ninth_decile_s": _seconds(one.ninth_decile_ns),
        "longest_s": _seconds(one.longest_ns),
        "before_s": _seconds(one.before_ns),
        "tail_s": _seconds(one.tail_ns),
        "idle_replica_s": _seconds(one.idle_ns),
        "step_s": _seconds(one.step_ns),
        "share": one.share,
        "waited_s": _seconds(one.waited_ns),
        "waited_share": one.waited_share,
        "staleness_mean": behind / samples if samples else None,
        "staleness_largest": max(one.staleness) if samples else None,
    }


def _rule(one: Rule, step: Step) -> dict[str, Any]:
    told = one._asdict()
    saved, reach = (_seconds(told.pop(name)) for name in ("saved_ns", "reach_ns"))
    return {"step": step.step, **told, "saved_s": saved, "reach_s": reach}


def _replica(step: Step, at: int) -> dict[str, Any]:
    one, first = step.replicas[at], step.begin_ns or 0
    return {
        "step": step.step,
        "replica": one.name,
        "samples": one.samples,
        "median_s": _seconds(one.median_ns),
        "ninth_decile_s": _seconds(one.ninth_decile_ns),
        "longest_s": _seconds(one.longest_ns),
        "begin_s": _seconds(one.begin_ns - first),
        "end_s": _seconds(one.end_ns - first),
        "late": one.late,
        "idle_s": _seconds(one.idle_ns),
    }
