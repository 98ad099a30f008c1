"""probe in JupyterLab itself: the runs of the Jupyter server, shown beside the notebooks, whatever a kernel does.

This module is what the Jupyter server imports when it starts. Nothing is read, and no process begins, until somebody
looks at a run: what reads runs is a process of its own, see :mod:`probe.jupyter.reading`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "probe.jupyter"}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "probe-lab"}]


def _load_jupyter_server_extension(server_app: ServerApp) -> None:
    """Add the handlers to a Jupyter server."""
    from probe.jupyter.handlers import add_handlers

    add_handlers(server_app)
