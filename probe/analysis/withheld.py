"""What an answer can't judge, with what is missing: in the words and the look of a finding that is withheld."""

from __future__ import annotations

import html
import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from probe.analysis.change import Change

#: Its sign, what it is called, and a colour that shows on light and on dark.
NOT_JUDGED: Final = ("◌", "Not judged", "#6e7781")

_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Withheld:
    """One question that can't be judged; what it prints is what a finding of it prints.

    Attributes:
        name: Of what was looked at.
        sentence: What isn't known, and what is missing to know it.
        topic: The dashboard that would show it.
        change: How to record what is missing, where the user can.
    """

    name: str
    sentence: str
    topic: str = "overview"
    change: Change | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, like a finding."""
        return {"kind": "withheld", **asdict(self)}

    def __str__(self) -> str:
        sign, label, _ = NOT_JUDGED
        told = [textwrap.fill(f"{sign} {label}: {self.sentence}", _WIDTH, subsequent_indent="  ")]
        if self.change is not None:
            line = f" {self.change.line}" if self.change.line else ""
            told.append(textwrap.fill(f"  → {self.change.advice}{line}", _WIDTH, subsequent_indent="    "))
        return "\n".join(told)

    def to_html(self) -> str:
        """A paragraph."""
        sign, label, colour = NOT_JUDGED
        told = f'<b style="color:{colour}"><span aria-hidden="true">{sign}</span> {label}</b><br>'
        told += html.escape(self.sentence)
        if self.change is not None:
            code = f" <code>{html.escape(self.change.line)}</code>" if self.change.line else ""
            told += f'<br><span style="opacity:.8">→ {html.escape(self.change.advice)}{code}</span>'
        return f'<p style="margin:0 0 10px">{told}</p>'
