"""What a live panel can show: its tables, and the ``live:`` blocks of the dashboards that say what to draw of them.

A live table is a bounded, flat form of the rows of a run. A ``live:`` block is data: a mark (line, heat, tiles …)
and a *series spec*, which says which numbers of which table it shows. The browser draws them, the static fallback
draws the tiles of the overview; both read the same block.

A series spec has these fields:

=========== ==========================================================================================================
``table``   one of :data:`TABLES`
``where``   ``{column: value | [values] | "prefix*" | {not: value}}``, all of which must hold
``first``   a column of which ``where`` lists whole texts: the first of them that a step (and series) has a value of
            counts there, and no other
``x``       "time" (``t``; of spans their begin), "step" or a column (bars: also a list of columns)
``y``       a column or a list of them, also of :data:`DERIVED`
``by``      a column or a list of them: one series for each value
``each``    a column or a list of them: ``y`` is summed for each value first, and reduced over them then
``reduce``  one of :data:`REDUCERS`. "ratio" is sum of y[0] ÷ sum of y[1], "imbalance" largest ÷ mean over ``each``;
            over ranks it is missing where fewer than two are compared
``per``     a column or a list of them: reduced for each of their values, and the largest of these results is shown
``least``   as ``per``, but the smallest of the results is shown
``slots``   a column or a list of them, with "imbalance": sum over the slots of the largest ÷ sum of the means. A slot's
            mean is over the values of ``each`` that it has; without ``slots`` there is one
``scale``   a number: every value is multiplied by it at the end
``divide``  a series spec: the value is divided by that one's at the same step; where both have the same ``by``, each
            series by its own, and else by the largest of that one's
``of``      "run", or "step": only the step that the panel shows
``quantity`` one of ``quantities.yaml``, which brings all fields that don't stand beside it (see
            :mod:`probe.dashboards.quantities`)
``unit``    one of :data:`UNITS`
=========== ==========================================================================================================

The marks, and what they add (:data:`MARKS`):

============== =======================================================================================================
``line``       over time or steps; ``lines``: guides across it, each ``{title, y, reduce, by}`` or ``{title, value}``;
               ``beside``: further lines, each a series spec (or ``quantity``) with a ``title``. Then each is one line,
               at each step the largest of its series (``by``), and ``label`` is the name of the first
``stack``      parts of a whole, one on the other, over steps or along a category; ``share``: of that column's sum;
               ``sort`` (of categories): "value" or "name"
``bars``       side by side along a category; ``lines``, of which ``value: mean`` is the bars' mean; ``sort``;
               ``ticks``: ``{title, least}``, a tick across each bar at the smallest over these columns
``heat``       ``x`` by ``by``; ``over``: a flag that is marked, ``cap``: the limit, the end of the colours; ``tell``
``timeline``   boxes from begin to end, as high as ``y``, or in a lane for each ``by``, coloured by ``colour``
``scatter``    a dot for each row; ``fit``: ``{explained, rows}``, a least-squares line for each series that has so many
               rows or more, that rises, and of whose variance it explains at least that share (half of it with 8 rows
               is what chance gives in 5 of 100 cases); ``tell``: columns of which a dot, or cell, tells when it is
               pointed at
``stragglers`` of the table ``micro``: each rank's tokens ÷ the mean of the ranks, and who is fullest most often
``table``      ``columns``, ``newest`` (so many rows), ``sort``, ``tone`` (a column that alarms), ``search``
``tiles``      ``tiles``: one number each, with its course, what it ``means``, and why it is ``missing``;
               ``window``: of how many last steps a tile shows the median (else as ``quantities.yaml`` says),
               or with ``pooled`` the sum of what is divided by the sum of what it is divided by;
               ``who``: a column, or a series spec with ``by``, whose values are compared, so that one is named;
               ``own``: it is about the observing itself, and the panel leaves it to the view of events
============== =======================================================================================================
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from probe.dashboards.columns import LIVE, of_row_type
from probe.errors import InputError, UnknownNameError
from probe.runs.row_types import row_type

#: Columns of each declared table and their dtypes; "word" is a code (i4) for a text.
TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    name: {column: "word" if one.unit == "word" else one.dtype for column, one in table.columns.items()}
    for name, table in LIVE.items()
}

#: Columns that are worked out from others.
DERIVED: Final[Mapping[str, tuple[str, ...]]] = {name: tuple(table.derived) for name, table in LIVE.items()}

REDUCERS: Final = ("max", "min", "sum", "mean", "last", "count", "ratio", "imbalance")
UNITS: Final = ("bytes", "tokens", "ratio", "percent", "s", "count", "tokens/s", "number")

#: Fields of a series spec.
SERIES: Final = frozenset(
    {
        "table",
        "where",
        "first",
        "x",
        "y",
        "by",
        "each",
        "reduce",
        "per",
        "least",
        "slots",
        "scale",
        "divide",
        "of",
        "unit",
    }
)
_WORDS: Final = frozenset({"mark", "names", "x_title", "y_title"})

#: Fields that each mark has beside the series spec.
MARKS: Final[Mapping[str, frozenset[str]]] = {
    "line": frozenset({"lines", "beside", "label"}),
    "stack": frozenset({"share", "sort"}),
    "bars": frozenset({"lines", "sort", "ticks"}),
    "heat": frozenset({"over", "cap", "tell"}),
    "timeline": frozenset({"colour"}),
    "scatter": frozenset({"fit", "tell"}),
    "stragglers": frozenset(),
    "table": frozenset({"columns", "newest", "sort", "tone", "search"}),
    "tiles": frozenset({"tiles"}),
}
#: Marks that are drawn outside the live panel too, from the numbers of the run (:mod:`probe.figures.marks`).
PICTURED: Final = ("line", "stack", "bars", "heat", "timeline", "scatter", "stragglers")

#: Fields of a tile.
TILE: Final = SERIES | {
    "id",
    "title",
    "capacity",
    "total",
    "warn",
    "alarm",
    "better",
    "means",
    "missing",
    "window",
    "own",
    "who",
    "pooled",
}


def check(block: Any, where: str) -> dict[str, Any]:
    """``block`` itself, once everything in it is known to be right.

    Args:
        block: The block of one panel, as YAML gave it.
        where: Where the block stands, for messages.

    Raises:
        InputError: It isn't a ``live:`` block; the message says where, what was given and what was expected.

    >>> check({"mark": "line", "table": "memory", "x": "time", "y": "allocated"}, "panel 0: live")["y"]
    'allocated'
    """
    _mapping(block, where)
    if block.get("mark") not in MARKS:
        raise UnknownNameError.of(f"{where}: mark", block.get("mark"), MARKS)
    mark = str(block["mark"])
    if mark == "tiles":
        _known(block, _WORDS | MARKS[mark], where)
        check_tiles(block.get("tiles"), f"{where}: tiles")
        return dict(block)
    _known(block, SERIES | _WORDS | MARKS[mark], where)
    _series(block, where, needs_y=mark not in ("table", "timeline"))
    _texts(block, ("x_title", "y_title", "label"), where)
    if not isinstance(block.get("names", {}), dict):
        raise InputError(f"{where}: names: got {block['names']!r}, expected labels by column or value")
    _own(block, where)
    return dict(block)


def check_series(spec: Any, where: str) -> None:
    """Refuse a series spec that can't be asked of a run.

    Args:
        spec: The spec, from wherever it came.
        where: It stands, for messages.

    Raises:
        InputError: Something in it is wrong, or its table isn't known; the message says what was expected.
    """
    _mapping(spec, where)
    _known(spec, SERIES, where)
    _series(spec, where, needs_y=True)
    tables = [spec, *([spec["divide"]] if "divide" in spec else [])]
    for one in tables:
        if not columns_of(str(one["table"])):
            raise UnknownNameError.of(f"{where}: table", one["table"], TABLES)
        if not isinstance(one.get("reduce", "max"), str):
            raise InputError(f"{where}: reduce: got {one['reduce']!r}, expected a text")


def columns_of(table: str) -> tuple[str, ...]:
    """What can be asked of a live table: its columns and the derived ones.

    Args:
        table: A declared one, or one of a row type that a recorder brings.

    Returns:
        The names; none where nobody has told this process of the row type yet.

    >>> columns_of("micro")[-3:]
    ('over', 'padding', 'use')
    """
    if table in TABLES:
        return (*TABLES[table], *DERIVED.get(table, ()))
    kind = row_type(table)
    return () if kind is None else tuple(of_row_type(kind).columns)


def listed(value: Any) -> list[Any]:
    """One or several as a list; None is none.

    >>> listed("rank"), listed(["rank", "role"]), listed(None)
    (['rank'], ['rank', 'role'], [])
    """
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _series(block: Mapping[str, Any], where: str, *, needs_y: bool) -> None:
    table = block.get("table")
    _table(table, f"{where}: table")
    for name in ("y", "by", "each", "per", "least", "slots"):
        _columns(block, name, where)
    if "per" in block and "least" in block:
        raise InputError(f"{where}: least: got {block['least']!r} together with per, expected one of the two")
    if needs_y and not block.get("y") and block.get("reduce") != "count":
        raise InputError(f"{where}: y: got {block.get('y')!r}, expected a column of {table}")
    if block.get("x") not in ("time", "step", None):
        _columns(block, "x", where)
    for name, choices in (("reduce", REDUCERS), ("of", ("run", "step")), ("unit", UNITS)):
        if name in block and block[name] not in choices:
            raise UnknownNameError.of(f"{where}: {name}", block[name], choices)
    if block.get("reduce") == "ratio" and len(listed(block.get("y"))) != 2:
        raise InputError(f"{where}: y: got {block.get('y')!r}, expected two columns: reduce: ratio divides their sums")
    if "slots" in block and block.get("reduce") != "imbalance":
        raise InputError(f"{where}: slots: got {block['slots']!r} without reduce: imbalance, expected both or neither")
    if isinstance(block.get("scale", 1), bool) or not isinstance(block.get("scale", 1), int | float):
        raise InputError(f"{where}: scale: got {block['scale']!r}, expected a number")
    _where(block, where)
    _first(block, where)
    if "divide" in block:
        if block.get("x") not in ("step", None):
            raise InputError(f"{where}: divide: got it with x {block['x']!r}, expected x: step")
        _mapping(block["divide"], f"{where}: divide")
        _known(block["divide"], SERIES, f"{where}: divide")
        _series(block["divide"], f"{where}: divide", needs_y=True)


def _table(table: Any, where: str) -> None:
    """A declared table, or one of a row type that a recorder brings, which needn't be known here."""
    if table in TABLES or (isinstance(table, str) and row_type(table) is not None):
        return
    looks = isinstance(table, str) and table.isidentifier() and table.islower()
    if not looks or difflib.get_close_matches(table, TABLES):
        raise UnknownNameError.of(where, table, TABLES)


