"""What each backend wrote, read back with its own reader: metric → [(step, value)] in the order in which it came."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.tracking.tracking import Tracking
from tests.waiting import until

#: Of each metric its steps and values.
Found = dict[str, list[tuple[int, float]]]
Reader = Callable[[Tracking, pytest.CaptureFixture[str]], Found]


def read_console(tracking: Tracking, capsys: pytest.CaptureFixture[str]) -> Found:
    found: Found = {}
    step = -1
    for line in capsys.readouterr().out.splitlines():
        head, *cells = line.split(" | ")
        if head.startswith("step "):
            step = int(head.split()[1])
        else:
            cells = re.findall(r"\S+ +\S+", line) if line.startswith("  ") else []
        for cell in cells:
            name, value = cell.split(maxsplit=1) if not cell.endswith(":") else (cell, "")
            if not name.endswith(":"):  # a text or a table
                found.setdefault(name, []).append((step, float(value)))
    return found


def read_file(tracking: Tracking, capsys: pytest.CaptureFixture[str]) -> Found:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in Path(tracking.locations["file"]).read_text().splitlines():
        record = json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} isn't JSON"))
        for name, value in record["data"].items():
            found.setdefault(name, []).append((record["step"], float(value)))
    return found


def read_tensorboard(tracking: Tracking, capsys: pytest.CaptureFixture[str]) -> Found:
    return {
        name: [(event.step, event.value) for event in events]
        for name, events in tensorboard_scalars(tracking.locations["tensorboard"]).items()
    }


def tensorboard_scalars(directory: str | Path) -> dict[str, list[Any]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(directory), size_guidance={"scalars": 0}).Reload()
    return {name: reader.Scalars(name) for name in reader.Tags()["scalars"]}


def mlflow_client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def read_mlflow(tracking: Tracking, capsys: pytest.CaptureFixture[str]) -> Found:
    backend: Any = tracking.logger["mlflow"]
    return read_mlflow_run(backend.tracking_uri, backend.run_id)


def read_mlflow_run(uri: str, run_id: str) -> Found:
    client = mlflow_client(uri)
    run = client.get_run(run_id)
    original = json.loads(run.data.tags.get("probe.names", "{}"))
    found = {
        original.get(name, name): [(m.step, m.value) for m in client.get_metric_history(run_id, name)]
        for name in run.data.metrics
    }
    for name, steps in json.loads(run.data.tags.get("probe.infinities", "{}")).items():
        found.setdefault(name, []).extend((int(step), float(text)) for step, text in steps.items())
    return found


def wandb_records(directory: str | Path, complete: bool = True) -> list[Any]:
    """The records of an offline run, which W&B's own process completes soon after the run's end."""
    if not complete:
        return wandb_records_now(directory)
    return until(
        lambda: wandb_records_now(directory),
        lambda records: any(record.WhichOneof("record_type") == "exit" for record in records),
    )


def wandb_records_now(directory: str | Path) -> list[Any]:
    """LevelDB's log format, each entry a protobuf of W&B's own ``Record``."""
    from wandb.proto import wandb_internal_pb2

    protos: Any = wandb_internal_pb2  # it takes its messages from the module for the installed protobuf

    (path,) = Path(directory).glob("run-*.wandb")
    content, place, whole, records = path.read_bytes(), 7, b"", []
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        end = place + 7 + int.from_bytes(content[place + 4 : place + 6], "little")
        if end > len(content):  # it's being written
            break
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        whole = (whole if kind in {3, 4} else b"") + content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:
            records.append(protos.Record.FromString(whole))
    return records


def wandb_rows(directory: str | Path, complete: bool = True) -> Iterator[tuple[int, dict[str, Any]]]:
    """(step, name → value) of each row of the history."""
    for record in wandb_records(directory, complete):
        if record.WhichOneof("record_type") == "history":
            row: dict[str, Any] = {}
            for item in record.history.item:
                *outer, name = list(item.nested_key) or [item.key]
                inner = row
                for part in outer:
                    inner = inner.setdefault(part, {})
                inner[name] = json.loads(item.value_json)
            yield int(row.get("_step", record.history.step.num)), row


def read_wandb(tracking: Tracking, capsys: pytest.CaptureFixture[str]) -> Found:
    found: dict[str, list[tuple[int, float]]] = {}
    for step, row in wandb_rows(tracking.locations["wandb"]):
        for name, value in row.items():
            if name not in {"_step", "_timestamp", "_runtime"} and not isinstance(value, dict):
                found.setdefault(name, []).append((step, float(value)))
    return found


def swanlab_records(directory: str | Path) -> list[Any]:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    (path,) = Path(directory).glob("run-*.swanlab")
    reader = DataStoreReader()
    reader.open(str(path))
    try:
        return [Record.FromString(data) for data in reader]
    finally:
        reader.close()


def read_swanlab(tracking: Tracking, capsys: pytest.CaptureFixture[str]) -> Found:
    found: dict[str, list[tuple[int, float]]] = {}
    backend: Any = tracking.logger["swanlab"]
    original = {mapped: name for name, mapped in backend._names.changed.items()}
    for record in swanlab_records(tracking.locations["swanlab"]):
        if record.WhichOneof("record_type") == "scalar":
            one = record.scalar
            found.setdefault(original.get(one.key, one.key), []).append((one.step, one.value.number))
    return found


def trackio_logs(tracking: Tracking) -> Any:
    import trackio

    backend: Any = tracking.logger["trackio"]
    return trackio.SQLiteStorage.get_logs(backend._project, run_id=backend.run_id)


def read_trackio(tracking: Tracking, capsys: pytest.CaptureFixture[str]) -> Found:
    found: dict[str, list[tuple[int, float]]] = {}
    for row in trackio_logs(tracking):
        for name, value in row.items():
            if name not in {"step", "timestamp"} and not isinstance(value, dict):
                found.setdefault(name, []).append((row["step"], float(value)))
    return found


def otlp_attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def otlp_points(collector: Any) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """(metric, data point, its attributes) of all that has come."""
    for request in collector.metrics:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in getattr(metric, metric.WhichOneof("data")).data_points:
                        yield metric, point, otlp_attributes(point.attributes)


def read_otlp_from(collector: Any) -> Reader:
    def read(tracking: Tracking, capsys: pytest.CaptureFixture[str]) -> Found:
        found: dict[str, list[tuple[int, float]]] = {}
        for metric, point, attributes in otlp_points(collector):
            name = attributes.get("rl.metric.name")
            if name is not None and metric.WhichOneof("data") == "gauge":
                step = otlp_attributes(point.exemplars[0].filtered_attributes)["rl.step"]
                found.setdefault(name, []).append((step, point.as_double))
        return found

    return read


READERS: dict[str, Reader | None] = {
    "console": read_console,
    "file": read_file,
    "mlflow": read_mlflow,
    "otlp": None,  # read from what the collector got
    "swanlab": read_swanlab,
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
    "wandb": read_wandb,
}
