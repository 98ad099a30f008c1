"""The numbers that stand above the funnel: of the sampled tokens, of the seconds, and what a million of them cost.

A number that isn't known is left out. One of which only a bound is known says so, in its value and in its words.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from probe.analysis.ledger.lines import FateLine, SlotLine, told_money, told_share
from probe.analysis.ledger.slots import SAMPLING

#: Tokens that the price is of.
MANY: Final = 1_000_000

_AT_LEAST: Final = "\N{GREATER-THAN OR EQUAL TO} "
_AT_MOST: Final = "\N{LESS-THAN OR EQUAL TO} "


class Number(NamedTuple):
    """One of them.

    Attributes:
        name: "tokens", "seconds" or "money".
        value: In words; begins with ≥ or ≤ where it is a bound.
        about: What it is of; read behind the value it makes a sentence.
    """

    name: str
    value: str
    about: str


class Counted(Protocol):
    """Both ledgers, as :class:`probe.analysis.ledger.Ledger` has them."""

    @property
    def fates(self) -> tuple[FateLine, ...]:
        """What became of the sampled tokens."""

    @property
    def slots(self) -> tuple[SlotLine, ...]:
        """What was computed, by phase and kind."""

    @property
    def sampled_tokens(self) -> int:
        """Response tokens of all samples."""

    @property
    def seconds(self) -> float | None:
        """Of all accelerators."""

    @property
    def money(self) -> float | None:
        """Of all seconds; None without a price."""

    @property
    def unit(self) -> str:
        """What the seconds are of."""

    def tokens(self, fate: str) -> int:
        """Sampled tokens of a fate."""


def headline(ledger: Counted) -> tuple[Number, ...]:
    """What is said above the funnel.

    Where it isn't known which tokens were clipped, all that reached the loss with an advantage stand in for those that
    carried policy gradient, and the words say it. Of c such tokens, with s seconds of S and the money m,

    * tokens: c ÷ sampled tokens;
    * seconds: s ÷ S, where s samples these tokens and computes on them once;
    * money: m ÷ c × 1,000,000; m is all that the steps cost.

    Tokens of unknown fate may belong to c: then the first two are lower bounds, and the price is an upper one.

    Args:
        ledger: Both ledgers.
    """
    total, unknown = ledger.sampled_tokens, ledger.tokens("unknown")
    if not total:
        return ()
    reached = ledger.tokens("clip_unknown")
    tokens = ledger.tokens("carried") + reached
    what = "reached the loss with an advantage" if reached else "carried policy gradient"
    if not tokens and unknown:
        why = "it wasn't recorded" if unknown == total else f"the fate of {told_share(unknown / total)} wasn't recorded"
        return (Number("tokens", "\N{EN DASH}", f"How many of the sampled tokens {what} isn't known: {why}."),)
    about = f"of the sampled tokens {what}"
    about += "; which of them were clipped isn't known" if reached else ""
    about += f"; the fate of {told_share(unknown / total)} isn't known" if unknown else ""
    found = [Number("tokens", f"{_AT_LEAST if unknown else ''}{told_share(tokens / total)}", about)]
    spent = _seconds(ledger, bounded=unknown > 0)
    found += [spent] if spent is not None else []
    if ledger.money is not None and tokens:
        cost = told_money(ledger.money / tokens * MANY)
        found.append(
            Number("money", f"{_AT_MOST if unknown else ''}{cost}", f"is what a million tokens that {what} cost")
        )
    return tuple(found)


def _seconds(ledger: Counted, *, bounded: bool) -> Number | None:
    """The share of the seconds; None where times aren't known.

    Seconds that sampled outside a phase, or in a phase that doesn't tell answers from prompts, may be theirs, too.
    """
    lines = [line for line in ledger.fates if line.fate in ("carried", "clip_unknown")]
    spent = [line.seconds for line in lines if line.seconds is not None]
    if not ledger.seconds or len(spent) < len(lines):
        return None
    apart = [line.phase for line in ledger.slots if line.kind == "tokens"]
    sampled = any(line.phase in SAMPLING for line in ledger.slots)
    about = f"of the {ledger.unit} were spent on them"
    if apart:
        about += f"; {' and '.join(apart)} can't tell answers from prompts"
    elif not sampled:
        about += "; sampling isn't a phase of these steps"
    least = bounded or bool(apart) or not sampled
    return Number("seconds", f"{_AT_LEAST if least else ''}{told_share(sum(spent) / ledger.seconds)}", about)
