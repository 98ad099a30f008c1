"""The batches of a run as they were cut: every rank's calls, matched by step, role, phase and order; and cut again."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from probe.analysis.what_if.batches import RankCall, Round, StepBatch
from probe.analysis.what_if.together import rounds_of
from probe.core.balancing.replay import Cut, Parts, replay, replay_pieces, replay_ranks
from probe.errors import ProbeError, UnknownNameError
from probe.text import missing, rows

if TYPE_CHECKING:
    from probe.runs.reader import Run

REPLAYED: Final = ("step", "role", "phase", "round", "rank", "process", "packer", "same", "why")

DEALT: Final = ("step", "process", "packer", "same", "why")

_MICRO_BATCHES: Final = """
select process, rank, step, role, phase, batch_id, micro_batch, lengths, indices, width_tokens, cap_tokens
from micro_batches
where source not like 'packing.%' and source not like 'batched_data_dict.%' {wanted}
order by step, role, phase, process, batch_id, micro_batch"""

_PARTITIONS: Final = """
select process, step, batch_id, level, packer, arguments, lengths, assignment, parts_tokens
from partitions where true {wanted} order by step, process, batch_id"""


def step_batches(run: Run, steps: Collection[int] | None = None) -> list[StepBatch]:
    """What was cut in a run, step by step.

    Args:
        run: The run.
        steps: Only these; None means all.
    """
    wanted = _wanted(steps)
    told = list(rows(run.sql(_PARTITIONS.format(wanted=wanted)))) if run.has("partitions") else []
    cuts = {(row["process"], row["batch_id"]): row for row in told if row["level"] == "micro_batches"}
    dealt: dict[Any, tuple[int, ...]] = {}
    for row in told:
        if row["level"] == "ranks" and len(row["lengths"]):
            dealt[_known(row["step"])] = tuple(int(one) for one in row["lengths"])
    if not run.has("micro_batches"):
        return []
    batches: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows(run.sql(_MICRO_BATCHES.format(wanted=wanted))):
        key = (*(_known(row[name]) for name in ("step", "role", "phase")), str(row["process"]), int(row["batch_id"]))
        batches.setdefault(key, []).append(row)
    numbers: dict[tuple[Any, ...], int] = {}
    found: dict[tuple[Any, ...], dict[int, list[RankCall]]] = {}
    for (step, role, phase, process, batch), parts in batches.items():
        place = (step, role, phase, process)
        numbers[place] = numbers.get(place, 0) + 1
        call = _call(process, parts, cuts.get((process, batch)))
        found.setdefault((step, role, phase), {}).setdefault(numbers[place], []).append(call)
    return [
        StepBatch(
            step,
            role,
            phase,
            tuple(Round(number, _by_rank(calls)) for number, calls in made.items()),
            dealt.get(step),
        )
        for (step, role, phase), made in found.items()
    ]


def _by_rank(calls: list[RankCall]) -> tuple[RankCall, ...]:
    return tuple(sorted(calls, key=lambda one: (one.rank is None, one.rank or 0, one.process)))


def _call(process: str, parts: Sequence[dict[str, Any]], cut: dict[str, Any] | None) -> RankCall:
    lengths = [[int(one) for one in part["lengths"]] for part in parts]
    indices = [[int(one) for one in part["indices"]] for part in parts]
    count = sum(map(len, lengths))
    ordered = sorted(row for part in indices for row in part) == list(range(count))
    if not ordered:  # rows as they came
        at = iter(range(count))
        indices = [[next(at) for _ in part] for part in lengths]
    flat = [length for part in lengths for length in part]
    own = dict(zip([row for part in indices for row in part], flat, strict=True))
    cap = _known(parts[0]["cap_tokens"])
    return RankCall(
        process,
        _known(parts[0]["rank"]),
        "" if cut is None else str(cut["packer"]),
        {} if cut is None else json.loads(cut["arguments"]),
        [own[row] for row in range(count)],
        indices,
        [_known(part["width_tokens"]) for part in parts],
        cap,
        ordered,
    )


def _known(value: Any) -> Any:
    if missing(value):
        return None
    return value if isinstance(value, str) else int(value)


def replayed(run: Run, steps: Collection[int] | None = None) -> pd.DataFrame:
    """Every recorded partition, made again from its packer and arguments, beside what was recorded.

    Where ranks agreed on the number of micro-batches it is worked out from the calls of all of them.

    Args:
        run: The run.
        steps: Only these; None means all.

    Returns:
        A row for each call: step, role, phase, round (from 1, in the order of the calls), rank, process, packer, same
        (whether the parts and their order are those that were recorded; None where that can't be said) and why not.
    """
    told: list[tuple[Any, ...]] = []
    for batch in step_batches(run, steps):
        for one in batch.rounds:
            place = (batch.step, batch.role, batch.phase, one.number)
            made, why = _again(one)
            for at, call in enumerate(one.calls):
                same = None if made is None else made[at] == call.parts
                told.append((*place, call.rank, call.process, call.packer, same, why))
    return pd.DataFrame(told, columns=list(REPLAYED)).astype({"same": object, "why": object})


def replayed_dealings(run: Run, steps: Collection[int] | None = None) -> pd.DataFrame:
    """Every recorded dealing of rows to ranks, made again from its packer and arguments.

    Args:
        run: The run.
        steps: Only these; None means all.

    Returns:
        A row for each: step, process, packer, same (whether each row went to the rank that was recorded, of rows of one
        length any; None where that can't be said) and why not.
    """
    if not run.has("partitions"):
        return pd.DataFrame(columns=list(DEALT))
    asked = _PARTITIONS.format(wanted=_wanted(steps))
    told = []
    for row in rows(run.sql(asked)):
        if row["level"] == "ranks":
            place = (_known(row["step"]), str(row["process"]), str(row["packer"]))
            told.append((*place, *_dealt_again(row)))
    return pd.DataFrame(told, columns=list(DEALT)).astype({"same": object, "why": object})


def replayed_packings(run: Run) -> pd.DataFrame:
    """Every recorded packing of rows of a data set, made again from its packer and arguments.

    Args:
        run: The run.

    Returns:
        A row for each: process, packer, same (whether the sequences hold as many tokens as was recorded, each in its
        place; None where that can't be said) and why not.
    """
    told: list[tuple[str, str, bool | None, str]] = []
    for row in rows(run.sql(_PARTITIONS.format(wanted=""))) if run.has("partitions") else ():
        if row["level"] != "data_set":
            continue
        try:
            cut = Cut.of_data_set(str(row["packer"]), json.loads(row["arguments"]), [int(n) for n in row["lengths"]])
        except UnknownNameError:
            told.append((str(row["process"]), str(row["packer"]), None, f"There is no rule for {row['packer']!r}."))
            continue
        again = [sum(tokens for _, tokens in part) for part in replay_pieces(cut)]
        told.append((str(row["process"]), str(row["packer"]), again == [int(n) for n in row["parts_tokens"]], ""))
    return pd.DataFrame(told, columns=list(DEALT[1:])).astype({"same": object, "why": object})


def _dealt_again(row: dict[str, Any]) -> tuple[bool | None, str]:
    packer, arguments = str(row["packer"]), json.loads(row["arguments"])
    if packer.startswith("nemo_rl."):
        return bool(rounds_of(row)), ""
    if not packer.startswith("verl") or not arguments.get("equal_size"):
        return None, f"There is no rule for the packer {packer!r}." if packer else "No packer was recorded."
    lengths = [int(one) for one in row["lengths"]]
    try:
        parts = replay(Cut(packer="verl.equal_size", lengths=lengths, count=arguments.get("k_partitions")))
    except ProbeError as error:
        return None, f"It can't be replayed: {error}."
    rank_of = {at: rank for rank, part in enumerate(parts) for at in part}
    return [rank_of[at] for at in range(len(lengths))] == [int(one) for one in row["assignment"]], ""


def _wanted(steps: Collection[int] | None) -> str:
    return "" if steps is None else f"and step in ({', '.join(str(int(one)) for one in steps) or 'null'})"


def _again(one: Round) -> tuple[list[Parts] | None, str]:
    """The parts of every rank made again; None and why not."""
    try:
        cuts = [call.cut() for call in one.calls]
    except UnknownNameError:
        named = one.calls[0].packer
        return None, f"There is no rule for the packer {named!r}." if named else "No packer was recorded."
    except ProbeError as error:
        return None, f"It can't be replayed: {error}."
    if len({(cut.packer, cut.cap_tokens, cut.counts_agreed) for cut in cuts}) > 1:
        return None, "The ranks were given different arguments."
    lost = one.missing_ranks() if cuts[0].counts_agreed else 0
    if lost:
        return None, f"The ranks agreed on the number of micro-batches, and {lost} of them told of no call."
    try:
        return replay_ranks(cuts), ""
    except ProbeError as error:
        return None, f"It can't be replayed: {error}."
