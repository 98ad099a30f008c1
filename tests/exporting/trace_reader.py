"""A trace as Perfetto's own protocol-buffer definitions read it, put together as its documentation says."""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

perfetto_trace = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

CLEARED, NEEDED = 1, 2


@dataclass
class Slice:
    process: str
    track: str
    name: str
    category: str
    begin: int
    end: int | None
    depth: int
    arguments: dict[str, Any]


@dataclass
class Read:
    """What a trace holds."""

    processes: dict[int, str] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    counters: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    instants: list[Slice] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)


def read(path: Path) -> Read:
    data = path.read_bytes()
    trace = perfetto_trace.Trace()
    trace.ParseFromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    assert_known(trace)
    return _Reader(trace).found


def assert_known(message: Any) -> None:
    """Every field is one that Perfetto's definitions have."""
    assert not len(UnknownFieldSet(message)), message
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for one in value if descriptor.is_repeated else [value]:
                assert_known(one)


class _Reader:
    def __init__(self, trace: Any) -> None:
        self.found = Read()
        self.tracks: dict[int, tuple[str, str]] = {}
        self.texts: dict[tuple[int, str, int], str] = {}
        cleared: set[int] = set()
        events: dict[int, list[tuple[int, int, Any]]] = defaultdict(list)
        for position, packet in enumerate(trace.packet):
            sequence = packet.trusted_packet_sequence_id
            assert sequence, "every packet says which sequence it is of"
            if packet.sequence_flags & CLEARED:
                cleared.add(sequence)
            if packet.sequence_flags & NEEDED:
                assert sequence in cleared
            for kind, entries in packet.interned_data.ListFields():
                for entry in entries:
                    assert self.texts.setdefault((sequence, kind.name, entry.iid), entry.name) == entry.name
            for clock in packet.clock_snapshot.clocks:
                self.found.clocks[clock.clock_id] = clock.timestamp
            if packet.HasField("track_descriptor"):
                self.track(packet.track_descriptor)
            if packet.HasField("track_event"):
                assert packet.HasField("timestamp")
                assert packet.track_event.track_uuid in self.tracks, "a track is declared before its first event"
                events[packet.track_event.track_uuid].append((packet.timestamp, position, packet))
        for uuid, found in events.items():
            self.events(uuid, [packet for _, _, packet in sorted(found, key=lambda one: one[:2])])

    def track(self, one: Any) -> None:
        assert one.uuid
        assert one.uuid not in self.tracks
        if one.HasField("process"):
            self.tracks[one.uuid] = (one.process.process_name, "")
            assert one.process.pid not in self.found.processes
            self.found.processes[one.process.pid] = one.process.process_name
            return
        self.tracks[one.uuid] = (self.tracks[one.parent_uuid][0], one.name)
        if one.HasField("counter"):
            self.found.units[one.name] = one.counter.unit_name or str(one.counter.unit)

    def events(self, uuid: int, packets: list[Any]) -> None:
        """Those of one track by time; equal times in the order of the file, as Perfetto sorts them."""
        open_: list[Slice] = []
        for packet in packets:
            event, time = packet.track_event, packet.timestamp
            if event.type == event.TYPE_COUNTER:
                self.found.counters[self.tracks[uuid]].append((time, event.counter_value))
            elif event.type == event.TYPE_INSTANT:
                self.found.instants.append(self.slice(packet, time, 0))
            elif event.type == event.TYPE_SLICE_BEGIN:
                open_.append(self.slice(packet, None, len(open_)))
                self.found.slices.append(open_[-1])
            else:
                assert event.type == event.TYPE_SLICE_END
                open_.pop().end = time
        assert not open_

    def slice(self, packet: Any, end: int | None, depth: int) -> Slice:
        event, sequence = packet.track_event, packet.trusted_packet_sequence_id
        process, track = self.tracks[event.track_uuid]
        arguments = {}
        for one in event.debug_annotations:
            name = self.texts[sequence, "debug_annotation_names", one.name_iid]
            arguments[name] = getattr(one, one.WhichOneof("value"))
        name = self.texts[sequence, "event_names", event.name_iid]
        (category,) = event.category_iids
        category = self.texts[sequence, "event_categories", category]
        return Slice(process, track, name, category, packet.timestamp, end, depth, arguments)
