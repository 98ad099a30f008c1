"""Perfetto's trace format as bytes: the messages of a trace that hold slices, counters and instants.

A trace is a sequence of ``TracePacket``; the protocol-buffer fields and their numbers are those of
https://perfetto.dev/docs/reference/trace-packet-proto (and ``track_event.proto``, ``track_descriptor.proto``,
``interned_data.proto``, ``clock_snapshot.proto`` there). The few messages here are encoded by hand, so that no
generated code is needed; the tests read them back with Perfetto's own definitions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

#: ``TrackEvent.Type``.
BEGIN: Final = 1
END: Final = 2
INSTANT: Final = 3
COUNTER: Final = 4

#: What a counter counts: one of ``CounterDescriptor.Unit``, or the name of a unit.
UNIT_BYTES: Final = 3
UNIT_TOKENS: Final = "tokens"

#: ``BuiltinClock``: of the day, and the one in which a trace counts unless it says otherwise.
REALTIME: Final = 1
BOOTTIME: Final = 6

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_EXPLICIT_ORDER = 3
_LONGEST_TEXT = 4096

#: An argument of a slice.
Value = bool | int | float | str


def varint(value: int) -> bytes:
    """A whole number of at most 64 bits; a negative one as its two's complement, as protocol buffers have it.

    >>> varint(1).hex(), varint(300).hex(), len(varint(-1))
    ('01', 'ac02', 10)
    """
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field that holds a whole number."""
    return varint(field << 3 | _VARINT) + varint(value)


