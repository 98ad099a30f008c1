"""Candidates of each kind for a run's configuration, tried on its batches and suggested where they are worth it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from probe.analysis import time_shares
from probe.analysis.advice.by_tokens import cap_by_tokens, fullest_of, longest_of, peak_under, step_of
from probe.analysis.advice.evening import in_step, other_way, saved_in_step
from probe.analysis.advice.fixed_rows import fewer_rows
from probe.analysis.advice.gains import Gain, gain_of, none_is_safe, peak_told, step_seconds, sure, today_told
from probe.analysis.advice.keys import (
    ACCUMULATED,
    EVALUATION,
    framework,
    key_of,
    shares_sequences,
    switched_together,
    switches_beside,
    value_of,
)
from probe.analysis.advice.nemo_rl import packed
from probe.analysis.advice.suggestions import CapLimit, Suggestion
from probe.analysis.change import Confidence, spelled
from probe.analysis.memory_model import MemoryModel, risk_of
from probe.analysis.what_if.answering import Replayer, WhatIf, together
from probe.analysis.what_if.cutting import parallel_of, recorded_cut
from probe.analysis.what_if.settings import Settings
from probe.errors import InputError
from probe.text import count, percent, ratio

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: A gain is worth a change from this share of a step on.
WORTH: Final = 0.01
#: Where no time is measured, so many fewer micro-batches are worth a change: each costs time of its own.
_FEWER: Final = 0.05
#: A cap is never foretold beyond so many times the largest micro-batch that was seen.
_BEYOND: Final = 2.0
#: A slider offers a cap up to so many times what it is now.
WIDEST: Final = 4


class Asking:
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
        self.step_s = step_seconds(self.shares)

    # ------------------------------------------------------------------------------------------------------ the cap

    def cap(self, own: Replayer, role: str | None, phase: str | None) -> Suggestion | None:
        """Another cap of one phase: the largest whose risk is small enough."""
        model = self.all.memory.get((role, phase))
        now = own.dealings[0].batch.rounds[0].calls[0]
        if now.cap_tokens is None or model is None or not self._foretells(model):
            return None
        if recorded_cut(now) is None and not self._named_rule(own, now.cap_tokens, phase):
            return None
        if not self._tells_sharing(own, phase):
            return None
        before = now.cap_tokens // parallel_of(own.dealings[0].batch.rounds[0])
        cap, beyond = self._largest(own, model, before)
        self.limits[role, phase] = CapLimit(cap, self._risky(own, model, before, cap))
        if cap is None:
            least = -(-longest_of(own) // step_of(before)) * step_of(before)
            known = self._risk(own, model, least)
            why = model.unseen[0].why if known is None and model.unseen else ""
            told = f"{phase or 'no phase'}: no cap is advised. {why}" if why else none_is_safe(phase, least, known)
            self.remarks.append(told)
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
            peak_told(
                answer.frame[answer.frame["number"] == "predicted_peak_bytes"], model, self._risk(own, model, cap)
            ),
            f"micro-batches of the rank with the most: {micro[0]:.4g} → {micro[1]:.4g} a step{gain.told()}",
        ]
        if cap < before:
            gains.insert(0, f"today's cap runs out of memory in {percent(today)} of runs of 1,000 steps")
        because, confidence = sure(answer, gain.surely or cap < before, gain)
        if beyond:
            confidence = "low" if confidence == "low" else "medium"
            because += f"; no micro-batch above {count(model.largest_tokens)} tokens was seen"
        key = key_of(self.run, "cap_tokens", model.phase) or "max_token_len"
        share = gain.share if cap > before else -1.0
        return self._made("cap", {key: cap}, {key: before}, gains, share, gain, confidence, because, answer)

    def _tells_sharing(self, own: Replayer, phase: str | None) -> bool:
        """Whether it is known how many ranks share a sequence: a cap is that of one; else there is a remark."""
        told = "sp_size" in own.dealings[0].batch.rounds[0].calls[0].arguments
        if not told and shares_sequences(self.run):
            self.remarks.append(
                f"{phase or 'no phase'}: no cap is advised, since its batches don't tell how many ranks share a row."
            )
            return False
        return True

    def _largest(self, own: Replayer, model: MemoryModel, before: int) -> tuple[int | None, bool]:
        """The largest cap whose risk is small enough, and whether it allows larger micro-batches than were seen."""
        parallel, step = parallel_of(own.dealings[0].batch.rounds[0]), step_of(before)
        most = max(int(model.largest_tokens * _BEYOND) // parallel, before)
        low, high = -(-longest_of(own) // step), most // step
        if high < low or not self._fits(own, model, low * step):
            return None, False
        if not self._fits(own, model, high * step):
            high = self._last(low, high, lambda at: self._fits(own, model, at * step))
        cap = high * step
        computed = max(fullest_of(own, self._under(own, cap)))
        return cap, max(computed, cap * parallel) > model.largest_tokens

    def _last(self, low: int, high: int, fits: Callable[[int], bool]) -> int:
        """The last that fits, between one that does and one that doesn't."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _fits(self, own: Replayer, model: MemoryModel, cap: int) -> bool:
        """Whether the risk is small enough, and what is computed isn't far beyond what was seen: a padded micro-batch
        is larger than its cap.
        """
        if not self._safe(own, model, cap):
            return False
        return max(fullest_of(own, self._under(own, cap))) <= _BEYOND * model.largest_tokens

    def _safe(self, own: Replayer, model: MemoryModel, cap: int) -> bool:
        """Whether the risk is known and small enough."""
        risk = self._risk(own, model, cap)
        return risk is not None and risk <= self.risk

    def _unsafe(self, own: Replayer, model: MemoryModel, cap: int) -> bool:
        """Whether the risk is known and too large."""
        return (self._risk(own, model, cap) or 0.0) > self.risk

    def _risky(self, own: Replayer, model: MemoryModel, before: int, best: int | None) -> int | None:
        """From which cap on the risk is too large: beyond what was seen, too, up to what a slider can ask for."""
        step = step_of(before)
        if best is None:
            least = -(-longest_of(own) // step) * step
            return least if self._unsafe(own, model, least) else None
        low, high = best // step, WIDEST * before // step
        if self._unsafe(own, model, best + step):
            return best + step
        if high <= low or not self._unsafe(own, model, high * step):
            return None
        return (self._last(low, high, lambda at: not self._unsafe(own, model, at * step)) + 1) * step

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
        gain = Gain(None if saved is None or self.step_s is None else saved[0] / self.step_s, saved)
        faster = gain.surely and (gain.share or 0.0) >= WORTH and (then is None or then <= self.risk)
        if model is None or not (mends or faster):
            return None
        gains = [f"today's micro-batches run out of memory in {percent(today)} of runs of 1,000 steps"] if mends else []
        if then is not None:
            peak = answer.frame[answer.frame["number"] == "predicted_peak_bytes"]
            gains.append(peak_told(peak, model, then))
        elif model.room_bytes is not None:
            gains += [one for one in answer.notes if "no peak is told" in one]
        if saved is not None:
            waits = "where ranks wait for each other after each micro-batch, as under FSDP"
            gains.append(f"{gain.told().lstrip(', ') or 'no time saved'}, {waits}")
        because, confidence = sure(answer, mends or faster, gain)
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
        keys = [key_of(self.run, "rows_each", phase) or "", *([] if phase == EVALUATION else [ACCUMULATED])]
        now = {key: value_of(self.run, key) for key in keys}
        each = max((len(part) for part in call.parts), default=0)
        if not all(isinstance(value, int) for value in now.values()) or not each or each % now[keys[0]]:
            return None
        untold = ""
        for times in (8, 4, 2):
            asked = Settings(packer="trl.fixed_rows", rows_each=each * times)
            if now.get(ACCUMULATED, times) % times or model.largest_tokens * _BEYOND < max(fullest_of(own, asked)):
                continue
            steps = [sorted(own.after(at, asked).micro_batches) for at in range(len(own))]
            risk = risk_of(model, steps)
            if risk is None or risk > self.risk:
                why = model.untold([one for step in steps for one in step])
                untold = untold or (f"{phase or 'no phase'}: more rows aren't advised. {why}" if why else "")
                continue
            values = {key: value // times if key == ACCUMULATED else value * times for key, value in now.items()}
            return self._of_rows(own.answer(asked, lambda: True), model, (now, values), risk)
        self.remarks += [untold] if untold else []
        return None

    def _of_rows(
        self, answer: WhatIf, model: MemoryModel, change: tuple[dict[str, Any], dict[str, Any]], risk: float
    ) -> Suggestion | None:
        gain, micro = self._gain(answer), answer.number("micro_batches")
        if gain.seconds is None or not gain.surely or (gain.share or WORTH) < WORTH:
            return None
        gains = [
            peak_told(answer.frame[answer.frame["number"] == "predicted_peak_bytes"], model, risk),
            f"micro-batches of the rank with the most: {micro[0]:.4g} → {micro[1]:.4g} a step{gain.told()}",
        ]
        because, confidence = sure(answer, gain.surely, gain)
        before, values = change
        return self._made("rows", values, before, gains, gain.share, gain, confidence, because, answer)

    def fewer_rows(self, own: Replayer, role: str | None, phase: str | None) -> Suggestion | None:
        """Fewer rows in each micro-batch, where those of today are too likely to run out of memory."""
        model = self.all.memory.get((role, phase))
        found = "" if model is None else fewer_rows(self.run, own, model, self.risk)
        if isinstance(found, str):
            self.remarks += [found] if found else []
            return None
        gain, answer = self._gain(found.answer), found.answer
        because, confidence = sure(answer, True, gain)
        change = found.values, found.before, found.told(gain)
        return self._made("rows", *change, -1.0, gain, confidence, because, answer, found.advice)

    # -------------------------------------------------------------------------------------------------- other changes

    def dynamic(self, phases: Sequence[tuple[str | None, str | None]]) -> list[Suggestion]:
        """Micro-batches by tokens instead of fixed rows, none of which computes more than the largest of today; one
        suggestion for phases that must be cut alike.
        """
        groups: dict[str, list[_Cap]] = {}
        for role, phase in phases:
            one = self._by_tokens(self.all.only(role, phase), role, phase)
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
            advice = f"Cut by tokens instead of fixed rows: {told}."
            suggestion = self._uneven("dynamic", values, advice, answer, caps)
            found += [] if suggestion is None else [suggestion]
        return found

    def _by_tokens(self, own: Replayer, role: str | None, phase: str | None) -> _Cap | None:
        call = own.dealings[0].batch.rounds[0].calls[0]
        if call.arguments.get("use_dynamic_bsz", True) or not self._tells_sharing(own, phase):
            return None
        model = self.all.memory.get((role, phase))
        found = cap_by_tokens(own, model, self.risk)
        if found.tokens is None:
            if found.why:
                self.remarks.append(f"{phase or 'no phase'}: to cut by tokens isn't advised. {found.why}")
            return None
        answer = own.answer(Settings(dynamic=True, cap_tokens=found.tokens), lambda: True)
        key, cap_key = key_of(self.run, "dynamic", phase), key_of(self.run, "cap_tokens", phase)
        values = {} if key is None or cap_key is None else {key: True, cap_key: found.tokens}
        peak, untold = peak_under(found, model, answer)
        today, then = found.today.risk or 0.0, None if found.then is None else found.then.risk
        mends = None if today <= self.risk or then is None else today
        return _Cap(phase, found.tokens, values, answer, peak, untold, mends)

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
                gains.append(
                    f"{told}{percent(least)} fewer tokens on the fullest rank, if time is proportional to tokens"
                )
            if not worth or not one.values:
                continue
            because, confidence = sure(answer, False)
            before, gain = {key: value_of(self.run, key) for key in one.values}, Gain(share, None)
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
        advice = "Deal rows to ranks by their workload before the batch is split."
        if framework(self.run) == "":
            call = f"get_seqlen_balanced_partitions(calculate_workload(lengths), {len(rounds.data_ranks)}, True)"
            advice += f" {call} returns the rows of each rank."
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
        because, confidence = sure(answer, True)
        return self._made("strict", values, now, gains, gain.share, gain, confidence, because, answer, advice)

    def _uneven(
        self, kind: str, values: dict[str, Any], advice: str, answer: WhatIf, caps: Sequence[_Cap] = ()
    ) -> Suggestion | None:
        gain, micro = self._gain(answer), answer.number("micro_batches")
        fewer = kind == "dynamic" and gain.seconds is None and micro[1] <= (1 - _FEWER) * micro[0]
        mends = [one for one in caps if one.mends is not None]
        if not mends and (gain.share or 0.0) < WORTH and not (gain.share is None and gain.surely) and not fewer:
            return None
        gains = [today_told(one.phase, one.mends) for one in mends]
        gains += [
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
            told = "" if gain.share is None or gain.share < 0 else f"{percent(gain.share)} of a step"
            gains.append(f"{told}{gain.told()}".lstrip(", ") or "no time saved")
        else:  # what a micro-batch costs isn't known, and it is what would be saved
            gain = Gain(None, None)
        gains += [one.peak for one in caps if one.peak]
        because, confidence = sure(answer, gain.surely or bool(mends), gain)
        if any(one.untold for one in caps):
            because, confidence = f"{because}; whether its memory suffices isn't known", "low"
        before = {key: value_of(self.run, key) for key in values}
        share = -1.0 if mends else gain.share
        return self._made(kind, values, before, gains, share, gain, confidence, because, answer, advice)

    def _made(
        self,
        kind: str,
        values: dict[str, Any],
        before: dict[str, Any],
        gains: Sequence[str],
        share: float | None,
        gain: Gain,
        confidence: Confidence,
        because: str,
        answer: WhatIf,
        advice: str = "",
    ) -> Suggestion:
        told = advice or "; ".join(f"Set {key} to {spelled(value)}" for key, value in values.items()) + "."
        return Suggestion(kind, values, before, told, tuple(gains), share, gain.seconds, confidence, because, answer)

    def _gain(self, answer: WhatIf) -> Gain:
        return gain_of(answer, self.shares, self.step_s)


@dataclass(frozen=True)
class _Cap:
    """Micro-batches of one phase by tokens."""

    phase: str | None
    tokens: int
    values: dict[str, Any]
    answer: WhatIf
    peak: str
    untold: bool
    mends: float | None  #: the risk of today where it is too large, and it is known that the cap's isn't
