"""When the trainer did what and when replicas had requests under way, from a run's rows, on the wall clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe.analysis.idle.sides import WAITING, WEIGHTS, Step, Trainer, step_of
from probe.analysis.long_tail import under_way
from probe.analysis.long_tail.gathering import SCOPES
from probe.analysis.long_tail.tail import Requests, merged
from probe.analysis.query import literal
from probe.sql import Sql, joined, sql
from probe.text import rows

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Roles of processes that sample or grade, whose phases aren't the trainer's.
ELSEWHERE: Final = ("engine", "agent_loop", "rollout", "rollouter", "sampler", "generator", "reward", "environment")


#: Processes of the trainer: those that work in a phase which neither waits nor brings weights.
_TRAINS: Final = """{steps} and process in (
    select process from scopes where {steps} and kind = 'phase' and name not in ({others}))
  and process not in (select process from processes where role in ({elsewhere}))
"""


def gathered(run: Run, first: int | None, last: int | None) -> list[Step]:
    """The steps whose requests are all told, in their order; [] where there are none.

    Args:
        run: The run.
        first: The first step, None for the run's.
        last: The last one, likewise.
    """
    if not run.has("rollouts"):
        return []
    steps = sql(
        "step between {first} and {last}",
        first=-(2**40) if first is None else int(first),
        last=2**40 if last is None else int(last),
    )
    told = rows(run.sql(sql(SCOPES, steps=of_trainer(steps))))
    begun = _begun(told)
    if not begun:
        return []
    asked = under_way.told(run, begun[0][1], begun[-1][2])
    requests, until_ns = under_way.by_replica(asked), under_way.surely_told(run, asked)
    found = []
    trainer = _trainer(told)
    for step, begin_ns, end_ns in begun:
        there = {name: one for name, one in requests.items() if _is_there(one, begin_ns, end_ns)}
        if there and begin_ns < end_ns <= until_ns:
            found.append(step_of(step, begin_ns, end_ns - begin_ns, trainer, there))
    return found


def of_trainer(steps: Sql) -> Sql:
    """The SQL condition for scopes of the trainer's processes.

    Args:
        steps: The condition for their steps.
    """
    others, elsewhere = (joined(map(literal, names)) for names in ((*WAITING, *WEIGHTS), ELSEWHERE))
    return sql(_TRAINS, steps=steps, others=others, elsewhere=elsewhere)


def _begun(told: Sequence[Mapping[Any, Any]]) -> list[tuple[int, int, int]]:
    """Each step with its begin and end: where the next one begins, of the last where it ended itself."""
    spans: dict[int, tuple[int, int]] = {}
    for row in told:
        if row["kind"] == "step":
            begin, end = spans.get(int(row["step"]), (int(row["begin_ns"]), int(row["end_ns"])))
            spans[int(row["step"])] = min(begin, int(row["begin_ns"])), max(end, int(row["end_ns"]))
    ordered = sorted((begin, end, step) for step, (begin, end) in spans.items())
    ends = [*(begin for begin, _, _ in ordered[1:]), *(end for _, end, _ in ordered[-1:])]
    return [(step, begin, end) for (begin, _, step), end in zip(ordered, ends, strict=True)]


def _trainer(told: Sequence[Mapping[Any, Any]]) -> Trainer:
    kinds: dict[str, list[tuple[int, int]]] = {name: [] for name in Trainer._fields}
    for row in told:
        if row["kind"] == "phase":
            name = str(row["name"])
            kind = "weights" if name in WEIGHTS else "answers" if name in WAITING else "work"
            kinds[kind].append((int(row["begin_ns"]), int(row["end_ns"])))
    return Trainer(**{name: _merged(spans) for name, spans in kinds.items()})


def _merged(spans: Sequence[tuple[int, int]]) -> Requests:
    both = np.array(spans, np.int64).reshape(-1, 2)
    return merged(both[:, 0], both[:, 1])


def _is_there(requests: Requests, begin_ns: int, end_ns: int) -> bool:
    """Whether a replica is known to be there all the time: from its first request to the end of its last one."""
    return int(requests.begin_ns[0]) < end_ns and int(requests.end_ns[-1]) > begin_ns
