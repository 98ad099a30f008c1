"""A panel's outputs in a notebook: the live one, and beside it a copy that stays when the kernel is gone.

A front end that trusts a notebook shows the widget of an output and nothing else of it, also when there is no kernel
any more: then it says "Loading widget…" for ever. So the copy is an output of its own. While the live panel stands in
the page, a style rule hides the copy; without it the copy is what a person sees. Being apart, it can be brought up to
date as often as need be, and the live panel doesn't flicker.
"""

from __future__ import annotations

import html
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

Bundle = dict[str, Any]

WIDGET_VIEW: Final = "application/vnd.jupyter.widget-view+json"

#: An output can't be taken away; this one shows nothing.
NOTHING: Final[Bundle] = {"text/html": "", "text/plain": ""}


class Outputs:
    """What one panel shows in notebooks. Updates reach it in whatever cell it stands, from any thread.

    Attributes:
        shown: Whether anything has been displayed.
        live: Whether a widget is displayed, and a copy beside it.
    """

    def __init__(self) -> None:
        self.shown = False
        self.live = False
        self._id = f"probe-{uuid.uuid4().hex}"
        self._on_cell: Callable[..., None] | None = None

    def show_live(self, view: Bundle, metadata: Mapping[str, Any], copy: Bundle) -> None:
        """Display a widget, and the copy.

        Args:
            view: The widget's MIME bundle.
            metadata: What goes with it, for hosts that need some.
            copy: See :func:`probe.views.panel.static_bundle.copy`.
        """
        _display().display(view, raw=True, display_id=self._id, metadata=dict(metadata))
        _display().display(copy, raw=True, display_id=self._copy_id)
        self.shown = self.live = True

    def say(self, sentence: str) -> None:
        """Display a sentence above what is shown next."""
        text = {"text/plain": sentence, "text/html": f"<p>{html.escape(sentence)}</p>"}
        _display().display(text, raw=True)

    def show_static(self, bundle: Bundle) -> None:
        """Display what needs no kernel."""
        _display().display(bundle, raw=True, display_id=self._id)
        self.shown = True

    def keep(self, copy: Bundle) -> None:
        """Bring the copy up to date."""
        if self.live:
            _display().update_display(copy, raw=True, display_id=self._copy_id)

    def replace(self, bundle: Bundle) -> None:
        """Take the widget out: ``bundle`` stands in its place from now on, and no copy is needed."""
        if not self.shown:
            return
        _display().update_display(bundle, raw=True, display_id=self._id)
        if self.live:
            self.live = False
            _display().update_display(NOTHING, raw=True, display_id=self._copy_id)

    # --------------------------------------------------------------------------------------- the ends of cells

    def watch_cells(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` when a cell of this kernel has run, in its context; once."""
        shell = shell_of_kernel()
        if shell is None or self._on_cell is not None:
            return

        def on_cell(*_: Any) -> None:
            ended()

        shell.events.register("post_run_cell", on_cell)
        self._on_cell = on_cell

    def unwatch(self) -> None:
        """Stop what :meth:`watch_cells` began."""
        shell, on_cell, self._on_cell = shell_of_kernel(), self._on_cell, None
        if shell is not None and on_cell is not None:
            shell.events.unregister("post_run_cell", on_cell)

    @property
    def _copy_id(self) -> str:
        return f"{self._id}-copy"


def shell_of_kernel() -> Any:
    """The IPython shell of a notebook's kernel; None elsewhere, as in a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


def _display() -> Any:
    import IPython.display

    return IPython.display