def _where(block: Mapping[str, Any], where: str) -> None:
    found = block.get("where", {})
    _mapping(found, f"{where}: where")
    for column, wanted in found.items():
        _column(block, column, f"{where}: where")
        inner = wanted.get("not") if isinstance(wanted, dict) else wanted
        if isinstance(wanted, dict) and set(wanted) != {"not"}:
            raise InputError(f"{where}: where: {column}: got {wanted!r}, expected {{not: value}}")
        if not all(isinstance(one, str | int | float) for one in listed(inner)) or inner is None:
            raise InputError(f"{where}: where: {column}: got {wanted!r}, expected a value or a list of values")


def _first(block: Mapping[str, Any], where: str) -> None:
    """Of the texts of ``where`` for that column the first that a group has is what counts there."""
    if "first" not in block:
        return
    texts = block.get("where", {}).get(block["first"]) if isinstance(block["first"], str) else None
    if not isinstance(texts, list) or not all(isinstance(one, str) and not one.endswith("*") for one in texts):
        raise InputError(
            f"{where}: first: got {block['first']!r}, expected a column for which where lists texts, none ending in *"
        )
    if "per" in block or "least" in block:
        raise InputError(f"{where}: first: got it together with per or least, expected only one of them")


def _own(block: Mapping[str, Any], where: str) -> None:
    """The fields that only some marks have."""
    for name in ("share", "over", "cap", "colour", "tone"):
        if name in block:
            _column(block, block[name], f"{where}: {name}")
    if block["mark"] == "table":
        _columns(block, "columns", where)
        _columns(block, "sort", where)
        if not listed(block.get("columns")):
            raise InputError(f"{where}: columns: got none, expected columns of {block['table']}")
    elif "sort" in block and block["sort"] not in ("value", "name"):
        raise UnknownNameError.of(f"{where}: sort", block["sort"], ("value", "name"))
    for name, kind in (("newest", int), ("fit", dict), ("search", bool), ("lines", list), ("beside", list)):
        if name in block and not isinstance(block[name], kind):
            raise InputError(f"{where}: {name}: got {block[name]!r}, expected a {kind.__name__}")
    _columns(block, "tell", where)
    if "fit" in block:
        _fit(block["fit"], f"{where}: fit")
    for index, line in enumerate(block.get("lines", ())):
        _line(block, line, f"{where}: lines {index}")
    for index, line in enumerate(block.get("beside", ())):
        _beside(line, f"{where}: beside {index}")
    if "ticks" in block:
        _mapping(block["ticks"], f"{where}: ticks")
        _known(block["ticks"], frozenset({"title", "least"}), f"{where}: ticks")
        _columns({**block["ticks"], "table": block["table"]}, "least", f"{where}: ticks")


