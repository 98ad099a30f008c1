"""Metrics as TensorBoard's event files, written with TensorBoard's own record format and without torch."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import math
import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from probe.errors import BackendError, MissingDependencyError
from probe.tracking.backends.base import Backend, Setup, wall_ns_of
from probe.tracking.media import Histogram, Image, Medium, Table, Text, markdown_cell
from probe.tracking.reach import unwritable

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
    from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

#: The largest finite number of TensorBoard's 32-bit scalars.
LARGEST: Final = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]

#: In how many files of earlier processes a call is looked for that the last one may have written.
_EARLIER_FILES: Final = 2

#: How the file's name ends that tells of the run's end.
_END: Final = ".end"
_PLACE: Final = re.compile(r"\\{[^{}]*\\}")  # a {part} in a key, after re.escape
_NAMED: Final = re.compile(r"events\.out\.tfevents\.(\d+)\.(?:(\d{9})\.)?")
_MARGIN: Final = ("smallest", "mean", "largest")

_files = itertools.count()


class TensorBoard(Backend):
    """Scalars, histograms, images, texts and tables by step; the configuration as text and as hyper-parameters.

    The files go to ``TENSORBOARD_DIR``, else to ``tensorboard`` in the run's directory, else to
    ``tensorboard_log/{project}/{experiment}``. Every call is flushed, so that a killed process loses nothing.
    Scalars have 32 bits there: a finite number beyond their range is left out and reported. HParams shows the
    configuration beside every scalar that there is, and how the run has ended.

    Raises:
        MissingDependencyError: Without the package tensorboard.
        BackendError: The directory can't be written.
    """

    shows = frozenset({"histogram", "image", "text", "table"})
    places: ClassVar = {
        "params": "Text, HParams",
        "describe": "text `probe/findings`",
        "tag": "text `probe/tags`",
        "layout": "Custom Scalars",
        "exit_code": "HParams status",
    }
    reopens = True
    status = False  # only beside hyper-parameters, and an unfinished session stands there as such

    def __init__(self, setup: Setup) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise MissingDependencyError.of("backend 'tensorboard'", "tensorboard", "tensorboard") from error
        self._event = event_pb2.Event
        self._summary = summary_pb2
        self._report = setup.report
        self._experiment = setup.experiment
        self._mode = 0o600 if setup.private else 0o666
        directory = _directory(setup)
        self.location = str(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._directory = directory
            self._record_writer = RecordWriter
            self._file: int | None = None
            self._last_step = 0
            self._has_parameters = bool(setup.state("notes").read().get("params"))  # of an earlier process
            self._open()
            for path in directory.glob(f"*{_END}"):  # the run goes on: how it ended before isn't its end
                path.unlink(missing_ok=True)
        except OSError as error:
            raise BackendError(f"backend 'tensorboard' can't write to {directory}: {error}") from error

    @classmethod
    def reach(cls, directory: Path | None) -> tuple[str, str]:
        """Whether the package is there and the directory can be written."""
        if importlib.util.find_spec("tensorboard") is None:
            return "backend", "the package tensorboard is missing: pip install 'probe-rl[tensorboard]'"
        return "writable", unwritable(_directory(Setup("project", "experiment", directory, lambda *_: None)))

    def _open(self) -> int:
        path = self._directory / _file_name(self._directory)
        file = self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._mode)
        self._size = 0
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        return file

    def log(self, values: dict[str, float], step: int) -> None:
        """Write one event that holds all scalars of the step."""
        self._last_step = step
        wall_ns = wall_ns_of(values)
        event = self._event(wall_time=wall_ns / 1e9, step=step)
        for name, value in values.items():
            if math.isfinite(value) and abs(value) > LARGEST:
                self._report(f"range {name}", f"{name!r} is left out at step {step}: {value!r} exceeds 32-bit floats")
            else:
                event.summary.value.add(tag=name, simple_value=value)
        self._write(event)

    def missing(self, values: dict[str, float], step: int) -> dict[str, float]:
        """None, where a file of the directory holds the same call: its step and its time."""
        wanted = (step, wall_ns_of(values) / 1e9)
        files = sorted(self._directory.glob("events.out.tfevents.*"), reverse=True)
        newest = [path for path in files if not path.name.endswith(_END)][1 : 1 + _EARLIER_FILES]
        for path in newest:
            events = _events(path, self._event)
            if any((event.step, event.wall_time) == wanted and _has_scalars(event) for event in events):
                return {}
        return values

    def show(self, name: str, medium: Medium, step: int, wall_ns: int) -> None:
        """Write one histogram, image, text or table."""
        event = self._event(wall_time=wall_ns / 1e9, step=step)
        if isinstance(medium, Histogram):
            self._add_histogram(event, name, medium)
        elif isinstance(medium, Image):
            value = event.summary.value.add(tag=name)
            value.image.width, value.image.height, value.image.colorspace = medium.width, medium.height, 4
            value.image.encoded_image_string = medium.png
        else:
            text = medium.text if isinstance(medium, Text) else cast("Table", medium).markdown()
            self._add_text(event, f"{name}/text_summary", text)
        self._write(event)

    def _add_histogram(self, event: Event, name: str, histogram: Histogram) -> None:
        edges, counts = histogram.edges, histogram.counts
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        value = event.summary.value.add(tag=name).histo
        value.min, value.max, value.num = edges[0], edges[-1], sum(counts)
        value.sum = sum(middle * count for middle, count in zip(middles, counts, strict=True))  # as exact as bins are
        value.sum_squares = sum(middle**2 * count for middle, count in zip(middles, counts, strict=True))
        value.bucket_limit.extend(edges)  # its first bucket is what lies below the first edge
        value.bucket.extend([0, *counts])

    def _add_text(self, event: Event, tag: str, content: str) -> None:
        text = event.summary.value.add(tag=tag, metadata=self._metadata("text", b""))
        text.tensor.dtype = 7  # DT_STRING
        text.tensor.tensor_shape.dim.add(size=1)
        text.tensor.string_val.append(content.encode("utf-8", "backslashreplace"))

    def params(self, parameters: dict[str, Any]) -> None:
        """Show the configuration under Text and HParams."""
        event = self._event(wall_time=time.time(), step=0)
        self._add_text(event, "config/text_summary", _listing("parameter", parameters))
        self._add_hparams(event, parameters)
        self._write(event)
        self._has_parameters = True

    def describe(self, markdown: str) -> None:
        """Show the description under Text as ``probe/findings``, at the newest step.

        TensorBoard sorts texts by name, so that it stands before the tables.
        """
        self._write_text("probe/findings/text_summary", markdown)

    def tag(self, tags: dict[str, str]) -> None:
        """Show the tags under Text as ``probe/tags``, at the newest step."""
        self._write_text("probe/tags/text_summary", _listing("tag", tags))

    def _write_text(self, tag: str, content: str) -> None:
        event = self._event(wall_time=time.time(), step=self._last_step)
        self._add_text(event, tag, content)
        self._write(event)

    def layout(self, charts: dict[str, Any]) -> None:
        """Arrange the charts under Custom Scalars, which shows the layout that was written last."""
        from tensorboard.plugins.custom_scalar import metadata

        event = self._event(wall_time=time.time(), step=0)
        value = event.summary.value.add(tag=metadata.CONFIG_SUMMARY_TAG, metadata=self._metadata("custom_scalars", b""))
        value.tensor.dtype = 7  # DT_STRING, a scalar
        value.tensor.tensor_shape.SetInParent()
        value.tensor.string_val.append(layout_of(charts).SerializeToString())
        self._write(event)

    def _add_hparams(self, event: Event, parameters: dict[str, Any]) -> None:
        from tensorboard.plugins.hparams import plugin_data_pb2

        info = plugin_data_pb2.SessionStartInfo(group_name=self._experiment, start_time_secs=time.time())
        for name, value in parameters.items():
            if isinstance(value, bool):
                info.hparams[name].bool_value = value
            elif isinstance(value, int | float):
                info.hparams[name].number_value = value
            else:
                info.hparams[name].string_value = json.dumps(value) if value is None else str(value)
        self._add_session(event, "_hparams_/session_start_info", session_start_info=info)

    def _add_session(self, event: Event, tag: str, **info: Any) -> None:
        from tensorboard.plugins.hparams import plugin_data_pb2

        data = plugin_data_pb2.HParamsPluginData(version=0, **info)
        value = event.summary.value.add(tag=tag, metadata=self._metadata("hparams", data.SerializeToString()))
        value.tensor.dtype = 1  # DT_FLOAT: the plugin reads the metadata; the tensor is empty by its convention
        value.tensor.tensor_shape.dim.add(size=0)

    def _metadata(self, plugin: str, content: bytes) -> SummaryMetadata:
        data = self._summary.SummaryMetadata.PluginData(plugin_name=plugin, content=content)
        return self._summary.SummaryMetadata(plugin_data=data)

    def _write(self, event: Event) -> None:
        """One record, whole or not at all: readers stop at half of one, and never see what comes after it."""
        file = self._open() if self._file is None else self._file
        buffer = io.BytesIO()
        self._record_writer(buffer).write(event.SerializeToString())
        record = buffer.getvalue()
        try:
            written = os.write(file, record)
            if written != len(record):
                raise OSError(f"only {written} of {len(record)} bytes fitted into {self.location}")
        except OSError:
            self._file = None
            try:
                os.ftruncate(file, self._size)
                os.lseek(file, self._size, os.SEEK_SET)
            except OSError:  # the next record begins a new file
                os.close(file)
                raise
            self._file = file
            raise
        self._size += len(record)

    def close(self, exit_code: int) -> None:
        """Close the file; where there are hyper-parameters, say how the run has ended."""
        if self._has_parameters:
            self._write_end(exit_code)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write_end(self, exit_code: int) -> None:
        """In a file of its own, which the next start deletes: TensorBoard keeps to the first end that it reads."""
        from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

        status = api_pb2.Status.Value("STATUS_FAILURE" if exit_code else "STATUS_SUCCESS")
        info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
        event = self._event(wall_time=time.time(), step=0)
        self._add_session(event, "_hparams_/session_end_info", session_end_info=info)
        path = self._directory / f"{_file_name(self._directory)}{_END}"
        with path.open("xb") as file:
            writer = self._record_writer(file)
            writer.write(self._event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
            writer.write(event.SerializeToString())


def layout_of(charts: Mapping[str, Any]) -> Layout:
    """The layout of Custom Scalars: its charts take regular expressions, and a margin its value and two bounds.

    >>> made = layout_of({"memory": {"peak": {"kind": "line", "keys": ["probe/memory/{role}/peak.gib"]}}})
    >>> made.category[0].chart[0].multiline.tag
    ['^probe/memory/[^/]+/peak\\\\.gib$']
    """
    from tensorboard.plugins.custom_scalar import layout_pb2

    made = layout_pb2.Layout()
    for category, titles in charts.items():
        group = made.category.add(title=category)
        for title, chart in titles.items():
            drawn, keys = group.chart.add(title=title), chart["keys"]
            if chart["kind"] == "line":
                drawn.multiline.tag.extend(_pattern(key) for key in keys)
            for place in range(0, len(keys) if chart["kind"] == "margin" else 0, 3):
                low, middle, high = _ordered(keys[place : place + 3])
                drawn.margin.series.add(value=middle, lower=low, upper=high)
    return made


def _pattern(key: str) -> str:
    return f"^{_PLACE.sub('[^/]+', re.escape(key))}$"


def _ordered(keys: Sequence[str]) -> list[str]:
    """Smallest, mean, largest: by how the names end where they say so, else as they are given."""
    by_end = {end: key for key in keys for end in _MARGIN if key.endswith(end)}
    return [by_end[end] for end in _MARGIN] if len(by_end) == len(_MARGIN) else list(keys)


def _listing(head: str, values: Mapping[str, Any]) -> str:
    lines = (f"| {markdown_cell(name)} | {markdown_cell(value)} |" for name, value in values.items())
    return "\n".join([f"| {head} | value |", "|---|---|", *lines])


def _directory(setup: Setup) -> Path:
    named = os.environ.get("TENSORBOARD_DIR")
    if named:
        return Path(named).absolute() / setup.suffix
    if setup.directory is not None:
        return setup.directory / "tensorboard" / setup.suffix
    return Path("tensorboard_log", setup.project, setup.experiment).absolute()


def _file_name(directory: Path) -> str:
    # Time first and zero-padded, as TensorBoard reads the files of a directory in the order of their names, and never
    # goes back: where the clock has, the name is made of a time after that of the newest file.
    there = [found for path in directory.glob("events.out.tfevents.*") if (found := _NAMED.match(path.name))]
    newest = max((int(found[1]) * 10**9 + int(found[2] or 0) for found in there), default=0)
    now, host = max(time.time_ns(), newest + 1), socket.gethostname() or "host"
    return f"events.out.tfevents.{now // 10**9:010d}.{now % 10**9:09d}.{host}.{os.getpid()}.{next(_files)}"


def _has_scalars(event: Event) -> bool:
    return any(value.HasField("simple_value") for value in event.summary.value)


def _events(path: Path, event: type[Event]) -> Iterator[Event]:
    """The events of a file, up to where it ends or is torn (TFRecord: length, its checksum, data, its checksum)."""
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            data = file.read(length + 4)
            if len(data) != length + 4:
                return
            yield event.FromString(data[:-4])
