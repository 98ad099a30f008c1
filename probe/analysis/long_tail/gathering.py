"""The rollouts of a run's steps from its rows, on one clock: the wall clock that each process is anchored to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from probe.analysis.ledger.slots import SAMPLING
from probe.analysis.long_tail.tail import Phase, Requests, Step, covered, step_of
from probe.analysis.long_tail.under_way import Told, by_replica, replica_of, told
from probe.text import rows, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

_ROLLOUTS: Final = """
select step, process, coalesce(wall_ns, time_ns) - time_ns as anchor_ns, batch_id, replica, samples, timed, together,
       begin_ns, end_ns, requests_begin_ns, requests_end_ns, requests_tokens, requests_right,
       trainer_version, weight_versions, version_samples
from rollouts where step is not null and {steps} order by step, process, replica
"""

#: Steps and phases as all processes together see them: those of one name that overlap are one.
#: ``steps`` is a condition.
SCOPES: Final = """
with told as (
  select step, kind, name, begin_ns, end_ns,
         max(end_ns) over (partition by step, kind, name order by begin_ns, end_ns
                           rows between unbounded preceding and 1 preceding) as reached
  from scopes where kind in ('step', 'phase') and step is not null and {steps}),
parted as (
  select *, sum(case when begin_ns <= reached then 0 else 1 end)
              over (partition by step, kind, name order by begin_ns, end_ns, reached nulls first
                    rows between unbounded preceding and current row) as part
  from told)
select step, kind, name, min(begin_ns) as begin_ns, max(end_ns) as end_ns from parted
group by step, kind, name, part order by step, begin_ns
"""


@dataclass
class _Known:
    """What the rows of one step tell.

    Attributes:
        told: Samples, by the trainer.
        timed_elsewhere: Samples, by processes that only timed them: the trainer tells of the same.
        timed: With times of their own.
        requests: By replica.
        tokens: Of each of these requests, in parts as ``requests`` has them, 0 where it isn't known; by replica.
        right: Likewise which have the larger of two rewards, where ``right_known``.
        right_known: Whether that is known of all requests so far.
        counts: Samples by replica.
        spans: First begin and last end by replica.
        staleness: Samples by versions behind.
    """

    told: int = 0
    timed_elsewhere: int = 0
    timed: int = 0
    requests: dict[str, list[Requests]] = field(default_factory=lambda: defaultdict(list))
    tokens: dict[str, list[npt.NDArray[np.int64]]] = field(default_factory=lambda: defaultdict(list))
    right: dict[str, list[npt.NDArray[np.bool_]]] = field(default_factory=lambda: defaultdict(list))
    right_known: bool = True
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    staleness: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, row: Mapping[Any, Any]) -> None:
        """One row."""
        name, samples = replica_of(row), int(row["samples"])
        if int(row["batch_id"]) < 0:
            self.timed_elsewhere += samples
        else:
            self.told += samples
        self.timed += int(row["timed"])
        trainer = whole(row["trainer_version"])
        if trainer is not None:
            for version, count in zip(row["weight_versions"], row["version_samples"], strict=True):
                self.staleness[trainer - int(version)] += int(count)
        begin, end = whole(row["begin_ns"]), whole(row["end_ns"])
        if begin is None or end is None:
            return
        self.counts[name] += samples
        anchor = int(row["anchor_ns"])
        before = self.spans.get(name, (begin + anchor, end + anchor))
        self.spans[name] = min(before[0], begin + anchor), max(before[1], end + anchor)
        if not row["together"]:
            base = begin + anchor
            self.requests[name].append(
                Requests(
                    np.asarray(row["requests_begin_ns"], np.int64) + base,
                    np.asarray(row["requests_end_ns"], np.int64) + base,
                )
            )
            self._tell(name, row)

    def _tell(self, name: str, row: Mapping[Any, Any]) -> None:
        """What else is known of the requests of a row."""
        many = len(row["requests_end_ns"])
        tokens, right = (_listed(row[f"requests_{one}"], many) for one in ("tokens", "right"))
        self.tokens[name].append(np.zeros(many, np.int64) if tokens is None else np.asarray(tokens, np.int64))
        if right is None:
            self.right_known = False
        else:
            self.right[name].append(np.asarray(right, bool))

    def about(self) -> dict[str, Any]:
        """What is known of the requests besides their times: fields of :class:`Step`, replica by replica."""
        told: dict[str, Mapping[str, Sequence[npt.NDArray[Any]]]] = {"tokens": self.tokens}
        if self.right_known:
            told["right"] = self.right
        parts = {name: [one for replica in sorted(held) for one in held[replica]] for name, held in told.items()}
        return {name: np.concatenate(held) for name, held in parts.items() if held}


def _listed(values: Any, many: int) -> Any:
    """A list of so many values; None where it isn't one, as in runs of before."""
    return values if hasattr(values, "__len__") and len(values) == many else None


