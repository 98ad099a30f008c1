"""One contract for every backend, read back through its real reader; a new one is tested by being listed."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pytest
import torch

from probe.core.metric import Metric
from probe.errors import BackendError
from probe.tracking.backends import BACKENDS
from probe.tracking.tracking import Tracking

ENVIRONMENT = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "TENSORBOARD_DIR",
    "PROBE_FILE_LOGGER_PATH",
    "VERL_FILE_LOGGER_PATH",
    "VERL_FILE_LOGGER_ROOT",
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory):
    """One for all tests that need no other: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow-database') / 'mlflow.db'}"


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory):
    place = tmp_path_factory.mktemp("mlflow-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += [
        "--backend-store-uri",
        f"sqlite:///{place / 'server.db'}",
        "--artifacts-destination",
        str(place / "art"),
    ]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # ten processes that nothing here needs
    log = (place / "log").open("wb")
    # A session of its own: the server has workers, and all of them must end with the test.
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=place, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            assert server.poll() is None, (place / "log").read_text()
            assert time.monotonic() < deadline, "the MLflow server didn't start"
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # its orderly end takes ten seconds, and nothing needs it
        server.wait(15)
        log.close()


def read_console(tracking, capsys):
    found: dict[str, list[tuple[int, float]]] = {}
    step = None
    for line in capsys.readouterr().out.splitlines():
        head, *cells = line.split(" | ")
        if head.startswith("step "):
            step = int(head.split()[1])
        else:
            cells = re.findall(r"\S+ +\S+", line)
        for cell in cells:
            name, value = cell.split()
            found.setdefault(name, []).append((step, float(value)))
    return found


def read_file(tracking, capsys):
    found: dict[str, list[tuple[int, float]]] = {}
    for line in Path(tracking.locations["file"]).read_text().splitlines():
        record = json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} isn't JSON"))
        for name, value in record["data"].items():
            found.setdefault(name, []).append((record["step"], float(value)))
    return found


def read_tensorboard(tracking, capsys):
    return {
        name: [(event.step, event.value) for event in events]
        for name, events in tensorboard_scalars(tracking.locations["tensorboard"]).items()
    }


def tensorboard_scalars(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(directory), size_guidance={"scalars": 0}).Reload()
    return {name: reader.Scalars(name) for name in reader.Tags()["scalars"]}


def mlflow_client(uri):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def read_mlflow(tracking, capsys):
    backend = tracking.logger["mlflow"]
    client = mlflow_client(backend.tracking_uri)
    run = client.get_run(backend.run_id)
    original = json.loads(run.data.tags.get("probe.names", "{}"))
    found = {
        original.get(name, name): [(m.step, m.value) for m in client.get_metric_history(backend.run_id, name)]
        for name in run.data.metrics
    }
    for name, steps in json.loads(run.data.tags.get("probe.infinities", "{}")).items():
        found.setdefault(name, []).extend((int(step), float(text)) for step, text in steps.items())
    return found


READERS = {"console": read_console, "file": read_file, "tensorboard": read_tensorboard, "mlflow": read_mlflow}


def test_every_backend_is_under_the_contract():
    assert set(READERS) == set(BACKENDS) == set(Tracking.supported_backend)


@pytest.fixture(params=[*BACKENDS, "mlflow-server"])
def backend(request, monkeypatch):
    if request.param.startswith("mlflow"):
        store = "mlflow_database" if request.param == "mlflow" else "mlflow_server"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", request.getfixturevalue(store))
    return request.param.removesuffix("-server")


def test_numbers_of_every_kind_are_read_back(backend, tmp_path, capsys):
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
                "text": "no number",
                "none": None,
            },
            step=np.int64(7),
        )
        tracking.log({"int": 4, "negative": -0.125, "small": 1e-7}, step=8)
    found = READERS[backend](tracking, capsys)
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
    assert sorted(one.message.split(" at ")[0] for one in incidents) == ["'none'", "'text'"]


