"""The ledgers from a run's rows: fates, what the phases computed, and how long they took."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from probe.analysis.ledger.accounts import Ledger
from probe.analysis.ledger.lines import FATES, FateLine, SlotLine
from probe.analysis.ledger.slots import KINDS, SAMPLING, Batch, split
from probe.records import NOT_KNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from probe.runs.reader import Run

#: Fates of tokens that never reach a phase of training.
_NEVER: Final = ("truncated", "stale", "filtered", "failed", "dropped")

_FATES: Final = """
select step, process, batch_id, fate, tokens, samples, batch_tokens, batch_prompt_tokens, batch_samples, kept_samples,
       equal_tokens, loss_terms, trained_step
from token_fates where {steps}
"""

_COMPUTED: Final = """
select step, phase, sum(tokens)::bigint as tokens,
       sum(case when width_tokens is null then tokens else sequences * width_tokens end)::bigint as slots
from micro_batches where phase is not null and {steps} group by step, phase
"""

#: Tokens that were added beside the rectangles: one field of each batch tells.
_ADDED: Final = """
select step, phase, cause, sum(tokens)::bigint as tokens from (
  select step, phase, cause, process, batch_id, max(tokens) as tokens from padding
  where cause in ('filler_rows', 'rounding', 'sequence_parallel') and source not in {rectangles} and {steps}
  group by step, phase, cause, process, batch_id)
group by step, phase, cause
"""

#: Sources of padding rows whose rectangle micro-batches tell of, too.
_RECTANGLES: Final = (
    "('seqlen_balancing.partition', 'packing.packed', 'batched_data_dict.partition', 'micro_batch.told')"
)

_TIMES: Final = """
select step, coalesce(phase, name) as phase, kind, level, name, rank is not null as of_rank, sum(duration) as seconds
from spans where (level in ('step', 'phase') or (kind = 'phase' and name = 'generate')) and {steps}
group by all
"""


class _Times(NamedTuple):
    """Accelerator-seconds of one step: of all, and by phase."""

    whole: float
    phases: dict[str, float]


def gathered(run: Run, first: int | None, last: int | None, gpu_hour: float | None) -> Ledger | None:
    """The ledgers of some steps; None where nothing is known of what they sampled.

    Args:
        run: The run.
        first: The first step, None for the run's.
        last: The last one, likewise.
        gpu_hour: The price of an hour of one accelerator.
    """
    if not run.has("token_fates"):
        return None
    steps = f"step between {-(2**40) if first is None else int(first)} and {2**40 if last is None else int(last)}"
    fates = run.sql(_FATES.format(steps=steps))
    if fates.empty:
        return None
    ranks = max(len(run.ranks), 1)
    times = _times(run.sql(_TIMES.format(steps=steps)), ranks)
    computed = run.sql(_COMPUTED.format(steps=steps))
    added = run.sql(_ADDED.format(steps=steps, rectangles=_RECTANGLES))
    known = {int(step): group for step, group in fates.groupby("step")}
    told = {step: group["process"].nunique() for step, group in known.items()}
    if last is None and len(known) > 1 and told[max(known)] < max(told.values()):
        del known[max(known)]  # some ranks are still in it
    every = {step: _of_step(step, computed, added) for step in {*told, *map(int, times)}}
    book, last_of_all, again = _Book(gpu_hour), max(known), False
    for step, group in known.items():
        after = min((one for one in told if one > step), default=None)
        # Behind the last one a step may be under way whose samples aren't told yet, unless steps without are usual.
        inside = [one for one in sorted(every) if one > step and (again if after is None else one < after)]
        steps_of_it = [step, *(inside if _is_whole(group, [every[one] for one in (step, *inside)]) else [])]
        again, last_of_all = again or len(steps_of_it) > 1, max(last_of_all, *steps_of_it)
        book.add(group, *_together([every[one] for one in steps_of_it]), _sum([times.get(one) for one in steps_of_it]))
    on_device = any(not str(device).startswith("cpu") for device in run.processes["device"] if device)
    return book.ledger(min(known), last_of_all, unit="GPU-seconds" if on_device else "rank-seconds")


def _of_step(step: int, computed: pd.DataFrame, added: pd.DataFrame) -> tuple[dict[str, tuple[int, int]], int]:
    """Tokens and slots of each phase, and dummy tokens of the step."""
    phases = {
        str(row.phase): (int(row.tokens), int(row.slots)) for row in computed[computed["step"] == step].itertuples()
    }
    dummy = 0
    for row in added[added["step"] == step].itertuples():
        if row.cause == "filler_rows":
            dummy += int(row.tokens)
        elif row.phase in phases:
            tokens, slots = phases[row.phase]
            phases[row.phase] = (tokens, slots + int(row.tokens))
    return phases, dummy


_Phases = tuple[dict[str, tuple[int, int]], int]


def _is_whole(fates: pd.DataFrame, steps: list[_Phases]) -> bool:
    """Whether some steps train the answers of the first and no others: each phase of the later ones computes, with the
    first, a multiple of their tokens. So do further iterations over answers, and parts of a generation.
    """
    trained, (phases, dummy) = _trained(fates), _together(steps)
    prompts = _prompts(trained)
    once = 0 if prompts is None else prompts + int(trained["tokens"].sum()) + dummy
    computed = {phase for later, _ in steps[1:] for phase in later}
    return bool(once and computed) and not any(phases[one][0] % once for one in computed)


def _together(steps: list[_Phases]) -> _Phases:
    """Tokens and slots of each phase, and dummy tokens, of some steps."""
    phases: dict[str, tuple[int, int]] = {}
    for one, _ in steps:
        for phase, (tokens, slots) in one.items():
            before = phases.get(phase, (0, 0))
            phases[phase] = (before[0] + tokens, before[1] + slots)
    return phases, max((dummy for _, dummy in steps), default=0)


def _sum(times: list[_Times | None]) -> _Times | None:
    """The times of some steps together; None where those of one aren't known."""
    known = [one for one in times if one is not None]
    if len(known) < len(times):
        return None
    phases: dict[str, float] = defaultdict(float)
    for one in known:
        for phase, seconds in one.phases.items():
            phases[phase] += seconds
    return _Times(sum(one.whole for one in known), dict(phases))


