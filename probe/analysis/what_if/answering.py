"""What a run's batches would have come to under other settings, beside what happened."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pandas as pd

from probe._progress import drawn
from probe.analysis.memory_model import MemoryModel, memory_models
from probe.analysis.time_model import TimeModel, time_models
from probe.analysis.what_if.batches import Round, StepBatch
from probe.analysis.what_if.cutting import Dealing, Made, cut_ranks, parallel_of, recorded_cut
from probe.analysis.what_if.happened import happened
from probe.analysis.what_if.numbers import StepNumbers, Width, step_numbers
from probe.analysis.what_if.processes import knowing, named, processes_of
from probe.analysis.what_if.processes import told as paces_told
from probe.analysis.what_if.recorded import step_batches
from probe.analysis.what_if.settings import Settings
from probe.analysis.what_if.telling import (
    FRAME,
    PREDICTED,
    Phase,
    Where,
    rows_of,
    step_time,
    step_times_together,
    untold,
)
from probe.analysis.what_if.together import together_batches
from probe.core.balancing.replay import COMPARED, Cut
from probe.errors import InputError
from probe.text import rows

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Called with the steps that are done and how many there are; False ends it.
Progress = Callable[[int, int], bool | None]

#: From so many batches on, each for one question, a bar is drawn: what is less is done in a few seconds.
DRAWN: Final = 1000

#: Of a run's steps so many, the last ones, are looked at unless they are named; of a large run fewer, but one at least,
#: so that no more micro-batches are read than :data:`MICRO_BATCHES`.
STEPS: Final = 50
MICRO_BATCHES: Final = 200_000


@dataclass(frozen=True)
class WhatIf:
    """What :func:`what_if` answers.

    Attributes:
        changes: What was asked to be other than it was, by name.
        frame: A row for each role, phase and number: before (as it was recorded) and after; for predictions also the
            ends low and high of the interval of after, and modelled, what the model says of the batches as they were
            cut, to which after compares. NaN where there is none. Numbers are means over steps, ``over_cap`` is a sum,
            ``largest_tokens`` and ``predicted_peak_bytes`` are maxima.
        saved_s: By (role, phase) the seconds of a step that are saved, by the time model, and how far their interval
            reaches to either side; only where there is a model.
        steps: How many were replayed.
        wanted: How many were to be; less are replayed where ``progress`` ended it.
        notes: What the answer assumes.
        compared: Whether the packer's rule is held beside the installed package by probe's tests, or is probe's own.
        refused: By step what the packer refuses.
        step_s: Seconds of a step as measured; less what its phases save, by the time model; and how far the interval of
            that reaches to either side. None where one of it isn't known.
    """

    changes: dict[str, Any]
    frame: pd.DataFrame
    saved_s: dict[tuple[str | None, str | None], tuple[float, float]]
    steps: int
    wanted: int
    notes: tuple[str, ...]
    compared: bool
    refused: dict[int | None, str]
    step_s: tuple[float, float, float] | None = None

    def number(self, name: str, *, role: str | None = None, phase: str | None = None) -> tuple[float, float]:
        """A number before and after, over the phases that are asked for: the sum of counts and tokens, the largest of
        everything else; NaN where it isn't known.

        Args:
            name: See :data:`probe.analysis.what_if.numbers.NUMBERS` and
                :data:`probe.analysis.what_if.telling.PREDICTED`.
            role: Only of this role.
            phase: Only of this phase.
        """
        here = self.frame[self.frame["number"] == name]
        here = here if role is None else here[here["role"] == role]
        here = here if phase is None else here[here["phase"] == phase]
        if here.empty:
            return math.nan, math.nan
        if name in ("micro_batches", "over_cap", "padding_tokens", "predicted_s"):
            return float(here["before"].sum(skipna=False)), float(here["after"].sum(skipna=False))
        every = name in PREDICTED  # what wasn't measured of one phase could be the largest
        return float(here["before"].max(skipna=not every)), float(here["after"].max(skipna=not every))

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON; None where a number isn't known."""
        told = [{name: _plain(value) for name, value in row.items()} for row in rows(self.frame)]
        saved = [
            {"role": role, "phase": phase, "saved_s": value, "within_s": reach}
            for (role, phase), (value, reach) in self.saved_s.items()
        ]
        return {
            "changes": self.changes,
            "steps": self.steps,
            "wanted": self.wanted,
            "numbers": told,
            "saved": saved,
            "step": None if self.step_s is None else dict(zip(("before", "after", "within"), self.step_s, strict=True)),
            "notes": list(self.notes),
            "compared": self.compared,
            "refused": [{"step": step, "why": why} for step, why in self.refused.items()],
        }

    def __repr__(self) -> str:
        asked = ", ".join(f"{name}={value!r}" for name, value in self.changes.items()) or "nothing changed"
        table = self.frame.to_string(index=False, na_rep="–", float_format=lambda one: f"{one:,.4g}")
        step = []
        if self.step_s is not None:
            before, after, reach = self.step_s
            step = [f"Time of a step: {before:,.4g} s → {after:,.4g} ± {reach:.2g} s"]
        told = [f"What if {asked}, over {self.steps} steps", table, *step, *self.notes]
        return "\n".join(told)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Replayer:
    """The batches of a run, read once for many questions.

    Args:
        run: The run.
        steps: That are replayed; None means the last :data:`STEPS`, of a large run fewer.
        role: Only batches of this role.
        phase: Only batches of this phase.
        models: Whether time and memory are predicted.

    Raises:
        InputError: Nothing was cut in these steps.
    """

    def __init__(
        self,
        run: Run,
        steps: Collection[int] | None = None,
        *,
        role: str | None = None,
        phase: str | None = None,
        models: bool = True,
    ) -> None:
        chosen: Collection[int] | None = _last_steps(run) if steps is None else steps
        told = together_batches(run, chosen or None, STEPS)
        known = {(one.step, one.role, one.phase) for one in told}
        told += [one for one in step_batches(run, chosen or []) if (one.step, one.role, one.phase) not in known]
        found = [one for one in told if (role is None or one.role == role) and (phase is None or one.phase == phase)]
        if not found:
            raise InputError("run: no micro-batches were recorded for these steps, role and phase")
        self._has([Dealing(one) for one in found])
        told_of = {one.step for one in found if one.step is not None and one.undealt is None}
        #: What was measured of them.
        self.happened = functools.cache(lambda: happened(run, told_of))
        phases = {(one.role, one.phase) for one in found}
        self.memory: dict[Any, MemoryModel] = {}
        self.time: dict[Any, TimeModel] = {}
        if models:
            self.memory = {(one.role, one.phase): one for one in memory_models(run) if (one.role, one.phase) in phases}
            self.time = knowing({(one.role, one.phase): one for one in time_models(run)}, found)

    def __len__(self) -> int:
        return len(self.dealings)

    def only(self, role: str | None, phase: str | None) -> Replayer:
        """The batches of one role and phase, with what was worked out of them.

        Args:
            role: None for none.
            phase: None for none.
        """
        made = copy.copy(self)
        made._has([one for one in self.dealings if (one.batch.role, one.batch.phase) == (role, phase)])
        return made

    def _has(self, dealings: list[Dealing]) -> None:
        self.dealings = dealings
        self._before: dict[int, StepNumbers] = {}
        # Whoever weighs two settings asks for their times, their memory and their risk: one after the other, each of
        # all batches.
        self._cut = functools.lru_cache(maxsize=2 * len(dealings))(self._cut_anew)

    def lengths(self) -> list[int]:
        """Tokens of each row of all batches."""
        calls = [call for one in self.dealings for told in one.batch.rounds for call in told.calls]
        return [length for call in calls for length in call.lengths]

    def before(self, at: int) -> StepNumbers:
        """What the batch came to as it was cut.

        Args:
            at: Number of the batch.
        """
        if at not in self._before:
            batch = self.dealings[at].batch
            first, cut = batch.rounds[0], recorded_cut(batch.rounds[0].calls[0])
            made = [[_lengths_of(call) for call in one.data_ranks] for one in batch.rounds]
            width = width_of(first, None) if cut is None else _width_under(cut, first, None)
            self._before[at] = named(step_numbers(made, _cap(first), width), self.processes(at))
        return self._before[at]

    def after(self, at: int, settings: Settings) -> StepNumbers:
        """What the batch comes to.

        Args:
            at: Number of the batch.
            settings: That are changed.

        Raises:
            InputError: The packer refuses, or isn't known.
            CapacityError: A row is above the cap.
        """
        made, applied = self.cut(at, settings)
        first = self.dealings[at].batch.rounds[0]
        width = _width_under(applied, first, settings.round_to)
        return named(step_numbers(made, applied.cap_tokens, width), self.processes(at))

    def processes(self, at: int) -> list[str]:
        """Of each data-parallel rank of a batch the process whose pace it has.

        Args:
            at: Number of the batch.
        """
        batch = self.dealings[at].batch
        return processes_of(batch.rounds[0], self.time.get((batch.role, batch.phase)))

    def cut(self, at: int, settings: Settings) -> tuple[list[Made], Cut]:
        """The batch cut anew: of each round the micro-batches of each rank, and what the packer was given.

        Args:
            at: Number of the batch.
            settings: That are changed.

        Raises:
            InputError: The packer refuses, or isn't known.
            CapacityError: A row is above the cap.
        """
        return self._cut(at, settings)

    def _cut_anew(self, at: int, settings: Settings) -> tuple[list[Made], Cut]:
        dealing = self.dealings[at]
        first = dealing.batch.rounds[0]
        before = parallel_of(first)
        dealt = dealing.rounds(settings)
        applied = settings.applied(
            recorded_cut(first.calls[0]), before=before, parallel=settings.sp_size or before, ranks=len(dealt[0])
        )
        made: list[Made] = []
        for at_round, ranks in enumerate(dealt):
            same = at_round and ranks is dealt[0]
            made.append(made[0] if same else cut_ranks(ranks, applied, settings.order))
        return made, applied

    def answer(self, settings: Settings, told: Callable[[], bool]) -> WhatIf:
        """What ``settings`` come to in all batches.

        Args:
            settings: That are changed.
            told: Called after each batch; False ends it.
        """
        phases: dict[Where, Phase] = {}
        refused: dict[int | None, str] = {}
        steps: set[int | None] = set()
        packers: set[str] = set()
        for at, dealing in enumerate(self.dealings):
            batch = dealing.batch
            try:
                after = self.after(at, settings)
            except InputError as error:
                refused[batch.step] = str(error)
            else:
                here = phases.setdefault((batch.role, batch.phase), Phase())
                here.steps.append(batch.step)
                here.before.append(self.before(at))
                here.after.append(after)
                here.predicted = here.predicted and _as_many_ranks(batch, settings)
                here.measured = here.measured and batch.undealt is None  # of those a step may be a mere number
                steps.add(batch.step)
            packers.add(_packer_of(batch, settings))
            if not told():
                break
        wanted = len({one.batch.step for one in self.dealings})
        if not phases and refused:
            step, why = next(iter(refused.items()))
            raise InputError(f"what_if: no step can be replayed with these settings; step {step}: {why}")
        frame, saved, known, untelling = [], {}, self.happened(), []
        for key, one in phases.items():
            time = self.time.get(key)
            memory = self.memory.get(key)
            frame += rows_of(key, one, memory, time, known)
            untelling.append("" if memory is None or not one.predicted else untold(key, memory, one.after))
            less = None if time is None else one.saved(time)
            if less is not None:
                saved[key] = (less[0] / len(one.before), less[1] / len(one.before))
        whole = sum(len(one.steps) for one in phases.values()) == len(self)  # else phases of a step are missing
        step_s = step_time(phases, self.time, known) if whole else None
        compared = packers <= COMPARED
        predicts = all(one.predicted for one in phases.values())
        first = {(one.batch.role, one.batch.phase): one.batch.rounds[0] for one in self.dealings}
        slow = [line for key in phases if key in self.time for line in paces_told(self.time[key], first[key])]
        notes = (*_notes(settings, packers, refused, len(steps), wanted, predicts), *slow, *filter(None, untelling))
        told_of = pd.DataFrame(frame, columns=list(FRAME))
        return WhatIf(settings.told(), told_of, saved, len(steps), wanted, notes, compared, refused, step_s)


