"""An inspection as text and as one self-contained piece of HTML. Every text that comes from a batch is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe import text as words
from probe.guard import attempt
from probe.inspection.look import STYLE, escaped, table
from probe.inspection.plain_text import cut, one_line
from probe.inspection.token_map import KINDS, MEANINGS, TokenMap, histogram, runs
from probe.inspection.values import RowText, row_text

if TYPE_CHECKING:
    from probe.inspection.asked import Asked
    from probe.inspection.contents import Schema

#: Rows of a column, and entries of each, that the static form shows. Of columns on a device it shows none.
_PREVIEW: Final = (3, 8)

#: Positions that the text form and the picture tell apart; wider rows are put together, the most frequent kind wins.
_LETTERS: Final = 96
_PIXELS: Final = 600

#: Rows of the picture, and rows whose text is decoded before anybody asks.
_DRAWN: Final = 64
_READ: Final = 4

_SIGNS: Final = dict(zip(KINDS, "·prxv", strict=True))
_BARS: Final = "▁▂▃▄▅▆▇█"


# ------------------------------------------------------------------------------------------------------- as text


def text(inspection: Asked) -> str:
    """What ``repr`` and a terminal show."""
    schema = inspection.schema
    lines = [headline(schema)]
    rows = [_column_cells(one) for one in schema.columns]
    lines += _aligned([("key", "shape", "dtype", "device", "size", "memory", "notes"), *rows]) if rows else []
    lines += [f"memory {one.name}: {', '.join(one.members)} ({words.size(one.bytes)})" for one in schema.memories]
    if inspection.closed:
        return _printable([*lines, "closed: the batch is no longer here"])
    lines += [_lengths_line(name, lengths) for name, lengths in inspection.lengths().items() if lengths]
    lines += _map_lines(inspection.token_map())
    lines += [f"meta_info {key}: {kind} {value}" for key, kind, value in schema.meta]
    return _printable(lines)


def _printable(lines: Iterable[str]) -> str:
    return "\n".join(cut(line.replace("\n", " ").rstrip(), 400) for line in lines)


def headline(schema: Schema) -> str:
    """One line: what it is, how many rows, how large.

    Bytes of elements and bytes held differ where columns share memory or are views.
    """
    rows = "" if schema.rows is None else f", {schema.rows:,} rows"
    held = "" if schema.held_bytes == schema.bytes else f", {words.size(schema.held_bytes)} of memory behind them"
    unknown = f", {schema.unknown} of unknown size" if schema.unknown else ""
    return f"{schema.kind}{rows}, {len(schema.columns)} columns, {words.size(schema.bytes)}{held}{unknown}"


def _column_cells(column: Any) -> tuple[str, ...]:
    key = f"{column.section}.{column.key}" if column.section else column.key
    dtype = f"{column.dtype} {column.kind}" if column.kind in ("jagged", "nested", "stacked") else column.dtype
    size = "?" if column.bytes is None else words.size(column.bytes)
    return key, column.shape, dtype, column.device, size, column.memory, "; ".join(column.notes)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cut(" ".join(cell.split()), 48) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    kept = [at for at, width in enumerate(widths) if any(row[at] for row in cells[1:])]
    return ["  " + "  ".join(row[at].ljust(widths[at]) for at in kept) for row in cells]


def _lengths_line(name: str, lengths: list[int]) -> str:
    counts = histogram(lengths).counts
    bars = "".join(" " if not one else _BARS[min(7, one * 8 // (max(counts) + 1))] for one in counts)
    return f"{name} a row: {_spread_words(lengths)}  {bars}"


def _spread_words(lengths: list[int]) -> str:
    return f"{min(lengths):,} to {max(lengths):,}, mean {fmean(lengths):,.1f}, {sum(lengths):,} in all"


def _map_lines(found: TokenMap) -> list[str]:
    if not found.rows:
        return [f"no token map: {found.problem}"] if found.problem else []
    step = max(1, -(-found.width // _LETTERS))
    present = found.counts()
    legend = ", ".join(f"{_SIGNS[kind]} {kind} {count:,}" for kind, count in present.items())
    each = f"; a sign is {step} positions" if step > 1 else ""
    lines = [f"tokens of rows {found.start} to {found.start + len(found.rows) - 1} ({legend}{each})"]
    for at, row in enumerate(found.rows):
        lines.append(f"  {found.start + at:>4} {''.join(_SIGNS[KINDS[code]] for code in binned(row, step))}")
    return [*lines, f"  {found.problem}"] if found.problem else lines


def binned(row: Any, step: int) -> Any:
    """The most frequent kind of every ``step`` positions.

    >>> binned(np.array([0, 0, 1, 2, 2, 2], dtype=np.uint8), 3).tolist()
    [0, 2]
    """
    if step == 1 or not len(row):
        return row
    padded = np.concatenate([row, np.full(-len(row) % step, 255, np.uint8)]).reshape(-1, step)
    votes = np.stack([(padded == code).sum(axis=1) for code in range(len(KINDS))])
    return votes.argmax(axis=0).astype(np.uint8)


# ------------------------------------------------------------------------------------------------------- as HTML


def document(inspection: Asked) -> str:
    """The whole inspection, with its style; needs nothing from outside and no kernel."""
    schema = inspection.schema
    parts = [_columns_html(schema), _memories_html(schema)]
    if inspection.closed:
        parts.append('<p class="soft">Closed: the batch is no longer here.</p>')
    else:
        parts += [
            *(_histogram_html(name, lengths) for name, lengths in inspection.lengths().items() if lengths),
            map_html(inspection.token_map()),
            _texts_html(inspection),
            _preview_html(inspection),
        ]
    if schema.meta:
        parts.append(table(("meta_info", "type", "value"), schema.meta))
    return f'{STYLE}<div class="probe-batch probe-inspection">{"".join(parts)}</div>'


def _columns_html(schema: Schema) -> str:
    titles = ("key", "shape", "dtype", "device", "size", "memory", "notes")
    return table(titles, map(_column_cells, schema.columns), caption=headline(schema))


def _memories_html(schema: Schema) -> str:
    if not schema.memories:
        return ""
    rows = [(one.name, words.size(one.bytes), one.device, ", ".join(one.members)) for one in schema.memories]
    return table(("memory", "size", "device", "shared by"), rows)


def _histogram_html(name: str, lengths: list[int]) -> str:
    found = histogram(lengths)
    title = f"{name.capitalize()} a row: {_spread_words(lengths)}"
    most, count = max(found.counts), len(found.counts)
    wide, colour = 600 / count, "response" if name == "response" else "valid"
    bars = []
    for at, rows in enumerate(found.counts):
        tall = 48 * rows / most
        between = f"{found.edges[at]:,} to {found.edges[at + 1] - 1:,} tokens: {rows:,} rows"
        bars.append(
            f'<rect x="{at * wide + 0.5:.1f}" y="{52 - tall:.1f}" width="{max(wide - 1, 0.5):.1f}" height="{tall:.1f}" '
            f'style="fill:var(--{colour})"><title>{between}</title></rect>'
        )
    ends = f'<text x="0" y="64">{found.edges[0]:,}</text><text x="600" y="64" text-anchor="end">{max(lengths):,}</text>'
    return (
        f"<h4>{escaped(title)}</h4>"
        f'<svg class="histogram" viewBox="0 0 600 68" role="img" aria-label="{escaped(title)}">'
        f"{''.join(bars)}{ends}</svg>"
    )


def map_html(found: TokenMap) -> str:
    """The token map as a picture with its legend."""
    if not found.rows:
        return f'<p class="soft">No token map: {escaped(found.problem)}.</p>' if found.problem else ""
    rows, step = found.rows[:_DRAWN], max(1, -(-found.width // _PIXELS))
    width = max(1, -(-found.width // step))
    drawn = "".join(_row_svg(found, at, binned(row, step), width) for at, row in enumerate(rows))
    title = f"Tokens of rows {found.start} to {found.start + len(rows) - 1}"
    more = f" of {len(found.rows)} asked for" if len(rows) < len(found.rows) else ""
    about = f"{title}: {', '.join(f'{count:,} {MEANINGS[kind]}' for kind, count in found.counts().items())}"
    source, dots = f"from {found.source}" if found.source else "", f"{step} positions a dot" if step > 1 else ""
    notes = "; ".join(one for one in (source, dots, found.problem) if one)
    return (
        f"<h4>{escaped(title + more)}</h4>{_legend_html(found)}"
        f'<svg viewBox="0 0 640 {10 * len(rows)}" role="img" aria-label="{escaped(about)}">{drawn}</svg>'
        f'<p class="soft">{escaped(notes)}</p>'
    )


def _legend_html(found: TokenMap) -> str:
    keys = [
        f'<span class="key" style="background:var(--{kind})"></span>{escaped(MEANINGS[kind])} {count:,}'
        for kind, count in found.counts().items()
    ]
    return f'<p class="legend">{"".join(keys)}</p>'


def _row_svg(found: TokenMap, at: int, row: Any, width: int) -> str:
    scale = 600 / width
    counts = ", ".join(f"{count:,} {kind}" for kind, count in found.counts(at).items())
    rects = "".join(
        f'<rect x="{40 + begin * scale:.1f}" y="{10 * at}" width="{(end - begin) * scale:.2f}" height="8.5" '
        f'style="fill:var(--{KINDS[code]})"/>'
        for begin, end, code in runs(row)
    )
    number = found.start + at
    label = f'<text x="34" y="{10 * at + 8}" text-anchor="end">{number}</text>'
    return f"<g><title>row {number}: {counts}</title>{label}{rects}</g>"


# ------------------------------------------------------------------------------------------------- texts and values


def _texts_html(inspection: Asked) -> str:
    if not inspection.can_decode:
        return ""
    stop = min(inspection.stop, inspection.start + _READ)

    def failed(error: Exception) -> str:
        return f'<p class="soft">No text: {escaped(one_line(error, 200))}</p>'

    # What can't be decoded doesn't take the rest of the picture away.
    return attempt(lambda: texts_html(inspection.texts((inspection.start, stop))), failed)


def texts_html(rows: Iterable[RowText]) -> str:
    """Decoded rows, prompt and response apart."""
    return f"<h4>Text</h4>{''.join(map(_text_html, rows))}"


def _text_html(row: RowText) -> str:
    parts = [(name, part) for name, part in zip(("prompt", "response", "tokens"), row[1:], strict=True) if part]
    told = "".join(f'<p class="soft">{name}</p><pre class="{name}">{escaped(part, 5000)}</pre>' for name, part in parts)
    return f"<details><summary>row {row.row}</summary>{told or '<p>no tokens</p>'}</details>"


def _preview_html(inspection: Asked) -> str:
    """First values of what is on the CPU. What is on a device stays there until somebody asks."""
    rows = []
    for key, column in zip(inspection.keys, inspection.schema.columns, strict=True):
        if column.device in ("", "cpu"):
            stop = min(inspection.stop, inspection.start + _PREVIEW[0])
            rows.append((key, *_preview(inspection, key, (inspection.start, stop))))
    if not rows or inspection.stop == inspection.start:
        return ""
    count = min(_PREVIEW[0], inspection.stop - inspection.start)
    titles = ("key", *(f"row {inspection.start + at}" for at in range(count)))
    return f"<details><summary>First values</summary>{table(titles, rows)}</details>"


def _preview(inspection: Asked, key: str, span: tuple[int, int]) -> list[str]:
    """The cells of a column; one without values, or with an object that raises, is one cell of the picture."""
    return attempt(
        lambda: [row_text(row, _PREVIEW[1]) for row in inspection.values(key, span)],
        lambda error: [f"can't be read: {one_line(error)}"],
    )


def values_html(key: str, start: int, rows: Sequence[Any], limit: int) -> str:
    """Values of one column, a line for each row."""
    return table(("row", key), [(start + at, row_text(row, limit)) for at, row in enumerate(rows)])
