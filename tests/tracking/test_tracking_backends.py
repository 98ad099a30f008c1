"""One contract for every backend, read back through its real reader; a new one is tested by being listed."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import io
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import torch

from probe.core.metric import Metric
from probe.errors import BackendError
from probe.tracking.backends import BACKENDS, backend_class
from probe.tracking.media import KINDS, Figure, Histogram, Image, Span, Spans, Table, Text
from probe.tracking.tracking import Tracking
from tests.tracking.tracking_readers import (
    READERS,
    mlflow_client,
    read_mlflow,
    read_otlp_from,
    read_tensorboard,
    swanlab_records,
    tensorboard_scalars,
    wandb_records,
    wandb_rows,
)
from tests.waiting import until

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


def rich_values():
    import plotly.graph_objects as go

    return {
        "lengths": Histogram.from_values([1, 2, 2, 5], bins=2),
        "samples": Table(["prompt", "reward"], [["a|b", 0.5], ["c", None]]),
        "curve": go.Figure(go.Scatter(x=[1, 2], y=[3, 4]), layout={"title": {"text": "</script> of losses"}}),
        "note": "two\nlines",
        "picture": Image.from_picture(np.arange(24, dtype=np.uint8).reshape(2, 4, 3)),
        "phase": Span(1_000_000_000, 2_000_000_000, {"tokens": 7}),
        "step": Spans([Span(1_000_000_000, 2_000_000_000, name="step", number=1)]),
        "loss": 0.5,
    }


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


# --------------------------------------------------------------------------------------------------- mlflow


def status(backend):
    return mlflow_client(backend.tracking_uri).get_run(backend.run_id).info.status


def ended_by(backend):
    return mlflow_client(backend.tracking_uri).get_run(backend.run_id).data.tags.get("probe.end")


@pytest.mark.parametrize(
    ("exit_code", "expected", "word"),
    [
        (0, "FINISHED", "finished"),
        (1, "FAILED", "failed"),
        (3, "FAILED", "exited"),
        (130, "KILLED", "interrupted"),
        (137, "FAILED", "killed"),
        (143, "KILLED", "killed"),
    ],
)
def test_mlflow_status_and_the_tag_of_the_end_follow_the_exit_code(
    exit_code, expected, word, mlflow_database, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_database)
    tracking = Tracking("p", "e", "mlflow")
    assert status(tracking.logger["mlflow"]) == "RUNNING"
    assert ended_by(tracking.logger["mlflow"]) is None
    tracking.finish(exit_code)
    assert status(tracking.logger["mlflow"]) == expected
    assert ended_by(tracking.logger["mlflow"]) == word


def test_mlflow_keeps_the_end_that_the_processes_have_told(mlflow_database, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_database)
    tracking = Tracking("p", "e", "mlflow")
    tracking.logger["mlflow"].tag({"probe.end": "killed"})  # another rank was, of which this one fails
    tracking.finish(1)
    assert (status(tracking.logger["mlflow"]), ended_by(tracking.logger["mlflow"])) == ("FAILED", "killed")


def test_an_exception_in_the_body_fails_the_run_and_goes_on_its_way(tmp_path, mlflow_server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    tracking = Tracking("p", "e", "mlflow", directory=tmp_path)

    def body():
        with tracking:
            tracking.log({"x": 1.0}, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    assert status(tracking.logger["mlflow"]) == "FAILED"
    assert read_mlflow(tracking, None) == {"x": [(1, 1.0)]}


def test_mlflow_resumes_a_run_with_its_names_and_parameters(tmp_path, mlflow_server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    with Tracking("p", "resumed", "mlflow", {"lr": 1, "seed": 1}) as first:
        first.log({"a!": 1.0, "a#": 2.0, "inf": math.inf}, 1)
    run_id = first.logger["mlflow"].run_id
    assert ended_by(first.logger["mlflow"]) == "finished"
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    incidents = []
    with Tracking("other", "name", "mlflow", {"lr": 2, "new": 3}, on_incident=incidents.append) as second:
        assert status(second.logger["mlflow"]) == "RUNNING"
        assert ended_by(second.logger["mlflow"]) == "none"  # the word of its earlier end is no longer true
        second.log({"a#": 3.0, "a!": 4.0, "inf": -math.inf}, 2)
    assert second.logger["mlflow"].run_id == run_id
    assert status(second.logger["mlflow"]) == "FINISHED"
    expected = {
        "a!": [(1, 1.0), (2, 4.0)],
        "a#": [(1, 2.0), (2, 3.0)],
        "inf": [(1, math.inf), (2, -math.inf)],
    }
    assert read_mlflow(second, None) == expected
    run = mlflow_client(mlflow_server).get_run(run_id)
    assert run.data.params == {"lr": "1", "seed": "1", "new": "3"}
    assert any("'lr' keeps the value" in one.message for one in incidents)


def test_mlflow_says_which_run_it_cannot_resume(mlflow_database, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_database)
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(BackendError, match="MLFLOW_RUN_ID=00000"):
        Tracking("p", "e", "mlflow")


@pytest.mark.slow
def test_mlflow_keeps_parameters_times_and_the_users_own_run(tmp_path):
    import mlflow

    incidents = []
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'own.db'}")
    try:
        with mlflow.start_run() as own:
            os.environ.pop("MLFLOW_TRACKING_URI", None)  # set_tracking_uri leaves it there for child processes
            begin = time.time_ns() // 1_000_000
            config = {"long": "x" * 7000, **{f"p{index}": index for index in range(250)}}
            with Tracking("p", "e", "mlflow", config, directory=tmp_path, on_incident=incidents.append) as tracking:
                tracking.log({"x": 1.0}, 1)
            assert mlflow.active_run().info.run_id == own.info.run_id
    finally:
        mlflow.set_tracking_uri(before)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
    backend = tracking.logger["mlflow"]
    client = mlflow_client(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = client.get_run(backend.run_id)
    assert client.get_experiment(run.info.experiment_id).name == "p"
    assert run.info.run_name == "e"
    assert len(run.data.params) == 251
    assert run.data.params["long"].endswith("[…cut")
    assert len(run.data.params["long"]) == 6000
    (metric,) = client.get_metric_history(backend.run_id, "x")
    assert begin <= metric.timestamp <= time.time() * 1000
    assert [one.where for one in incidents] == ["mlflow"]


def test_an_mlflow_server_that_is_not_there_is_a_loud_error(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(BackendError, match=r"127\.0\.0\.1:9"):
        Tracking("p", "e", "mlflow")


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


@pytest.mark.parametrize(("error", "expected"), [(KeyboardInterrupt(), "KILLED"), (SystemExit(0), "FINISHED")])
def test_other_ways_out_of_the_body_give_their_status(error, expected, mlflow_database, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_database)

    def body():
        with Tracking("p", "e", "mlflow") as tracking:
            seen.append(tracking)
            raise error

    seen = []
    with pytest.raises(type(error)):
        body()
    assert status(seen[0].logger["mlflow"]) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        # tests/test_exits.py has these two of a session.
        pytest.param("", "FINISHED", marks=pytest.mark.thorough),
        ("1 / 0", "FAILED"),
        pytest.param("raise KeyboardInterrupt", "KILLED", marks=pytest.mark.thorough),
    ],
)
def test_a_script_that_forgets_to_finish_is_finished_at_its_exit(end, expected, tmp_path):
    script = f"""
        import sys
        from probe.tracking.tracking import Tracking
        tracking = Tracking("p", "e", ["mlflow"], directory=sys.argv[1])
        tracking.log({{"x": 1.0}}, 1)
        print(tracking.logger["mlflow"].run_id, flush=True)
        {end}
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, timeout=300, check=False, capture_output=True, text=True)
    run = mlflow_client(f"sqlite:///{tmp_path / 'mlflow.db'}").get_run(done.stdout.strip())
    assert (run.info.status, run.data.metrics) == (expected, {"x": 1.0}), done.stderr


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


