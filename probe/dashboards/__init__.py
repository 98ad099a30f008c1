"""The dashboards: which panels there are, read from ``dashboards/*.yaml``, and the numbers behind each panel.

A panel is data: words, the analysis that gives its frame, the figure that draws it, the tables it needs and
the metric keys that show the same in a tracking backend. The notebook, the report, TensorBoard and MLflow
all read these; whoever draws finished pictures of them is no part of this package. A panel's ``live:`` block says how
the live panel draws it from its own tables (see :mod:`probe.dashboards.spec`); ``views.yaml`` says which panels the
live panel shows together, and has those that only it shows.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from probe.dashboards import files, frames
from probe.dashboards import spec as live_blocks
from probe.dashboards.quantities import resolved
from probe.errors import InputError, UnknownNameError
from probe.records import TABLES

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

#: In the order in which they are shown; each is a file ``<name>.yaml``.
NAMES: Final = ("overview", "memory", "token_balance", "padding_tax", "reductions")


#: What a panel says that has nothing to show, and no words of its own for it.
NOTHING: Final = "Nothing was recorded that could be shown here."


@dataclass(frozen=True)
class About:
    """What a panel shows, how to read it, and what to do about it."""

    shows: str
    read: str
    do: str


#: What a chart of three lines over the ranks is made of, from the least to the most.
MARGIN: Final = ("smallest", "mean", "largest")

#: Stands in the title of a chart for the process whose own numbers it shows: the one that tracks.
WHO: Final = "{who}"

_PLACE: Final = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class Chart:
    """Metrics that a tracking backend draws together.

    Attributes:
        title: Unique in its dashboard; :data:`WHO` in it stands for the process that tracks.
        kind: ``"line"``: one line for each key; ``"margin"``: a line between two others.
        keys: The metrics: of a line chart their keys, in which ``{role}``, ``{phase}`` and ``{cause}`` stand for any
            name; of a margin chart the three of :data:`MARGIN`.
    """

    title: str
    kind: str
    keys: tuple[str, ...]

    def filled(self, logged: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The chart for the metrics that are ``logged``: title → keys; one for each name of a margin.

        >>> Chart("Tokens", "line", ("probe/{role}/tokens",)).filled(["probe/a/tokens", "probe/b/c/tokens", "loss"])
        {'Tokens': ('probe/a/tokens',)}
        >>> three = tuple(f"probe/{{role}}/tokens_{one}" for one in MARGIN)
        >>> there = [key.replace("{role}", "actor") for key in three]
        >>> list(Chart("Tokens", "margin", three).filled(there))
        ['Tokens: actor']
        """
        if self.kind == "line":
            found = tuple(dict.fromkeys(key for one in self.keys for key in logged if pattern(one).fullmatch(key)))
            return {self.title: found} if found else {}
        whole = {}
        for key in logged:
            match = pattern(self.keys[0]).fullmatch(key)
            if match is not None:
                names = match.groupdict()
                keys = tuple(_named(one, names) for one in self.keys)
                if set(keys) <= set(logged):
                    whole[": ".join([self.title, *names.values()])] = keys
        return whole


def _named(key: str, names: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: names[place[1]], key)


def pattern(key: str) -> re.Pattern[str]:
    """What matches the names of a metric in whose key a place like ``{role}`` stands for one segment.

    >>> pattern("probe/{role}/tokens").fullmatch("probe/actor/tokens")["role"]
    'actor'
    """
    parts = _PLACE.split(key)  # text, name, text, name … text
    return re.compile(
        "".join(f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part) for index, part in enumerate(parts))
    )


