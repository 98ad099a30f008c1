"""Every seam that probe has in verl raises, as it begins or as it ends: training must not notice."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from probe.adapters import attachment


def _at_the_begin(call: Any) -> Generator[None, None, None]:
    raise RuntimeError(f"on purpose, as {call.function.__qualname__} begins")
    yield  # type: ignore[unreachable]  # it makes this a generator


def _at_the_end(call: Any) -> Generator[None, None, None]:
    yield
    raise RuntimeError(f"on purpose, as {call.function.__qualname__} ends")


_TELLS: tuple[Callable[..., Any], ...] = (_at_the_begin, _at_the_end)

for _attached in attachment.attach("verl"):
    # verl is being imported at this moment: its table is here, and few of the modules that it names.
    assert _attached._seams
    for _index, _seam in enumerate(_attached._seams):
        _attached._seams[_index] = _seam._replace(tell=_TELLS[_index % len(_TELLS)])
    for _index, _patch in enumerate(_attached._patches._patches):
        _patch.armed.seam = _patch.armed.seam._replace(tell=_TELLS[_index % len(_TELLS)])
        _patch.armed.around = True
