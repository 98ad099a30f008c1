"""The funnel drawn from both ledgers, as a piece of HTML that stands in a notebook's cell and in the report.

What is lost shrinks the stream; what is computed in addition lies beside it, hatched. It brings its own few colours,
which show on light and on dark.
"""

from __future__ import annotations

from html import escape
from typing import Final, NamedTuple, Protocol

from probe import text as words
from probe.analysis.ledger.headline import Number
from probe.analysis.ledger.lines import FATES, SLOTS, FateLine, SlotLine, told_money, told_seconds, told_share
from probe.records import NOT_KNOWN

_STREAM: Final = "rgba(128,139,153,.45)"
_LOST: Final = "#c1820b"
_CARRIED: Final = "#2b8a56"
_ADDED: Final = "repeating-linear-gradient(-45deg,#7d8896 0 2px,transparent 2px 5px)"
_NOT_KNOWN: Final = "repeating-linear-gradient(45deg,#7d8896 0 1px,transparent 1px 6px)"

_HEAD: Final = "margin:0 0 8px;font-size:16px;line-height:1.5;font-weight:600"
_CELL: Final = "padding:3px 12px 3px 0;vertical-align:top;border-top:1px solid rgba(128,139,153,.3)"
_RIGHT: Final = (
    "padding:3px 0 3px 12px;text-align:right;vertical-align:top;white-space:nowrap;"
    "font-variant-numeric:tabular-nums;border-top:1px solid rgba(128,139,153,.3)"
)
_VALUE: Final = "font-size:22px;line-height:1.3;font-weight:600;font-variant-numeric:tabular-nums"
_SMALL: Final = "display:block;font-size:12px;opacity:.8"


class Bar(NamedTuple):
    """One line of the funnel; the parts of its bar are shares of the sampled tokens.

    Attributes:
        title: What it is.
        about: In a few words.
        amount: Tokens or slots, in words.
        share: Of the sampled tokens, in words.
        seconds: Of accelerators.
        money: Of that.
        stream: What is still on its way after this line.
        part: What this line takes away, or adds.
        kind: "sampled", "lost", "added", "unknown", "carried" or "none".
    """

    title: str
    about: str
    amount: str
    share: str
    seconds: float | None
    money: float | None
    stream: float
    part: float
    kind: str


class Shown(Protocol):
    """What is drawn, of an answer that has it."""

    @property
    def first(self) -> int:
        """The first step."""

    @property
    def last(self) -> int:
        """The last step."""

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
    def samples(self) -> int:
        """All of them."""

    @property
    def seconds(self) -> float | None:
        """Of all accelerators."""

    @property
    def other_seconds(self) -> float | None:
        """Those of them in which no slot was computed."""

    @property
    def money(self) -> float | None:
        """Of all seconds; None without a price."""

    @property
    def gpu_hour(self) -> float | None:
        """The price of an hour."""

    @property
    def unit(self) -> str:
        """What the seconds are of."""

    @property
    def sentence(self) -> str:
        """What is to be said first."""

    @property
    def headline(self) -> tuple[Number, ...]:
        """What stands above the funnel."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the numbers."""


def bars(ledger: Shown) -> list[Bar]:
    """The lines of the funnel, from what was sampled to what carried policy gradient.

    Args:
        ledger: Both ledgers.

    Returns:
        Lines whose losses and last line sum to the sampled tokens.
    """
    total = ledger.sampled_tokens or 1
    count = words.count(ledger.sampled_tokens)
    found = [Bar("Sampled", f"{words.count(ledger.samples)} answers", count, "100 %", None, None, 1.0, 0.0, "sampled")]
    stream, carried = 1.0, None
    for line in ledger.fates:
        title, about = FATES[line.fate]
        if line.fate == "carried":
            kind, about = "carried", ""
        else:
            kind = "unknown" if line.fate in NOT_KNOWN else "lost"
            stream -= line.ratio
        sign = "" if kind == "carried" else "\N{MINUS SIGN} "
        shown = f"{sign}{words.count(line.tokens)}", told_share(line.ratio), line.seconds, line.money
        bar = Bar(title, about, *shown, 0.0 if kind == "carried" else max(stream, 0.0), line.ratio, kind)
        if kind == "carried":
            carried = bar
        else:
            found.append(bar)
    for slot in ledger.slots:
        if slot.kind != "response":
            title, about = SLOTS[slot.kind]
            shown = f"+ {words.count(slot.slots)}", "", slot.seconds, slot.money
            found.append(Bar(f"{title}, {slot.phase}", about, *shown, 0.0, slot.slots / total, "added"))
    found += [carried] if carried is not None else []
    if ledger.seconds is not None:
        spent = ledger.other_seconds
        cost = None if spent is None or ledger.gpu_hour is None else spent * ledger.gpu_hour / 3600
        found.append(Bar("No tokens", "waiting, rewards, synchronisation", "", "", spent, cost, 0.0, 0.0, "none"))
        shown = count, "100 %", ledger.seconds, ledger.money
        found.append(Bar("Total", "each token and each second is in one row", *shown, 0.0, 0.0, "none"))
    return found


