"""report.html: one run as one file that opens anywhere, with no network and no kernel.

Everything is inside: the words and tables as plain HTML, which are readable without a script, and the
figures as plotly JSON beside one packed copy of plotly.js. Text that came from a user is escaped wherever
it goes; the page's own policy forbids every script but its own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pandas as pd
import plotly.io
from plotly.offline import get_plotlyjs

from probe import text as words
from probe._io import expanded, write_atomically
from probe.analysis import overview
from probe.analysis.advice import advise
from probe.analysis.advice.copying import copied
from probe.analysis.audit import audit
from probe.analysis.idle import idle
from probe.analysis.kept_text import text_of
from probe.analysis.ledger import ledger
from probe.analysis.long_tail import long_tail
from probe.analysis.mismatch import mismatch
from probe.analysis.post_mortem import PostMortem, post_mortem
from probe.analysis.verdict import Finding, Findings, findings
from probe.analysis.verdict.finding import KINDS
from probe.dashboards import Dashboard, Panel, dashboards, digest
from probe.errors import InputError, RunError
from probe.figures import colours, thinning
from probe.figures import theme as look
from probe.figures.lines import line
from probe.figures.panel import draw
from probe.runs.files import damage
from probe.runs.reader import Run
from probe.runs.visibility import sentence
from probe.views.report import samples

#: Rows of a table, and choices of a panel, that the page holds; the page says when there are more.
TABLE_ROWS: Final = 50
CHOICES: Final = 6

_TONES: Final = {"alarm": "problem", "tuning": "notice", "fine": "fine", "withheld": "withheld"}


def write_report(run: Run | str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of ``run``.

    Args:
        run: A reader, or the run directory.
        path: The file; None writes ``report.html`` into the run directory.

    Returns:
        The absolute path of the file, which is complete: it is written aside and renamed.

    Raises:
        InputError: No path was given, and the run is at a URL.
        RunError: The file can't be written.
    """
    if not isinstance(run, Run):
        with Run(run) as opened:
            return write_report(opened, path)
    if path is None and "://" in str(run.path):
        raise InputError(f"path: got None for the run at {run.path}, expected the local file to write")
    target = expanded("path", Path(run.path) / "report.html" if path is None else path).absolute()
    try:
        # A lone surrogate, as a broken file name may bring, has no UTF-8.
        write_atomically(target, report_html(run).encode("utf-8", errors="replace"))
    except OSError as error:
        raise RunError(f"path: the report can't be written to {target}: {error}") from error
    return target


def report_html(run: Run) -> str:
    """The report of ``run`` as one HTML document."""
    # Packing plotly.js takes a third of a second and not the interpreter, so it goes on beside all else.
    with ThreadPoolExecutor(1) as beside, run.asked_often():
        beside.submit(_plotly_packed)
        return _html(cast("Run", _Once(run)))


def _html(run: Run) -> str:
    drawn = {panel.id: _draw(panel, run) for board in dashboards() for panel in board.panels}
    mortem, found, numbers = post_mortem(run), findings(run), _kept(run, "numbers", lambda: _numbers(run))
    tokens, mismatched, answers = _tokens(run), _mismatch(run), samples.section(run, found)
    tail, both = _long_tail(run), _idle(run)
    anchors = _anchors(found, mismatched, tail, both) | answers.anchors
    main = [
        "<main>",
        _findings(found, anchors),
        _tiles(_unjudged(overview.numbers(run), found)),
        numbers,
        _ended(mortem),
        _kept(run, "advice", lambda: _advice(run)),
        tokens,
        mismatched,
        answers.html,
        tail,
        both,
        *(_board(board, drawn) for board in dashboards()),
        "</main>",
    ]
    # The header says which files all of it came upon as damaged.
    sections = {
        "post-mortem": ("Its end", mortem.happened),
        "numbers": ("Numbers", bool(numbers)),
        "ledger": ("Tokens taught", bool(tokens)),
        "mismatch": ("Rollout and training", bool(mismatched)),
        "samples": ("Answers", bool(answers.html)),
        "long-tail": ("Long tail", bool(tail)),
        "idle": ("Who waits", bool(both)),
    }
    links = {anchor: title for anchor, (title, there) in sections.items() if there}
    body = "\n".join([_header(run, links), *main, _footer(run)])
    data = {panel: one.options for panel, one in drawn.items() if one.options}
    return _page(_title(run), body, data)


