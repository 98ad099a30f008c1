"""A run as a picture of text: what stands where, how it went, and what went wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from probe import text as words
from probe.dashboards.spelling import spell
from probe.records import who
from probe.views.terminal import lines
from probe.views.terminal.following import Following, incidents
from probe.views.terminal.numbers import Number, Phase
from probe.views.terminal.verdict import Verdict, verdict_lines

#: Characters of a line of the past, and of a bar.
SPARK: Final = 24
BAR: Final = 20

#: Incidents and phases that are shown.
INCIDENTS: Final = 5
PHASES: Final = 10

_LEVELS: Final = "▁▂▃▄▅▆▇█"
_EIGHTHS: Final = "▏▎▍▌▋▊▉█"
_STATUS: Final = {"good": ("good", "green"), "warn": ("watch", "yellow"), "alarm": ("act", "red"), "none": ("", "")}


def view(run: Following, problem: str = "", verdict: Verdict | None = None) -> RenderableType:
    """The whole picture. What is wrong stands first.

    Args:
        run: The run as it is followed.
        problem: Why the run can't be read at the moment.
        verdict: What is found in the run; None leaves it out.
    """
    parts: list[RenderableType] = [] if verdict is None else [*_verdict(run, verdict), Text()]
    parts += [_header(run), Text(), _numbers(run)]
    phases = run.numbers.phases(run.step)
    if phases:
        parts += [Text(), _phases(phases, run.step)]
    found = incidents(run.feed, min(INCIDENTS, run.feed.tables["events"].count))
    if found:
        parts += [Text(), _incidents(found)]
    parts += [Text(f"! {one}", style="yellow") for one in lines.missing_lines(run)]
    if lines.damage_line(run):
        parts += [Text(lines.damage_line(run), style="yellow")]
    if problem:
        parts += [Text(), Text(f"! {lines.plain(problem)}", style="red")]
    return Group(*parts)


def spark(values: Sequence[float], width: int = SPARK) -> str:
    """A line of the past, at most ``width`` characters; a gap where nothing is known. Of values that share a character
    the largest is shown.

    >>> spark([0, 1, 2, 3])
    '▁▃▆█'
    >>> spark([5, float("nan"), 5]), spark([0, 0])
    ('▄ ▄', '▁▁')
    """
    count = min(len(values), width)
    edges = [round(index * len(values) / count) for index in range(count + 1)] if count else []
    parts = [[one for one in values[a:b] if math.isfinite(one)] for a, b in itertools.pairwise(edges)]
    tops = [max(part) if part else math.nan for part in parts]
    known = [one for one in tops if not math.isnan(one)]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    level = [(one - low) / span if span else 0.45 * bool(one) for one in tops]
    return "".join(" " if math.isnan(top) else _LEVELS[round(x * 7)] for top, x in zip(tops, level, strict=True))


def bar(share: float, width: int = BAR) -> str:
    """A bar of ``width`` characters that is full at 1.

    >>> bar(0.5, 4), bar(2, 4), bar(float("nan"), 4)
    ('██··', '████', '····')
    """
    eighths = 0 if math.isnan(share) else round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest - 1] if rest else "")).ljust(width, "·")


# ---------------------------------------------------------------------------------------------------- parts


def _verdict(run: Following, verdict: Verdict) -> list[Text]:
    begun = run.step is not None
    over = run.over or run.gone
    told = verdict_lines(verdict.found, run.feed.path, whole=verdict.whole, begun=begun, over=over)
    return [Text(text, style) for text, style in told]


def header(run: Following, state: Text, told: Sequence[str], times: str, right: Text) -> Table:
    """The first lines of a picture: which run it is, and how it stands.

    Args:
        run: The run.
        state: How it stands, in a word or two.
        told: What is told beside its path.
        times: When it began, and what else belongs there.
        right: What is told beside that.
    """
    info, path = run.feed.info, run.feed.path
    experiment = info.experiment or Path(path).name
    name = Text.assemble((lines.plain(info.project), "bold"), (" / ", "dim"), (lines.plain(experiment), "bold"))
    table = Table.grid(padding=(0, 3), expand=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    table.add_row(name, state)
    table.add_row(Text(lines.plain(path), "dim"), Text(" · ".join(told)))
    table.add_row(Text(times, "dim"), right)
    return table


def began(run: Following) -> str:
    """When a run was started, in words."""
    return f"started {run.feed.info.started_at.replace('T', ' ')[:19]}"


def _header(run: Following) -> Table:
    told = [_ranks(run), _step(run), f"{_rate(run.numbers.steps_per_second)} steps/s"]
    if lines.state(run) == "recording":
        told.append(f"{_rate(run.rows_per_second)} rows/s")
    return header(run, _state(run), told, _times(run), _lost(run.feed.lost))


def _times(run: Following) -> str:
    told = f"{began(run)} · {words.seconds(run.seconds)}"
    left = run.left_out
    return f"{told} · {words.count(left)} older rows are left out here" if left else told


def _lost(rows: int) -> Text:
    if not rows:
        return Text("no rows dropped", "dim")
    return Text(f"{words.count(rows)} rows dropped: sums are too low", "yellow")


def _state(run: Following) -> Text:
    if lines.failure(run):
        return Text(lines.failure(run), "bold red")
    if run.over:
        return Text("finished", "bold")
    silence = lines.silence(run)
    if silence:
        return Text(silence, "red" if lines.state(run) == "gone" else "yellow")
    return Text("recording" if run.has_rows else "waiting for rows", "green")


def _ranks(run: Following) -> str:
    told, others = max(run.feed.world_size, run.ranks), run.others
    if run.ranks < told and (run.ranks or not others):
        return f"{run.ranks} of {told} ranks" + (f" and {words.writers(0, others)}" if others else "")
    return words.writers(run.ranks, others)


def _step(run: Following) -> str:
    newest = run.feed.step
    if newest is None:
        return "no step yet"
    return f"step {newest}" + ("" if run.over or newest == run.step else " is under way")


def _rate(value: float) -> str:
    if math.isnan(value):
        return words.UNKNOWN
    return f"{value:.2f}" if value < 10 else words.count(value)


def _numbers(run: Following) -> Table:
    now = "newest step" if run.step is None else f"step {run.step}"
    table = _table("", (now, "right"), "how it went", ("judged", "right"), "", "")
    table.columns[-1].ratio = 1
    table.columns[2].overflow = "crop"
    steps = sorted({step for one in run.numbers.tiles for step in one.by_step})
    for one in run.numbers.tiles:
        word, colour = _STATUS[one.reading.status]
        value = one.reading.text if one.counts else spell(one.at(run.step), one.unit)
        past = [one.by_step.get(step, 0.0 if one.counts else math.nan) for step in steps]
        table.add_row(
            Text(one.title),
            Text(value, "bold"),
            Text(spark(past), "cyan"),
            Text(one.reading.text, f"bold {colour}".strip()),
            Text(word, colour),
            _note(one),
        )
    return table


def _note(one: Number) -> Text:
    if math.isnan(one.capacity) or math.isnan(one.reading.value):
        return Text(one.reading.note, "dim")
    share = one.reading.value / one.capacity
    return Text.assemble(bar(share), f" {words.percent(share)} ", (f"of {spell(one.capacity, one.unit)}", "dim"))


def _phases(phases: Sequence[Phase], step: int | None) -> Table:
    table = _table(f"phases of step {step}", ("time", "right"), "", ("peak", "right"), ("tokens", "right"))
    table.expand = False
    longest = max((one.time_s for one in phases if not math.isnan(one.time_s)), default=math.nan)
    for one in phases[:PHASES]:
        tokens = words.UNKNOWN if math.isnan(one.tokens) else words.count(one.tokens)
        table.add_row(
            Text(lines.plain(one.name)),
            Text(spell(one.time_s, "s")),
            Text(bar(one.time_s / longest if longest else math.nan), "cyan"),
            Text(spell(one.peak_bytes, "bytes")),
            Text(tokens),
        )
    if len(phases) > PHASES:
        table.add_row(Text(f"and {len(phases) - PHASES} more", "dim"))
    return table


def _incidents(found: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(("step", "right"), ("process", "right"), "incident", "where", "what", ("times", "right"))
    table.columns[4].ratio = 1
    for one in reversed(found):
        step, name = "–" if one["step"] is None else str(one["step"]), lines.plain(who(one["rank"], one["process"]))
        off = " (switched off)" if one["off"] else ""
        texts = [lines.plain(one[name]) for name in ("kind", "where", "message")]
        texts[2] += off
        table.add_row(step, Text(name), *(Text(text) for text in texts), str(one["count"]))
    return table


def _table(*columns: str | tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True, header_style="dim", pad_edge=False)
    for one in columns:
        title, justify = one if isinstance(one, tuple) else (one, "left")
        table.add_column(title, justify="right" if justify == "right" else "left", no_wrap=True, overflow="ellipsis")
    return table
