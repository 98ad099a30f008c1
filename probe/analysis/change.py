"""A change of a setting: what to set it to, what it is now, and what the replay of it gave."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any, Final, Literal

#: How sure something is.
Confidence = Literal["high", "medium", "low"]

#: Characters of a line of text.
_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Change:
    """The one change to make."""

    advice: str  #: a whole sentence
    setting: str | None = None  #: by the name that the framework of this run uses
    value: Any = None  #: what to set it to, where it can be computed
    now: Any = None  #: what it is, where that is known
    #: Settings that change with it: name, what to set it to, what it is now.
    more: tuple[tuple[str, Any, Any], ...] = ()
    gains: tuple[str, ...] = ()  #: what it gave when it was replayed on the run's own batches, a sentence each
    confidence: Confidence | None = None  #: how sure that is; None where it wasn't replayed
    because: str = ""  #: what the confidence rests on
    when: str = ""  #: when it can be made; "" where it wasn't replayed

    def __post_init__(self) -> None:
        for name in ("more", "gains"):  # of what was kept as JSON
            told = tuple(tuple(one) if isinstance(one, list) else one for one in getattr(self, name))
            object.__setattr__(self, name, told)

    @property
    def settings(self) -> tuple[tuple[str, Any, Any], ...]:
        """Name, new value and what it is now, of each setting that has both a name and a value to be set to."""
        first = () if self.setting is None or self.value is None else ((self.setting, self.value, self.now),)
        return first + self.more

    @property
    def line(self) -> str | None:
        """The line that can be pasted, as overrides; None without a setting and its value.

        >>> Change("Lower the cap.", "max_token_len", 8192).line
        'max_token_len=8192'
        """
        return " ".join(f"{name}={value}" for name, value, _ in self.settings) or None

    @property
    def told(self) -> list[str]:
        """What is changed and what the replay of it gave, as ``probe advise`` prints it, a line each.

        >>> Change("Balance.", "trainer.balance_batch", True, False, gains=("wait −0.8 s",)).told
        ['trainer.balance_batch: false → true', '  wait −0.8 s']
        """
        heads = [f"{name}: {spelled(now)} → {spelled(value)}" for name, value, now in self.settings]
        sure = [] if self.confidence is None else [f"confidence {self.confidence}: {self.because}"]
        lines = (*self.gains, *([self.when] if self.when else []), *sure)
        said = [textwrap.fill(one, _WIDTH, initial_indent="  ", subsequent_indent="  ") for one in lines]
        return [*(heads or [self.advice]), *"\n".join(said).splitlines()]

    @property
    def beneath(self) -> list[str]:
        """The same where the advice stands above it, which isn't said twice."""
        return self.told if self.settings else self.told[1:]


def spelled(value: Any) -> str:
    """A setting's value in words.

    Args:
        value: None where it isn't set.
    """
    if value is None:
        return "(not set)"
    return str(value).lower() if isinstance(value, bool) else str(value)
