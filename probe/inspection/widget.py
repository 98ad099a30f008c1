"""The inspection in a notebook: static HTML, and below it a small widget that asks the kernel for values.

Each is an output of its own, so that what doesn't need a kernel is there without one: a front end shows the widget of
an output and nothing else of it, even when its kernel is gone. When the inspection is closed or the kernel ends, the
widget is taken out. It refers to the inspection weakly: it doesn't keep a batch in memory.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from probe.errors import InputError, ProbeError, UnknownNameError
from probe.guard import attempt
from probe.inspection import rendering as inspection_html
from probe.inspection.look import STYLE
from probe.inspection.plain_text import one_line, plain
from probe.inspection.values import row_range
from probe.views.panel.outputs import NOTHING, shell_of_kernel

if TYPE_CHECKING:
    from probe.inspection.asked import Asked

_log = logging.getLogger("probe.inspection.inspector")

#: Rows and positions that one question may be about.
MAX_ROWS: Final = 64
MAX_POSITIONS: Final = 512

ASKS: Final = ("values", "tokens", "text")

_shown: Final[weakref.WeakSet[Shown]] = weakref.WeakSet()


class Shown:
    """The outputs of one inspection in a cell."""

    def __init__(self, widget: Any, static: Mapping[str, str]) -> None:
        self.widget = widget
        self._static = dict(static)
        self._handle: Any = None

    def display(self) -> None:
        """Put the static form and the widget into the output of the running cell."""
        from IPython import display as ipython

        data, metadata = self.widget._repr_mimebundle_()
        put: Any = ipython.display  # its functions have no annotations
        put(self._static, raw=True)
        said = "Values on demand need the kernel that made them: run the cell again."
        self._handle = put({**data, "text/plain": said}, raw=True, display_id=True, metadata=metadata)
        _watch_the_end()
        _shown.add(self)

    def close(self) -> None:
        """Leave the static form alone in the cell. Safe to call twice."""
        if self.widget is None:
            return
        widget, self.widget = self.widget, None
        _shown.discard(self)
        attempt(lambda: self._take_out(widget), _left)

    def _take_out(self, widget: Any) -> None:
        if self._handle is not None:
            self._handle.update(NOTHING, raw=True)
        widget.close()


def _left(error: Exception) -> None:
    """The kernel's channels may be gone; the output then stays as it is."""
    _log.debug("the widget of an inspection could not be taken out", exc_info=error)


@cache  # once in a process
def _watch_the_end() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    for one in list(_shown):
        one.close()


def show(inspection: Asked) -> Shown | None:
    """Display ``inspection`` with a widget; None where it has no values to ask for, and where there is no notebook, or
    no anywidget.
    """
    if inspection.closed or not inspection.keys or not inspection.schema.rows or shell_of_kernel() is None:
        return None
    try:
        widget = make_widget(inspection)
    except ImportError:
        return None
    static = {"text/plain": repr(inspection), "text/html": inspection_html.document(inspection)}
    shown = Shown(widget, static)
    shown.display()
    return shown


def make_widget(inspection: Asked) -> Any:
    """The widget, not shown yet.

    Raises:
        ImportError: Anywidget isn't installed.
    """
    schema = inspection.schema
    columns = [[key, column.shape] for key, column in zip(inspection.keys, schema.columns, strict=True)]
    widget = _widget_class()(
        about={
            "columns": columns,
            "rows": schema.rows or 0,
            "start": inspection.start,
            "stop": inspection.stop,
            "decodes": inspection.can_decode,
            "max_rows": MAX_ROWS,
            "max_positions": MAX_POSITIONS,
        },
    )
    reference = weakref.ref(inspection)
    widget.on_msg(lambda widget, content, _buffers: widget.send(answer(reference(), content)))
    return widget


@cache
def _widget_class() -> Any:
    import anywidget
    import traitlets

    class InspectorWidget(anywidget.AnyWidget):
        _esm = resources.files("probe.inspection").joinpath("static", "inspector.js").read_text(encoding="utf-8")
        _css = STYLE.removeprefix("<style>").removesuffix("</style>")
        about = traitlets.Dict().tag(sync=True)

    return InspectorWidget


# ------------------------------------------------------------------------------------------------------ answering


def answer(inspection: Asked | None, content: Any) -> dict[str, Any]:
    """The reply to a question of the browser: ``{"v": 1, "id", "html"}`` or ``{"v": 1, "id", "error"}``.

    Args:
        inspection: The inspection; None when it is gone, and the batch with it.
        content: What the browser asks: ``{"id", "ask": one of ASKS, "key", "rows": [start, stop], "positions": [start,
            stop]}``.
    """
    asked = content if isinstance(content, Mapping) else {}
    reply: dict[str, Any] = {"v": 1, "id": asked.get("id")}
    if inspection is None or inspection.closed:
        return reply | {"error": "The batch is no longer in memory. Run the cell again."}

    def failed(error: Exception) -> dict[str, str]:
        """Objects of the batch may raise anything; the person who asked is told."""
        if isinstance(error, ProbeError):
            return {"error": one_line(error, 300)}
        _log.debug("an inspection could not answer %r", asked, exc_info=error)
        return {"error": f"{type(error).__name__}: {one_line(error, 300)}"}

    return reply | attempt(lambda: {"html": _answer(inspection, asked)}, failed)


def _answer(inspection: Asked, asked: Mapping[str, Any]) -> str:
    kind = asked.get("ask")
    if kind not in ASKS:
        raise UnknownNameError.of("ask", kind, ASKS)
    start, stop = _pair(asked.get("rows"), "rows", inspection.schema.rows or 0, MAX_ROWS)
    if kind == "tokens":
        return inspection_html.map_html(inspection.token_map((start, stop)))
    if kind == "text":
        return inspection_html.texts_html(inspection.texts((start, stop)))
    first, last = _pair(asked.get("positions"), "positions", 1 << 40, MAX_POSITIONS)
    key = str(asked.get("key"))
    rows = inspection.values(key, (start, stop), (first, last))
    return inspection_html.values_html(key, start, rows, MAX_POSITIONS)


def _pair(given: Any, name: str, count: int, most: int) -> tuple[int, int]:
    """[start, stop) from the browser, cut to what there is and to what one question may be about."""
    if not (isinstance(given, list | tuple) and len(given) == 2 and all(type(one) is int for one in given)):
        raise InputError(f"{name}: got {plain(given)}, expected two whole numbers")
    start, stop = row_range((max(given[0], 0), max(given[1], 0)), count)
    return start, min(stop, start + most)
