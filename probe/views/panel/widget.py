"""The anywidget of the live panel. It holds nothing that the run directory doesn't."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import cache
from typing import Any

from probe.errors import MissingDependencyError
from probe.views.panel import assets

#: Gives ``snapshot_head`` and ``snapshot``.
Snapshot = Callable[[], tuple[dict[str, Any], bytes]]


def make(config: dict[str, Any], snapshot: Snapshot, on_mark: Callable[[Any], None]) -> Any:
    """A widget that shows the run of ``snapshot``.

    Args:
        config: The panel's configuration, for the browser.
        snapshot: Is asked when a page wants the whole state, and only then.
        on_mark: Is called with what the browser sends.

    Raises:
        MissingDependencyError: Anywidget isn't installed.
    """
    widget = widget_class()(snapshot, config=config)
    widget.on_msg(lambda _widget, content, _buffers: on_mark(content))
    return widget


def packed(head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """A snapshot as it travels: its columns gzipped, a fifth of their size for 5 ms a MB, and nothing lost."""
    return head, gzip.compress(body, compresslevel=1, mtime=0) if body else b""


@cache
def widget_class() -> type[Any]:
    """``PanelWidget``; made on first use, so that nobody who doesn't show a panel imports ipywidgets.

    Raises:
        MissingDependencyError: Anywidget isn't installed.
    """
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise MissingDependencyError.of("the live panel", "anywidget", "notebook") from error

    class PanelWidget(anywidget.AnyWidget):
        """The live panel of one run."""

        _esm = assets.script()
        _css = assets.styles()
        config = traitlets.Dict().tag(sync=True)
        snapshot_head = traitlets.Dict().tag(sync=True)
        snapshot = traitlets.Bytes().tag(sync=True)
        plotly_gz = traitlets.Bytes().tag(sync=True)

        def __init__(self, snapshot: Snapshot, **traits: Any) -> None:
            self._snapshot = snapshot  # the widget opens, and so is asked for its state, in the next line
            super().__init__(**traits)

        def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
            """As ipywidgets'. The whole state has a fresh snapshot; it is never pushed."""
            state = dict(super().get_state(key=key, drop_defaults=drop_defaults))
            if key is None:
                state["snapshot_head"], state["snapshot"] = packed(*self._snapshot())
                state["plotly_gz"] = assets.plotly_packed()
            return state

    return PanelWidget