def what_if(
    run: Run,
    changes: Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
    *,
    steps: Collection[int] | None = None,
    role: str | None = None,
    phase: str | None = None,
    progress: Progress | Literal[False] | None = None,
    **change: Any,
) -> Any:
    """What the batches of a run would have come to under other settings, beside what happened.

    Args:
        run: The run.
        changes: Settings by name, see :class:`probe.analysis.what_if.settings.Settings`; of several of them, each is a
            question of its own, and what they share is worked out once.
        steps: That are replayed; None means the last 50, of a large run fewer.
        role: Only batches of this role.
        phase: Only batches of this phase.
        progress: Called with the batches that are done and how many there are, over all questions. Where it returns
            False, what is done so far is the answer. None draws a bar on a terminal and in a notebook from
            :data:`DRAWN` batches on, which an interrupt ends; False draws none.
        **change: Settings, in the place of ``changes``.

    Returns:
        A :class:`WhatIf`; a list of them where ``changes`` is one.

    Raises:
        UnknownNameError: There is no such setting.
        InputError: Nothing was cut in these steps; the packer isn't known or refuses every batch.
    """
    if changes is not None and change:
        raise InputError(f"changes: got it and also {', '.join(change)} by keyword, expected one of the two ways")
    several = changes is not None and not isinstance(changes, Mapping)
    given = [change] if changes is None else [changes] if isinstance(changes, Mapping) else list(changes)
    asked = [Settings.of(one) for one in given]
    replayer = Replayer(run, steps, role=role, phase=phase)
    if progress is None:
        with drawn("Batches replayed", DRAWN) as bar:
            answers = _answers(replayer, asked, bar)
    else:
        answers = _answers(replayer, asked, progress or None)
    return answers if several else answers[0]