def double(field: int, value: float) -> bytes:
    """A field that holds a float of 64 bits, NaN and infinities included."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def message(field: int, content: bytes) -> bytes:
    """A field that holds a message or bytes."""
    return varint(field << 3 | _BYTES) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """A field that holds text. A lone surrogate is written out; what is very long is cut, and says so."""
    if len(value) > _LONGEST_TEXT:
        value = f"{value[:_LONGEST_TEXT]}… ({len(value) - _LONGEST_TEXT} more characters)"
    return message(field, value.encode("utf-8", "backslashreplace"))


# ------------------------------------------------------------------------------------------------------ packets


def packet(content: bytes) -> bytes:
    """``Trace.packet``."""
    return message(1, content)


def clocks(wall_ns: int) -> bytes:
    """``ClockSnapshot``: the trace counts nanoseconds since the epoch, which is the wall clock itself."""
    both = b"".join(message(1, number(1, clock) + number(2, wall_ns)) for clock in (BOOTTIME, REALTIME))
    return packet(message(6, both) + number(10, 1))


def process(uuid: int, pid: int, name: str) -> bytes:
    """``TrackDescriptor`` of a process, whose tracks stand in the order of their rank."""
    inner = number(1, pid) + text(6, name)
    return packet(message(60, number(1, uuid) + message(3, inner) + number(11, _EXPLICIT_ORDER)) + number(10, 1))


def track(uuid: int, parent: int, name: str, order: int, *, unit: int | str | None = None) -> bytes:
    """``TrackDescriptor`` of a track below another one; with a ``unit`` it is a counter."""
    content = number(1, uuid) + text(2, name) + number(5, parent) + number(12, order)
    if unit is not None:
        content += message(8, text(6, unit) if isinstance(unit, str) else number(3, unit))
    return packet(message(60, content) + number(10, 1))


class Sequence:
    """One packet sequence: its events, and the texts that were sent on it once and are then called by number.

    Args:
        write: Takes the bytes of packets.
    """

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        self._write = write
        write(packet(number(10, EVENTS) + number(13, _STATE_CLEARED)))
        self._known: dict[tuple[int, str], int] = {}
        self._named: dict[tuple[str, str], bytes] = {}
        self._arguments: dict[str, bytes] = {}

    def _text(self, kind: int, value: str) -> int:
        """The number of a text: 1 categories, 2 names of events, 3 names of arguments."""
        found = self._known.get((kind, value))
        if found is None:
            found = self._known[kind, value] = len(self._known) + 1
            entry = message(kind, number(1, found) + text(2, value))
            self._write(packet(message(12, entry) + _TAIL))
        return found

    def named(self, name: str, category: str) -> bytes:
        """The fields of an event that say what it is."""
        found = self._named.get((name, category))
        if found is None:
            found = number(10, self._text(2, name)) + number(3, self._text(1, category))
            self._named[name, category] = found
        return found

    def argument(self, name: str, value: Value) -> bytes:
        """``TrackEvent.debug_annotations``: something that is shown of a selected slice."""
        head = self._arguments.get(name)
        if head is None:
            head = self._arguments[name] = number(1, self._text(3, name))
        return message(4, head + _plain(value))

    def arguments(self, name: str, values: Iterable[Value | None]) -> list[bytes]:
        """:meth:`argument` of many slices; nothing where there is no value."""
        known: dict[Value, bytes] = {}
        found = []
        for value in values:
            if value is None:
                found.append(b"")
                continue
            content = known.get(value)
            if content is None:
                content = known[value] = self.argument(name, value)
            found.append(content)
        return found

    def event(self, where: bytes, stamp: bytes, content: bytes = b"") -> None:
        """Write one ``TrackEvent``.

        Args:
            where: What :func:`place` gives.
            stamp: What :func:`stamps` gives.
            content: Further fields of the event.
        """
        inner = where + content
        body = stamp + b"\x5a" + _length(len(inner)) + inner + _TAIL
        self._write(b"\x0a" + _length(len(body)) + body)

    def counters(self, where: bytes, wall_ns: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        """Write many values of one counter."""
        inner = len(where) + len(_COUNTED) + 10
        between = b"\x5a" + varint(inner) + where + _COUNTED
        body = 10 + len(between) + 10 + len(_TAIL)
        count = len(values)
        pieces = [
            _repeated(b"\x0a" + varint(body), count),
            _stamped(wall_ns),
            _repeated(between, count),
            _varints(values.view(np.uint64), 10),
            _repeated(_TAIL, count),
        ]
        self._write(np.concatenate(pieces, axis=1).tobytes())


#: Sequence number of the events; that of the descriptors is 1.
EVENTS: Final = 2

#: Every event says that it needs the texts that were sent before.
_TAIL: Final = number(10, EVENTS) + number(13, _NEEDS_STATE)

#: Field ``counter_value`` of an event, without its value.
_COUNTED: Final = varint(30 << 3 | _VARINT)

_LENGTHS: Final = [varint(value) for value in range(2048)]


def _length(value: int) -> bytes:
    """:func:`varint`, quicker for what is short."""
    return _LENGTHS[value] if value < len(_LENGTHS) else varint(value)


def place(type_: int, track_: int) -> bytes:
    """The fields of an event that say what kind it is, and on which track."""
    return number(9, type_) + number(11, track_)


def counted(value: int) -> bytes:
    """The value of a counter."""
    return number(30, value)


def _plain(value: Value) -> bytes:
    if isinstance(value, bool):
        return number(2, value)
    if isinstance(value, int):
        return number(4, value)
    return double(5, value) if isinstance(value, float) else text(6, value)


def stamps(wall_ns: NDArray[np.int64]) -> list[bytes]:
    """Field ``timestamp`` of a packet for each of many times, nanoseconds since the epoch and not negative.

    >>> stamps(np.array([5]))[0] == b"\x40" + bytes([0x85, *[0x80] * 7, 0])  # always nine bytes and the field's own
    True
    """
    data = _stamped(wall_ns).tobytes()
    return [data[begin : begin + 10] for begin in range(0, len(data), 10)]


def _stamped(wall_ns: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.concatenate([_repeated(b"\x40", len(wall_ns)), _varints(wall_ns.view(np.uint64), 9)], axis=1)


def _varints(values: NDArray[np.uint64], width: int) -> NDArray[np.uint8]:
    """One row of ``width`` bytes for each value: a varint may be longer than it must."""
    shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
    groups = ((values[:, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    groups[:, :-1] |= 0x80
    return groups


def _repeated(content: bytes, count: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.frombuffer(content, np.uint8), (count, len(content)))