def html_of(ledger: Shown) -> str:
    """It as one element.

    Args:
        ledger: Both ledgers.
    """
    lines = bars(ledger)
    widest = max([1.0, *(line.stream + line.part for line in lines)])
    money = ledger.money is not None
    head = "".join(
        f'<th scope="col" style="{_RIGHT}">{name}</th>'
        for name in ["Tokens", "Share", escape(ledger.unit), *(["Money"] if money else [])]
    )
    body = "".join(_row(line, widest, money=money) for line in lines)
    notes = "".join(f'<p style="margin:8px 0 0;font-size:12px;opacity:.8">{escape(one)}</p>' for one in ledger.notes)
    steps = f"step {ledger.first}" if ledger.first == ledger.last else f"steps {ledger.first} to {ledger.last}"
    return (
        f'<div class="probe-ledger" style="max-width:68em;line-height:1.45;text-align:left">'
        f'<p style="{_HEAD}">{escape(ledger.sentence)}</p>{_tiles(ledger)}'
        f'<div tabindex="0" role="region" aria-label="Where the tokens of {steps} went" style="overflow-x:auto">'
        f'<table style="border-collapse:collapse;width:100%;font-size:13px"><thead><tr>'
        f'<th scope="col" style="{_CELL};text-align:left">{steps.capitalize()}</th><td style="{_CELL}"></td>{head}'
        f"</tr></thead><tbody>{body}</tbody></table></div>{notes}</div>"
    )


def _tiles(ledger: Shown) -> str:
    told = "".join(
        f'<div style="flex:0 1 15em"><div style="{_VALUE}">{escape(one.value)}</div>'
        f'<div style="font-size:12px;opacity:.8">{escape(one.about)}</div></div>'
        for one in ledger.headline
    )
    return f'<div style="display:flex;flex-wrap:wrap;gap:8px 24px;margin:0 0 12px">{told}</div>' if told else ""


def _row(line: Bar, widest: float, *, money: bool) -> str:
    strong = ";font-weight:600" if line.kind in ("sampled", "carried") or line.title == "Total" else ""
    cells = [line.amount, line.share, told_seconds(line.seconds), *([told_money(line.money)] if money else [])]
    told = "".join(f'<td style="{_RIGHT}{strong}">{escape(cell)}</td>' for cell in cells)
    about = f'<span style="{_SMALL};font-weight:400">{escape(line.about)}</span>' if line.about else ""
    title = f'<th scope="row" style="{_CELL};text-align:left;font-weight:400{strong}">{escape(line.title)}{about}</th>'
    return f'<tr>{title}<td style="{_CELL};width:38%;min-width:8em">{_bar(line, widest)}</td>{told}</tr>'


def _bar(line: Bar, widest: float) -> str:
    """What is still on its way, and behind it what this line takes away or adds. The table says the same in numbers."""
    fills = {"lost": _LOST, "added": _ADDED, "unknown": _NOT_KNOWN, "carried": _CARRIED}
    parts = [(line.stream, _STREAM), (line.part, fills.get(line.kind, "none"))]
    drawn = "".join(
        f'<i style="display:inline-block;height:14px;width:{100 * width / widest:.3f}%;background:{fill}"></i>'
        for width, fill in parts
        if width > 0
    )
    return f'<div aria-hidden="true" style="white-space:nowrap;font-size:0;margin-top:3px">{drawn}</div>'
