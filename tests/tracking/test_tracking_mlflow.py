"""MLflow: the status and tag of each end, runs that are resumed, parameters, and media as artifacts."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from probe.errors import BackendError
from probe.tracking.media import Figure, Table
from probe.tracking.tracking import Tracking
from tests.tracking.rich_values import rich_values
from tests.tracking.tracking_readers import mlflow_client, read_mlflow

#: What the clients of W&B, SwanLab and Trackio warn of or leave open is theirs to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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
