"""Batches that one rule deals to the ranks and cuts into micro-batches, as NeMo-RL's do: from what its driver told.

The workers of NeMo-RL mostly run without probe. What was recorded is the call that dealt: the lengths, who got which
row, and the rule with its arguments. The micro-batches follow from those, and stand here only where the rule gives each
rank the rows that it got.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from probe.analysis.what_if.batches import RankCall, Round, StepBatch
from probe.core.balancing.other_rules import nemo_rl_dynamic
from probe.core.balancing.replay import Cut, Parts, replay
from probe.errors import ProbeError
from probe.text import missing, rows

if TYPE_CHECKING:
    from probe.runs.reader import Run

_TOLD: Final = """
select process, coalesce(step, call) as step, role, phase, packer, arguments, lengths, assignment from (
  select *, row_number() over calls as call, count(*) over (partition by process, role, phase) as calls
  from partitions where level = 'ranks' and packer like 'nemo_rl.%'
  window calls as (partition by process, role, phase order by batch_id))
where {wanted} order by step, process, batch_id"""


def together_batches(run: Run, steps: Collection[int] | None, most: int) -> list[StepBatch]:
    """What NeMo-RL's rules dealt and cut in a run.

    Args:
        run: The run.
        steps: Only these; None means those of the last ``most`` calls of each role and phase.
        most: See ``steps``.

    Returns:
        One for each step, role and phase. A call outside of steps is a step of its own, numbered from 1 by role and
        phase: NeMo-RL's driver doesn't tell their numbers. A dealing that the rule doesn't give again isn't among them.
    """
    if not run.has("partitions"):
        return []
    named = ", ".join(str(int(one)) for one in steps or ()) or "null"
    wanted = f"calls - call < {most}" if steps is None else f"coalesce(step, call) in ({named})"
    told: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows(run.sql(_TOLD.format(wanted=wanted))):
        role, phase = (None if missing(row[name]) else str(row[name]) for name in ("role", "phase"))
        here = told.setdefault((int(row["step"]), role, phase), [])
        if not here or here[0]["process"] == row["process"]:  # each rank may have worked out the same
            here.append(row)
    found = []
    for (step, role, phase), calls in told.items():
        made = [one for call in calls for one in rounds_of(call)]
        if made:
            rounds = tuple(Round(number, ranks) for number, (ranks, _) in enumerate(made, 1))
            found.append(StepBatch(step, role, phase, rounds, None, tuple(whole for _, whole in made)))
    return found


def rounds_of(row: dict[str, Any]) -> list[tuple[tuple[RankCall, ...], tuple[int, ...]]]:
    """Of each global batch the calls of all ranks, and the lengths of its rows.

    Args:
        row: Of ``partitions``: packer, process, arguments, lengths, assignment.

    Returns:
        Nothing where the rule doesn't give each rank the rows that it got.
    """
    arguments = json.loads(row["arguments"])
    lengths, assignment = ([int(one) for one in row[name]] for name in ("lengths", "assignment"))
    ranks, size = int(arguments["shards"]), int(arguments.get("batch_size") or len(lengths))
    found = []
    for begin in range(0, len(lengths), max(size, 1)):
        whole, went = lengths[begin : begin + size], assignment[begin : begin + size]
        try:
            cut = Cut.of_micro_batches(str(row["packer"]), arguments, whole, 0)
            made = dealt_and_cut(cut, ranks)
        except ProbeError:
            return []
        mine = [sorted(at for part in parts for at in part) for parts in made]
        for rank, own in enumerate(mine):  # rows of one length may have changed places
            if sorted(whole[at] for at in own) != sorted(whole[at] for at, to in enumerate(went) if to == rank):
                return []
        found.append((tuple(_call(row, arguments, cut, made, rank) for rank in range(ranks)), tuple(whole)))
    return found


def dealt_and_cut(cut: Cut, ranks: int) -> list[Parts]:
    """The rows of each micro-batch of each rank.

    Args:
        cut: Of all ranks' rows, by one of NeMo-RL's rules.
        ranks: Data-parallel ones.

    Raises:
        InputError: The rows can't be dealt so.
        CapacityError: A row is above the cap.
    """
    if cut.packer != "nemo_rl.dynamic_batching":
        bins = replay(cut)
        return [bins[rank::ranks] for rank in range(ranks)]
    cap, width = cut.needed("cap_tokens"), cut.width_tokens
    dealt = nemo_rl_dynamic(cut.lengths, ranks, cap, round_to=cut.pad_multiple, width_tokens=width)
    return [parts for parts, _ in dealt]


def _call(row: dict[str, Any], arguments: dict[str, Any], cut: Cut, made: Sequence[Parts], rank: int) -> RankCall:
    own = sorted(at for part in made[rank] for at in part)
    places = {at: place for place, at in enumerate(own)}
    parts = [[places[at] for at in part] for part in made[rank]]
    return RankCall(
        str(row["process"]),
        rank,
        str(row["packer"]),
        arguments,
        [cut.lengths[at] for at in own],
        parts,
        [None] * len(parts),
        cut.cap_tokens,
        True,
    )