def _answers(replayer: Replayer, asked: Sequence[Settings], progress: Progress | None) -> list[WhatIf]:
    """The answer to each question; fewer where ``progress`` ends it."""
    done, total, ended = 0, len(asked) * len(replayer), False

    def told() -> bool:
        nonlocal done, ended
        done += 1
        ended = ended or (progress is not None and progress(done, total) is False)
        return not ended

    answers: list[WhatIf] = []
    for settings in asked:
        if ended:
            break
        answers.append(replayer.answer(settings, told))
    return answers


def together(answers: Sequence[WhatIf]) -> WhatIf:
    """Answers for different phases as one.

    Args:
        answers: At least one; no two of the same role and phase. Of several, ``changes`` is that of each, by phase.
    """
    if len(answers) == 1:
        return answers[0]
    changes = {str(one.frame["phase"].iloc[0]): one.changes for one in answers}
    saved = {key: value for one in answers for key, value in one.saved_s.items()}
    refused = {step: why for one in answers for step, why in one.refused.items()}
    return WhatIf(
        changes,
        pd.concat([one.frame for one in answers], ignore_index=True),
        saved,
        min(one.steps for one in answers),
        max(one.wanted for one in answers),
        tuple(dict.fromkeys(note for one in answers for note in one.notes)),
        all(one.compared for one in answers),
        refused,
        step_times_together([one.step_s for one in answers]),
    )


