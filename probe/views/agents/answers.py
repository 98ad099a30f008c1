"""The tools: plain values in, plain values out, with foreign text marked. None of them changes anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe.analysis.query import literal
from probe.errors import InputError, RunError
from probe.runs.foreign import read_from
from probe.runs.reader import NAMES
from probe.runs.views import texts
from probe.sql import Sql
from probe.sql import sql as with_limit
from probe.text import plain, rows
from probe.views.agents.marking import NAME_IN_SQL, Foreign, all_foreign, marked

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Rows of an answer to SQL, unless asked for others, and at the most.
ROWS: Final = 100
MOST_ROWS: Final = 1000
#: Runs that are listed at the most.
MOST_RUNS: Final = 200

#: Tables with texts of samples, of exceptions and of foreign code.
WITH_TEXTS: Final = frozenset({"samples", "token_blocks", "failures", "incidents", "stacks"})

#: Findings that quote such a text.
_QUOTING: Final = frozenset({"failed", "out_of_memory", "killed", "hang", "waits", "incidents"})

#: The looks that they come of, as a comparison calls them.
_QUOTING_LOOKS: Final = frozenset({"stopped", "trouble"})

#: Where the sentences of findings stand.
_SENTENCES: Final = ("sentence", "why", "alternatives", "missing")

_OF_FINDINGS: Final = frozenset(
    {f"findings.{one}" for one in (*_SENTENCES, "evidence_sql")}
    | {f"findings.change.{one}" for one in ("advice", "gains", "because", "when")}
)

_OF_WHAT_IF: Final = frozenset({"notes", "refused.why"})

_OF_ADVICE: Final = frozenset(
    {"remarks", "memory.why", "memory.experiment"}
    | {f"suggestions.{one}" for one in ("advice", "gains", "because", "when.told")}
    | {f"suggestions.what_if.{one}" for one in _OF_WHAT_IF}
)

_OF_DIFFERENCE: Final = frozenset(
    {"sentences", "difference.missing", "difference.waterfalls.notes", "difference.waterfalls.parts.about"}
    | {f"findings.{one}" for one in ("about", "finding_a", "finding_b")}
    | {"promises.number", "promises.about"}
)

#: Where names stand that a training gives.
_NAMED: Final = (
    ("scalars", "key"),
    ("reductions", "key"),
    ("padding", "field"),
    ("incidents", "where"),
    *((table, name) for table in ("memory", "micro_batches", "calls") for name in ("role", "phase")),
)

#: Names that are asked for.
_MOST_NAMES: Final = 1000

#: What can stand inside another query.
_SELECTS: Final = re.compile(r"\s*(--[^\n]*\n\s*|/\*.*?\*/\s*)*(select|with|from|values)\b", re.IGNORECASE | re.DOTALL)


def list_runs(root: str) -> dict[str, Any]:
    """The runs at and below the root, the one that began last first.

    Args:
        root: A directory or URL.
    """
    from probe.runs.finding import runs_below
    from probe.runs.reader import Run

    told = []
    for place in runs_below(root, argument="root"):
        try:
            with Run(place) as run:
                info = run.info
                told.append(
                    {
                        "run": _name(place, info.config),
                        "project": info.project,
                        "experiment": info.experiment,
                        "started_at": info.started_at,
                        "processes": len(run.processes),
                    }
                )
        except (RunError, OSError) as error:
            told.append({"run": place, "started_at": "", "error": str(error)})
    told.sort(key=lambda one: str(one["started_at"]), reverse=True)
    return marked(plain({"root": root, "runs": told[:MOST_RUNS], "more": max(0, len(told) - MOST_RUNS)}))


def _name(place: str, config: Any) -> str:
    """What a run is called by: its place; of what others wrote theirs, see :mod:`probe.runs.foreign`."""
    return read_from(config) or place


def findings(root: str, run: str = "") -> dict[str, Any]:
    """What was found in a run, the worst first, and behind it what couldn't be judged.

    Args:
        root: Below which runs are.
        run: Which one; "" takes the newest.
    """
    from probe.analysis import verdict

    with _opened(root, run) as opened:
        found = [_finding(one.to_dict()) for one in verdict.findings(opened).everything]
        return marked(plain({"run": opened.path, "findings": found}), _OF_FINDINGS, _names(opened))


def _finding(told: dict[str, Any]) -> dict[str, Any]:
    """A finding; of one that quotes a text of the run, and of what a reader noted of a foreign log, all is foreign."""
    quoting = _SENTENCES if told["name"] in _QUOTING else ("missing",) if told["name"] == "not_recorded" else ()
    made = {key: all_foreign(value) if key in quoting else value for key, value in told.items()}
    return made | {"folded": [_finding(one) for one in told["folded"]]}


def _names(*runs: Run) -> set[str]:
    """The names that runs give and that could be read as a sentence: probe's own sentences may quote them."""
    found: set[str] = set()
    for run in runs:
        for table, column in _NAMED:
            if run.has(table):
                frame = run.sql(
                    with_limit(
                        """select distinct {column} as name from {table}
                        where {column} is not null and not regexp_matches({column}, {name}) limit {most}""",
                        column=Sql(f'"{column}"'),
                        table=Sql(table),
                        name=literal(NAME_IN_SQL),
                        most=_MOST_NAMES,
                    )
                )
                found |= set(frame["name"])
    return found


