"""Which setting, which value: changes to a run's configuration, each tried on its own batches."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from probe.analysis import time_shares
from probe.analysis.advice.evening import in_step, other_way, saved_in_step
from probe.analysis.advice.keys import EVALUATION, framework, key_of, switched_together, switches_beside, value_of
from probe.analysis.advice.nemo_rl import packed
from probe.analysis.change import Change, Confidence, spelled
from probe.analysis.memory_model import MemoryModel, risk_of
from probe.analysis.what_if.answering import Replayer, WhatIf, together
from probe.analysis.what_if.cutting import recorded_cut
from probe.analysis.what_if.settings import Settings
from probe.errors import InputError
from probe.records import GIB
from probe.text import count, percent, ratio, seconds

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Share of runs of a thousand steps that may run out of memory.
RISK: Final = 0.02
#: A gain is worth a change from this share of a step on.
WORTH: Final = 0.01
#: Where no time is measured, so many fewer micro-batches are worth a change: each costs time of its own.
_FEWER: Final = 0.05
#: A cap is never foretold beyond so many times the largest micro-batch that was seen.
_BEYOND: Final = 2.0
#: A slider offers a cap up to so many times what it is now.
WIDEST: Final = 4
#: Caps are multiples of it where they are large.
_ROUND: Final = 256
#: Steps from which on a replay is more than a glance.
_FEW: Final = 3
_MANY: Final = 10


@dataclass(frozen=True)
class Suggestion:
    """A change, and what it brings.

    Attributes:
        kind: ``"cap"``, ``"rows"``, ``"dynamic"``, ``"balance"``, ``"evened"``, ``"strict"``, or of NeMo-RL
            ``"packing"`` or ``"algorithm"``.
        values: What to set, by dotted key; empty where the framework has no key for it.
        before: What it is now, by the same keys; None where the configuration doesn't say.
        advice: What to do, in words.
        gains: What the replay of it gives, a sentence each.
        gain_share: Of a step's time that is saved; None where it isn't known. Negative for a cap that has to go down.
        gain_s: Seconds of a step that are saved, and how far the interval reaches; None without a time model.
        confidence: How sure it is.
        because: What the confidence rests on.
        what_if: The replay.
    """

    kind: str
    values: dict[str, Any]
    before: dict[str, Any]
    advice: str
    gains: tuple[str, ...]
    gain_share: float | None
    gain_s: tuple[float, float] | None
    confidence: Confidence
    because: str
    what_if: WhatIf

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "kind": self.kind,
            "values": self.values,
            "before": self.before,
            "advice": self.advice,
            "gains": list(self.gains),
            "gain_share": self.gain_share,
            "gain_s": None if self.gain_s is None else list(self.gain_s),
            "confidence": self.confidence,
            "because": self.because,
            "what_if": self.what_if.to_dict(),
        }

    @property
    def lowers(self) -> bool:
        """Whether it is a cap that has to go down."""
        return self.kind == "cap" and any(value < self.before[key] for key, value in self.values.items())

    @property
    def for_memory(self) -> bool:
        """Whether it is needed lest memory run out: it stands before all that saves time."""
        return self.lowers or (self.gain_share is not None and self.gain_share < 0)

    @property
    def change(self) -> Change:
        """As the change of a finding, which prints the same."""
        told = tuple((key, value, self.before.get(key)) for key, value in self.values.items())
        key, value, now = told[0] if told else (None, None, None)
        return Change(self.advice, key, value, now, told[1:], self.gains, self.confidence, self.because)

    def __repr__(self) -> str:
        return "\n".join(self.change.told)


@dataclass(frozen=True)
class CapLimit:
    """What memory allows of a phase's cap, in tokens on one GPU.

    Attributes:
        best: The largest cap whose risk is small enough, not beyond twice the largest micro-batch that was seen; None
            where there is none.
        risky: From which on the risk is too large; None where no cap that could be asked for is.
    """

    best: int | None
    risky: int | None


@dataclass(frozen=True)
class Advice:
    """What :func:`advise` gives: suggestions, the largest gain first, and what can't be said.

    Attributes:
        framework: Of the run, "" for a loop of the user's own.
        suggestions: Each of them replayed.
        remarks: What is missing for more.
        memory: The memory model of each role and phase.
        limits: By role and phase what its memory allows of a cap; only where a model foretells it.
        risk: The share of runs of 1,000 steps that may run out of memory.
    """

    framework: str
    suggestions: tuple[Suggestion, ...]
    remarks: tuple[str, ...]
    memory: tuple[MemoryModel, ...]
    limits: Mapping[tuple[str | None, str | None], CapLimit] = field(default_factory=dict)
    risk: float = RISK

    @property
    def values(self) -> dict[str, Any]:
        """What all suggestions set, by dotted key; of two that set one key the one with the larger gain, and nothing of
        what another switches off.
        """
        found: dict[str, Any] = {}
        for one in self.suggestions:
            off = tuple(key.removesuffix("enabled") for key, value in found.items() if _switched_off(key, value))
            if not any(key in found or (off and key.startswith(off)) for key in one.values):
                found |= one.values
        return found

    @property
    def binding(self) -> MemoryModel | None:
        """The role and phase whose largest peak leaves least of the device's memory; None where none is known."""
        known = [one for one in self.memory if one.fit is not None and one.left_bytes is not None]
        return min(known, key=lambda one: one.left_bytes or 0.0, default=None)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "framework": self.framework,
            "binding_phase": None if self.binding is None else self.binding.phase,
            "suggestions": [one.to_dict() for one in self.suggestions],
            "remarks": list(self.remarks),
            "memory": [memory_told(one) for one in self.memory],
        }

    def __repr__(self) -> str:
        told = [repr(one) for one in self.suggestions] or ["Nothing was found that is worth a change."]
        memory = [_memory_line(one) for one in self.memory if one.fit is not None]
        binding = self.binding
        if binding is not None:
            left = (binding.left_bytes or 0.0) / GIB
            memory.append(f"{binding.phase or 'no phase'} needs most: its largest peak has left {left:.1f} GiB.")
        return "\n\n".join([*told, *(textwrap.fill(one, 102) for one in [*self.remarks, *memory])])