@pytest.mark.slow
def test_mlflow_keeps_media_as_artifacts(tmp_path):
    with Tracking("p", "e", "mlflow", directory=tmp_path) as tracking:
        tracking.log(rich_values(), 4)
    own = tracking.logger["mlflow"]
    client = mlflow_client(own.tracking_uri)
    place = Path(client.download_artifacts(own.run_id, "", str(tmp_path)))
    table = json.loads((place / "tables/samples/step-00000004.json").read_text())
    assert table == json.loads((place / "tables/samples.json").read_text())
    assert table == {"columns": ["prompt", "reward"], "data": [["a|b", 0.5], ["c", None]]}
    assert (place / "texts/note/step-00000004.txt").read_text() == "two\nlines"
    assert (place / "images/picture/step-00000004.png").read_bytes() == rich_values()["picture"].png
    assert json.loads((place / "histograms/lengths/step-00000004.json").read_text())["counts"] == [3, 1]
    assert json.loads((place / "figures/curve.json").read_text())["data"][0]["y"] == [3, 4]
    html = (place / "figures.html").read_text()
    curve, lengths = figures_of(html)
    assert curve["data"][0]["y"] == [3, 4]
    assert lengths["data"][0]["width"] == [2.0, 2.0]
    assert html.count("</script>") == 3  # a label can't end a script
    assert "https://" not in html


