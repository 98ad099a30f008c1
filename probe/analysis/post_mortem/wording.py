"""A post-mortem as text and as the parts that a page has: titles, and lines or tables under them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, Protocol

from probe.analysis.post_mortem.record import Column, DeviceMemory, Event, LastRow, PhaseMemory, Standing, State
from probe.runs.now_file import ROUND_NS
from probe.text import SOURCES, UNKNOWN, count, seconds, short, size, visible

#: Characters of a line of text.
_WIDTH: Final = 100

#: Of a message in a table.
_CUT: Final = 70

NOT_KNOWN: Final = "not known"

HOW: Final = {
    "exception": "raised",
    "interrupt": "was interrupted by",
    "killed": "was killed after this",
    "terminated": "was ended by SIGTERM after this",
    "awaited": "is waited for",
    "hang": "waits",
}

_LEFT: Final = {"process": "It ended the process, or the recording in it.", "thread": "It ended a thread."}

STATES: Final = {
    "failed": "failed",
    "killed": "gone without an end of its recording",
    "terminated": "ended by SIGTERM",
    "ended": "ended in order",
    "interrupted": "interrupted",
    "exited": "ended by sys.exit",
    "runs": "runs",
    "unknown": NOT_KNOWN,
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a post-mortem: its title, and sentences, a table or a text as it is."""

    title: str
    lines: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    text: str = ""  #: such as a traceback
    long: bool = False  #: whether a page has it folded


class Shown(Protocol):
    """What is told, of an answer that has it."""

    @property
    def state(self) -> State:
        """How the run is."""

    @property
    def sentence(self) -> str:
        """What ended it."""

    @property
    def attempt(self) -> int:
        """The attempt that is told of."""

    @property
    def why(self) -> str:
        """What supports it."""

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened to each process, the cause first."""

    @property
    def last_rows(self) -> tuple[LastRow, ...]:
        """Of the first event's process."""

    @property
    def standing(self) -> tuple[Standing, ...]:
        """Each process, by rank."""

    @property
    def clock_error_s(self) -> float | None:
        """By which the times of different machines may be wrong."""

    @property
    def first(self) -> Event | None:
        """What came first."""


def parts(told: Shown) -> Iterator[Part]:
    """What there is to be said beside the sentence, in the order of its importance."""
    first = told.first
    if first is not None:
        yield Part("Where", (_place(first, told.attempt),))
        if first.how in ("exception", "interrupt"):
            yield from _raised(first)
        yield from _micro_batch(first)
        yield from _memory(first)
        for one in told.events:
            if one.stack:
                whose = "its code" if one is first else f"the code of {_who(one)}"
                yield Part(f"Where {whose} was", (one.stack_line,), text=one.stack, long=True)
    if len(told.events) > 1:
        yield _order(told)
    if told.standing:
        yield _processes(told.standing)
    if told.last_rows:
        yield _last(told)


def _place(event: Event, attempt: int) -> str:
    where = event.where
    fields = [
        ("attempt", where.attempt or attempt),
        ("step", where.step),
        ("role", where.role),
        ("phase", where.phase),
        ("micro-batch", where.micro_batch),
        ("rank", where.rank),
        ("process", event.process),
        ("scope", event.scope or None),
    ]
    return " · ".join(f"{name} {NOT_KNOWN if value is None else value}" for name, value in fields)


def _raised(event: Event) -> Iterator[Part]:
    lines = [f"{event.type}: {event.message}"]
    lines += [f"It came from {one}" for one in event.causes]
    if event.left:
        lines.append(_LEFT.get(event.left, f"It left the {event.left.replace('_', '-')}."))
    yield Part("Exception", tuple(lines), text=event.traceback, long=True)


def _micro_batch(event: Event) -> Iterator[Part]:
    if event.where.micro_batch is None and event.lengths is None:
        return
    title = "Micro-batch" if event.where.micro_batch is None else f"Micro-batch {event.where.micro_batch}"
    lines = ["Its lengths are not known."]
    if event.lengths is not None:
        many, lengths = len(event.lengths), event.lengths
        span = f" of {count(min(lengths))} to {count(max(lengths))} tokens" if many > 1 else ""
        lines = [
            f"{count(event.tokens)} tokens in {count(many)} {'sequences' if many > 1 else 'sequence'}{span}.",
            f"Lengths: {', '.join(map(str, lengths[:200]))}{' …' if many > 200 else ''}",
        ]
    if event.batch_path:
        lines.append(f"It is kept in {event.batch_path}, for probe.replay().")
    yield Part(
        title,
        tuple(lines),
        ("column", "shape", "dtype", "bytes", "device") if event.columns else (),
        tuple(_column(one) for one in event.columns),
    )


def _column(one: Column) -> tuple[str, ...]:
    shape = UNKNOWN if one.shape is None else " × ".join(map(str, one.shape)) or "scalar"
    return (one.key, shape, one.dtype or one.type or UNKNOWN, size(one.bytes), one.device or UNKNOWN)