@dataclass(frozen=True)
class Panel:
    """One picture of a run.

    Attributes:
        id: Unique over all dashboards.
        title: The panel's title.
        about: What it shows, how to read it, and what to do about it.
        analysis: Dotted path of ``(run, **choice) → frame``; None where ``live`` says which numbers are shown, to which
            a choice adds what its rows must have.
        figure: Dotted path of ``(frame, *, theme) → Figure``; None where ``live`` says how they are drawn.
        choices: Dotted path of ``run → frame`` with a column ``label``, and further ones that are arguments of the
            analysis; the first row is what is shown without a choice.
        choose: What is chosen, for a person.
        table: Dotted path of the frame to show as a table, when it isn't the figure's own.
        columns: Columns of that table.
        unfolded: Whether a page shows the table at once.
        tables: Tables of the run that are read.
        keys: Metric keys that show the same.
        charts: Charts that show it in a tracking backend.
        missing: What is said where the run has nothing to show.
        view: The view of the live panel that it joins, where ``views.yaml`` doesn't name it; None for none.
        live: How the live panel draws it, and everybody else where there is no ``figure``; None where it doesn't.
        live_about: What is said of the live panel's picture where that is another one; None where ``about`` fits it.
    """

    id: str
    title: str
    about: About
    tables: tuple[str, ...]
    analysis: str | None = None
    figure: str | None = None
    columns: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    choices: str | None = None
    choose: str = ""
    table: str | None = None
    unfolded: bool = False
    missing: str = NOTHING
    view: str | None = None
    live: Mapping[str, Any] | None = None
    live_about: About | None = None

    def frame(self, run: Run, **choice: Any) -> pd.DataFrame:
        """The numbers behind the picture, as a frame.

        Args:
            run: The run to read.
            **choice: One row of :meth:`options` without its label.
        """
        if self.analysis is None:
            if not choice and self.choices is not None:
                choice = next((chosen for _, chosen in self.options(run)), {})
            return frames.numbers(run, self.live or {}, choice)
        frame: pd.DataFrame = function_at(self.analysis)(run, **choice)
        return frame

    def options(self, run: Run) -> list[tuple[str, dict[str, Any]]]:
        """What can be chosen: a label and the arguments of :meth:`frame` and of the picture; the default first, empty
        without choices."""
        if self.choices is None:
            return []
        frame = function_at(self.choices)(run)
        return [(str(row.pop("label")), _arguments(row)) for row in frame.to_dict("records")]

    def listing(self, run: Run) -> pd.DataFrame:
        """The table that belongs to the picture, reduced to :attr:`columns`."""
        path = self.table or self.analysis
        frame: pd.DataFrame = self.frame(run) if path is None else function_at(path)(run)
        return frame[[name for name in self.columns if name in frame.columns]]


@dataclass(frozen=True)
class Dashboard:
    """The panels of one subject, as one file in ``dashboards/`` holds them."""

    name: str
    title: str
    about: str
    panels: tuple[Panel, ...] = field(default=())


@dataclass(frozen=True)
class LivePanel:
    """One picture of the live panel: that of a :class:`Panel`, or one that only the live panel has.

    Attributes:
        id: Unique over all dashboards.
        title: The panel's title.
        about: What it shows, how to read it, and what to do about it.
        live: A block as in :mod:`probe.dashboards.spec`.
        missing: What is said where rows of its table are there, but none that it is made of.
    """

    id: str
    title: str
    about: About
    live: Mapping[str, Any]
    missing: str = NOTHING


@dataclass(frozen=True)
class View:
    """What the live panel shows together, as one of its tabs."""

    id: str
    title: str
    about: str
    panels: tuple[LivePanel, ...]


@lru_cache(maxsize=1)
def dashboards() -> tuple[Dashboard, ...]:
    """All dashboards, in the order of :data:`NAMES`.

    Raises:
        InputError: A file says something that can't be used; the message names file, panel and field.
    """
    return tuple(parse(name, files.text(name)) for name in NAMES)


@lru_cache(maxsize=1)
def digest() -> str:
    """A digest of what says which panels there are and what is in them."""
    told = "\0".join(map(files.text, (*NAMES, "quantities", "views")))
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def dashboard(name: str) -> Dashboard:
    """The dashboard called ``name``.

    Raises:
        UnknownNameError: There is none; the message lists what there is.
    """
    for one in dashboards():
        if one.name == name:
            return one
    raise UnknownNameError.of("dashboard", name, NAMES)


def panel(id: str) -> Panel:
    """The panel called ``id``, of whichever dashboard.

    Raises:
        UnknownNameError: There is none; the message lists what there is.
    """
    found = {one.id: one for board in dashboards() for one in board.panels}
    if id not in found:
        raise UnknownNameError.of("panel", id, found)
    return found[id]


@lru_cache(maxsize=1)
def views() -> tuple[View, ...]:
    """The views of the live panel, in the order in which they are shown.

    Raises:
        InputError: A file says something that can't be used; the message names file, panel and field.
    """
    shared = [panel for board in dashboards() for panel in board.panels]
    return parse_views(files.text("views"), shared)