class _Once:
    """A run that answers each question once: findings, tiles and panels ask much the same."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._answers: dict[tuple[str, int | None], pd.DataFrame] = {}

    def sql(self, query: str, *, keep: bool = True, since: int | None = None) -> pd.DataFrame:
        asked = query, since
        if asked not in self._answers:
            self._answers[asked] = self._run.sql(query, keep=keep, since=since)
        return self._answers[asked].copy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


# ------------------------------------------------------------------------------------------------------ the
# figures


@dataclass(frozen=True)
class _Drawn:
    """A panel of this run."""

    article: str  #: as HTML, with a place for its figures
    options: list[dict[str, Any]]  #: the choices: the label of each, and its figure as plotly's dict without template


def _draw(panel: Panel, run: Run) -> _Drawn:
    """A panel, as it was kept or drawn."""

    def made() -> str:
        return json.dumps(asdict(_drawn(panel, run)))

    return _Drawn(**json.loads(_kept(run, f"panel {panel.id}", made)))


def _drawn(panel: Panel, run: Run) -> _Drawn:
    options, missing = [], None
    for label, choice in panel.options(run)[:CHOICES] or [("", {})]:
        figure = draw(panel, run, **choice)
        missing = look.why(figure)
        if missing is None:
            options.append({"label": label, "figure": _bare(figure)})
    listing = panel.listing(run)
    memory = words.SOURCES["process_rss"] if "memory" in panel.tables and _source(run) == "process_rss" else ""
    if memory:  # a device allocates; of a process the resident set is known
        listing = listing.rename(columns=lambda name: str(name).replace("_allocated_", "_resident_"))
    picture = _picture(panel, options) if options else f'<p class="missing">{_text(missing)}</p>'
    return _Drawn(_article(panel, picture, listing, memory), options)


def _bare(figure: Any) -> dict[str, Any]:
    # The template is the same for all figures and depends on the theme: the page brings it once.
    figure.layout.template = None
    bare: dict[str, Any] = json.loads(plotly.io.to_json(figure, engine="json"))
    bare["layout"].pop("template", None)
    return bare


def _script_json(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@lru_cache(maxsize=1)
def _plotly_packed() -> str:
    """plotly.js, compressed (a third of its size), as base64 text."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode("ascii")


# ----------------------------------------------------------------------------------------------------------
# the page


def _page(title: str, body: str, data: dict[str, Any]) -> str:
    templates = {"light": _template("light"), "dark": _template("dark")}
    payload = _script_json({"templates": templates, "dark": colours.dark_of_light(), "panels": data})
    nonce = hashlib.sha256((body + payload).encode("utf-8", "replace")).hexdigest()[:32]
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{_static("report.css")}</style>
</head>
<body>
<a class="skip" href="#findings">Skip to what was found</a>
{body}
<script type="application/json" id="data">{payload}</script>
<script type="text/plain" id="plotly">{_plotly_packed()}</script>
<script nonce="{nonce}">{_static("report.js")}</script>
</body>
</html>
"""


def _template(theme: look.Theme) -> dict[str, Any]:
    empty = look.blank(theme)
    return dict(json.loads(plotly.io.to_json(empty, engine="json"))["layout"]["template"])


@lru_cache(maxsize=4)
def _static(name: str) -> str:
    return (resources.files("probe.views.report") / name).read_text(encoding="utf-8")


def _title(run: Run) -> str:
    return f"{_text(run.info.project)} · {_text(run.info.experiment or Path(run.path).name)} · probe"


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _header(run: Run, sections: Mapping[str, str]) -> str:
    facts = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
        for name, value in _facts(run)
        if value not in (None, "")
    )
    rss = ""
    if _source(run) == "process_rss":
        rss = (
            '<p class="remark">No accelerator was used: memory in this report means the resident set (RSS)'
            " of each process, not the memory of a device.</p>"
        )
    told = _attempts(run)
    attempts = f'<p class="remark">{_text(told)}</p>' if told else ""
    damaged = f'<p class="remark">{_text(damage(run.damaged))}</p>' if run.damaged else ""
    titles = {**sections, **{board.name: board.title for board in dashboards()}}
    links = "".join(f'<a href="#{anchor}">{_text(title)}</a>' for anchor, title in titles.items())
    return f"""<header>
