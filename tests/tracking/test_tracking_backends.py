"""One contract for every backend, read back through its real reader; a new one is tested by being listed."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pytest
import torch

from probe.core.metric import Metric
from probe.errors import BackendError
from probe.tracking.backends import BACKENDS, backend_class
from probe.tracking.media import KINDS, Table, Text
from probe.tracking.tracking import Tracking
from tests.tracking.rich_values import rich_values
from tests.tracking.tracking_readers import (
    READERS,
    mlflow_client,
    read_otlp_from,
    read_tensorboard,
    tensorboard_scalars,
)

#: What the clients of W&B, SwanLab and Trackio warn of or leave open is theirs to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_every_backend_is_under_the_contract():
    assert set(READERS) <= set(BACKENDS) == set(Tracking.supported_backend)


#: Packages whose requirements don't go together with the others' of this environment; `make test-trackers` has them.
OWN_ENVIRONMENT = {"swanlab", "trackio"}


#: A server or a service process of their own: not in `make check`.
SLOW = {"mlflow", "mlflow-server", "wandb", "swanlab", "trackio"}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in [*BACKENDS, "mlflow-server"]
    ]
)
def backend(request, monkeypatch, readers):
    """A backend's name, with its surroundings; one that has no reader here is read by what its ``log`` took."""
    name = request.param.removesuffix("-server")
    if name in OWN_ENVIRONMENT and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} lives in an environment of its own")
    if name == "mlflow":
        store = "mlflow_server" if request.param.endswith("-server") else "mlflow_database"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", request.getfixturevalue(store))
    elif name == "otlp":
        one = request.getfixturevalue("collector")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.url)
        readers["otlp"] = read_otlp_from(one)
    elif name == "trackio":
        monkeypatch.setenv("TRACKIO_DIR", request.getfixturevalue("trackio_directory"))
    elif name in {"wandb", "swanlab"}:
        monkeypatch.setenv(f"{name.upper()}_MODE", "offline")
    if name not in readers:
        readers[name] = read_what_is_logged(backend_class(name), monkeypatch)
    return name


def read_what_is_logged(backend, monkeypatch):
    found = {}
    log = backend.log

    def spy(self, values, step):
        log(self, values, step)
        for name, value in values.items():
            found.setdefault(name, []).append((step, value))

    monkeypatch.setattr(backend, "log", spy)
    return lambda tracking, capsys: found


@pytest.fixture
def readers():
    return dict(READERS)


def test_numbers_of_every_kind_are_read_back(backend, readers, tmp_path, capsys):
    incidents = []
    with Tracking("contract", "numbers", backend, directory=tmp_path, on_incident=incidents.append) as tracking:
        tracking.log(
            {
                "int": 3,
                "bool": True,
                "numpy/float": np.float32(0.25),
                "numpy/array": np.array(0.5),
                "tensor/bf16": torch.tensor(1.5, dtype=torch.bfloat16),
                "tensor/one": torch.tensor([2.5]),
                "metric": Metric("mean", [1.0, 2.0]),
                "decimal": Decimal("0.75"),
                "none": None,
            },
            step=np.int64(7),
        )
        tracking.log({"int": 4, "negative": -0.125, "small": 1e-7}, step=8)
    found = readers[backend](tracking, capsys)
    assert found.pop("small")[0] == (8, pytest.approx(1e-7, rel=1e-5))
    assert found == {
        "int": [(7, 3.0), (8, 4.0)],
        "bool": [(7, 1.0)],
        "numpy/float": [(7, 0.25)],
        "numpy/array": [(7, 0.5)],
        "tensor/bf16": [(7, 1.5)],
        "tensor/one": [(7, 2.5)],
        "metric": [(7, 1.5)],
        "decimal": [(7, 0.75)],
        "negative": [(8, -0.125)],
    }
    assert [one.message.split(" at ")[0] for one in incidents] == ["'none'"]