def advise(root: str, run: str = "", risk: float = 0.02) -> dict[str, Any]:
    """Changes to the configuration, each tried on the run's own batches.

    Args:
        root: Below which runs are.
        run: Which one; "" takes the newest.
        risk: Share of runs of 1,000 steps that may run out of memory.
    """
    from probe.analysis import advice

    with _opened(root, run) as opened:
        told = {"run": opened.path, **advice.advise(opened, risk=risk).to_dict()}
        return marked(plain(told), _OF_ADVICE, _names(opened))


def what_if(root: str, changes: Mapping[str, Any], run: str = "") -> dict[str, Any]:
    """What the run's batches would have come to under other settings.

    Args:
        root: Below which runs are.
        changes: Settings by name.
        run: Which one; "" takes the newest.
    """
    from probe.analysis.what_if import answering

    with _opened(root, run) as opened:
        told = {"run": opened.path, **answering.what_if(opened, dict(changes)).to_dict()}
        return marked(plain(told), _OF_WHAT_IF, _names(opened))


def compare(root: str, a: str, b: str) -> dict[str, Any]:
    """What differs between two runs. A setting that one of them doesn't have has no field for it.

    Args:
        root: Below which runs are.
        a: A run.
        b: What it is compared with.
    """
    from probe.analysis.run_comparison import ABSENT, compare_runs

    if not a or not b:
        raise InputError(f"compare: got {a!r} and {b!r}, expected two runs")
    with _opened(root, a) as one, _opened(root, b) as other:
        found = compare_runs(one, other)
        names = _names(one, other)
    frames = {name: rows(getattr(found, name)) for name in ("promises", "config", "findings", "metrics")}
    frames["findings"] = [all_foreign(row) if row["about"] in _QUOTING_LOOKS else row for row in frames["findings"]]
    frames["config"] = [{key: one for key, one in row.items() if one != ABSENT} for row in frames["config"]]
    sentences = [of.sentence() for of in found.difference.waterfalls]
    told = {"a": found.a, "b": found.b, "sentences": sentences, "difference": found.difference.to_dict(), **frames}
    return marked(plain(told), _OF_DIFFERENCE, names)


def sql(root: str, query: str, run: str = "", limit: int = ROWS) -> dict[str, Any]:
    """The answer of a read-only query over a run's tables. Of one that names a table with texts every text is foreign.

    Args:
        root: Below which runs are.
        query: One statement in DuckDB's SQL.
        run: Which one; "" takes the newest.
        limit: Rows of the answer, at most :data:`MOST_ROWS`.

    Raises:
        InputError: DuckDB doesn't understand it, or it asks for what isn't allowed.
    """
    if not 1 <= limit <= MOST_ROWS:
        raise InputError(f"limit: got {limit}, expected 1 to {MOST_ROWS}")
    text = query.strip().rstrip(";")
    inner = bool(_SELECTS.match(text))
    with _opened(root, run) as opened:
        asked = (
            with_limit("select * from (\n{text}\n) limit {limit}", text=Sql(text), limit=limit + 1) if inner else text
        )
        try:
            frame = opened.sql(asked)
        except InputError as error:
            raise InputError(Foreign(error)) from error  # it may quote the texts that it read
        names = [str(one) for one in frame.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"query: more than one column is called {twice[0]!r}; give each a name of its own with AS")
        told = [[_plain(value) for value in row] for row in frame.head(limit).itertuples(index=False, name=None)]
        answer = {"run": opened.path, "columns": names, "rows": plain(told), "more_rows": len(frame) > limit}
        if _reads_texts(opened, text):
            answer["rows"] = all_foreign(answer["rows"])
        return marked(answer)


def _reads_texts(run: Run, query: str) -> bool:
    """Whether a query names a table with texts, or one that isn't probe's. It may put a name together, too."""
    lower = query.lower()
    others = set(run.tables) - NAMES.keys() - set(NAMES.values()) - texts().keys()
    return "query" in lower or any(name.lower() in lower for name in WITH_TEXTS | others)


def _plain(value: Any) -> Any:
    """A value out of a frame: NULL is None, numpy's are Python's."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return value.tolist() if hasattr(value, "tolist") else value


#: By name, as the protocol has them.
TOOLS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    "list_runs": list_runs,
    "findings": findings,
    "what_if": what_if,
    "advise": advise,
    "compare": compare,
    "sql": sql,
}


def _opened(root: str, name: str) -> Run:
    """The run called ``name``, a path or one relative to the root; nothing outside of the root is read."""
    from probe.runs.finding import find_run
    from probe.runs.reader import Run

    return Run(find_run(_inside(root, name)))


def _inside(root: str, name: str) -> str:
    if "://" in root or "://" in name:
        place = name if "://" in name else f"{root.rstrip('/')}/{name}".rstrip("/")
        base = root.rstrip("/") + "/"
        if ".." in place.split("/") or not f"{place}/".startswith(base):
            raise InputError(f"run: got {name!r}, expected a run below {root!r}; list_runs lists them")
        return place
    base_path = Path(root).resolve()
    path = (base_path / name).resolve()
    if not path.exists() and Path(name).resolve().is_relative_to(base_path):
        path = Path(name).resolve()  # relative to the working directory, as other commands take it
    if not path.is_relative_to(base_path):
        raise InputError(f"run: got {name!r}, expected a run below {root!r}; list_runs lists them")
    return str(path)
