"""The live panel of a run: one widget that shows it while it is written, and a static bundle that stays when it's over.

It reads the run directory and nothing else, so the training may be in this process or in others, live or over. Beside
the widget stands a copy that needs no kernel, and says how to open the run again. It is brought up to date while the
run goes on, at the end of each cell, and when the run has finished; so a notebook that is saved shows it, also after
its kernel was killed. ``close()`` and the end of the kernel take the widget out and leave figures in its place.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

from probe import dashboards
from probe.errors import InputError, InputTypeError, MissingDependencyError
from probe.live.feed import Feed
from probe.live.pump import Deliver, Pump
from probe.runs.layout import typed_here
from probe.views.panel import widget as widgets
from probe.views.panel.asks import answer_ask
from probe.views.panel.facts import facts_of, progress, title_of
from probe.views.panel.outputs import WIDGET_VIEW, Outputs, shell_of_kernel
from probe.views.panel.page_config import chosen_views, page_config
from probe.views.panel.samples import Samples
from probe.views.panel.tab import Tab
from probe.views.panel.verdict import Moment, Verdict

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from probe.figures.theme import Theme
    from probe.views.panel.static_bundle import Overview

#: Seconds between two looks, at least: not more than four messages a second.
FASTEST_S: Final = 0.25


#: A closed panel of a run with more rows keeps the overview alone: drawing the dashboards would take too long.
DRAWN_ROWS: Final = 300_000

#: Seconds between two copies for the saved notebook, while a cell runs or none does.
COPY_S: Final = 20.0

#: Between two at the ends of cells. Of cells that end sooner the thread makes the copy; not where the run has finished.
CELL_COPY_S: Final = 0.5

#: Seconds that the end of a panel waits for a session's rows.
FLUSH_S: Final = 1.0

_PLOTLY: Final = "application/vnd.plotly.v1+json"

_open: dict[tuple[Any, ...], Panel] = {}
_lock = threading.Lock()


class Panel:
    """A live panel of a run: it follows the run directory and shows in a notebook what is new.

    Args:
        source: A run directory or its URL, a :class:`~probe.runs.reader.Run`, or an open session, whose directory is
            followed.
        title: What stands above the panel; None means project and experiment.
        views: Ids of the views to show, in order; None means all.
        interval_s: Seconds between two looks at the run, at least 0.25.

    Attributes:
        path: Path or URL of the run directory.
        closed: Whether it has ended.

    Raises:
        RunNotFoundError: There is no run.
        InputError: An argument can't be used.
        UnknownNameError: There is no such view.
    """

    #: Whether who asks for the same panel again gets this one.
    shared = True

    #: Whether earlier runs beside it may be read, for what came of their advice.
    beside = True

    def __init__(
        self,
        source: Any,
        *,
        title: str | None = None,
        views: Sequence[str] | None = None,
        interval_s: float = FASTEST_S,
    ) -> None:
        if not isinstance(interval_s, int | float) or not interval_s >= FASTEST_S:
            raise InputError(f"interval_s: got {interval_s!r}, expected at least {FASTEST_S} seconds")
        self._views = chosen_views(views)
        feed = Feed(path_of(source), attempt=getattr(source, "shown_attempt", None))
        self.path = feed.path
        self._attempt = feed.attempt  # by which it is known; another one may be chosen in it
        self.title = title or title_of(feed)
        self.closed = False
        self._flush = getattr(source, "flush", None)
        self._verdict = Verdict(self.path, beside=self.beside)
        self._samples = Samples(self.path)
        self._ended = 0  # processes of the run, as far as anybody says so
        self._pump = Pump(feed, None, float(interval_s), self._looked, self._verdict.state)
        self._key = uuid.uuid4().hex
        self._outputs = Outputs()
        self._copied: tuple[Any, ...] = ()  # what the copy tells of
        self._copied_in_cell: tuple[Any, ...] = ()  # the one that a cell's end made
        self._copied_at = self._cell_at = 0.0
        self._copying = threading.Lock()  # a copy takes its time, and the newest must be the last
        self._pid = os.getpid()
        self._widget: Any = None
        self._lacks = ""  # what is to be installed for a live panel
        self._started = False

    # --------------------------------------------------------------------------------------------- what it shows

    @property
    def errors(self) -> list[dict[str, Any]]:
        """What went wrong in the panel's own thread, oldest first: dicts with "where", "message" and "at"."""
        return list(self._pump.failures)

    @property
    def state(self) -> dict[str, Any]:
        """What the panel tells beside its tables: step, finished, live, dropped, errors, cost …"""
        return self._pump.state()

    @property
    def widget(self) -> Any:
        """The anywidget itself, for hosts that want one, such as ``marimo.ui.anywidget(panel.widget)``; begins to
        follow the run. None once the panel is closed, if nobody asked for it before.

        Raises:
            MissingDependencyError: Anywidget isn't installed.
        """
        self._start()
        if self._widget is None and not self.closed:
            self._widget = widgets.make(self.config(), self._snapshot, self._marked)
            self.send_to(self._widget.send)
        return self._widget

    def figure(self, panel_id: str, *, theme: Theme = "light", **choice: Any) -> go.Figure:
        """One panel of the dashboards as a plotly figure, of the run as it is now.

        Args:
            panel_id: The panel's id, as in ``dashboards/*.yaml``.
            theme: Colours of the figure: "light" or "dark".
            **choice: One of the panel's options, such as ``step=3``.

        Raises:
            UnknownNameError: There is no such panel.
        """
        from probe.figures.panel import draw
        from probe.runs.reader import Run

        with Run(self.path, self._pump.feed.attempt) as run:
            return draw(dashboards.panel(panel_id), run, theme=theme, titled=True, **choice)

    def close(self) -> None:
        """End the panel: what is shown becomes static, and stays in the notebook. Safe to call twice."""
        if not self._end():
            return
        if self._outputs.shown:
            bundle = self._static()
            self._outputs.replace(bundle)
            drawn = self._pump.isolated("figures", self._drawn)
            if drawn is not None:
                self._outputs.replace({**bundle, _PLOTLY: drawn})
        if self._widget is not None:
            self._widget.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        from probe.views.panel import static_bundle

        return static_bundle.text(self._overview())

    def _ipython_display_(self) -> None:
        view = self._view()
        if view is None:
            if self._lacks:
                self._outputs.say(self._lacks)
            self._outputs.show_static(self._static())
            return
        self._outputs.show_live(*view, self._copy())
        self._outputs.watch_cells(self._cell_ended)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """All forms in one, for hosts that give a value one output."""
        del include, exclude  # IPython chooses from all forms itself
        view, metadata = self._view() or ({}, {})
        return {**view, **self._static()}, metadata

    # -------------------------------------------------------------------------------------------------- for its hosts

    @property
    def pump(self) -> Pump:
        """What follows the run: a snapshot for who comes now, and all that is kept for who missed something."""
        return self._pump

    def send_to(self, deliver: Deliver) -> None:
        """Read what is there, and give what is new to ``deliver`` from now on."""
        self._start()
        self._pump.deliver = deliver
        self._pump.isolated("verdict", self._notice)
        self._verdict.start()
        self._pump.start()

    def config(self) -> dict[str, Any]:
        """What the browser is told once: what the run is, the views, and how they are drawn."""
        return page_config(
            self._pump.feed, self._views, key=self._key, title=self.title, path=self.path, hint=self._hint()
        )

    # ---------------------------------------------------------------------------------------------------- inside

    def _start(self) -> None:
        if not self._started and not self.closed:
            self._started = True
            self._pump.open()
            _watch_the_end()
            with _lock:
                _open[self._name()] = self

    def _name(self) -> tuple[Any, ...]:
        own = () if self.shared else (id(self),)
        views = tuple(view.id for view in self._views)
        return self.path, self._attempt, self.title, views, self._pid, *own

    def _end(self) -> bool:
        """Stop following; False where that was done already."""
        with _lock:
            if self.closed:
                return False
            self.closed = True
            if _open.get(self._name()) is self:
                del _open[self._name()]
        self._outputs.unwatch()
        self._samples.close()
        if self._started:
            flush = self._flush
            if flush is not None:  # a session's: what it has recorded so far is to be seen
                self._pump.isolated("flush", lambda: flush(FLUSH_S))
            self._verdict.stop()  # first, so that the last message has what was found
            self._pump.stop()
        return True

    def _view(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The widget's MIME bundle, with the metadata that some hosts need; None where none can be shown."""
        if self.closed or shell_of_kernel() is None:
            return None
        try:
            data, metadata = self.widget._repr_mimebundle_()
        except MissingDependencyError as error:
            self._pump.fail("widget", error)
            self._lacks = f"{error}. Until then this is a picture of the run as it is now."
            return None
        name = "".join(one if one.isprintable() else " " for one in self.title)
        # Shown where the front end has no widgets or doesn't trust the output: the copy stands below it all the same.
        lacks = (
            "The live panel needs a trusted notebook, and ipywidgets and anywidget where Jupyter runs, too: "
            "pip install 'probe-rl[notebook]'"
        )
        said = f"{name}: a copy, below. {lacks}\n{self._hint()}"
        return {WIDGET_VIEW: data[WIDGET_VIEW], "text/plain": said}, metadata

    def _static(self) -> dict[str, Any]:
        from probe.views.panel import static_bundle

        return static_bundle.bundle(self._overview())

    def _copy(self) -> dict[str, Any]:
        from probe.views.panel import static_bundle

        directory = None if "://" in self.path else str(Path(self.path).absolute())
        return static_bundle.copy(self._overview(), self._key, directory)

    def _overview(self) -> Overview:
        from probe.views.panel import static_bundle

        self._start()

        def read(feed: Feed) -> Overview:
            tiles = self._tiles() if feed.opened else []
            state = self._pump.state()
            return static_bundle.Overview(
                title=self.title,
                facts=facts_of(feed, state),
                hint=self._hint(),
                readings=static_bundle.readings(feed.tables, feed.words, tiles, feed.complete_step),
                errors=[f"{one['where']}: {one['message']}" for one in state["errors"]],
                findings=[one for one in state["verdict"]["findings"] or () if one["kind"] in ("alarm", "tuning")],
                samples=self._verdict.samples,
            )

        found: Overview = self._pump.read(read)
        return found

    def _drawn(self) -> dict[str, Any] | None:
        """The dashboards' figures, where that doesn't take long."""
        from probe.runs.reader import Run
        from probe.views.panel import board

        rows = self._pump.read(lambda feed: feed.left_out + sum(table.next for table in feed.tables.values()))
        if rows > DRAWN_ROWS:
            return None
        with Run(self.path, self._pump.feed.attempt) as run:
            return board.figure(run, f"{self.title} · {self._hint()}")

    def _tiles(self) -> list[Mapping[str, Any]]:
        """As the panel shows them: nothing about the observing itself."""
        return [tile for tile in dashboards.overview_tiles() if not tile.get("own")]

    def _hint(self) -> str:
        return f"probe.open({json.dumps(typed_here(self.path), ensure_ascii=False)}).panel()"

    def _marked(self, content: Any) -> None:
        """The browser asks something; the answer says that the kernel isn't busy."""
        if not isinstance(content, dict) or content.get("v") != 1 or content.get("t") != "mark":
            return
        if content.get("ask") == "samples":
            self._samples.submit(content, self._pump.feed.attempt, self._sampled)
            return
        answer_ask(self._pump, content)
        if self._widget is not None:
            self._widget.send({"v": 1, "t": "a", "id": content.get("id")})

    def _sampled(self, answer: dict[str, Any]) -> None:
        """In the thread that asks for samples: what it was answered."""
        if self._widget is not None and not self.closed:
            self._pump.isolated("samples", lambda: self._widget.send(answer))

    def _snapshot(self) -> tuple[dict[str, Any], bytes]:
        """What a page begins with; and, for a page that is opened again without a kernel, a few samples."""
        head, data = self._pump.snapshot()
        kept = self._verdict.samples
        return ({**head, "samples": kept} if head and kept else head), data

    # ------------------------------------------------------------------------------- what a saved notebook keeps

    def _looked(self) -> None:
        """In the pump's thread: now and then, and as soon as the run has finished."""
        self._notice()
        if self._outputs.live and (self._pump.finished or time.monotonic() - self._copied_at >= COPY_S):
            self._keep()

    def _notice(self) -> None:
        """Tell who looks for findings how the run is."""
        feed = self._pump.feed
        live = not self._pump.finished and feed.activity()["writers"] not in ("gone", "ended")
        self._verdict.notice(Moment(feed.attempt, live, self._pump.read(progress), self._ended if live else 0))

    def _cell_ended(self) -> None:
        """In the thread of the cells, when one has run: what it did, such as closing the session, can be seen."""
        feed, now = self._pump.feed, time.monotonic()
        if not feed.local or (now - self._cell_at < CELL_COPY_S and not feed.finished()):
            self._copied_at = min(self._copied_at, now - COPY_S + CELL_COPY_S)
            return
        self._cell_at = now
        if self._pump.catch_up():
            self._pump.isolated("copy", lambda: self._keep(cell=True))

    def _keep(self, *, cell: bool = False) -> None:
        """Bring the copy up to date, where there is anything new.

        A cell's end makes one even where the pump's thread just did: programs that run notebooks take what arrives
        while a cell runs and nothing after it, and the thread's may come later.
        """
        with self._copying:
            told = self._pump.read(progress)
            told = (*told, self._pump.finished, self._pump.feed.activity()["newest_at"], len(self._pump.failures))
            told = (*told, json.dumps(self._verdict.told), id(self._verdict.samples))
            if told == (self._copied_in_cell if cell else self._copied) or self.closed:
                return
            self._copied, self._copied_at = told, time.monotonic()
            if cell:
                self._copied_in_cell = told
            self._outputs.keep(self._copy())
        self._pump.succeeded("copy")

    def _at_exit(self) -> None:
        """The kernel ends: swap quickly, and draw nothing."""
        if self._pid == os.getpid() and self._end():
            self._outputs.replace(self._static())


@overload
def panel(
    source: Any,
    *,
    title: str | None = None,
    views: Sequence[str] | None = None,
    interval_s: float = FASTEST_S,
    where: Literal["cell"] = "cell",
) -> Panel: ...


@overload
def panel(source: Any, *, where: Literal["tab"]) -> Tab: ...


def panel(
    source: Any,
    *,
    title: str | None = None,
    views: Sequence[str] | None = None,
    interval_s: float = FASTEST_S,
    where: str = "cell",
) -> Panel | Tab:
    """The panel of a run: the one that is open already, where it shows the same, else a new one. See :class:`Panel`.

    Running a cell again shows the panel again; it doesn't begin a second one.

    Args:
        source: As of :class:`Panel`.
        title: As of :class:`Panel`.
        views: As of :class:`Panel`.
        interval_s: As of :class:`Panel`.
        where: "cell" shows it in the cell; "tab" in a tab of JupyterLab, beside the notebook, see
            :class:`probe.views.panel.tab.Tab`, where the other arguments say nothing.

    Raises:
        InputError: An argument can't be used.
    """
    if where == "tab":
        return Tab(path_of(source))
    if where != "cell":
        raise InputError(f"where: got {where!r}, expected 'cell' or 'tab'")
    made = Panel(source, title=title, views=views, interval_s=interval_s)
    with _lock:
        return _open.get(made._name(), made)


def path_of(source: Any) -> str:
    """The run directory, or URL, that ``source`` stands for.

    Raises:
        InputTypeError: It is nothing that has one.

    >>> path_of("runs/arithmetic/first")
    'runs/arithmetic/first'
    """
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    for name in ("path", "directory"):  # a Run, a Session: a view reads a run and knows no session
        found = getattr(source, name, None)
        if isinstance(found, str | os.PathLike):
            return os.fspath(found)
    raise InputTypeError(f"source: got {source!r}, expected a run directory, its URL, a Run or a Session")


@functools.cache  # once in a process
def _watch_the_end() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    for one in list(_open.values()):
        one._at_exit()