def test_nan_and_infinities_are_never_another_number(backend, readers, tmp_path, capsys):
    with Tracking("contract", "infinities", backend, directory=tmp_path) as tracking:
        tracking.log({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}, step=1)
        tracking.log({"a": 1.0, "b": math.inf, "d": math.nan}, step=2)
    found = readers[backend](tracking, capsys)
    assert [(step, str(value)) for step, value in found["a"]] == [(1, "nan"), (2, "1.0")]
    assert found["b"] == [(1, math.inf), (2, math.inf)]
    assert found["c"] == [(1, -math.inf)]
    assert [(step, str(value)) for step, value in found["d"]] == [(1, "1.0"), (2, "nan")]


def test_names_that_collide_stay_apart(backend, readers, tmp_path, capsys):
    data = {"a": 1.0, "a/b": 2.0, "acc@5": 3.0, "acc_at_5": 4.0, "clip(%)": 5.0, "//x//": 6.0, "奖励": 7.0}
    with Tracking("contract", "names", backend, directory=tmp_path) as tracking:
        tracking.log(data, step=1)
        tracking.log({name: value + 1 for name, value in data.items()}, step=2)
    found = readers[backend](tracking, capsys)
    assert found == {name: [(1, value), (2, value + 1)] for name, value in data.items()}


def test_many_metrics_at_once(backend, readers, tmp_path, capsys):
    data = {f"group{index % 7}/metric{index}": float(index) for index in range(1500)}
    with Tracking("contract", "many", backend, directory=tmp_path) as tracking:
        tracking.log(data, step=1)
        tracking.log({}, step=2)
    if backend == "mlflow":  # a history a request is too slow here
        own = tracking.logger["mlflow"]
        assert mlflow_client(own.tracking_uri).get_run(own.run_id).data.metrics == data
    else:
        assert readers[backend](tracking, capsys) == {name: [(1, value)] for name, value in data.items()}


def test_what_is_no_number_is_shown_or_told_once(backend, readers, tmp_path, capsys):
    incidents = []
    with Tracking("contract", "rich", backend, directory=tmp_path, on_incident=incidents.append) as tracking:
        for step in (1, 2):
            tracking.log(rich_values(), step)
        assert tracking.flush()
        shows = set(tracking.logger[backend].shows)
    left_out = [one for one in incidents if one.where == backend]
    told = {one.message.split(" a ")[1].partition(":")[0] for one in left_out if "can't show" in one.message}
    assert told == KINDS - shows
    assert all(one.kind == "value" for one in left_out)
    assert {one.where for one in incidents} <= {backend}
    assert readers[backend](tracking, capsys)["loss"] == [(1, 0.5), (2, 0.5)]


def test_nothing_is_printed_but_by_the_console_and_where_it_goes(backend, tmp_path, capfd):
    tracking = Tracking("contract", "quiet", backend, {"lr": 1e-6}, directory=tmp_path)
    tracking.log({"x": 1.0}, step=1)
    tracking.finish()
    out, err = capfd.readouterr()
    told = backend in tracking.locations and backend != "console"
    where = f"probe: {backend}: {tracking.locations[backend]}\n" if told else ""
    assert (out, err) == (f"step 1 | x {1:<11}".rstrip() + "\n" if backend == "console" else "", where)


def test_where_it_goes_is_told_once_through_the_log_where_that_shows_it(tmp_path, capfd, caplog):
    caplog.set_level("INFO", "probe.tracking")
    with Tracking("p", "e", ["file", "console"], directory=tmp_path):
        pass
    assert caplog.messages == [f"file: {tmp_path / 'metrics.jsonl'}", "console: standard output"]
    assert capfd.readouterr().err == ""