def overview_tiles() -> tuple[Mapping[str, Any], ...]:
    """The tiles of the overview, with all that their quantities say.

    Returns:
        In the order in which they are shown.
    """
    live = [panel.live for view in views() for panel in view.panels]
    return next((tuple(one["tiles"]) for one in live if one["mark"] == "tiles"), ())


def parse_views(text: str, shared: Sequence[Panel]) -> tuple[View, ...]:
    """The views of the live panel from the text of their file; everything that it names is checked.

    Args:
        text: The file's text, YAML.
        shared: The dashboards' panels, which a view names by their id.

    Raises:
        InputError: The text doesn't describe views.
        UnknownNameError: It names a panel that isn't there, or that isn't live.
    """
    data = files.loaded(text, "views")
    _expect(data, {"views": list, "panels": list}, set(), "views")
    own = [_live_panel(one, f"views, panel {index}") for index, one in enumerate(data["panels"])]
    live = [
        LivePanel(one.id, one.title, one.live_about or one.about, one.live, one.missing)
        for one in shared
        if one.live is not None
    ]
    known = {one.id: one for one in (*live, *own)}
    taken = {one.id for one in shared} & {one.id for one in own}
    if taken or len(known) < len(live) + len(own):
        raise InputError(
            f"views: panels: got an id twice among {', '.join(sorted(taken or known))}, expected each once"
        )
    found = tuple(_view(one, f"views, view {index}", known) for index, one in enumerate(data["views"]))
    return _joined(found, [one for one in shared if one.view is not None], known)


def _joined(views: tuple[View, ...], joining: Sequence[Panel], known: Mapping[str, LivePanel]) -> tuple[View, ...]:
    """The views with the panels that say themselves where they stand, behind the others."""
    names = [view.id for view in views]
    for one in joining:
        if one.view not in names:
            raise UnknownNameError.of(f"panel {one.id}: view", one.view, names)
        if one.id not in known:
            raise InputError(f"panel {one.id}: view: got {one.view!r} without live, expected a panel with a live block")
    more = {name: tuple(known[one.id] for one in joining if one.view == name) for name in names}
    return tuple(
        replace(view, panels=(*view.panels, *(one for one in more[view.id] if one not in view.panels)))
        for view in views
    )


def _view(data: Any, where: str, known: Mapping[str, LivePanel]) -> View:
    _expect(data, {"id": str, "title": str, "about": str, "panels": list}, set(), where)
    for id in data["panels"]:
        if id not in known:
            raise UnknownNameError.of(f"{where} ({data['id']}): panels", id, known)
    return View(data["id"], data["title"], data["about"], tuple(known[id] for id in data["panels"]))


def _live_panel(data: Any, where: str) -> LivePanel:
    _expect(data, {"id": str, "title": str, "about": dict, "live": dict}, set(), where)
    where = f"{where} ({data['id']})"
    _expect(data["about"], _ABOUT, set(), f"{where}: about")
    return LivePanel(data["id"], data["title"], About(**data["about"]), _live(data["live"], f"{where}: live"))


def parse(name: str, text: str) -> Dashboard:
    """A dashboard from the text of its file; everything that it names is checked.

    Args:
        name: The name of the dashboard, for messages too.
        text: The file's text, YAML.

    Raises:
        InputError: The text isn't such a dashboard.
    """
    data = files.loaded(text, f"dashboard {name!r}")
    _expect(data, {"title": str, "about": str, "panels": list}, set(), f"dashboard {name!r}")
    panels = tuple(_panel(one, f"dashboard {name!r}, panel {index}") for index, one in enumerate(data["panels"]))
    titles = [chart.title for one in panels for chart in one.charts]
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise InputError(f"dashboard {name!r}: charts: got the title {twice[0]!r} twice, expected each once")
    return Dashboard(name, data["title"], data["about"], panels)


_ABOUT: Final[Mapping[str, type]] = {"shows": str, "read": str, "do": str}
_REQUIRED: Final[Mapping[str, type]] = {
    "id": str,
    "title": str,
    "about": dict,
    "tables": list,
}
_OPTIONAL: Final = {
    "analysis": str,
    "figure": str,
    "missing": str,
    "view": str,
    "columns": list,
    "keys": list,
    "charts": list,
    "choices": str,
    "choose": str,
    "table": str,
    "unfolded": bool,
    "live": dict,
    "live_about": dict,
}