def _times(spans: pd.DataFrame, ranks: int) -> dict[int, _Times]:
    """Accelerator-seconds of each step: of a phase those of its ranks; what a process without one does, all wait for.

    What ``generate`` takes inside another phase is its own, and not that one's.
    """
    found: dict[int, _Times] = {}
    for step, group in spans.groupby("step"):
        whole = _weighed(group[group["kind"] == "step"], ranks)
        outer = group[group["level"] == "phase"]
        phases = {str(name): _weighed(part, ranks) for name, part in outer.groupby("phase")}
        inner = group[(group["level"] == "inner") & (group["name"] == "generate")]
        if not inner.empty and "generate" not in phases:
            phases["generate"] = _weighed(inner, ranks)
            for around in ("rollout",):
                if around in phases:
                    phases[around] -= phases["generate"]
        found[int(step)] = _Times(whole, phases)
    return found


def _weighed(spans: pd.DataFrame, ranks: int) -> float:
    """Seconds of the ranks, added up; where no rank has any, those of the others times the ranks."""
    of_ranks = spans[spans["of_rank"]]["seconds"].sum()
    return float(of_ranks) if of_ranks else float(spans["seconds"].sum()) * ranks


class _Book:
    """Adds up both ledgers, step by step.

    Args:
        gpu_hour: The price of an hour.
    """

    def __init__(self, gpu_hour: float | None) -> None:
        self._gpu_hour = gpu_hour
        self._tokens: dict[str, int] = defaultdict(int)
        self._samples: dict[str, int] = defaultdict(int)
        self._fate_seconds: dict[str, float] = defaultdict(float)
        self._slots: dict[tuple[str, str], int] = defaultdict(int)
        self._slot_seconds: dict[tuple[str, str], float] = defaultdict(float)
        self._whole_s = self._used_s = 0.0
        self._batches = self._kept = 0
        self._equal: int | None = None
        self._terms: dict[str, None] = {}
        self._timed = True
        self._steps = 0

    def add(self, fates: pd.DataFrame, phases: dict[str, tuple[int, int]], dummy: int, times: _Times | None) -> None:
        """One step.

        Args:
            fates: Its rows of ``token_fates``.
            phases: Tokens and slots of each phase that cut micro-batches.
            dummy: Tokens of rows that fill the batch up.
            times: Of it; None where they aren't known.
        """
        self._steps += 1
        of_fate = {str(fate): int(tokens) for fate, tokens in fates.groupby("fate")["tokens"].sum().items()}
        for fate, tokens in of_fate.items():
            self._tokens[fate] += tokens
            self._samples[fate] += int(fates[fates["fate"] == fate]["samples"].sum())
        self._note(fates)
        trained = _trained(fates)
        everything = Batch(_prompts(fates), sum(of_fate.values()))
        seconds = {} if times is None else times.phases
        for phase in [one for one in seconds if one in SAMPLING][:1]:
            self._sample(phase, everything, of_fate, seconds[phase])
        kept = {str(fate): int(tokens) for fate, tokens in trained.groupby("fate")["tokens"].sum().items()}
        batch = Batch(_prompts(trained), sum(kept.values()), dummy)
        for phase, (tokens, slots) in phases.items():
            parts = split(phase, tokens=tokens, slots=slots, batch=batch)
            self._compute(phase, parts, kept, seconds.get(phase))
        if times is None or not times.whole:
            self._timed = False
        else:
            self._whole_s += times.whole

    def _sample(self, phase: str, batch: Batch, fates: dict[str, int], seconds: float) -> None:
        """The slots of generation are the tokens of prompts and answers; what an engine computes beside isn't known."""
        parts = {"response": batch.response} | ({"prompt": batch.prompt} if batch.prompt else {})
        self._compute(phase, parts, fates, seconds)

    def _compute(self, phase: str, parts: dict[str, int], fates: dict[str, int], seconds: float | None) -> None:
        slots = sum(parts.values())
        each = 0.0 if seconds is None or not slots else seconds / slots
        self._timed = self._timed and seconds is not None
        for kind, count in parts.items():
            self._slots[phase, kind] += count
            self._slot_seconds[phase, kind] += each * count
            self._used_s += each * count
        if "response" in parts:
            for fate, tokens in fates.items():
                self._fate_seconds[fate] += each * tokens

    def _note(self, fates: pd.DataFrame) -> None:
        batches = _batches(fates)
        self._batches += int(batches["batch_samples"].sum())
        self._kept += int(batches["kept_samples"].sum())
        with_advantage = fates[fates["fate"].isin(["carried", "clipped", "clip_unknown"])]["equal_tokens"].dropna()
        if len(with_advantage):
            self._equal = (self._equal or 0) + int(with_advantage.sum())
        for terms in batches["loss_terms"]:
            self._terms.update(dict.fromkeys(str(one) for one in terms))

    def ledger(self, first: int, last: int, unit: str) -> Ledger:
        """What has been added.

        Args:
            first: The first of its steps.
            last: The last.
            unit: Of its seconds.
        """
        total = sum(self._tokens.values())
        # What no token is known to do has no line, but where it is known that none did.
        none_carried = "carried" in self._tokens and not any(self._tokens.get(fate) for fate in NOT_KNOWN)
        fates = [
            FateLine(
                fate,
                self._tokens[fate],
                self._tokens[fate] / total if total else 0.0,
                self._samples[fate],
                self._told(self._fate_seconds[fate]),
                self._money(self._fate_seconds[fate]),
            )
            for fate in FATES
            if self._tokens.get(fate) or (fate == "carried" and none_carried)
        ]
        slots = [
            SlotLine(phase, kind, count, self._told(seconds), self._money(seconds))
            for (phase, kind), count in _in_order(self._slots.items())
            for seconds in (self._slot_seconds[phase, kind],)
        ]
        left = self._whole_s - self._used_s
        return Ledger(
            first,
            last,
            tuple(fates),
            tuple(slots),
            total,
            self._batches,
            self._kept,
            self._told(self._whole_s),
            self._told(left) if left > -1e-9 else None,  # phases that ran at the same time
            self._money(self._whole_s),
            self._gpu_hour,
            unit,
            tuple(self._terms),
            self._equal,
            self._steps,
        )

    def _told(self, seconds: float) -> float | None:
        return seconds if self._timed else None

    def _money(self, seconds: float) -> float | None:
        return None if self._gpu_hour is None or not self._timed else seconds * self._gpu_hour / 3600