def test_locations_are_absolute(backend, tmp_path):
    with Tracking("contract", "where", backend, directory=tmp_path) as tracking:
        location = tracking.locations.get(backend, "standard output")
    named = ("MLFLOW_TRACKING_URI", "TRACKIO_DIR", "OTEL_EXPORTER_OTLP_ENDPOINT")
    elsewhere = tuple(os.environ[name] for name in named if name in os.environ)
    assert location == "standard output" or str(tmp_path) in location or location.startswith(elsewhere)


# -------------------------------------------------------------------------------------------------- console


def test_console_lines_are_short_and_aligned(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with Tracking("p", "e", "console") as tracking:
        tracking.log({"loss": np.float64(0.5), "tokens": 123456789}, 1)
        tracking.log({f"group/metric_{index}": index / 3 for index in range(8)}, 2)
    first, *block = capsys.readouterr().out.splitlines()
    assert first == "step 1 | loss 0.5         | tokens 123456789"
    assert block[0] == "step 2"
    assert all(len(line) <= 60 for line in block)
    assert len({line.index("group/metric_", 3) for line in block[1:]}) == 1


# ----------------------------------------------------------------------------------------------------- file


def test_file_appends_and_mends_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "data": {"x": 1.0}}\n{"step": 2, "da')
    with Tracking("p", "e", "file", directory=tmp_path) as tracking:
        tracking.log({"x": 3.0, "inf": math.inf}, 3)
    with Tracking("p", "e", "file", directory=tmp_path) as tracking:
        tracking.log({"x": 4.0, "inf": 0.5}, 4)
    lines = path.read_text().splitlines()
    assert lines[1] == '{"step": 2, "da'
    records = [json.loads(line) for line in (lines[0], *lines[2:])]
    assert [(record["step"], record["data"]["x"]) for record in records] == [(1, 1.0), (3, 3.0), (4, 4.0)]
    assert abs(records[1]["wall_ns"] - time.time_ns()) < 600e9
    table = f"read_json('{path}', ignore_errors=true)"
    query = f"select step, data.x::double, data.inf::double from {table} where step > 2"
    assert duckdb.sql(query).fetchall() == [(3, 3.0, math.inf), (4, 4.0, 0.5)]


def test_file_goes_where_it_is_told(tmp_path, monkeypatch):
    def where(**options):
        with Tracking("p", "e", "file", **options) as tracking:
            return tracking.locations["file"]

    assert where() == str(tmp_path / "p" / "e.jsonl")
    monkeypatch.setenv("VERL_FILE_LOGGER_ROOT", str(tmp_path / "root"))
    assert where() == str(tmp_path / "root" / "p" / "e.jsonl")
    assert where(directory="here") == str(tmp_path / "here" / "metrics.jsonl")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "verl.jsonl")
    assert where(directory="here") == str(tmp_path / "verl.jsonl")
    monkeypatch.setenv("PROBE_FILE_LOGGER_PATH", str(tmp_path / "deep" / "probe.jsonl"))
    assert where(directory="here") == str(tmp_path / "deep" / "probe.jsonl")