<p class="brand">probe <span>run report</span></p>
<h1>{_text(run.info.project)} <span>{_text(run.info.experiment or Path(run.path).name)}</span></h1>
<dl class="facts">{facts}</dl>
{attempts}
{damaged}
{rss}
<nav aria-label="Sections"><a href="#findings">Findings</a>{links}</nav>
</header>"""


def _attempts(run: Run) -> str:
    """Which launch of the job is shown, where there were several."""
    if run.shown_attempt is None:
        return sentence(run.hidden)
    return f"Attempt {run.shown_attempt} of {max(run.attempts)}, alone and whole." if len(run.attempts) > 1 else ""


def _facts(run: Run) -> Iterator[tuple[str, Any]]:
    processes = run.processes
    yield "Host", ", ".join(sorted(set(processes["host"]))[:4]) if len(processes) else run.info.host
    devices = words.rows(processes[["device", "device_name"]].drop_duplicates()) if len(processes) else []
    yield "Device", ", ".join(dict.fromkeys(_device(row) for row in devices[:4]))
    yield "Written by", _ranks(run, processes)
    extent = _extent(run)
    yield "Steps", words.count(extent["steps"])
    yield "Duration", words.seconds(extent["seconds"])
    yield "Started", str(run.info.started_at).replace("T", " ")[:19]
    yield "Versions", ", ".join(f"{name} {version}" for name, version in sorted(run.info.versions.items()))


def _device(row: dict[Any, Any]) -> str:
    name, device = str(row["device_name"] or ""), str(row["device"] or "")
    if device == "cpu":
        return f"CPU{f' ({name})' if name and name.lower() != 'cpu' else ''}"
    return f"{name} ({device})" if name else device


def _ranks(run: Run, processes: pd.DataFrame) -> str:
    expected = int(processes["world_size"].max()) if len(processes) else len(run.ranks)
    if run.ranks and len(run.ranks) < expected:
        return f"{len(run.ranks)} of {expected} ranks (the others wrote nothing)"
    return run.written_by


def _extent(run: Run) -> dict[str, float]:
    frame = run.sql(
        """
        with seen as (
          select step, wall_ns from calls union all select step, wall_ns from memory
          union all select step, wall_ns from micro_batches union all select step, wall_ns from scalars
          union all select step, wall_ns from padding union all select step, wall_ns from reductions
        ) select count(distinct step) as steps, max(wall_ns) as last from seen"""
    )
    first, last = run.processes["wall_ns"].min(), frame["last"][0]
    seconds = float("nan") if words.missing(last) or words.missing(first) else (int(last) - int(first)) / 1e9
    return {"steps": float(frame["steps"][0]), "seconds": seconds}


def _source(run: Run) -> str | None:
    found = run.sql("select source from memory where source <> '' limit 1")
    return None if found.empty else str(found["source"][0])


def _footer(run: Run) -> str:
    return (
        f"<footer><p>Every number here comes from the rows in <code>{_text(run.path)}</code>."
        " Times are host times. GiB means 1024³ bytes.</p></footer>"
    )


# ------------------------------------------------------------------------------------------------- tiles
# and findings


def _unjudged(numbers: pd.DataFrame, found: Findings) -> pd.DataFrame:
    """The tiles, without what is said in praise of memory where an alarm is about it."""
    if not any(one.topic == "memory" for one in found.alarms):
        return numbers
    good = (numbers["name"] == "peak_memory") & (numbers["status"] == "good")
    return numbers.assign(about=numbers["about"].mask(good, "An alarm is about memory."))


def _tiles(numbers: pd.DataFrame) -> str:
    tiles = "".join(
        f'<li><p class="name">{_text(row["title"])}</p><p class="value">{_text(row["text"])}</p>'
        f'<p class="note">{_text(row["note"])}</p>{_spark(row["history"])}'
        f'<p class="about">{_text(row["about"])}</p></li>'
        for row in words.rows(numbers)
    )
    return f'<section aria-label="The run in numbers"><ul class="tiles">{tiles}</ul></section>'


def _spark(history: list[float], width: float = 120, height: float = 26) -> str:
    """A small line of the values, without axes, infinite ones marked at its edge; empty for fewer than two."""
    values = np.array(history, dtype=float)
    if np.count_nonzero(~np.isnan(values)) < 2:
        return '<div class="spark"></div>'
    kept = thinning.thin(values, 120)
    found = line(kept.tolist(), values[kept].tolist(), (0, len(values) - 1))

    def placed(point: tuple[float, float]) -> str:
        return f"{point[0] * (width - 4) + 2:.1f},{point[1] * (height - 6) + 3:.1f}"

    def dot(name: str, point: tuple[float, float]) -> str:  # a line without length that has round ends
        return f'<polyline class="{name}" points="{placed(point)} {placed(point)}"/>'

    drawn = f'<polyline points="{" ".join(map(placed, found.points))}"/>' if found.points else ""
    drawn += "".join(dot("last", one) for one in found.points[-1:])
    if found.infinite:
        marks = "".join(dot("infinite", one) for one in found.infinite)
        drawn += f"<g><title>{len(found.infinite)} infinite</title>{marks}</g>"
    box = f'viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none"'
    return f'<svg class="spark" {box} aria-hidden="true">{drawn}</svg>'


def _anchors(found: Findings, mismatched: str, tail: str, both: str) -> dict[int, str]:
    """Where findings lead that have a section of their own, by their place."""
    sections: dict[str, tuple[str, ...]] = {"mismatch": ("mismatch", "agreement")} if mismatched else {}
    sections |= {"long-tail": ("long_tail", "rollout_ends")} if tail else {}
    sections |= {"idle": ("idle_trainer", "idle_rollout", "sides_keep_up")} if both else {}
    return {at: section for section, names in sections.items() for at, one in enumerate(found) if one.name in names}


def _findings(found: Findings, anchors: Mapping[int, str]) -> str:
    if not found.everything:
        rows = '<p class="missing">Nothing was recorded yet, so that nothing was found.</p>'
    else:
        cells = "".join(_finding(one, anchors.get(at, one.topic)) for at, one in enumerate(found.everything))
        rows = (
            '<table class="findings"><thead><tr><th scope="col">How bad</th>'
            '<th scope="col">What was found</th><th scope="col">What to do</th></tr></thead>'
            f"<tbody>{cells}</tbody></table>"
        )
    return f'<section id="findings"><h2>What probe found</h2>{rows}</section>'


def _finding(one: Finding, anchor: str) -> str:
    sign, label, _ = KINDS[one.kind]
    said = "".join(f"<p>{_text(part)}</p>" for part in (one.reasons, *(after.sentence for after in one.folded)) if part)
    advice = one.change.advice if one.change is not None else "" if one.kind == "withheld" else "See the figures."
    link = f'<a href="#{_text(anchor)}">{_text(advice)}</a>' if one.kind != "withheld" else _text(advice)
    code = f"<p><code>{_text(one.change.line)}</code></p>" if one.change is not None and one.change.line else ""
    return (
        f'<tr class="{_TONES[one.kind]}"><th scope="row"><span aria-hidden="true">{sign}</span> {label}</th>'
        f"<td>{_text(one.sentence)}{said}</td><td>{link}{code}</td></tr>"
    )


def _kept(run: Run, what: str, make: Callable[[], str]) -> str:
    """A text of the report: of a large run as it was kept, since it takes seconds to work out."""
    parts = ("analysis", "core/balancing", "dashboards", "figures", "runs", "text.py", "views/report")
    return text_of(run, f"the report's {what} as defined by {digest()}", make, *parts)


def _numbers(run: Run) -> str:
    """What was logged beside what it should have been; nothing where nothing was logged."""
    found = audit(run)
    if not found:
        return ""
    title = "Are the numbers right?"
    table = f'<div class="scroll" tabindex="0" role="region" aria-label="Numbers">{found._repr_html_()}</div>'
    return f'<section id="numbers"><h2>{title}</h2>{table}</section>'


def _ended(mortem: PostMortem) -> str:
    """What ended the run, or holds it up; nothing where nothing does."""
    if not mortem.happened:
        return ""
    title = "What this run waits for" if mortem.state == "hangs" else "What ended this run"
    return f'<section id="post-mortem"><h2>{title}</h2>{mortem._repr_html_()}</section>'


def _advice(run: Run) -> str:
    """Which settings to change, each as ``probe advise`` prints it, and as a patch; nothing where none is worth it."""
    try:
        found = advise(run)
    except InputError:  # no micro-batches
        return ""
    if not found.suggestions:
        return ""
    told = "".join(f'<pre tabindex="0">{_text(one)}</pre>' for one in found.suggestions)
    patch = copied(run, found)
    to_copy = (
        f'<div class="copied"><pre id="advice-patch" tabindex="0">{_text(patch)}</pre>'
        '<button type="button" data-copy="advice-patch">Copy</button></div>'
        if patch
        else ""
    )
    lead = (
        "Each change was tried on the batches of this run. The patch is of the configuration that the run recorded; "
        "<code>probe advise RUN --config FILE</code> makes one of your own file. Nothing is changed by itself."
    )
    return (
        f'<section id="advice"><h2>Which setting, which value</h2><p class="lead">{lead}</p>{told}{to_copy}</section>'
    )


def _tokens(run: Run) -> str:
    """Where the tokens went; nothing where nobody told what was sampled."""
    found = ledger(run)
    if found is None:
        return ""
    lead = "Each sampled token has one fate, and each computed slot one kind: both ledgers sum exactly."
    body = f'<p class="lead">{lead}</p>{found._repr_html_()}'
    return f'<section id="ledger"><h2>Where the tokens went</h2>{body}</section>'


def _mismatch(run: Run) -> str:
    """Whether rollout and training agree; nothing where nobody told both log-probabilities."""
    found = mismatch(run)
    if found is None:
        return ""
    return f'<section id="mismatch"><h2>Do rollout and training agree?</h2>{found._repr_html_()}</section>'


def _long_tail(run: Run) -> str:
    """How long the last answers let all others wait; nothing where nobody told when answers were sampled."""
    found = long_tail(run)
    if found is None or found.shown.begin_ns is None:
        return ""
    return f'<section id="long-tail"><h2>The rollout\'s long tail</h2>{found._repr_html_()}</section>'


def _idle(run: Run) -> str:
    """What the time of the trainer and of the replicas went for, where both work at the same time."""
    found = idle(run)
    if found is None or not found.asynchronous:
        return ""
    return f'<section id="idle"><h2>Who waits: training or sampling</h2>{found._repr_html_()}</section>'


# ----------------------------------------------------------------------------------------------------------
# panels


def _board(board: Dashboard, drawn: dict[str, _Drawn]) -> str:
    panels = "\n".join(drawn[panel.id].article for panel in board.panels)
    return (
        f'<section id="{board.name}"><h2>{_text(board.title)}</h2><p class="lead">{_text(board.about)}</p>'
        f'<div class="panels">{panels}</div></section>'
    )


def _article(panel: Panel, picture: str, listing: pd.DataFrame, memory: str) -> str:
    """A panel's picture, between what memory is in it and the table of its numbers."""
    shows_it = any("bytes" in str(name) for name in listing.columns) or "peak" in panel.id
    note = f'<p class="note">Memory here: {_text(memory)}</p>\n' if memory and shows_it else ""
    return f"""<article class="panel" id="panel-{panel.id}">
<h3>{_text(panel.title)}</h3>
{note}<p class="shows">{_text(panel.about.shows)}</p>
{picture}
<details><summary>How to read it, and what to do</summary>
<p>{_text(panel.about.read)}</p><p>{_text(panel.about.do)}</p></details>
{_listing(listing, panel.unfolded)}
</article>"""