def figures_of(page: str) -> list[dict[str, Any]]:
    """The figures in a page, by their names."""
    packed = re.search('id="figures">([^<]*)<', page)
    assert packed is not None
    return list(json.loads(gzip.decompress(base64.b64decode(packed[1]))).values())


@pytest.mark.slow
def test_g_all_figures_of_a_run_weigh_at_most_8_mb_in_mlflow(tmp_path):
    """Also where they are many and large: what doesn't fit is told."""
    rng, incidents = random.Random(0), []
    with Tracking("p", "e", "mlflow", directory=tmp_path, on_incident=incidents.append) as tracking:
        for number in range(10):
            spec = json.dumps({"data": [{"y": [rng.random() for _ in range(50_000)]}], "layout": {}})
            tracking.log({f"figure/{number}": Figure(spec)}, 0)
        assert tracking.flush()
    own = tracking.logger["mlflow"]
    place = Path(mlflow_client(own.tracking_uri).download_artifacts(own.run_id, "", str(tmp_path)))
    kept = [place / "figures.html", *(place / "figures").rglob("*.json")]
    assert 2_000_000 < sum(one.stat().st_size for one in kept) <= 8_000_000
    assert "too large for the page" in kept[0].read_text()
    assert any("more than 8 MB together" in one.message for one in incidents)


@pytest.mark.slow
def test_artifacts_that_cannot_be_put_hold_up_no_values_in_mlflow(tmp_path, monkeypatch):
    """As with a server whose artifacts lie in a folder of its own that this machine hasn't got."""
    monkeypatch.setattr("probe.tracking.lane.BACK_OFF_S", (0.001, 0.01))
    incidents = []
    (tmp_path / "mlflow-artifacts").write_text("not a folder")
    with Tracking("p", "e", "mlflow", directory=tmp_path, on_incident=incidents.append) as tracking:
        tracking.describe("x" * 6000)
        for step in range(3):
            tracking.log({**rich_values(), "loss": float(step)}, step)
        assert tracking.flush()
    run = mlflow_client(tracking.logger["mlflow"].tracking_uri).get_run(tracking.logger["mlflow"].run_id)
    assert read_mlflow(tracking, None) == {"loss": [(0, 0.0), (1, 1.0), (2, 2.0)]}
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.note.content"].startswith("xxx")
    assert any("can't put an artifact" in one.message and "given up" in one.message for one in incidents)
    aside = [json.loads(line) for line in (tmp_path / "tracking" / "mlflow.refused.jsonl").read_text().splitlines()]
    assert {name for one in aside for name in one["media"]} == {"lengths", "samples", "curve", "note", "picture"}


