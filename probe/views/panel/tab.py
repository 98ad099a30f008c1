"""A panel as a tab of JupyterLab, asked for from a cell."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from probe.errors import InputError

#: What JupyterLab's extension of probe draws by opening the tab.
MIME: Final = "application/vnd.probe.tab+json"


class Tab:
    """Asks JupyterLab for a tab with the panel of a run, when a cell shows it; needs probe's extension of JupyterLab.

    A notebook that is opened later shows a button instead, so that reading it opens nothing. Anywhere else it is a text
    that says how to open the panel.

    Args:
        path: The run directory, on the machine of the Jupyter server.

    Raises:
        InputError: It is a URL, which the server doesn't read.
    """

    def __init__(self, path: str) -> None:
        if "://" in path:
            raise InputError(f"where: 'tab' shows runs of the Jupyter server's own machine, not {path!r}; use 'cell'")
        self.path = os.path.abspath(path)  # noqa: PTH100  (links stay, as the person named it)

    def __repr__(self) -> str:
        return (
            f"The panel of {self.path} opens in a tab where JupyterLab has probe's extension "
            f"(pip install 'probe-rl[notebook]'); elsewhere: probe.open({self.path!r}).panel()"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        del include, exclude  # IPython chooses from all forms itself
        return {MIME: {"run": self.path, "asked_s": time.time()}, "text/plain": repr(self)}
