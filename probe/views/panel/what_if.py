"""The batches of a step as a page can cut them anew, and the answers to what a page can't work out itself.

A page packs rows as verl and fixed rows do (`static/src/packing.js`), so that it can answer while nobody else does. For
that it is handed the lengths of one step, what the packer was given, what the batches came to, and both models. Every
other question is answered here, from the run.
"""

from __future__ import annotations

import base64
import contextlib
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from probe.analysis.advice.adjustable import adjustable
from probe.analysis.memory_fit import REGRESSORS
from probe.analysis.memory_model import MemoryModel, memory_models
from probe.analysis.time_model import TimeModel, time_models
from probe.analysis.unseen import LITTLE, Unseen
from probe.analysis.what_if.answering import Replayer, width_of
from probe.analysis.what_if.batches import StepBatch
from probe.analysis.what_if.cutting import Dealing, parallel_of, recorded_cut
from probe.analysis.what_if.happened import Happened
from probe.analysis.what_if.numbers import StepNumbers
from probe.analysis.what_if.processes import knowing, processes_of
from probe.analysis.what_if.processes import told as paces_told
from probe.analysis.what_if.settings import Settings
from probe.core.balancing.replay import COMPARED, Cut
from probe.errors import InputError
from probe.sql import sql
from probe.text import missing, rows

if TYPE_CHECKING:
    from probe.analysis.advice import Advice
    from probe.runs.reader import Run

#: Letters of the lengths of a step, of all its phases together, and phases that a page is handed.
MOST_LETTERS: Final = 48 * 1024
MOST_PHASES: Final = 8
#: Steps that one question is about, at most.
MOST_STEPS: Final = 20
#: Seconds that one answer takes of whoever asks; where more is to be done, it says how far it is.
SLICE_S: Final = 0.25
#: Seconds after which both models are made again of a run that still grows.
MODELS_S: Final = 60.0

#: Packers whose rule a page has.
_IN_PAGES: Final = ("verl.rearrange_micro_batches", "verl.fixed_rows", "trl.fixed_rows")
#: What a page's rule is given of a cut.
_OF_CUT: Final = (
    "packer",
    "cap_tokens",
    "minimum_count",
    "divisor",
    "group_size",
    "counts_agreed",
    "rows_each",
    "ordered",
    "strict",
)
_SECONDS: Final = ("micro_batches", "tokens", "squares")

_ENDED: Final = """
select max(step) as step from (
  select b.step, count(distinct b.process) as cut, count(distinct m.process) as ended
  from micro_batches b left join (
    select process, step from memory where kind = 'step' and edge = 'leave') m
  on m.process = b.process and m.step = b.step
  where b.step > (select max(step) from micro_batches) - 10
  group by b.step) where ended = cut"""