def _fit(fit: Mapping[str, Any], where: str) -> None:
    _known(fit, frozenset({"explained", "rows"}), where)
    explained, rows = fit.get("explained"), fit.get("rows")
    if isinstance(explained, bool) or not isinstance(explained, int | float) or not 0 <= explained <= 1:
        raise InputError(f"{where}: explained: got {explained!r}, expected a share from 0 to 1")
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 3:  # two points always lie on a line
        raise InputError(f"{where}: rows: got {rows!r}, expected a whole number from 3 on")


def _beside(line: Any, where: str) -> None:
    _mapping(line, where)
    _known(line, SERIES | {"title"}, where)
    if not isinstance(line.get("title"), str):
        raise InputError(f"{where}: title: got {line.get('title')!r}, expected a text")
    _series(line, where, needs_y=True)


def _line(block: Mapping[str, Any], line: Any, where: str) -> None:
    _mapping(line, where)
    _known(line, frozenset({"title", "y", "value", "reduce", "by"}), where)
    _texts(line, ("title",), where)
    if "by" in line:
        _column(block, line["by"], f"{where}: by")
    if ("y" in line) == ("value" in line):
        raise InputError(f"{where}: got {line!r}, expected either y (a column) or value")
    if "y" in line:
        _column(block, line["y"], f"{where}: y")
    elif not (isinstance(line["value"], int | float) or line["value"] == "mean"):
        raise InputError(f"{where}: value: got {line['value']!r}, expected a number or 'mean'")
    if line.get("reduce", "max") not in REDUCERS:
        raise UnknownNameError.of(f"{where}: reduce", line["reduce"], REDUCERS)