def _switched_off(key: str, value: Any) -> bool:
    """Whether a group of settings counts no longer: ``….enabled`` is false."""
    return value is False and key.endswith(".enabled")


def _memory_line(model: MemoryModel) -> str:
    """A memory model in words."""
    terms = [
        f"{value / 1024**2:.3g} ± {error / 1024**2:.1g} MiB {what}"
        for name, what in (("tokens", "a token"), ("longest", "a token of the longest row"), ("rows", "a row"))
        for value, error in [model.coefficient(name)]
        if abs(value) > max(1024, 2 * error)
    ]
    told = f"{model.phase or 'no phase'}: peak = {model.floor_bytes / GIB:.1f} GiB + {' + '.join(terms)}"
    if model.bytes_per_token_and_entry is not None:
        told += f"; a token's share ÷ the vocabulary is {model.bytes_per_token_and_entry:.3g} bytes"
    if model.drift_bytes_per_step:
        told += f"; {model.drift_bytes_per_step / 1024**2:+.3g} MiB a step beside it"
    return f"{told}."


def memory_told(model: MemoryModel) -> dict[str, Any]:
    """A memory model as plain values, for JSON.

    Args:
        model: Of a role and phase.
    """
    terms = {name: model.coefficient(name) for name in ("tokens", "longest", "rows")}
    told = {
        f"bytes_per_{name}": None if math.isnan(value) else {"value": value, "error": error}
        for name, (value, error) in terms.items()
    }
    return {
        "role": model.role,
        "phase": model.phase,
        "floor_bytes": None if math.isnan(model.floor_bytes) else model.floor_bytes,
        **told,
        "bytes_per_token_and_entry": model.bytes_per_token_and_entry,
        "drift_bytes_per_step": model.drift_bytes_per_step,
        "reserved_above_bytes": model.reserved_above_bytes,
        "capacity_bytes": model.capacity_bytes,
        "left_out": list(model.left_out),
        "why": model.why,
        "experiment": model.experiment,
    }


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
    asking = _Asking(run, replayer, risk, named)
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
    found += asking.dynamic(phases) + asking.packed(phases)
    found += [one for one in (asking.balance(), asking.strict()) if one is not None]
    found.sort(key=lambda one: (one.gain_share is None or one.gain_share >= 0, -(one.gain_share or 0.0)))
    memory = tuple(replayer.memory.values())
    return Advice(framework(run), tuple(found), tuple(asking.remarks), memory, asking.limits, risk)