class Models:
    """Both models of each role and phase of a run, made again now and then.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._made_at = -float("inf")
        self.memory: dict[Any, MemoryModel] = {}
        self.time: dict[Any, TimeModel] = {}

    def renew(self) -> None:
        """Make them again, where they are old."""
        if time.monotonic() - self._made_at < MODELS_S:
            return
        self.memory = {(one.role, one.phase): one for one in memory_models(self._run)}
        self.time = {(one.role, one.phase): one for one in time_models(self._run)}
        self._made_at = time.monotonic()


class _Remembering(Replayer):
    """Remembers what batches came to under the settings that were asked for last."""

    def __init__(self, run: Run, steps: Sequence[int], where: tuple[Any, Any], models: Models) -> None:
        super().__init__(run, steps, role=where[0], phase=where[1], models=False)
        self.dealings = [one for one in self.dealings if (one.batch.role, one.batch.phase) == where]  # None isn't any
        if not self.dealings:
            raise InputError(
                f"where: got {list(where)!r}, expected a role and phase that have micro-batches in these steps"
            )
        self.memory = {where: models.memory[where]} if where in models.memory else {}
        here = {where: models.time[where]} if where in models.time else {}
        self.time = knowing(here, [one.batch for one in self.dealings])
        self._settings: Settings | None = None
        self._after: dict[int, StepNumbers | InputError] = {}

    def after(self, at: int, settings: Settings) -> StepNumbers:
        if settings != self._settings:
            self._settings, self._after = settings, {}
        if at not in self._after:
            try:
                self._after[at] = super().after(at, settings)
            except InputError as error:
                self._after[at] = error
        found = self._after[at]
        if isinstance(found, InputError):
            raise found
        return found

    def go_on(self, settings: Settings, until: float) -> int:
        """Replay some more batches, one at least; how many are done."""
        begin = len(self._after) if settings == self._settings else 0
        for at in range(begin, len(self)):
            if at > begin and time.monotonic() > until:
                return at
            with contextlib.suppress(InputError):  # the answer says which steps it is refused for
                self.after(at, settings)
        return len(self)


class WhatIfs:
    """Answers questions about one run.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._models = Models(run)
        self._held: tuple[Any, _Remembering] | None = None

    def batches(self, step: int | None) -> dict[str, Any]:
        """The batches of a step as a page is handed them; see :func:`told_batches`.

        Args:
            step: None is the last one that has ended.
        """
        self._models.renew()
        wanted = last_ended(self._run) if step is None else step
        return told_batches(self._run, wanted, self._models)

    def answer(self, step: int, where: tuple[Any, Any], changes: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """What changes come to, or how far it is.

        Args:
            step: The last one that is replayed.
            where: Role and phase.
            changes: By the names of :class:`~probe.analysis.what_if.settings.Settings`.
            steps: How many steps are replayed.

        Returns:
            ``done`` and ``total`` steps; and once they are the same ``before``, ``after``, ``low``, ``high`` and
            ``modelled`` by the name of a number (see ``frame`` of
            :class:`~probe.analysis.what_if.answering.WhatIf`), ``saved`` (seconds, and how far the interval reaches;
            null without a model), ``notes`` and ``compared``. Where more is to be done, the same question goes on with
            it.

        Raises:
            UnknownNameError: There is no such setting.
            InputError: Nothing can be replayed so.
        """
        settings = Settings.of(changes)
        begin = time.monotonic()
        key = (step, where, steps)
        if self._held is None or self._held[0] != key:
            self._models.renew()
            chosen = _steps_until(self._run, step, min(max(steps, 1), MOST_STEPS))
            self._held = key, _Remembering(self._run, chosen, where, self._models)
        replayer = self._held[1]
        done, total = replayer.go_on(settings, begin + SLICE_S), len(replayer)
        if done < total:
            return {"done": done, "total": total}
        found = replayer.answer(settings, lambda: True)
        numbers = {str(one["number"]): one for one in rows(found.frame)}
        told = {
            side: {name: None if missing(one[side]) else float(one[side]) for name, one in numbers.items()}
            for side in ("before", "after", "low", "high", "modelled")
        }
        if found.step_s is not None:
            was, now, reach = found.step_s
            sides = {"before": was, "after": now, "low": now - reach, "high": now + reach}
            for side, value in sides.items():
                told[side]["predicted_step_s"] = value
        saved = found.saved_s.get(where)
        return {
            "done": done,
            "total": total,
            **told,
            "saved": None if saved is None else list(saved),
            "notes": list(found.notes),
            "compared": found.compared,
        }


def last_ended(run: Run) -> int | None:
    """The newest step that cut batches and has ended on every process that did; None where there is none.

    Args:
        run: The run.
    """
    if not run.has("micro_batches") or not run.has("memory"):
        return None
    found = run.sql(_ENDED)["step"].iloc[0]
    return None if missing(found) else int(found)


def told_batches(run: Run, step: int | None, models: Models) -> dict[str, Any]:
    """The batches of one step, as a page is handed them.

    Args:
        run: The run.
        step: None where there is none.
        models: Of the run.

    Returns:
        ``step``, and ``phases``, a list of :func:`_phase`.
    """
    if step is None:
        return {"step": None, "phases": []}
    try:
        replayer = Replayer(run, [step], models=False)
    except InputError:
        return {"step": step, "phases": []}
    replayer.time = knowing(models.time, [one.batch for one in replayer.dealings])
    letters, phases = 0, []
    for at, dealing in enumerate(replayer.dealings[:MOST_PHASES]):
        where = (dealing.batch.role, dealing.batch.phase)
        both = models.memory.get(where), replayer.time.get(where)
        one = _phase(run, dealing, replayer.before(at), both, replayer.happened())
        letters += len(one["lengths"])
        if letters > MOST_LETTERS:
            letters -= len(one["lengths"])
            one |= {"lengths": "", "in_page": False, "why": "More sequences than a page is handed."}
        phases.append(one)
    return {"step": step, "phases": phases}


def kept(run: Run) -> dict[str, Any] | None:
    """The batches of the last step that has ended; None where nothing was cut.

    Args:
        run: The run.
    """
    found = WhatIfs(run).batches(None)
    return found if found["phases"] else None


def with_limits(told: dict[str, Any], advice: Advice) -> dict[str, Any]:
    """Batches with what memory allows of each phase's cap.

    Args:
        told: Of :func:`told_batches`.
        advice: For the same run.

    Returns:
        The same; each phase whose memory model foretells it has ``caps``: ``best``, ``risky`` (see
        :class:`probe.analysis.advice.suggestions.CapLimit`) and ``risk``.
    """
    phases = []
    for one in told["phases"]:
        limit = advice.limits.get((one["role"], one["phase"]))
        phases.append(one if limit is None else one | {"caps": {**asdict(limit), "risk": advice.risk}})
    return told | {"phases": phases}


# --------------------------------------------------------------------------------------------------- what a page gets


def _phase(
    run: Run,
    dealing: Dealing,
    before: StepNumbers,
    models: tuple[MemoryModel | None, TimeModel | None],
    known: Happened,
) -> dict[str, Any]:
    """One role and phase: its settings, its lengths, by which rule they were cut, what they came to."""
    batch = dealing.batch
    first = batch.rounds[0]
    cut = recorded_cut(first.calls[0])
    memory, seconds = models
    in_page = cut is not None and cut.packer in _IN_PAGES
    width = width_of(first, None)
    names = processes_of(first, seconds)
    return {
        "role": batch.role,
        "phase": batch.phase,
        "packer": "" if cut is None else cut.packer,
        "compared": cut is not None and cut.packer in COMPARED,
        "in_page": in_page,
        "why": "" if cut is not None else "Which packer cut these batches wasn't recorded.",
        "settings": [one.to_dict() for one in adjustable(run, dealing)],
        "cuts": _cuts(cut, dealing) if in_page else {},
        "parallel": parallel_of(first),
        "width": {"padded": width.padded, "fixed": width.fixed, "round_to": width.round_to},
        "lengths": packed([[call.lengths for call in one.data_ranks] for one in batch.rounds]) if in_page else "",
        "before": _plain(before.values) | _measured(batch, known),
        "modelled": _modelled(before, memory, seconds),
        "work": _work(before, seconds, names),
        "seconds": None if seconds is None else _seconds_told(seconds, names) | {"notes": paces_told(seconds, first)},
        "memory": None if memory is None or memory.fit is None else _memory_told(memory),
        "unknown": _unknown(memory, seconds),
    }


def _cuts(cut: Cut | None, dealing: Dealing) -> dict[str, Any]:
    """What the packer is given when it cuts under a cap, and when it cuts fixed rows."""
    first = dealing.batch.rounds[0]
    made: dict[str, Any] = {"now": "fixed" if cut is not None and cut.packer.endswith("fixed_rows") else "capped"}
    for name, dynamic in (("capped", True), ("fixed", False)):
        if cut is None or (name != made["now"] and not cut.packer.startswith("verl.")):
            continue
        kind, parallel = Settings(dynamic=None if name == made["now"] else dynamic), parallel_of(first)
        given = kind.applied(cut, before=parallel, parallel=parallel, ranks=len(first.data_ranks))
        made[name] = {field: getattr(given, field) for field in _OF_CUT}
    return made


def packed(rounds: Sequence[Sequence[Sequence[int]]]) -> str:
    """Lengths of the rows of each rank in each round: rounds, ranks, the rows of each of them, and then the lengths, as
    unsigned 32-bit numbers, little-endian, deflated, in base64.

    Args:
        rounds: Of each the ranks, of each the lengths of its rows.

    >>> numbers = zlib.decompress(base64.b64decode(packed([[[5, 9], [7]]])))
    >>> np.frombuffer(numbers, "<u4").tolist()
    [1, 2, 2, 1, 5, 9, 7]
    """
    ranks = max((len(one) for one in rounds), default=0)
    filled = [[*one, *([[]] * (ranks - len(one)))] for one in rounds]
    told = [len(rounds), ranks, *(len(mine) for one in filled for mine in one)]
    told += [length for one in filled for mine in one for length in mine]
    return base64.b64encode(zlib.compress(np.array(told, "<u4").tobytes(), 9)).decode()


def _plain(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if missing(value) else float(value) for name, value in values.items()}


def _measured(batch: StepBatch, known: Happened) -> dict[str, float | None]:
    """What was recorded of what models predict; None where it isn't known."""
    if batch.undealt is not None:  # its step may be a mere number
        known = Happened()
    place = (batch.step, batch.role, batch.phase)
    return {
        "predicted_s": known.seconds.get(place),
        "predicted_peak_bytes": known.peak_bytes.get(place),
        "predicted_step_s": known.step_s.get(batch.step),
    }


def _modelled(before: StepNumbers, memory: MemoryModel | None, seconds: TimeModel | None) -> dict[str, float | None]:
    """What both models say of the batches as they were cut."""
    peak = math.nan if memory is None else memory.largest(sorted(before.micro_batches))[0]
    return {
        "predicted_s": None if seconds is None else seconds.seconds(seconds.slowest(before.works))[0],
        "predicted_peak_bytes": None if math.isnan(peak) else peak,
    }


def _work(before: StepNumbers, seconds: TimeModel | None, names: Sequence[str]) -> list[float]:
    """What the coefficients of :func:`_seconds_told` are of, for the batches as they were cut."""
    if seconds is None:
        return [sum(getattr(one, name) for one in before.slowest) for name in ("count", "computed", "squares")]
    row = np.array(seconds.row(seconds.slowest(before.works)))
    told: list[float] = (_in_order(seconds, names) @ row).tolist()
    return told


def _seconds_told(model: TimeModel, names: Sequence[str]) -> dict[str, Any]:
    """Seconds = coefficients · (micro-batches, tokens, squares, and of each rank with a pace of its own the seconds at
    the pace of the others), with their covariance and an interval's reach; and ``paces``, (rank, pace) of these.
    """
    order = _in_order(model, names)
    return {
        "coefficients": (order @ model.fit.coefficients).tolist(),
        "covariance": (order @ model.fit.covariance @ order.T).tolist(),
        "reach": model.fit.reach(),
        "paces": [[at, model.pace(name)] for at, name in _paced(model, names)],
    }


def _in_order(model: TimeModel, names: Sequence[str]) -> NDArray[np.float64]:
    """Which of a fit's names stands where in what a page is told, (n, k)."""
    told = [*_SECONDS, *(f"pace of {name}" for _, name in _paced(model, names))]
    return np.array([[float(name == own) for own in model.fit.names] for name in told])


def _paced(model: TimeModel, names: Sequence[str]) -> list[tuple[int, str]]:
    """The ranks with a pace of their own, and their processes."""
    return [(at, name) for at, name in enumerate(names) if name in model.paces]


def _memory_told(model: MemoryModel) -> dict[str, Any]:
    """Bytes = coefficients · (1, tokens, longest row, rows), with their covariance, noise and an interval's reach."""
    if model.fit is None:
        raise InputError("model: got one without a fit, expected one with a fit")
    one = np.eye(3)
    base = model.regressors([[0, 0, 0]])
    columns = np.concatenate([base, model.regressors(one) - base])  # (4, k): the constant, and what each adds to it
    return {
        "coefficients": (columns @ model.fit.coefficients).tolist(),
        "covariance": (columns @ model.fit.covariance @ columns.T).tolist(),
        "noise": list(model.fit.noise),
        "reach": model.fit.reach(),
        "room_bytes": model.room_bytes,
        "largest_tokens": model.largest_tokens,
        "unseen": [_unseen_told(one, columns, model) for one in model.unseen],
    }


def _unseen_told(one: Unseen, columns: NDArray[np.float64], model: MemoryModel) -> dict[str, Any]:
    """What was seen of a regressor without a coefficient, see :class:`probe.analysis.unseen.Unseen`: its place among a
    micro-batch's numbers, and what (1, tokens, longest row, rows) foretell of it.
    """
    return {
        "at": REGRESSORS.index(one.name),
        "foretold": (columns @ one.foretold).tolist(),
        "below": one.below,
        "above": one.above,
        "usual": one.usual,
        "little": LITTLE,
        "why": f"{model.phase or 'no phase'}: no peak is told. {one.why}",
    }


def _unknown(memory: MemoryModel | None, seconds: TimeModel | None) -> list[str]:
    """Why a time or a peak isn't predicted, a sentence each."""
    told = []
    if seconds is None:
        told.append("The time isn't predicted: the micro-batches' times don't show what a token costs.")
    if memory is None:
        told.append("The peak isn't predicted: no micro-batch has a peak of its own.")
    elif memory.fit is None:
        told.append(f"The peak isn't predicted. {memory.why} {memory.experiment}".strip())
    return told


def _steps_until(run: Run, step: int, count: int) -> list[int]:
    query = sql(
        "select distinct step from micro_batches where step <= {step} order by step desc limit {count}",
        step=int(step),
        count=int(count),
    )
    return [int(one) for one in run.sql(query)["step"]] if run.has("micro_batches") else []
