"""The lines of both ledgers, and how their titles, shares, seconds and money are said."""

from __future__ import annotations

from typing import Final, NamedTuple

from probe import text as words

#: Title of each fate, and what it means.
FATES: Final = {
    "truncated": ("Truncated and dropped", "the answer reached the token limit and was left out for it"),
    "stale": ("Stale", "sampled by weights that were too old"),
    "filtered": ("Filtered group", "its group was left out before training"),
    "failed": ("Failed", "its rollout or its reward failed"),
    "dropped": ("Dropped", "left out for another reason, or not trained in its step"),
    "masked": ("Masked", "outside the loss: tool output, or tokens that a mask leaves out"),
    "no_advantage": ("No advantage", "the advantage is 0, as where all rewards of a group are equal"),
    "clipped": ("Clipped in every epoch", "its ratio was outside the clip range in each pass"),
    "clip_unknown": ("Reached the loss", "with an advantage; whether it was clipped isn't known"),
    "unknown": ("Not known", "what became of it wasn't recorded"),
    "carried": ("Carried policy gradient", ""),
}

#: What slots of each kind are called, and what they are.
SLOTS: Final = {
    "response": ("Answers", "tokens of answers, computed on once"),
    "prompt": ("Prompts", "tokens of prompts"),
    "again": ("Computed again", "log-probabilities of old and reference policies, and further epochs"),
    "dummy": ("Dummy rows", "rows that only fill up a batch"),
    "padding": ("Padding", "slots without a token"),
    "tokens": ("Prompts or answers", "which of them isn't known"),
}


class FateLine(NamedTuple):
    """One fate of sampled tokens.

    Attributes:
        fate: Of :data:`probe.records.FATES`.
        tokens: How many.
        ratio: Of the sampled tokens, 0 to 1.
        samples: Answers that have at least one such token.
        seconds: Of accelerators, that sampling these tokens and computing on them the first time took; None where the
            phases' times aren't known.
        money: Of that; None without a price.
    """

    fate: str
    tokens: int
    ratio: float
    samples: int
    seconds: float | None
    money: float | None


class SlotLine(NamedTuple):
    """Computed slots of one kind in one phase.

    Attributes:
        phase: Its name.
        kind: Of :data:`probe.analysis.ledger.slots.KINDS`.
        slots: How many.
        seconds: Of accelerators: the phase's, by slots; None where they aren't known.
        money: Of that; None without a price.
    """

    phase: str
    kind: str
    slots: int
    seconds: float | None
    money: float | None


def told_share(ratio: float) -> str:
    """A share in words; one that isn't quite all isn't rounded to it.

    >>> told_share(0.995), told_share(1.0), told_share(0.27)
    ('99.5 %', '100 %', '27 %')
    """
    return f"{100 * ratio:.1f} %" if 0.99 <= ratio < 0.9995 else words.percent(ratio)


def told_seconds(value: float | None) -> str:
    """Seconds in words; "" where there are none."""
    return "" if value is None else f"{value:,.1f}"


def told_money(value: float | None) -> str:
    """An amount in words; "" where there is none."""
    return "" if value is None else f"{value:,.2f}" if value >= 0.1 else f"{value:.4f}"