def _picture(panel: Panel, options: list[dict[str, Any]]) -> str:
    height = int(options[0]["figure"]["layout"].get("height", 320))
    label = _text(f"{panel.title}. {panel.about.shows} The same numbers stand in the table below.")
    chart = (
        f'<div class="chart" id="{panel.id}" data-panel="{panel.id}" role="group" aria-label="{label}"'
        f' style="min-height:{height}px"><p class="waiting">Drawing …</p></div>'
    )
    if len(options) < 2:
        return chart
    choices = "".join(f'<option value="{i}">{_text(one["label"])}</option>' for i, one in enumerate(options))
    select = f'<select data-for="{panel.id}">{choices}</select>'
    return f'<label class="choose">{_text(panel.choose)} {select}</label>{chart}'


def _listing(frame: pd.DataFrame, unfolded: bool) -> str:
    if frame.empty:
        return ""
    head = "".join(f'<th scope="col">{_text(_heading(str(name)))}</th>' for name in frame.columns)
    rows = "".join(
        "<tr>" + "".join(_cell(str(name), value) for name, value in row.items()) + "</tr>"
        for row in words.rows(frame.head(TABLE_ROWS))
    )
    more = ""
    if len(frame) > TABLE_ROWS:
        more = f"<p class=note>The first {TABLE_ROWS} of {words.count(len(frame))} rows.</p>"
    return (
        f"<details{' open' if unfolded else ''}><summary>As a table</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}</details>"
    )


#: How a column is spelled, by the end of its name; the first that fits.
_SPELLINGS: Final[dict[str, Callable[[Any], str]]] = {
    "rank_imbalance_ratio": words.ratio,
    "micro_batch_imbalance_ratio": words.ratio,
    "sync_wait_ratio": words.ratio,
    "share_ratio": words.ratio,
    "_ratio": words.percent,
    "bytes": words.size,
    "_s": words.seconds,
    "smallest": words.number,
    "largest": words.number,
    "last": words.number,
    "_ms": words.number,
}


def _heading(name: str) -> str:
    if name == "who":
        return "rank or process"
    for suffix in ("_bytes", "_ratio", "_s"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, str):
        return f'<td class="number">{_text(_spelled(name, value))}</td>'
    return f"<td>{_text(value)}</td>"


def _spelled(name: str, value: Any) -> str:
    """A cell's number with the unit that its column's name says."""
    if value is None or value is pd.NA:
        return words.UNKNOWN
    spell = next((one for suffix, one in _SPELLINGS.items() if name.endswith(suffix)), None)
    if spell is not None:
        return spell(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words.count(value) if words.missing(value) or float(value).is_integer() else words.number(value)
