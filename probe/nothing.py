"""What stands where something would be that nobody has recorded, because the environment says ``PROBE=off``."""

from __future__ import annotations

import functools
import html
import logging
from collections.abc import Iterator
from typing import Any

from probe.hooks import OFF, SWITCH

_log = logging.getLogger("probe")


class Nothing:
    """Whatever is asked of it, it is the same again: a line that reads a run, or shows one, does nothing and raises
    nothing. Where it is shown it says why. It is empty and false, and no number.

    >>> nothing = Nothing()
    >>> nothing.memory["step"].max() is nothing, list(nothing), bool(nothing)
    (True, [], False)
    """

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("_"):  # by such names others ask what it can do
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Nothing:
        return self

    def __getitem__(self, _: Any) -> Nothing:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was opened."""

    def __repr__(self) -> str:
        return OFF

    def _repr_html_(self) -> str:
        return f"<div>{html.escape(OFF)}</div>"


@functools.cache  # once in a process
def say_so() -> None:
    """Log in a sentence that probe is off, for who wonders later where his numbers are."""
    _log.warning("%s=off in the environment: nothing is recorded, and no metric goes to any backend", SWITCH)