#: TRL's number of micro-batches that make an update.
_ACCUMULATED: Final = "gradient_accumulation_steps"


def _step(cap: int) -> int:
    """What caps are multiples of."""
    return _ROUND if cap > 16 * _ROUND else max(1, cap // 64)


def _fullest(own: Replayer, settings: Settings) -> list[int]:
    """Tokens that are computed for the largest micro-batch of each step."""
    return [max(one[0] for one in own.after(at, settings).micro_batches) for at in range(len(own))]


def _one_a_key(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Of caps that one setting gives to several phases the smallest alone: under a larger one its phase is at risk."""
    smallest: dict[str, Suggestion] = {}
    for one in found:
        if one.kind == "cap":
            (key,) = one.values
            if key not in smallest or one.values[key] < smallest[key].values[key]:
                smallest[key] = one
    return [one for one in found if one.kind != "cap" or any(one is kept for kept in smallest.values())]


class _Asking:
    """Candidates of one run, one method each.

    Args:
        run: The run.
        replayer: Its batches.
        risk: Share of runs that may run out of memory.
        named: The packer, where it was named; of a run that tells its own nobody asks it.
    """

    def __init__(self, run: Run, replayer: Replayer, risk: float, named: Settings) -> None:
        self.run = run
        self.all = replayer
        self.risk = risk
        self.named = named
        self.remarks: list[str] = []
        self.limits: dict[tuple[str | None, str | None], CapLimit] = {}
        self.shares = time_shares.of_phases(run)
        self.step_s = _step_seconds(self.shares)

    # ------------------------------------------------------------------------------------------------------ the cap

    def cap(self, own: Replayer, role: str | None, phase: str | None) -> Suggestion | None:
        """Another cap of one phase: the largest whose risk is small enough."""
        model = self.all.memory.get((role, phase))
        now = own.dealings[0].batch.rounds[0].calls[0]
        if now.cap_tokens is None or model is None or not self._foretells(model):
            return None
        if recorded_cut(now) is None and not self._named_rule(own, now.cap_tokens, phase):
            return None
        before = now.cap_tokens // int(now.arguments.get("sp_size") or 1)
        cap, beyond = self._largest(own, model, before)
        self.limits[role, phase] = CapLimit(cap, self._risky(own, model, before, cap, beyond=beyond))
        if cap is None or abs(cap - before) < max(1, before * 0.03):
            return None
        today = risk_of(model, [sorted(own.before(at).micro_batches) for at in range(len(own))]) or 0.0
        answer = own.answer(self._under(own, cap), lambda: True)
        micro = answer.number("micro_batches")
        if (cap < before and today <= self.risk) or (cap > before and micro[1] > 0.99 * micro[0]):
            return None
        return self._of_cap(own, model, (before, cap), today, beyond, answer)

    def _under(self, own: Replayer, cap: int) -> Settings:
        """Another cap, by the rule that was recorded, else by the one that was named."""
        known = recorded_cut(own.dealings[0].batch.rounds[0].calls[0]) is not None
        return Settings(cap_tokens=cap) if known else replace(self.named, cap_tokens=cap)

    def _named_rule(self, own: Replayer, cap: int, phase: str | None) -> bool:
        """Whether a rule was named that gives as many micro-batches as were recorded; else there is a remark."""
        told = f"{phase or 'no phase'}: no cap is advised, since who cut its batches wasn't recorded"
        if self.named.packer is None:
            self.remarks.append(f"{told}. Name the rule with packer=, where it is one that is known.")
            return False
        try:
            counts = [own.after(at, replace(self.named, cap_tokens=cap)) for at in range(len(own))]
        except InputError as error:
            self.remarks.append(f"{told}, and {self.named.packer} refuses them: {error}.")
            return False
        same = all(
            one.values["micro_batches"] == own.before(at).values["micro_batches"] for at, one in enumerate(counts)
        )
        if not same:
            self.remarks.append(f"{told}, and {self.named.packer} doesn't give as many micro-batches as were recorded.")
        return same

    def _foretells(self, model: MemoryModel) -> bool:
        """Whether a model can say what a cap needs; what it lacks becomes a remark."""
        named = f"{model.role or 'no role'} · {model.phase or 'no phase'}"
        if model.fit is None:
            self.remarks.append(f"{named}: no cap is advised. {model.why} {model.experiment}".strip())
        elif model.room_bytes is None:
            self.remarks.append(f"{named}: no cap is advised, since the memory of the device isn't known.")
        return model.fit is not None and model.room_bytes is not None

    def _of_cap(
        self, own: Replayer, model: MemoryModel, caps: tuple[int, int], today: float, beyond: bool, answer: WhatIf
    ) -> Suggestion:
        before, cap = caps
        gain, micro = self._gain(answer), answer.number("micro_batches")
        gains = [
            _peak_told(
                answer.frame[answer.frame["number"] == "predicted_peak_bytes"], model, self._risk(own, model, cap)
            ),
            f"micro-batches of the rank with the most: {micro[0]:.4g} → {micro[1]:.4g} a step{gain.told()}",
        ]
        if cap < before:
            gains.insert(0, f"today's cap runs out of memory in {percent(today)} of runs of 1,000 steps")
        because, confidence = _sure(answer, gain.surely or cap < before)
        if beyond:
            confidence = "low" if confidence == "low" else "medium"
            because += f"; no micro-batch above {count(model.largest_tokens)} tokens was seen"
        key = key_of(self.run, "cap_tokens", model.phase) or "max_token_len"
        share = gain.share if cap > before else -1.0
        return self._made("cap", {key: cap}, {key: before}, gains, share, gain, confidence, because, answer)

    def _largest(self, own: Replayer, model: MemoryModel, before: int) -> tuple[int | None, bool]:
        """The largest cap whose risk is small enough, and whether only the end of what was seen keeps it there."""
        longest = max(own.lengths())
        most = max(int(model.largest_tokens * _BEYOND), before)
        step = _step(before)
        low, high = -(-longest // step), most // step
        if high < low or (self._risk(own, model, low * step) or 0.0) > self.risk:
            return None, False
        if (self._risk(own, model, high * step) or 0.0) <= self.risk:
            return high * step, True
        low = self._safe(own, model, (low, high), step)
        return low * step, low * step > model.largest_tokens

    def _safe(self, own: Replayer, model: MemoryModel, ends: tuple[int, int], step: int) -> int:
        """The last cap in steps whose risk is small enough, between one that is safe and one that isn't."""
        low, high = ends
        while high - low > 1:
            middle = (low + high) // 2
            at = self._risk(own, model, middle * step)
            low, high = (low, middle) if at is None or at > self.risk else (middle, high)
        return low

    def _risky(self, own: Replayer, model: MemoryModel, before: int, best: int | None, *, beyond: bool) -> int | None:
        """From which cap on the risk is too large: beyond what was seen, too, up to what a slider can ask for."""
        step = _step(before)
        if best is None:
            return -(-max(own.lengths()) // step) * step
        low, high = best // step, WIDEST * before // step
        if not beyond or (self._risk(own, model, best + step) or 0.0) > self.risk:
            return best + step
        if high <= low or (self._risk(own, model, high * step) or 0.0) <= self.risk:
            return None
        return (self._safe(own, model, (low, high), step) + 1) * step

    def _risk(self, own: Replayer, model: MemoryModel, cap: int) -> float | None:
        steps = []
        for at in range(len(own)):
            try:
                steps.append(sorted(own.after(at, self._under(own, cap)).micro_batches))
            except InputError:
                return 1.0
        return risk_of(model, steps)

    def evened(self, own: Replayer, role: str | None, phase: str | None) -> Suggestion | None:
        """Micro-batches even in their tokens in the place of their work, or the other way round: where today's risk to
        memory is too high and falls, or ranks that go in step surely wait less, and memory allows it.
        """
        other, model = other_way(own), self.all.memory.get((role, phase))
        time = self.all.time.get((role, phase)) if in_step(own) else None
        if other is None:
            return None
        asked = Settings.of({"evened": other})
        try:
            answer = own.answer(asked, lambda: True)
            today, then = (self._risk_under(own, model, one) for one in (Settings(), asked))
            saved = None if time is None else saved_in_step(own, time, asked)
        except InputError:
            return None
        mends = today is not None and then is not None and today > self.risk >= then
        gain = _Gain(None if saved is None or self.step_s is None else saved[0] / self.step_s, saved)
        faster = gain.surely and (gain.share or 0.0) >= WORTH and (then is None or then <= self.risk)
        if model is None or not (mends or faster):
            return None
        gains = [f"today's micro-batches run out of memory in {percent(today)} of runs of 1,000 steps"] if mends else []
        if then is not None:
            peak = answer.frame[answer.frame["number"] == "predicted_peak_bytes"]
            gains.append(_peak_told(peak, model, then))
        if saved is not None:
            waits = "where ranks wait for each other after each micro-batch, as under FSDP"
            gains.append(f"{gain.told().lstrip(', ') or 'no time saved'}, {waits}")
        because, confidence = _sure(answer, mends or faster)
        now = "tokens" if other == "workload" else "workload"
        share = -1.0 if mends else gain.share
        told = f"Make micro-batches even in their {other}, not in their {now}: set balance to {other!r}."
        return self._made(
            "evened", {"balance": other}, {"balance": now}, gains, share, gain, confidence, because, answer, told
        )

    def _risk_under(self, own: Replayer, model: MemoryModel | None, settings: Settings) -> float | None:
        if model is None:
            return None
        return risk_of(model, [sorted(own.after(at, settings).micro_batches) for at in range(len(own))])

    # ----------------------------------------------------------------------------------------------------- fixed rows

    def rows(self, own: Replayer, role: str | None, phase: str | None) -> Suggestion | None:
        """More rows in each of TRL's micro-batches, and as many fewer of them accumulated: the update is the same. An
        evaluation accumulates none, and has a setting of its own.
        """
        model = self.all.memory.get((role, phase))
        call = own.dealings[0].batch.rounds[0].calls[0]
        if framework(self.run) != "trl" or call.cap_tokens is not None or model is None or not self._foretells(model):
            return None
        keys = [key_of(self.run, "rows_each", phase) or "", *([] if phase == EVALUATION else [_ACCUMULATED])]
        now = {key: value_of(self.run, key) for key in keys}
        each = max((len(part) for part in call.parts), default=0)
        if not all(isinstance(value, int) for value in now.values()) or not each or each % now[keys[0]]:
            return None
        for times in (8, 4, 2):
            asked = Settings(packer="trl.fixed_rows", rows_each=each * times)
            if now.get(_ACCUMULATED, times) % times or model.largest_tokens * _BEYOND < max(_fullest(own, asked)):
                continue
            risk = risk_of(model, [sorted(own.after(at, asked).micro_batches) for at in range(len(own))])
            if risk is None or risk > self.risk:
                continue
            values = {key: value // times if key == _ACCUMULATED else value * times for key, value in now.items()}
            return self._of_rows(own.answer(asked, lambda: True), model, (now, values), risk)
        return None

    def _of_rows(
        self, answer: WhatIf, model: MemoryModel, change: tuple[dict[str, Any], dict[str, Any]], risk: float
    ) -> Suggestion | None:
        gain, micro = self._gain(answer), answer.number("micro_batches")
        if gain.seconds is None or not gain.surely or (gain.share or WORTH) < WORTH:
            return None
        gains = [
            _peak_told(answer.frame[answer.frame["number"] == "predicted_peak_bytes"], model, risk),
            f"micro-batches of the rank with the most: {micro[0]:.4g} → {micro[1]:.4g} a step{gain.told()}",
        ]
        because, confidence = _sure(answer, gain.surely)
        if confidence == "high":  # a row's own share of the memory isn't seen while all have as many
            confidence, because = "medium", f"{because}; no micro-batch with more rows was seen"
        before, values = change
        return self._made("rows", values, before, gains, gain.share, gain, confidence, because, answer)

    # -------------------------------------------------------------------------------------------------- other changes

    def dynamic(self, phases: Sequence[tuple[str | None, str | None]]) -> list[Suggestion]:
        """Micro-batches by tokens in the place of fixed rows, none larger than the largest of today; one suggestion for
        phases that must be cut alike.
        """
        groups: dict[str, list[_Cap]] = {}
        for role, phase in phases:
            one = self._by_tokens(self.all.only(role, phase), phase)
            if one is not None:
                groups.setdefault(switched_together(self.run, phase), []).append(one)
        found = []
        for caps in groups.values():
            values: dict[str, Any] = {}
            for one in caps:
                values |= one.values
            if values:
                values |= dict.fromkeys(switches_beside(self.run, values), True)
            answer = together([one.answer for one in caps])
            told = " and ".join(f"{one.phase or 'the batch'} under a cap of {count(one.tokens)}" for one in caps)
            advice = f"Cut by tokens in the place of fixed rows: {told}."
            suggestion = self._uneven("dynamic", values, advice, answer)
            found += [] if suggestion is None else [suggestion]
        return found

    def _by_tokens(self, own: Replayer, phase: str | None) -> _Cap | None:
        call = own.dealings[0].batch.rounds[0].calls[0]
        if call.arguments.get("use_dynamic_bsz", True):
            return None
        largest = max(one[0] for at in range(len(own)) for one in own.before(at).micro_batches)
        try:
            answer = own.answer(Settings(dynamic=True, cap_tokens=largest), lambda: True)
        except InputError:
            return None
        key, cap_key = key_of(self.run, "dynamic", phase), key_of(self.run, "cap_tokens", phase)
        values = {} if key is None or cap_key is None else {key: True, cap_key: largest}
        return _Cap(phase, largest, values, answer)

    def packed(self, phases: Sequence[tuple[str | None, str | None]]) -> list[Suggestion]:
        """NeMo-RL's sequence packing in the place of its dynamic batching, or by a rule that needs fewer bins."""
        found = []
        for one in packed(self.run, [(phase, self.all.only(role, phase)) for role, phase in phases]):
            answer = together(one.answers)
            micro, padding = answer.number("micro_batches"), answer.number("padding_tokens")
            known = {phase: self.shares[phase][1] for phase in one.fewer if phase in self.shares}
            share = sum(part * one.fewer[phase] for phase, part in known.items()) if known else None
            least = min(one.fewer.values())
            gains = [f"micro-batches of the rank with the most: {micro[0]:.4g} → {micro[1]:.4g} a step"]
            if one.kind == "algorithm":  # what is computed is the same, in fewer bins
                worth, share = micro[1] <= (1 - _FEWER) * micro[0], None
            else:
                worth = least > 0 and (least >= _FEWER if share is None else share >= WORTH)
                gains.insert(0, f"padding {count(padding[0])} → {count(padding[1])} tokens a step")
                told = "" if share is None else f"{percent(share)} of a step, "
                gains.append(f"{told}{percent(least)} fewer tokens on the fullest rank, if time goes by tokens")
            if not worth or not one.values:
                continue
            because, confidence = _sure(answer, False)
            before, gain = {key: value_of(self.run, key) for key in one.values}, _Gain(share, None)
            found.append(
                self._made(one.kind, one.values, before, gains, share, gain, confidence, because, answer, one.advice)
            )
        return found

    def balance(self) -> Suggestion | None:
        """Rows dealt to ranks by work."""
        rounds = self.all.dealings[0].batch.rounds[0]
        if len(rounds.data_ranks) < 2:
            return None
        dealt = self.all.dealings[0].batch.dealt is not None
        key = key_of(self.run, "balance", None)
        if dealt and key is not None and value_of(self.run, key) is not False:
            return None
        try:
            answer = self.all.answer(Settings(balance="batch"), lambda: True)
        except InputError:
            return None
        advice = "Deal the rows of a batch to the ranks by work before it is split."
        if framework(self.run) == "":
            call = f"get_seqlen_balanced_partitions(calculate_workload(lengths), {len(rounds.data_ranks)}, True)"
            advice += f" {call} says which rows each rank gets."
        return self._uneven("balance", {} if key is None else {key: True}, advice, answer)

    def strict(self) -> Suggestion | None:
        """A cap that holds, where the packer lets micro-batches be above it."""
        over = sum(self.all.before(at).values["over_cap"] for at in range(len(self.all)))
        if not over:
            return None
        try:
            answer = self.all.answer(Settings(strict=True), lambda: True)
        except InputError:
            return None
        before, after = answer.number("over_cap")
        if after >= before:
            return None
        verl = framework(self.run) == "verl"
        told = self.all.dealings[0].batch.rounds[0].calls[0]
        own = told.packer.startswith("probe") and told.arguments.get("strict") is False
        values, now = ({"strict": True}, {"strict": False}) if own else ({}, {})
        advice = "Use verl 0.9.1 or later, whose cap holds." if verl else "Cut with strict=True, so that the cap holds."
        gains = [f"micro-batches above the cap: {before:.0f} → {after:.0f}"]
        gain = self._gain(answer)
        because, confidence = _sure(answer, True)
        return self._made("strict", values, now, gains, gain.share, gain, confidence, because, answer, advice)

    def _uneven(self, kind: str, values: dict[str, Any], advice: str, answer: WhatIf) -> Suggestion | None:
        gain, micro = self._gain(answer), answer.number("micro_batches")
        fewer = kind == "dynamic" and gain.seconds is None and micro[1] <= (1 - _FEWER) * micro[0]
        if (gain.share or 0.0) < WORTH and not (gain.share is None and gain.surely) and not fewer:
            return None
        gains = [
            f"{what} {ratio(before)} → {ratio(after)}"
            for name, what in (
                ("rank_imbalance_ratio", "imbalance over ranks"),
                ("mini_batch_imbalance_ratio", "imbalance over mini-batches"),
            )
            for before, after in [answer.number(name)]
            if before - after >= 0.005
        ]
        if kind == "dynamic" and micro[0] > micro[1]:
            gains.append(f"micro-batches of the rank with the most: {micro[0]:.4g} → {micro[1]:.4g} a step")
        padding = answer.number("padding_tokens")
        if padding[0] - padding[1] >= 0.01 * max(padding[0], 1):
            gains.append(f"padding {count(padding[0])} → {count(padding[1])} tokens a step")
        if gain.seconds is not None or (gain.share or 0.0) >= WORTH:
            gains.append(
                f"{'' if gain.share is None else f'{percent(gain.share)} of a step'}{gain.told()}".lstrip(", ")
            )
        else:  # what a micro-batch costs isn't known, and it is what would be saved
            gain = _Gain(None, None)
        because, confidence = _sure(answer, gain.surely)
        before = {key: value_of(self.run, key) for key in values}
        return self._made(kind, values, before, gains, gain.share, gain, confidence, because, answer, advice)

    def _made(
        self,
        kind: str,
        values: dict[str, Any],
        before: dict[str, Any],
        gains: Sequence[str],
        share: float | None,
        gain: _Gain,
        confidence: Confidence,
        because: str,
        answer: WhatIf,
        advice: str = "",
    ) -> Suggestion:
        told = advice or "; ".join(f"Set {key} to {spelled(value)}" for key, value in values.items()) + "."
        return Suggestion(kind, values, before, told, tuple(gains), share, gain.seconds, confidence, because, answer)

    def _gain(self, answer: WhatIf) -> _Gain:
        """Of a step: by the time model where all phases have one, else by what ranks wait."""
        phases = answer.frame[["role", "phase"]].drop_duplicates().itertuples(index=False, name=None)
        keys = list(phases)
        if keys and all(key in answer.saved_s for key in keys):
            value, reach = (sum(answer.saved_s[key][at] for key in keys) for at in (0, 1))
            share = None if self.step_s is None else value / self.step_s
            return _Gain(share, (value, reach))
        share, known = 0.0, False
        for role, phase in keys:
            before, after = answer.number("waiting_ratio", role=role, phase=phase)
            part = self.shares.get(phase, (math.nan, math.nan))[1]
            if math.isfinite(part) and math.isfinite(before - after):
                share, known = share + (before - after) * part, True
        return _Gain(share if known else None, None)


@dataclass(frozen=True)
class _Cap:
    """Micro-batches of one phase by tokens."""

    phase: str | None
    tokens: int
    values: dict[str, Any]
    answer: WhatIf


@dataclass(frozen=True)
class _Gain:
    share: float | None
    seconds: tuple[float, float] | None

    @property
    def surely(self) -> bool:
        """Whether the interval leaves nothing out."""
        return self.seconds is not None and self.seconds[0] > self.seconds[1]

    def told(self) -> str:
        """In words, to go on a sentence with."""
        if self.seconds is None:
            return ", if time goes by tokens"
        value, reach = self.seconds
        if not value and not reach:  # no term of its time is changed by it
            return ""
        return f", {'−' if value >= 0 else '+'}{seconds(abs(value))} ± {seconds(reach)} a step"


def _step_seconds(shares: Mapping[str | None, tuple[float, float]]) -> float | None:
    told = [took / share for took, share in shares.values() if share > 0]
    return sorted(told)[len(told) // 2] if told else None


def _peak_told(peak: Any, model: MemoryModel, risk: float | None) -> str:
    room, row = model.room_bytes or math.nan, peak.iloc[0]
    reach = (row["high"] - row["low"]) / 2 / GIB
    return (
        f"{model.phase or 'it'} peaks at {row['after'] / GIB:.1f} ± {reach:.1f} GiB of {room / GIB:.1f} "
        f"(out of memory in {_share(risk)} of runs of 1,000 steps)"
    )


def _share(risk: float | None) -> str:
    """A risk in words; one that is next to nothing has no digits to trust."""
    return "less than 0.01 %" if risk is not None and 0 < risk < 1e-4 else percent(risk)


def _sure(answer: WhatIf, surely: bool) -> tuple[str, Confidence]:
    rule = "by the rule of its packer" if answer.compared else "by a rule not compared with the package"
    told = f"{answer.steps} steps replayed {rule}"
    if answer.refused:
        told += f", {len(answer.refused)} that can't be cut so"
    if not answer.compared or answer.steps < _FEW or answer.refused:
        return told, "low"
    if not surely:
        return f"{told}; its time isn't measured", "medium"
    return told, "high" if answer.steps >= _MANY else "medium"