@pytest.mark.slow
def test_mlflow_refreshes_a_figure_in_its_place_and_lists_tables_as_its_own(tmp_path):
    import mlflow
    import plotly.graph_objects as go

    for start in (0, 3):  # the second goes on with the first
        with Tracking("p", "e", "mlflow", directory=tmp_path) as tracking:
            for step in range(start, start + 3):
                samples = Table(["step"], [[step]])
                tracking.log({"curve": go.Figure(go.Bar(y=[step])), "samples": samples, "more": samples}, step)
    own = tracking.logger["mlflow"]
    client = mlflow_client(own.tracking_uri)
    assert sorted(one.path for one in client.list_artifacts(own.run_id, "figures")) == [
        "figures/curve.json",
    ]
    place = Path(client.download_artifacts(own.run_id, "figures", str(tmp_path)))
    assert json.loads((place / "curve.json").read_text())["data"][0]["y"] == [5]
    page = Path(client.download_artifacts(own.run_id, "figures.html", str(tmp_path)))
    assert [one["data"][0]["y"] for one in figures_of(page.read_text())] == [[5]]
    listed = json.loads(client.get_run(own.run_id).data.tags["mlflow.loggedArtifacts"])
    assert listed == [{"path": f"tables/{name}.json", "type": "table"} for name in ("samples", "more")]
    before = mlflow.get_tracking_uri()
    try:
        mlflow.set_tracking_uri(own.tracking_uri)
        loaded = client.load_table(own.experiment_id, "tables/samples.json", run_ids=[own.run_id])
    finally:
        mlflow.set_tracking_uri(before)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
    assert loaded["step"].tolist() == [5]


@pytest.mark.slow
def test_wandb_keeps_media_parameters_and_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = {"lr": 1e-6, "trainer": {"wandb_proxy": "http://127.0.0.1:9"}}
    with Tracking("p", "e", "wandb", config, directory=tmp_path) as tracking:
        tracking.log(rich_values(), 4)
        first = tracking.logger["wandb"]
    records = wandb_records(tracking.locations["wandb"])
    ((step, row),) = wandb_rows(tracking.locations["wandb"])
    assert step == 4
    assert row["lengths"] == {"_type": "histogram", "values": [3, 1], "bins": [1.0, 3.0, 5.0]}
    assert [row[name]["_type"] for name in ("samples", "curve", "picture", "note")] == [
        "table-file",
        "plotly-file",
        "image-file",
        "html-file",
    ]
    configs = [record.config for record in records if record.WhichOneof("record_type") == "config"]
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    updates = {
        u.key or "/".join(u.nested_key): u.value_json
        for one in (*configs, *(r.config for r in runs))
        for u in one.update
    }
    assert float(updates["lr"]) == 1e-6
    assert (runs[0].project, runs[0].display_name) == ("p", "e")
    assert first._run.settings.https_proxy == "http://127.0.0.1:9"
    with Tracking("p", "e", "wandb", directory=tmp_path) as tracking:
        assert tracking.logger["wandb"].run_id == first.run_id