# ------------------------------------------------------------------------------------------------------ how it is done


def _last_steps(run: Run) -> list[int] | None:
    if not run.has("micro_batches"):
        if run.has("partitions"):  # a driver told of them alone, with or without a step
            return None
        raise InputError("run: no micro-batches were recorded")
    frame = run.sql(
        "select step, count(*) as n from micro_batches where step is not null group by step order by step desc"
    ).head(STEPS)
    few = frame["n"].cumsum() <= MICRO_BATCHES
    return [int(one) for one in frame["step"][few]] or [int(one) for one in frame["step"].head(1)]


def _lengths_of(call: Any) -> list[list[int]]:
    return [[call.lengths[row] for row in part] for part in call.parts]


def _cap(first: Round) -> int | None:
    return first.calls[0].cap_tokens


def _width_under(cut: Cut, first: Round, round_to: int | None) -> Width:
    """How wide what is computed on is under a packer: NeMo-RL's say it themselves."""
    if cut.packer == "nemo_rl.dynamic_batching":
        return Width(padded=True, round_to=cut.pad_multiple, shared=True, most=cut.width_tokens)
    if cut.packer.startswith("packing."):
        return Width(rows_to=cut.pad_multiple)
    return width_of(first, round_to)


def width_of(first: Round, round_to: int | None) -> Width:
    """How wide the rectangles of a round are.

    Args:
        first: The round.
        round_to: Widths of padded rows, and sums of packed ones, are multiples of it; None means 1.
    """
    call = first.calls[0]
    if all(one is None for one in call.widths):
        return Width(round_to=round_to or 1)
    longest = [max((call.lengths[row] for row in part), default=0) for part in call.parts]
    same = len(set(call.widths)) == 1 and any(wide != most for wide, most in zip(call.widths, longest, strict=True))
    return Width(padded=True, fixed=call.widths[0] if same else None, round_to=round_to or 1)


def _as_many_ranks(batch: StepBatch, settings: Settings) -> bool:
    """Whether as many ranks share the rows, and a sequence: models know no others."""
    first = batch.rounds[0]
    ranks, parallel = len(first.data_ranks), parallel_of(first)
    return settings.dp_size in (None, ranks) and settings.sp_size in (None, parallel)


def _packer_of(batch: StepBatch, settings: Settings) -> str:
    first = batch.rounds[0]
    try:
        return settings.applied(recorded_cut(first.calls[0]), before=1, parallel=1, ranks=len(first.calls)).packer
    except InputError:
        return ""


def _notes(
    settings: Settings, packers: set[str], refused: Mapping[Any, str], steps: int, wanted: int, predicts: bool
) -> tuple[str, ...]:
    told = []
    unknown = sorted(one for one in packers - COMPARED if one)
    if unknown:
        told.append(f"The rule of {', '.join(unknown)} is not compared with the package.")
    if settings.deals:
        told.append("Rows are dealt to ranks and mini-batches in the order in which they came, without a shuffle.")
    if not predicts:
        what = "number of data-parallel ranks" if settings.sp_size is None else "sequence-parallel size"
        told.append(f"Time and memory under another {what} aren't predicted: no run of it is known.")
    if refused:
        told.append(f"{len(refused)} steps can't be cut so: {next(iter(refused.values()))}.")
    if steps + len(refused) < wanted:
        told.append(f"It was ended after {steps} of {wanted} steps.")
    return tuple(told)