@pytest.mark.parametrize("backend", ["file", "tensorboard", "mlflow"])
def test_a_place_that_is_no_directory_is_a_loud_error(backend, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(BackendError, match="taken"):
        Tracking("p", "e", backend, directory=tmp_path / "taken")


# ---------------------------------------------------------------------------------------------- tensorboard


def test_tensorboard_goes_where_it_is_told(tmp_path, monkeypatch):
    def where(**options):
        with Tracking("p", "e", "tensorboard", **options) as tracking:
            return tracking.locations["tensorboard"]

    assert where() == str(tmp_path / "tensorboard_log" / "p" / "e")
    assert where(directory="run") == str(tmp_path / "run" / "tensorboard")
    monkeypatch.setenv("TENSORBOARD_DIR", "elsewhere")
    assert where(directory="run") == str(tmp_path / "elsewhere")


def test_tensorboard_keeps_times_parameters_and_earlier_files(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    for step in (1, 2):
        begin = time.time()
        with Tracking(
            "p", "e", "tensorboard", {"a": {"lr": 0.5, "on": True}, "none": None}, directory=tmp_path
        ) as tracking:
            tracking.log({"x": step}, step)
    events = tensorboard_scalars(tmp_path / "tensorboard")["x"]
    assert [(event.step, event.value) for event in events] == [(1, 1.0), (2, 2.0)]
    assert begin <= events[1].wall_time <= time.time()
    reader = EventAccumulator(tracking.locations["tensorboard"]).Reload()
    (text,) = {event.tensor_proto.string_val[0] for event in reader.Tensors("config/text_summary")}
    assert "| a/lr | 0.5 |" in text.decode()
    content = reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    assert (hparams["a/lr"].number_value, hparams["a/on"].bool_value, hparams["none"].string_value) == (
        0.5,
        True,
        "null",
    )


def test_tensorboard_leaves_out_what_32_bits_cannot_hold(tmp_path):
    incidents = []
    with Tracking("p", "e", "tensorboard", directory=tmp_path, on_incident=incidents.append) as tracking:
        tracking.log({"big": 1e300, "x": 3.4e38}, 1)
        tracking.log({"big": -1e300, "x": 1.0}, 2)
    found = read_tensorboard(tracking, None)
    assert found == {"x": [(1, pytest.approx(3.4e38)), (2, 1.0)]}
    assert [one.count for one in incidents] == [1, 1]
    assert "1e+300" in incidents[0].message


# ---------------------------------------------------------------------------------------------------- kills


def test_what_was_sent_before_a_kill_can_be_read(tmp_path):
    script = """
        import os, signal, sys
        from probe.tracking.tracking import Tracking
        tracking = Tracking("p", "e", ["file", "tensorboard"], directory=sys.argv[1])
        for step in range(100):
            tracking.log({"x": float(step)}, step)
        assert tracking.flush(300)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    root = Path(__file__).parents[2]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(root)}, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(100))
    events = tensorboard_scalars(tmp_path / "tensorboard")["x"]
    assert [event.step for event in events] == list(range(100))


# ------------------------------------------------------------------------------------------------------ media


def test_tensorboard_shows_media(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Tracking("p", "e", "tensorboard", directory=tmp_path) as tracking:
        tracking.log(rich_values(), 4)
    reader = EventAccumulator(tracking.locations["tensorboard"]).Reload()
    (histogram,) = reader.Histograms("lengths")
    assert (histogram.step, histogram.histogram_value.num) == (4, 4)
    assert histogram.histogram_value.bucket_limit == [1.0, 3.0, 5.0]
    assert histogram.histogram_value.bucket == [0, 3, 1]
    (picture,) = reader.Images("picture")
    assert (picture.width, picture.height) == (4, 2)
    assert picture.encoded_image_string == rich_values()["picture"].png
    (table,) = reader.Tensors("samples/text_summary")
    assert b"| a\\|b | 0.5 |" in table.tensor_proto.string_val[0]
    (note,) = reader.Tensors("note/text_summary")
    assert note.tensor_proto.string_val == [b"two\nlines"]


# -------------------------------------------------------------------------------------------------- narrow encodings


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_f20_a_name_that_the_console_can_t_write_is_escaped_and_each_step_appears(encoding, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    incidents = []
    with Tracking("p", "e", "console", on_incident=incidents.append) as tracking:
        for step in range(3):
            table = Table(["提示"], [["好"]])
            tracking.log({"奖励": step / 2, "loss": 0.25, "样本": table, "话": Text("好")}, step)
    said = written.getvalue().decode(encoding)
    assert incidents == []
    name = "奖励" if encoding == "utf-8" else r"\u5956\u52b1"
    assert re.findall(rf"{re.escape(name)} +(\S+)", said) == ["0", "0.5", "1"]
    assert said.count("loss 0.25") == 3