def pairs(spec: Mapping[str, Any]) -> bool:
    """Whether each series of ``spec`` is divided by its own of ``divide``, and not all by one.

    >>> pairs({"by": "rank", "divide": {"by": "rank"}}), pairs({"by": "rank", "divide": {}}), pairs({})
    (True, False, False)
    """
    under = spec.get("divide")
    return under is not None and "divide" not in under and listed(under.get("by")) == listed(spec.get("by"))


def check_tiles(tiles: Any, where: str) -> None:
    """Refuse ``tiles`` that can't be shown.

    Args:
        tiles: Of a ``live:`` block, or quantities, which have the same form.
        where: It stands, for messages.

    Raises:
        InputError: Something in it is wrong; the message says where, what was given and what was expected.
    """
    if not isinstance(tiles, list) or not tiles:
        raise InputError(f"{where}: got {tiles!r}, expected a list of tiles")
    for index, tile in enumerate(tiles):
        here = f"{where} {index}"
        _mapping(tile, here)
        _known(tile, TILE, here)
        for name in ("id", "title"):
            if not isinstance(tile.get(name), str):
                raise InputError(f"{here}: {name}: got {tile.get(name)!r}, expected a text")
        _series(tile, f"{here} ({tile['id']})", needs_y=True)
        if "capacity" in tile:
            _mapping(tile["capacity"], f"{here}: capacity")
            _known(tile["capacity"], SERIES, f"{here}: capacity")
            _series(tile["capacity"], f"{here}: capacity", needs_y=True)
        check_window(tile.get("window", 1), f"{here}: window")
        if "who" in tile:
            _who(tile, f"{here}: who")
        if tile.get("pooled") and not pairs(tile):
            raise InputError(f"{here}: pooled: got it without a divide of the same by, expected such a divide")
        _tile_words(tile, here)
    names = [tile["id"] for tile in tiles]
    if len(set(names)) < len(names):
        raise InputError(f"{where}: got the ids {', '.join(names)}, expected each once")