def test_nan_and_infinities_are_never_another_number(backend, tmp_path, capsys):
    with Tracking("contract", "infinities", backend, directory=tmp_path) as tracking:
        tracking.log({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}, step=1)
        tracking.log({"a": 1.0, "b": math.inf, "d": math.nan}, step=2)
    found = READERS[backend](tracking, capsys)
    assert [(step, str(value)) for step, value in found["a"]] == [(1, "nan"), (2, "1.0")]
    assert found["b"] == [(1, math.inf), (2, math.inf)]
    assert found["c"] == [(1, -math.inf)]
    assert [(step, str(value)) for step, value in found["d"]] == [(1, "1.0"), (2, "nan")]


def test_names_that_collide_stay_apart(backend, tmp_path, capsys):
    data = {"a": 1.0, "a/b": 2.0, "acc@5": 3.0, "acc_at_5": 4.0, "clip(%)": 5.0, "//x//": 6.0, "奖励": 7.0}
    with Tracking("contract", "names", backend, directory=tmp_path) as tracking:
        tracking.log(data, step=1)
        tracking.log({name: value + 1 for name, value in data.items()}, step=2)
    found = READERS[backend](tracking, capsys)
    assert found == {name: [(1, value), (2, value + 1)] for name, value in data.items()}


def test_many_metrics_at_once(backend, tmp_path, capsys):
    data = {f"group{index % 7}/metric{index}": float(index) for index in range(1500)}
    with Tracking("contract", "many", backend, directory=tmp_path) as tracking:
        tracking.log(data, step=1)
        tracking.log({}, step=2)
    if backend == "mlflow":  # a history a request is too slow here
        own = tracking.logger["mlflow"]
        assert mlflow_client(own.tracking_uri).get_run(own.run_id).data.metrics == data
    else:
        assert READERS[backend](tracking, capsys) == {name: [(1, value)] for name, value in data.items()}


def test_nothing_is_printed_but_by_the_console(backend, tmp_path, capfd):
    tracking = Tracking("contract", "quiet", backend, {"lr": 1e-6}, directory=tmp_path)
    tracking.log({"x": 1.0}, step=1)
    tracking.finish()
    out, err = capfd.readouterr()
    assert (out, err) == (f"step 1 | x {1:<11}".rstrip() + "\n" if backend == "console" else "", "")


def test_locations_are_absolute(backend, tmp_path):
    with Tracking("contract", "where", backend, directory=tmp_path) as tracking:
        location = tracking.locations[backend]
    uri = os.environ.get("MLFLOW_TRACKING_URI", "nowhere")
    assert location == "standard output" or str(tmp_path) in location or location.startswith(uri)


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


@pytest.mark.parametrize(("exit_code", "expected"), [(0, "FINISHED"), (1, "FAILED"), (137, "FAILED")])
def test_mlflow_status_follows_the_exit_code(exit_code, expected, mlflow_database, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_database)
    tracking = Tracking("p", "e", "mlflow")
    assert status(tracking.logger["mlflow"]) == "RUNNING"
    tracking.finish(exit_code)
    assert status(tracking.logger["mlflow"]) == expected


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
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    incidents = []
    with Tracking("other", "name", "mlflow", {"lr": 2, "new": 3}, on_incident=incidents.append) as second:
        assert status(second.logger["mlflow"]) == "RUNNING"
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
        assert tracking.flush(30)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    root = Path(__file__).parents[2]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(root)}, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(100))
    events = tensorboard_scalars(tmp_path / "tensorboard")["x"]
    assert [event.step for event in events] == list(range(100))


@pytest.mark.parametrize(("end", "expected"), [("", "FINISHED"), ("1 / 0", "FAILED")])
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
    done = subprocess.run(command, env=environment, timeout=120, check=False, capture_output=True, text=True)
    run = mlflow_client(f"sqlite:///{tmp_path / 'mlflow.db'}").get_run(done.stdout.strip())
    assert (run.info.status, run.data.metrics) == (expected, {"x": 1.0}), done.stderr
