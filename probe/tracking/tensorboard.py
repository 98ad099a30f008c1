"""Metrics as TensorBoard's event files, written with TensorBoard's own record format and without torch."""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe.errors import BackendError, MissingDependencyError
from probe.tracking.backends import Setup

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import SummaryMetadata

#: The largest finite number of TensorBoard's 32-bit scalars.
LARGEST: Final = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]

_files = itertools.count()


class TensorBoard:
    """Scalars by step, and the configuration as text and as hyper-parameters.

    The files go to ``TENSORBOARD_DIR``, else to ``tensorboard`` in the run's directory, else to
    ``tensorboard_log/{project}/{experiment}``. Every call is flushed, so that a killed process loses nothing.
    Scalars have 32 bits there: a finite number beyond their range is left out and reported.

    Raises:
        MissingDependencyError: without the package tensorboard. BackendError: the directory can't be written.
    """

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
        directory = _directory(setup)
        self.location = str(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / _file_name()
            self._writer = RecordWriter(path.open("xb"))
        except OSError as error:
            raise BackendError(f"backend 'tensorboard' can't write to {directory}: {error}") from error
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def log(self, values: dict[str, float], step: int) -> None:
        """Write one event that holds all scalars of the step."""
        wall_ns = getattr(values, "wall_ns", None) or time.time_ns()
        event = self._event(wall_time=wall_ns / 1e9, step=step)
        for name, value in values.items():
            if math.isfinite(value) and abs(value) > LARGEST:
                self._report(f"range {name}", f"{name!r} is left out at step {step}: {value!r} exceeds 32-bit floats")
            else:
                event.summary.value.add(tag=name, simple_value=value)
        self._write(event)

    def params(self, parameters: dict[str, Any]) -> None:
        """Show the configuration under Text and HParams."""
        event = self._event(wall_time=time.time(), step=0)
        table = [
            "| parameter | value |",
            "|---|---|",
            *(f"| {_cell(k)} | {_cell(v)} |" for k, v in parameters.items()),
        ]
        text = event.summary.value.add(tag="config/text_summary", metadata=self._metadata("text", b""))
        text.tensor.dtype = 7  # DT_STRING
        text.tensor.tensor_shape.dim.add(size=1)
        text.tensor.string_val.append("\n".join(table).encode())
        self._add_hparams(event, parameters)
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
        data = plugin_data_pb2.HParamsPluginData(version=0, session_start_info=info)
        value = event.summary.value.add(
            tag="_hparams_/session_start_info", metadata=self._metadata("hparams", data.SerializeToString())
        )
        value.tensor.dtype = 1  # DT_FLOAT: the plugin reads the metadata; the tensor is empty by its convention
        value.tensor.tensor_shape.dim.add(size=0)

    def _metadata(self, plugin: str, content: bytes) -> SummaryMetadata:
        data = self._summary.SummaryMetadata.PluginData(plugin_name=plugin, content=content)
        return self._summary.SummaryMetadata(plugin_data=data)

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def close(self, exit_code: int) -> None:  # noqa: ARG002  (the protocol)
        """Close the file."""
        self._writer.close()


def _directory(setup: Setup) -> Path:
    named = os.environ.get("TENSORBOARD_DIR")
    if named:
        return Path(named).absolute()
    if setup.directory is not None:
        return setup.directory / "tensorboard"
    return Path("tensorboard_log", setup.project, setup.experiment).absolute()


def _file_name() -> str:
    # Time first and zero-padded, as TensorBoard reads the files of a directory in the order of their names.
    now, host = time.time_ns(), socket.gethostname() or "host"
    return f"events.out.tfevents.{now // 10**9:010d}.{now % 10**9:09d}.{host}.{os.getpid()}.{next(_files)}"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