def _who(tile: Mapping[str, Any], where: str) -> None:
    who = tile["who"]
    if isinstance(who, str):
        _column(tile, who, where)
        return
    _mapping(who, where)
    _known(who, SERIES, where)
    _series(who, where, needs_y=True)
    if len(listed(who.get("by"))) != 1:
        raise InputError(f"{where}: by: got {who.get('by')!r}, expected exactly one column, whose values are compared")


def check_window(steps: Any, where: str) -> None:
    """Refuse a number of steps that no median can be made of.

    Args:
        steps: The number.
        where: It stands, for messages.

    Raises:
        InputError: It is no whole number from 1 on.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"{where}: got {steps!r}, expected a whole number of steps from 1 on")


def _tile_words(tile: Mapping[str, Any], where: str) -> None:
    if not isinstance(tile.get("own", False), bool):
        raise InputError(f"{where}: own: got {tile['own']!r}, expected true or false")
    for name in ("warn", "alarm"):
        if name in tile and not isinstance(tile[name], int | float):
            raise InputError(f"{where}: {name}: got {tile[name]!r}, expected a number")
    if tile.get("better", "lower") not in ("lower", "higher"):
        raise UnknownNameError.of(f"{where}: better", tile["better"], ("lower", "higher"))
    for field, names in (("means", ("good", "warn", "alarm")), ("missing", ("rows", "value"))):
        said = tile.get(field, {})
        _mapping(said, f"{where}: {field}")
        _known(said, frozenset(names), f"{where}: {field}")
        _texts(said, names, f"{where}: {field}")


def _columns(block: Mapping[str, Any], name: str, where: str) -> None:
    for column in listed(block.get(name)):
        _column(block, column, f"{where}: {name}")


def _column(block: Mapping[str, Any], column: Any, where: str) -> None:
    choices = columns_of(block["table"])
    if choices and column not in choices:
        raise UnknownNameError.of(where, column, choices)


def _known(block: Mapping[str, Any], names: frozenset[str], where: str) -> None:
    unknown = sorted(map(str, set(block) - names))
    if unknown:
        raise InputError(f"{where}: unknown {', '.join(unknown)}; fields are {', '.join(sorted(names))}")


def _texts(block: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if not isinstance(block.get(name, ""), str):
            raise InputError(f"{where}: {name}: got {block[name]!r}, expected a text")


def _mapping(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise InputError(f"{where}: got {value!r}, expected a mapping")