def _memory(event: Event) -> Iterator[Part]:
    if event.memory is None and not event.phases:
        return
    lines = ["The device's own numbers are not known." if event.memory is None else _device(event.memory)]
    if event.snapshot_path:
        lines.append(f"Torch's memory snapshot is in {event.snapshot_path}.")
    head = ("phase", "at its start", "peak") if event.phases else ()
    yield Part("Memory", tuple(lines), head, tuple(_phase(one) for one in event.phases))


def _device(held: DeviceMemory) -> str:
    meant = SOURCES.get(held.source, "memory")
    told = [
        f"{size(value) if value is not None else NOT_KNOWN} {what}"
        for value, what in (
            (held.allocated_bytes, "resident" if held.source == "process_rss" else "allocated"),
            (held.reserved_bytes, "reserved"),
            (held.non_torch_bytes, "not PyTorch's"),
            (held.total_bytes, "in all"),
        )
        if value is not None or held.source != "process_rss"
    ]
    return f"{meant[0].upper()}{meant[1:]} ({held.device}): {', '.join(told)}."


def _phase(one: PhaseMemory) -> tuple[str, ...]:
    return (one.phase, size(one.floor_bytes), size(one.peak_bytes))


def _order(told: Shown) -> Part:
    lines: tuple[str, ...] = ()
    if told.clock_error_s is None:
        lines = ("How far the machines' clocks are apart is not known: the times of different machines may be wrong.",)
    elif told.clock_error_s:
        lines = (f"The clocks of the machines agree within {seconds(told.clock_error_s)}.",)
    seen = sorted(one.wall_ns for one in told.events if one.how == "killed" and one.wall_ns is not None)
    if any(later - earlier < ROUND_NS for earlier, later in pairwise(seen)):
        lines += ("Of processes that were seen last within half a second it isn't known which was killed first.",)
    rows = tuple((_when(one), _who(one), _what(one), _brief(one)) for one in told.events)
    return Part("In this order", lines, ("when", "who", "what", "where"), rows)


def _who(event: Event) -> str:
    return event.process if event.where.rank is None else f"rank {event.where.rank}"


def _when(event: Event) -> str:
    if event.after_s is not None:
        return f"{'+' if event.after_s >= 0 else '−'}{seconds(abs(event.after_s))}"
    return moment(event.wall_ns)


def _what(event: Event) -> str:
    if event.how in ("exception", "interrupt"):
        name = event.type.rpartition(".")[2]
        return f"{HOW[event.how]} {name}{f': {short(event.message, _CUT)}' if event.message else ''}"
    return HOW[event.how]


def _brief(event: Event) -> str:
    where = event.where
    named = [f"step {where.step}"] if where.step is not None else []
    named += [where.phase] if where.phase else []
    named += [f"micro-batch {where.micro_batch}"] if where.micro_batch is not None else []
    return " · ".join(named) or event.scope or NOT_KNOWN


def _processes(standing: Sequence[Standing]) -> Part:
    rows = tuple(
        (
            one.process,
            STATES.get(one.state, one.state),
            _inside(one),
            moment(one.since_ns),
            moment(one.seen_ns),
            one.host,
            one.stack_line or UNKNOWN,
        )
        for one in standing
    )
    return Part("Where each process was", (), ("process", "is", "in", "since", "seen", "machine", "line of code"), rows)


def _inside(one: Standing) -> str:
    if not one.scope:
        return "no scope"
    step = "" if one.where.step is None else f"step {one.where.step}: "
    return f"{step}{one.scope}"


def _last(told: Shown) -> Part:
    rows = tuple(
        (
            UNKNOWN if one.before_s is None else f"−{seconds(one.before_s)}",
            one.table,
            one.scope or UNKNOWN,
            UNKNOWN if one.where.step is None else str(one.where.step),
            one.said,
        )
        for one in told.last_rows
    )
    who = told.events[0].process
    return Part(f"Last rows of {who}", (), ("when", "table", "scope", "step", "says"), rows, long=True)


def moment(wall_ns: int | None) -> str:
    """A time of day, UTC, with milliseconds.

    >>> moment(1_700_000_000_123_456_789), moment(None)
    ('2023-11-14 22:13:20.123 UTC', '–')
    """
    if wall_ns is None:
        return UNKNOWN
    when = datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}.{wall_ns // 1_000_000 % 1000:03d} UTC"


# --------------------------------------------------------------------------------------------------------------- text


def text(told: Shown) -> str:
    """All of it as plain text; what others wrote can't steer a terminal."""
    lines = [_filled(told.sentence)]
    if told.why:
        lines.append(_filled(told.why))
    for part in parts(told):
        lines += ["", part.title, *(_filled(line, "  ") for line in part.lines)]
        lines += _table(part)
        if part.text:
            lines.append(textwrap.indent(visible(part.text.rstrip()), "    "))
    return "\n".join(lines)


def _filled(line: str, indent: str = "") -> str:
    """A paragraph; a path in it stays whole, so that it can be copied."""
    return textwrap.fill(
        visible(line, lines=False),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(part: Part) -> Iterator[str]:
    if not part.rows:
        return
    cells = [part.head, *([visible(cell, lines=False) for cell in row] for row in part.rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(part.head))]
    for row in cells:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