def _panel(data: Any, where: str) -> Panel:
    _expect(data, _REQUIRED, set(_OPTIONAL), where)
    where = f"{where} ({data['id']})"
    for name, kind in _OPTIONAL.items():
        if name in data and not isinstance(data[name], kind):
            raise InputError(f"{where}: {name}: got {data[name]!r}, expected a {kind.__name__}")
    _expect(data["about"], _ABOUT, set(), f"{where}: about")
    if "live_about" in data:
        _expect(data["live_about"], _ABOUT, set(), f"{where}: live_about")
        data = {**data, "live_about": About(**data["live_about"])}
    if "live" in data:
        data = {**data, "live": _live(data["live"], f"{where}: live")}
    for table in data["tables"]:
        if table not in TABLES:
            raise UnknownNameError.of(f"{where}: tables", table, TABLES)
    for name, room in (
        ("analysis", "analysis"),
        ("figure", "figures"),
        ("choices", "analysis"),
        ("table", "analysis"),
    ):
        if name in data and not data[name].startswith(f"probe.{room}."):
            raise InputError(f"{where}: {name}: got {data[name]!r}, expected a path in probe.{room}")
    _drawn(data, where)
    lists = {name: tuple(data.get(name, ())) for name in ("tables", "columns", "keys")}
    charts = tuple(_chart(one, f"{where}: charts {index}") for index, one in enumerate(data.get("charts", ())))
    return Panel(**{**data, **lists, "about": About(**data["about"]), "charts": charts})


def _drawn(data: Mapping[str, Any], where: str) -> None:
    """That a panel's picture is either two functions, or what its ``live:`` block says, maybe of an analysis's rows."""
    if "figure" in data and "analysis" not in data:
        raise InputError(f"{where}: got a figure without analysis, expected both or neither")
    block = data.get("live", {})
    if "figure" not in data and (block.get("mark") not in live_blocks.PICTURED or block.get("x") == "time"):
        marks = ", ".join(live_blocks.PICTURED)
        given = f"mark {block.get('mark')!r}, x {block.get('x')!r}"
        raise InputError(f"{where}: live: got {given}, expected one of {marks} with x not time, or analysis and figure")


def _live(block: Any, where: str) -> dict[str, Any]:
    """A ``live:`` block, checked, with the fields of the quantities that it names."""
    try:
        return live_blocks.check(resolved(block), where)
    except UnknownNameError as error:
        raise UnknownNameError(f"{where}: {error}") from error


def _chart(data: Any, where: str) -> Chart:
    _expect(data, {"title": str}, {"lines", "margin"}, where)
    lines, margin = data.get("lines"), data.get("margin")
    if (lines is None) == (margin is None):
        raise InputError(f"{where}: got {data!r}, expected either lines or margin")
    if margin is not None:
        if not isinstance(margin, str):
            raise InputError(
                f"{where}: margin: got {margin!r}, expected a key without its last word, "
                "such as probe/across_ranks/step_time_s"
            )
        return Chart(data["title"], "margin", tuple(f"{margin}_{one}" for one in MARGIN))
    if not isinstance(lines, list) or not lines or not all(isinstance(key, str) for key in lines):
        raise InputError(f"{where}: lines: got {lines!r}, expected a list of keys")
    return Chart(data["title"], "line", tuple(lines))


def _expect(data: Any, required: Mapping[str, type], optional: set[str], where: str) -> None:
    if not isinstance(data, dict):
        raise InputError(f"{where}: got {data!r}, expected a mapping")
    unknown = sorted(map(str, set(data) - set(required) - optional))
    if unknown:
        raise InputError(
            f"{where}: unknown {', '.join(unknown)}; fields are {', '.join(sorted({*required, *optional}))}"
        )
    for name, kind in required.items():
        if not isinstance(data.get(name), kind):
            raise InputError(f"{where}: {name}: got {data.get(name)!r}, expected a {kind.__name__}")


def function_at(path: str) -> Callable[..., Any]:
    """The function that a panel names.

    Args:
        path: Dotted, such as "probe.analysis.memory.peaks".

    Returns:
        The function.

    Raises:
        InputError: There is none.
    """
    module, _, name = path.rpartition(".")
    try:
        found: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"dashboard path: got {path!r}, expected a function of probe: {error}") from error
    return found


def _arguments(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Cells as plain Python values: a whole number that became a float or a numpy scalar, a missing one as
    None."""
    return {str(name): _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return int(value) if value.is_integer() else None if math.isnan(value) else value
    return None if type(value).__name__ == "NAType" else value
