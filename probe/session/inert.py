"""What ``probe.start`` gives where the environment says ``PROBE=off``: a session that does nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from probe.current import CURRENT
from probe.hooks import OFF, SWITCH, scope
from probe.nothing import Nothing, say_so
from probe.own_cost import Budget
from probe.records import Process
from probe.runs.layout import RUN_DIR_VARIABLE
from probe.session.sending import Sending
from probe.session.session import Session

if TYPE_CHECKING:
    from probe.opened import Run
    from probe.views.panel.panel import Panel


class NoPanel(Nothing):
    """Stands where a panel would: it says why there is none."""

    def _ipython_display_(self) -> None:
        from IPython import display as ipython

        put: Any = ipython.display  # its functions have no annotations
        put({"text/plain": OFF, "text/html": self._repr_html_()}, raw=True)


class InertSession(Session):
    """A session without recorders, writer, directory and backends; every call of it is there.

    Args:
        project: As of :func:`probe.session.starting.start`; nothing is checked.
        experiment: Likewise.
        root: Likewise.
        run_dir: Likewise.

    Attributes:
        directory: Where the run would be. Nothing is made there.
        process: A row about this process that nobody reads.
    """

    def __init__(self, project: Any, experiment: Any = None, *, root: Any = "runs", run_dir: Any = None) -> None:
        given = run_dir or os.environ.get(RUN_DIR_VARIABLE)
        names = [str(one) for one in (root, project, experiment) if one is not None]
        self.directory = Path(str(given)) if given else Path(*names)
        self.process = Process(host="", pid=os.getpid())
        self.sending = Sending(self.directory, self.process, None)
        self.closed = self.automatic = self.counts_alone = False
        say_so()

    @property
    def budget(self) -> Budget | None:
        """Nothing is thinned."""
        return None

    def step(self, step: int) -> scope:
        """A block that is in the step, and that nobody hears of.

        Args:
            step: The trainer's global step.
        """
        return scope("step", "step", step=step)

    def begin_step(self, step: int) -> None:
        """Nothing.

        Args:
            step: The trainer's global step.
        """

    def end_step(self) -> None:
        """Nothing."""

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Nothing.

        Args:
            metrics: Names to numbers.
            step: The global step.
        """

    @property
    def run(self) -> Run:
        """What stands where the run would be: see :class:`probe.nothing.Nothing`."""
        return cast("Run", Nothing())

    def panel(self, **options: Any) -> Panel:
        """What says why there is no panel, where one would be shown."""
        del options  # there is nothing to show
        return cast("Panel", NoPanel())

    def on_alarm(self, callback: Any) -> None:
        """Nothing is looked for."""

    def flush(self, timeout_s: float = 5.0) -> bool:
        """There is nothing to wait for.

        Args:
            timeout_s: Is not used.
        """
        del timeout_s  # there is nothing to wait for
        return True

    def close(self, exit_code: int | None = None) -> None:
        """The process can start another session.

        Args:
            exit_code: Is not used.
        """
        del exit_code  # there is no run to give it to
        self.closed = True
        if CURRENT.session is self:
            CURRENT.session = None

    def __repr__(self) -> str:
        return f"Session({SWITCH}=off: nothing is recorded)"