def _in_order(slots: Iterable[tuple[tuple[str, str], int]]) -> list[tuple[tuple[str, str], int]]:
    """Sampling first, then phases by name, and kinds in their order."""
    return sorted(slots, key=lambda one: (one[0][0] not in SAMPLING, one[0][0], KINDS.index(one[0][1])))


def _trained(fates: pd.DataFrame) -> pd.DataFrame:
    """The rows of batches that have reached training: those of which not all was dropped before."""
    kept = fates[~fates["fate"].isin(_NEVER) & (fates["tokens"] > 0)]
    named = set(zip(kept["process"], kept["batch_id"], strict=True))
    return fates[[one in named for one in zip(fates["process"], fates["batch_id"], strict=True)]]


def _batches(fates: pd.DataFrame) -> pd.DataFrame:
    """A row of each batch, of those as its own step ended: what later ones move says nothing of it."""
    return fates[fates["trained_step"].isna()].drop_duplicates(["process", "batch_id"])


def _prompts(fates: pd.DataFrame) -> int | None:
    """Prompt tokens of batches; None where one doesn't tell."""
    found = _batches(fates)["batch_prompt_tokens"]
    values = [float(one) for one in found.astype("float64")]
    return None if any(math.isnan(one) for one in values) else int(sum(values))