def gathered(run: Run, first: int | None, last: int | None) -> list[Step]:
    """The rollouts of some steps, in their order; [] where none was recorded.

    Args:
        run: The run.
        first: The first step, None for the run's.
        last: The last one, likewise.
    """
    if not run.has("rollouts"):
        return []
    steps = f"step between {-(2**40) if first is None else int(first)} and {2**40 if last is None else int(last)}"
    known: dict[int, _Known] = defaultdict(_Known)
    for row in rows(run.sql(_ROLLOUTS.format(steps=steps))):
        known[int(row["step"])].add(row)
    if not known:
        return []
    scopes: dict[int, list[Mapping[Any, Any]]] = defaultdict(list)
    for row in rows(run.sql(SCOPES.format(steps=steps))):
        scopes[int(row["step"])].append(row)
    near = _near(run, known)
    return [_step(step, one, scopes[step], _others(near, step, one)) for step, one in sorted(known.items())]


def _near(run: Run, known: Mapping[int, _Known]) -> list[Told]:
    """What is told of requests while those of some steps are under way."""
    spans = [span for one in known.values() if one.requests for span in one.spans.values()]
    return told(run, min(begin for begin, _ in spans), max(end for _, end in spans)) if spans else []


def _others(near: Sequence[Told], step: int, known: _Known) -> dict[str, Requests]:
    """The requests of other steps while those of one are under way."""
    if not known.spans:
        return {}
    begin, end = min(one for one, _ in known.spans.values()), max(one for _, one in known.spans.values())
    return by_replica(
        [one for one in near if one.step != step and one.requests.begin_ns[0] < end and one.requests.end_ns[-1] > begin]
    )


def _step(step: int, known: _Known, scopes: Iterable[Mapping[Any, Any]], others: Mapping[str, Requests]) -> Step:
    found = step_of(
        step,
        known.requests,
        samples=max(known.told, known.timed_elsewhere),
        timed=known.timed,
        counts=known.counts,
        spans=known.spans,
        staleness=dict(sorted(known.staleness.items())),
        others=others,
        **known.about(),
    )
    scopes = list(scopes)
    whole_step = _intervals(row for row in scopes if row["kind"] == "step")
    phases = [row for row in scopes if row["kind"] == "phase"]
    found = found._replace(phases=tuple(Phase(str(one["name"]), *_span(one)) for one in phases))
    if not len(whole_step.begin_ns):
        return found
    begin, end = int(whole_step.begin_ns.min()), int(whole_step.end_ns.max())
    found = found._replace(step_begin_ns=begin, step_ns=end - begin)
    if found.ninth_ns is None or found.end_ns is None:
        return found
    first, last = max(found.ninth_ns, begin), min(found.end_ns, end)
    if first >= last:
        return found._replace(inside_ns=0, waited_ns=0)
    other = _intervals(row for row in phases if row["name"] not in SAMPLING)
    return found._replace(inside_ns=last - first, waited_ns=last - first - covered(*other, first, last))


def _span(row: Mapping[Any, Any]) -> tuple[int, int]:
    return int(row["begin_ns"]), int(row["end_ns"])


def _intervals(scopes: Iterable[Mapping[Any, Any]]) -> Requests:
    found = np.array([_span(row) for row in scopes], np.int64).reshape(-1, 2)
    return Requests(found[:, 0], found[:, 1])
