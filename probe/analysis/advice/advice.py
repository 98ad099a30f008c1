"""Which setting, which value: changes to a run's configuration, each tried on its own batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from probe.analysis.advice.asking import Asking
from probe.analysis.advice.keys import framework
from probe.analysis.advice.suggestions import RISK, Advice, Suggestion
from probe.analysis.advice.when import Times
from probe.analysis.memory_model import rooms
from probe.analysis.what_if.answering import Replayer
from probe.analysis.what_if.settings import Settings
from probe.errors import InputError

if TYPE_CHECKING:
    from probe.runs.reader import Run

__all__ = ["Advice", "Suggestion", "advise"]


def advise(run: Run, *, risk: float = RISK, packer: str | None = None) -> Advice:
    """Changes to the configuration of a run, each replayed on the batches of its last 50 steps.

    Nothing is changed by it.

    Args:
        run: The run.
        risk: Share of runs of 1,000 steps that may run out of memory, 0 to 1.
        packer: By whose rule batches are cut where that wasn't recorded, as under ``probe.micro_batch(cap=…)``: one of
            :data:`probe.core.balancing.replay.PACKERS`. It has to give as many micro-batches as were recorded.

    Raises:
        InputError: The risk isn't above 0 and below 1, or no micro-batches were recorded.
        UnknownNameError: There is no such packer.
    """
    if not 0 < risk < 1:
        raise InputError(f"risk: got {risk}, expected a share above 0 and below 1")
    named = Settings.of({} if packer is None else {"packer": packer})
    replayer = Replayer(run)
    asking = Asking(run, replayer, risk, named)
    phases = list(dict.fromkeys((one.batch.role, one.batch.phase) for one in replayer.dealings))
    found: list[Suggestion] = []
    for role, phase in phases:
        own = replayer.only(role, phase)
        evened = asking.evened(own, role, phase)
        cap = asking.cap(own, role, phase)
        if evened is not None and cap is not None and evened.for_memory and cap.lowers:  # it needs none
            cap = None
        found += [one for one in (evened, cap, asking.rows(own, role, phase)) if one is not None]
    found = _one_a_key(found)
    found += _of_fixed_rows(asking, replayer, phases) + asking.packed(phases)
    found += [one for one in (asking.balance(), asking.strict()) if one is not None]
    found.sort(key=lambda one: (one.gain_share is None or one.gain_share >= 0, -(one.gain_share or 0.0)))
    memory = tuple(replayer.memory.values())
    times = Times(run, memory)
    found = [replace(one, when=times.of(one.what_if)) for one in found]
    room = tuple(rooms(run, memory))
    return Advice(framework(run), tuple(found), tuple(asking.remarks), memory, asking.limits, risk, room)


def _of_fixed_rows(
    asking: Asking, replayer: Replayer, phases: Sequence[tuple[str | None, str | None]]
) -> list[Suggestion]:
    """What becomes of fixed rows: micro-batches by tokens; but where today's run out of memory, and it isn't known
    whether those do, fewer rows.
    """
    by_tokens = asking.dynamic(phases)
    mended = {where for one in by_tokens if one.for_memory for where in one.phases}
    fewer = [asking.fewer_rows(replayer.only(*where), *where) for where in phases if where not in mended]
    found = _one_a_key([one for one in fewer if one is not None], "rows")
    at_risk = {where for one in found for where in one.phases}
    return [*found, *(one for one in by_tokens if not at_risk & one.phases)]


def _one_a_key(found: Sequence[Suggestion], kind: str = "cap") -> list[Suggestion]:
    """Of suggestions of a kind that one setting gives to several phases the smallest alone: with a larger one its phase
    is at risk.
    """
    smallest: dict[str, Suggestion] = {}
    for one in found:
        for key in list(one.values)[:1] if one.kind == kind else []:
            if key not in smallest or one.values[key] < smallest[key].values[key]:
                smallest[key] = one
    kept = list(smallest.values())
    return [one for one in found if one.kind != kind or not one.values or any(one is each for each in kept)]
