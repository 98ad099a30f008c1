"""The two ledgers as they are shown: lines that sum to their totals, and the sentence above them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from probe import text as words
from probe.analysis.ledger.headline import Number, headline
from probe.analysis.ledger.lines import FATES, SLOTS, FateLine, SlotLine, told_money, told_seconds, told_share
from probe.analysis.ledger.markup import html_of
from probe.records import NOT_KNOWN


@dataclass(frozen=True)
class Ledger:
    """Where the tokens of some steps went.

    Attributes:
        first: The first step.
        last: The last step.
        fates: By fate, in the order in which they apply; they sum to ``sampled_tokens``.
        slots: By phase and kind; of each phase they sum to what it computed.
        sampled_tokens: Response tokens of all samples.
        samples: All of them.
        kept_samples: Those of them that have a row in ``samples``.
        seconds: Of all accelerators, over the steps; None where no step's time is known.
        other_seconds: Those of them in which no slot was computed: waiting, rewards, synchronisation of weights.
        money: Of ``seconds``; None without a price.
        gpu_hour: The price of an hour.
        unit: What ``seconds`` are of: "GPU-seconds", or "rank-seconds" on a machine without one.
        loss_terms: What else the loss has.
        equal_tokens: Tokens with an advantage in groups whose rewards are all equal, as whitening over the batch gives
            them; None where groups aren't known.
        steps: How many steps they are of.
    """

    first: int
    last: int
    fates: tuple[FateLine, ...]
    slots: tuple[SlotLine, ...]
    sampled_tokens: int
    samples: int
    kept_samples: int
    seconds: float | None = None
    other_seconds: float | None = None
    money: float | None = None
    gpu_hour: float | None = None
    unit: str = "rank-seconds"
    loss_terms: tuple[str, ...] = ()
    equal_tokens: int | None = None
    steps: int = 1
    _by_fate: dict[str, FateLine] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_fate.update({line.fate: line for line in self.fates})

    def tokens(self, fate: str) -> int:
        """Sampled tokens of a fate.

        Args:
            fate: Of :data:`probe.records.FATES`.
        """
        line = self._by_fate.get(fate)
        return 0 if line is None else line.tokens

    @property
    def unknown_tokens(self) -> int:
        """Sampled tokens whose fate isn't known."""
        return sum(self.tokens(fate) for fate in NOT_KNOWN)

    @property
    def largest_loss(self) -> FateLine | None:
        """The fate that most tokens were lost to; None where none were."""
        lost = [line for line in self.fates if line.fate not in (*NOT_KNOWN, "carried") and line.tokens]
        return max(lost, key=lambda line: line.tokens, default=None)

    @property
    def sentence(self) -> str:
        """What became of a thousand of them."""
        if not self.sampled_tokens:
            return "No tokens were sampled."
        thousand = round(1000 * self.tokens("carried") / self.sampled_tokens)
        told = f"Of 1,000 sampled tokens {thousand:,} carried policy gradient"
        if self.tokens("clip_unknown"):
            reached = self.tokens("clip_unknown") + self.tokens("carried")
            told = f"Of 1,000 sampled tokens {round(1000 * reached / self.sampled_tokens):,} reached the loss with an"
            told += " advantage, and it isn't known which of them were clipped"
        elif self.unknown_tokens:
            told = f"Of 1,000 sampled tokens at least {thousand:,} carried policy gradient; the fate of"
            told += f" {words.percent(self.unknown_tokens / self.sampled_tokens)} isn't known"
        worst = self.largest_loss
        return told + (f"; {words.percent(worst.ratio)} {_WHY[worst.fate]}." if worst is not None else ".")

    @property
    def headline(self) -> tuple[Number, ...]:
        """What is said above the funnel; see :func:`probe.analysis.ledger.headline.headline`."""
        return headline(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the numbers, a sentence each."""
        found = []
        if self.loss_terms:
            terms, s = " and ".join(self.loss_terms), "s" if len(self.loss_terms) > 1 else ""
            found.append(
                f"The loss has the term{s} {terms}: tokens without policy gradient still carry the gradient of it."
            )
        if self.equal_tokens:
            found.append(
                f"{words.count(self.equal_tokens)} tokens are in groups whose rewards are all equal, and still have an"
                " advantage, as after whitening over the batch."
            )
        if self.kept_samples < self.samples:
            found.append(
                f"{words.count(self.kept_samples)} of {words.count(self.samples)} samples have a row of their own;"
                " these sums cover all samples."
            )
        found.append("A slot costs the seconds of its phase, divided by the phase's slots.")
        if self.gpu_hour is not None:
            found.append(f"Money: {self.gpu_hour:g} for an hour of one accelerator, as PROBE_GPU_HOUR says.")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can say it."""
        left_out = ("_by_fate", "fates", "slots", "loss_terms")
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in left_out}
        return {
            "sentence": self.sentence,
            "headline": [one._asdict() for one in self.headline],
            **plain,
            "loss_terms": list(self.loss_terms),
            "fates": [line._asdict() for line in self.fates],
            "slots": [line._asdict() for line in self.slots],
            "notes": list(self.notes),
        }

    def rows(self) -> Iterator[tuple[str, str, str, str, str, str]]:
        """Each line of both ledgers in words: title, what it is, tokens or slots, share, seconds, money."""
        yield "Sampled", f"{words.count(self.samples)} answers", words.count(self.sampled_tokens), "100 %", "", ""
        for line in self.fates:
            title, about = FATES[line.fate]
            share = told_share(line.ratio)
            yield title, about, words.count(line.tokens), share, told_seconds(line.seconds), told_money(line.money)
        for slot in self.slots:
            if slot.kind != "response":
                title, about = SLOTS[slot.kind]
                spent = told_seconds(slot.seconds), told_money(slot.money)
                yield f"{title}, {slot.phase}", about, f"+ {words.count(slot.slots)}", "", *spent
        if self.seconds is not None:
            other = self.other_seconds
            cost = None if other is None or self.gpu_hour is None else other * self.gpu_hour / 3600
            yield "No tokens", "waiting, rewards, synchronisation", "", "", told_seconds(other), told_money(cost)
            yield "Total", self.unit, "", "", told_seconds(self.seconds), told_money(self.money)

    def __str__(self) -> str:
        head = ("", "tokens", "share", self.unit, *(["money"] if self.money is not None else []))
        shown = [(row[0], *row[2 : 2 + len(head) - 1]) for row in self.rows()]
        widths = [max(len(row[at]) for row in [head, *shown]) for at in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(w) if not at else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in [head, *shown]
        ]
        steps = f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"
        return "\n".join([self.sentence, "", f"{steps}:", *(line.rstrip() for line in lines), "", *self.notes])

    def _repr_html_(self) -> str:
        return html_of(self)


#: How a share of the tokens was lost, to a fate.
_WHY: Final = {
    "truncated": "were truncated and dropped",
    "stale": "were stale",
    "filtered": "were of filtered groups",
    "failed": "were of failed rollouts",
    "dropped": "were dropped",
    "masked": "were masked",
    "no_advantage": "had no advantage",
    "clipped": "were clipped in every epoch",
}