@pytest.mark.slow
@pytest.mark.parametrize("exit_code", [0, 7])
def test_wandb_is_finished_with_the_exit_code_and_leaves_the_users_run_alone(exit_code, tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    own = wandb.init(project="own", dir=tmp_path, settings=wandb.Settings(silent=True, console="off"))
    try:
        tracking = Tracking("p", "e", "wandb", directory=tmp_path)
        tracking.log({"x": 1}, 5)
        tracking.log({"x": 1}, 3)
        tracking.finish(exit_code)
        own.log({"mine": 1})
    finally:
        own.finish()
    records = wandb_records(tracking.locations["wandb"])
    (end,) = [record.exit for record in records if record.WhichOneof("record_type") == "exit"]
    assert end.exit_code == exit_code
    assert [step for step, _ in wandb_rows(tracking.locations["wandb"])] == [5]


@pytest.mark.slow
def test_wandb_loses_nothing_to_a_kill(tmp_path, monkeypatch):
    """What its own process had not written is sent again; W&B keeps one row a step of those that overlap."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    script = """
        import os, signal, sys
        from probe.tracking.tracking import Tracking
        tracking = Tracking("p", "e", "wandb", directory=sys.argv[1])
        for step in range(20):
            tracking.log({"x": float(step)}, step)
        assert tracking.flush(300)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run(command, env=environment, timeout=300, check=False).returncode == -signal.SIGKILL
    (killed,) = (tmp_path / "wandb").glob("offline-run-*")
    with Tracking("p", "e", "wandb", directory=tmp_path) as tracking:
        tracking.log({"x": 20.0}, 20)
    after = list(wandb_rows(tracking.locations["wandb"]))

    def both():  # the process of W&B may outlive ours and go on writing
        return {step: row["x"] for step, row in (*wandb_rows(killed, complete=False), *after)}

    until(both, lambda rows: rows == {step: float(step) for step in range(21)})
    assert len(after) == len({step for step, _ in after})


def test_swanlab_finishes_with_a_state_and_keeps_parameters(tmp_path, monkeypatch):
    pytest.importorskip("swanlab", reason="swanlab lives in an environment of its own")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    hook = sys.excepthook
    for exit_code, state in ((0, 1), (3, 2), (130, 3)):
        tracking = Tracking("p", f"e{exit_code}", "swanlab", {"a": {"lr": 0.5}}, directory=tmp_path)
        tracking.log({"x": 1.0, "note": "good"}, 1)
        assert sys.excepthook is hook
        tracking.finish(exit_code)
        place = Path(tracking.locations["swanlab"])
        assert "lr" in (place / "files/config.yaml").read_text()
        records = swanlab_records(place)
        (end,) = [record.finish for record in records if record.WhichOneof("record_type") == "finish"]
        assert end.state == state, end
        assert [path.read_text() for path in (place / "media/text").iterdir()] == ["good"]


def kill_after_flush(backend, directory):
    """A process that has logged and flushed 20 steps, and is killed."""
    script = """
        import os, signal, sys
        from probe.tracking.tracking import Tracking
        tracking = Tracking("p", "e", sys.argv[1], {"lr": 0.5}, directory=sys.argv[2])
        for step in range(20):
            tracking.log({"x": float(step)}, step)
        if sys.argv[3] == "flushed":
            assert tracking.flush(300)
        while tracking._stream._journal.last < 20:
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), backend, str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for flushed in ("flushed", "at once"):
        killed = subprocess.run([*command, flushed], env=environment, timeout=300, check=False)
        assert killed.returncode == -signal.SIGKILL
        yield flushed


def test_swanlab_loses_nothing_to_a_kill_and_writes_nothing_twice(tmp_path, monkeypatch):
    pytest.importorskip("swanlab", reason="swanlab lives in an environment of its own")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    for flushed in kill_after_flush("swanlab", tmp_path):
        (killed,) = (tmp_path / "swanlog").glob("run-*")
        before = swanlab_steps(killed)
        assert len(before) == 20 or flushed == "at once"
        with Tracking("p", "e", "swanlab", directory=tmp_path) as tracking:
            tracking.log({"x": 20.0}, 20)
        assert [*before, *swanlab_steps(Path(tracking.locations["swanlab"]))] == list(range(21))
        shutil.rmtree(tmp_path / "swanlog")
        shutil.rmtree(tmp_path / "tracking")


def swanlab_steps(directory):
    if not next(directory.glob("run-*.swanlab")).stat().st_size:  # killed before its own thread wrote anything
        return []
    records = swanlab_records(directory)
    return [record.scalar.step for record in records if record.WhichOneof("record_type") == "scalar"]


def test_trackio_loses_nothing_to_a_kill_and_writes_nothing_twice(tmp_path, monkeypatch, trackio_directory):
    trackio = pytest.importorskip("trackio", reason="trackio lives in an environment of its own")
    monkeypatch.setenv("TRACKIO_DIR", trackio_directory)
    for flushed in kill_after_flush("trackio", tmp_path / "first"):
        with Tracking("p", "e", "trackio", directory=tmp_path / "first") as tracking:
            tracking.log({"x": 20.0}, 20)
        run_id = tracking.logger["trackio"].run_id
        rows = trackio.SQLiteStorage.get_logs("p", run_id=run_id)
        assert [(row["step"], row["x"]) for row in rows] == [(step, float(step)) for step in range(21)], flushed
        shutil.rmtree(tmp_path / "first")


def test_trackio_keeps_parameters_and_its_run(tmp_path, monkeypatch, trackio_directory):
    trackio = pytest.importorskip("trackio", reason="trackio lives in an environment of its own")
    monkeypatch.setenv("TRACKIO_DIR", trackio_directory)
    for step in (1, 2):
        with Tracking("own", "e", "trackio", {"a": {"lr": 0.5}}, directory=tmp_path) as tracking:
            tracking.log({"x": float(step)}, step)
    run_id = tracking.logger["trackio"].run_id
    assert [(row["step"], row["x"]) for row in trackio.SQLiteStorage.get_logs("own", run_id=run_id)] == [
        (1, 1.0),
        (2, 2.0),
    ]
    assert trackio.SQLiteStorage.get_run_config("own", "e")["a/lr"] == 0.5


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
