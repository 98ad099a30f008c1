"""What is said of the run as a whole: read back from each backend, the newest, and after failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from probe.errors import InputError, InputTypeError
from probe.tracking.backends.base import Backend
from probe.tracking.notes import Notes, unsent_notes
from probe.tracking.recovery import recover
from probe.tracking.tracking import Tracking
from tests.tracking.tracking_readers import (
    mlflow_client,
    otlp_attributes,
    swanlab_records,
    trackio_logs,
    wandb_records,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the clients
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CHARTS = {
    "memory": {
        "peak": {"kind": "margin", "keys": ["probe/memory/mean", "probe/memory/largest", "probe/memory/smallest"]},
        "by role": {"kind": "line", "keys": ["probe/memory/{role}/peak_gib", "loss"]},
    },
    "padding": {"tax": {"kind": "line", "keys": ["probe/padding_tax/rank_ratio"]}},
}


def say(tracking):
    """Twice: the second counts."""
    tracking.describe("# old")
    tracking.tag({"model": "old", "world_size": 8})
    tracking.layout({"old": {"x": {"kind": "line", "keys": ["x"]}}})
    tracking.log({"loss": 0.5}, 3)
    assert tracking.flush()
    tracking.describe("# Found\n\n* rank 1 waits")
    tracking.tag({"model": "small"})
    tracking.layout(CHARTS)


# ------------------------------------------------------------------------------------------ backend by backend


def test_mlflow_has_a_description_and_tags(tmp_path, mlflow_database, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_database)
    with Tracking("p", "e", "mlflow", directory=tmp_path) as tracking:
        say(tracking)
    run = mlflow_client(mlflow_database).get_run(tracking.logger["mlflow"].run_id)
    assert run.data.tags["mlflow.note.content"] == "# Found\n\n* rank 1 waits"
    assert (run.data.tags["model"], run.data.tags["world_size"]) == ("small", "8")


@pytest.mark.slow
def test_mlflow_keeps_the_whole_of_a_long_description(tmp_path):
    with Tracking("p", "e", "mlflow", directory=tmp_path) as tracking:
        tracking.describe("x" * 9000)
        tracking.tag({"a!": "1", "a#": "2", "probe.names": "mine", "long": "y" * 9000})
    own = tracking.logger["mlflow"]
    run = mlflow_client(own.tracking_uri).get_run(own.run_id)
    assert run.data.tags["mlflow.note.content"].endswith("description.md")
    assert (tmp_path / "mlflow-artifacts" / own.run_id / "artifacts" / "description.md").read_text() == "x" * 9000
    assert (run.data.tags["a_"], run.data.tags["a__2"], run.data.tags["probe.names_2"]) == ("1", "2", "mine")


def tensorboard_provider(directory):
    """What TensorBoard's own plugins read from."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    multiplexer = EventMultiplexer(tensor_size_guidance={"scalars": 1000})
    multiplexer.AddRunsFromDirectory(str(directory))
    multiplexer.Reload()
    return MultiplexerDataProvider(multiplexer, str(directory))


def custom_scalars(directory):
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin
    from tensorboard.plugins.scalar.scalars_plugin import ScalarsPlugin

    provider, plugins = tensorboard_provider(directory), {}
    shared = TBContext(data_provider=provider, logdir=str(directory), plugin_name_to_instance=plugins)
    plugins["scalars"] = ScalarsPlugin(shared)
    plugin, request = CustomScalarsPlugin(shared), RequestContext()
    return json.loads(plugin.layout_impl(request, "")), lambda tag: plugin.scalars_impl(request, ".", tag, "")


def test_tensorboard_has_a_layout_that_its_plugin_draws(tmp_path):
    with Tracking("p", "e", "tensorboard", directory=tmp_path) as tracking:
        say(tracking)
        tracking.log({"probe/memory/actor/peak_gib": 2.0, "probe/memory/actor/other": 1.0, "a.loss": 0.0}, 4)
    layout, lines = custom_scalars(tracking.locations["tensorboard"])
    memory, padding = layout["category"]
    assert (memory["title"], padding["title"]) == ("memory", "padding")
    (series,) = memory["chart"][0]["margin"]["series"]
    assert (series["lower"], series["value"], series["upper"]) == tuple(
        f"probe/memory/{end}" for end in ("smallest", "mean", "largest")
    )
    role, loss = memory["chart"][1]["multiline"]["tag"]
    assert list(lines(role)["tag_to_events"]) == ["probe/memory/actor/peak_gib"]
    assert list(lines(loss)["tag_to_events"]) == ["loss"]


def test_tensorboard_shows_the_description_and_the_tags(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Tracking("p", "e", "tensorboard", directory=tmp_path) as tracking:
        say(tracking)
    reader = EventAccumulator(tracking.locations["tensorboard"]).Reload()
    newest = reader.Tensors("probe/findings/text_summary")[-1]
    assert (newest.step, newest.tensor_proto.string_val[0]) == (3, b"# Found\n\n* rank 1 waits")
    table = reader.Tensors("probe/tags/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "| model | small |\n| world_size | 8 |" in table


def session_groups(directory):
    """Of the run's directory: where TensorBoard is given the folder of the events itself, it finds no metrics."""
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    provider = tensorboard_provider(directory)
    context = backend_context.Context(TBContext(data_provider=provider, logdir=str(directory)))
    request, experiment_id = RequestContext(), ""
    contents = context.hparams_metadata(request, experiment_id)
    experiment = context.experiment_from_metadata(
        request, experiment_id, include_metrics=True, hparams_run_to_tag_to_content=contents, data_provider_hparams=[]
    )
    asked = api_pb2.ListSessionGroupsRequest(
        slice_size=10,
        start_index=0,
        allowed_statuses=list(api_pb2.Status.values()),
        col_params=[{"metric": info.name} for info in experiment.metric_infos],
    )
    return list_session_groups.Handler(request, context, experiment_id, asked).run().session_groups


def test_tensorboard_shows_hyper_parameters_beside_the_metrics_and_the_end(tmp_path):
    for exit_code, status in ((1, "STATUS_FAILURE"), (0, "STATUS_SUCCESS")):  # the second goes on with the first
        tracking = Tracking("p", "e", "tensorboard", {"lr": 0.5}, directory=tmp_path)
        tracking.log({"loss": 0.25 + exit_code, "reward": 1.0}, 5 - exit_code)
        tracking.finish(exit_code)
        (group,) = session_groups(tmp_path)
        assert group.hparams["lr"].number_value == 0.5
        assert {one.name.tag: one.value for one in group.metric_values} == {"loss": 0.25 + exit_code, "reward": 1.0}
        from tensorboard.plugins.hparams import api_pb2

        assert api_pb2.Status.Name(group.sessions[0].status) == status


@pytest.mark.slow
def test_wandb_has_notes_and_tags(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    with Tracking("p", "e", "wandb", directory=tmp_path) as tracking:
        say(tracking)
        tracking.tag({"long": "x" * 100})
    records = wandb_records(tracking.locations["wandb"])
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert runs[-1].notes == "# Found\n\n* rank 1 waits"
    assert set(runs[-1].tags) == {"model:small", "world_size:8"}
    updates = [
        one for record in records for one in record.config.update if record.WhichOneof("record_type") == "config"
    ]
    tags = {(one.key or "/".join(one.nested_key)): json.loads(one.value_json) for one in updates}
    assert tags["tags"] == {"model": "small", "world_size": "8", "long": "x" * 100}


def test_swanlab_has_the_description_and_the_tags(tmp_path, monkeypatch):
    pytest.importorskip("swanlab", reason="swanlab lives in an environment of its own")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    with Tracking("p", "e", "swanlab", directory=tmp_path) as tracking:
        say(tracking)
    place = Path(tracking.locations["swanlab"])
    assert "# Found\n\n* rank 1 waits" in [path.read_text() for path in (place / "media/text").iterdir()]
    assert "small" in (place / "files/config.yaml").read_text()
    assert swanlab_records(place)


def test_trackio_has_the_description_and_the_tags(tmp_path, monkeypatch, trackio_directory):
    trackio = pytest.importorskip("trackio", reason="trackio lives in an environment of its own")
    monkeypatch.setenv("TRACKIO_DIR", trackio_directory)
    with Tracking("notes", "e", "trackio", {"lr": 0.5}, directory=tmp_path) as tracking:
        say(tracking)
    assert "# Found" in json.dumps([row.get("probe/summary") for row in trackio_logs(tracking)])
    with Tracking("notes", "e", "trackio", directory=tmp_path) as tracking:
        tracking.log({"x": 1}, 9)
    config = trackio.SQLiteStorage.get_run_config("notes", "e")
    assert (config["lr"], config["tag/model"], config["tag/world_size"]) == (0.5, "small", "8")


def test_otlp_has_the_description_and_the_tags(collector, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    with Tracking("p", "e", "otlp", directory=tmp_path) as tracking:
        say(tracking)
    resources = [request.resource_spans[0] for request in collector.traces]
    (*_, newest) = [one for one in resources if one.scope_spans[0].spans[0].name == "rl.summary"]
    attributes = otlp_attributes(newest.scope_spans[0].spans[0].attributes)
    assert attributes["rl.summary"] == "# Found\n\n* rank 1 waits"
    end = otlp_attributes(collector.metrics[-1].resource_metrics[0].resource.attributes)
    assert (end["rl.tag.model"], end["rl.tag.world_size"]) == ("small", "8")


def test_file_keeps_them_and_the_console_shows_nothing(tmp_path, capsys):
    with Tracking("p", "e", ["file", "console"], {"a": {"lr": 0.5}}, directory=tmp_path) as tracking:
        say(tracking)
    found = {}
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        found |= json.loads(line)
    assert found["parameters"] == {"a/lr": 0.5}
    assert found["description"] == "# Found\n\n* rank 1 waits"
    assert found["tags"] == {"model": "small", "world_size": "8"}
    assert capsys.readouterr().out == "step 3 | loss 0.5\n"


# ------------------------------------------------------------------------------------------------- when it fails


OWN = """
    class Own:
        away = False
        def __init__(self, setup): self.got = []
        def log(self, values, step): pass
        def describe(self, markdown):
            if type(self).away: raise ConnectionError("away")
            self.got.append(markdown)
        def close(self, exit_code): pass
    class Grumpy(Own):
        def describe(self, markdown): raise RuntimeError("never")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "notes_own_backend.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("probe.tracking.lane.BACK_OFF_S", (0.01, 0.02))
    import notes_own_backend

    yield notes_own_backend
    sys.modules.pop("notes_own_backend")


def test_a_backend_that_was_away_gets_the_newest_once_from_the_next_process(own, tmp_path):
    name, incidents = "notes_own_backend:Own", []
    own.Own.away = True
    first = Tracking("p", "e", name, directory=tmp_path, on_incident=incidents.append)
    for number in range(50):
        first.describe(str(number))
    first.finish()  # it gives up what fails
    assert first.logger[name].got == []
    assert incidents[0].message.startswith("failed at the description: ConnectionError")
    assert unsent_notes(tmp_path, [name]) == {name: ["describe"]}
    own.Own.away = False
    with Tracking("p", "e", name, directory=tmp_path) as second:
        assert second.flush()
    assert second.logger[name].got == ["49"]
    with Tracking("p", "e", name, directory=tmp_path) as third:
        assert third.flush()
    assert third.logger[name].got == []
    assert unsent_notes(tmp_path, [name]) == {}


def test_a_backend_that_refuses_goes_on_with_values(own, tmp_path):
    incidents = []
    name = "notes_own_backend:Grumpy"
    with Tracking("p", "e", [name, "file"], directory=tmp_path, on_incident=incidents.append) as tracking:
        tracking.describe("words")
        tracking.log({"x": 1}, 1)
        assert tracking.flush()
    assert {one.where for one in incidents} == {name}
    assert '"x": 1.0' in (tmp_path / "metrics.jsonl").read_text()


def test_without_a_directory_it_works_too(own):
    with Tracking("p", "e", "notes_own_backend:Own") as tracking:
        tracking.describe("words")
    assert tracking.logger["notes_own_backend:Own"].got == ["words"]


def test_recovery_sends_what_was_said_to_a_server_that_was_away(tmp_path, collector, monkeypatch):
    """The process is killed while its collector answers nothing but errors."""
    script = """
        import os, signal, sys, time
        from pathlib import Path
        from probe.tracking import lane
        from probe.tracking.tracking import Tracking
        lane.BACK_OFF_S = (0.01, 0.05)
        tracking = Tracking("p", "e", "otlp", {"lr": 0.5}, directory=sys.argv[1])
        tracking.describe("words")
        kept = Path(sys.argv[1], "tracking", "notes.json")
        while not kept.exists() or "words" not in kept.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    collector.answers = [200] + [500] * 10_000
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run(command, env=environment, timeout=300, check=False).returncode == -signal.SIGKILL
    collector.settle()
    assert collector.traces == []
    collector.answers = []
    assert recover(tmp_path, timeout_s=120) == {}
    spans = [request.resource_spans[0].scope_spans[0].spans[0] for request in collector.traces]
    assert sorted(span.name for span in spans) == ["rl.config", "rl.summary"]
    assert collector.metrics[-1].resource_metrics[0].scope_metrics[0].metrics[0].name == "rl.run.exit_code"


def test_another_place_is_told_again(tmp_path):
    class Page(Backend):
        def __init__(self, location):
            self.location, self.got = location, []

        def log(self, values, step):
            raise AssertionError

        def close(self, exit_code):
            raise AssertionError

        def describe(self, markdown):
            self.got.append(markdown)

    first, again, moved = Page("a"), Page("a"), Page("b")
    for page in (first, again, moved):
        notes = Notes(tmp_path, {"x": page})
        if page is first:
            notes.keep("describe", "words")
        for kind in notes.kinds():
            notes.send("x", kind)
    assert (first.got, again.got, moved.got) == (["words"], [], ["words"])


def test_bad_arguments_are_named_and_change_nothing(tmp_path):
    with Tracking("p", "e", "file", directory=tmp_path) as tracking:
        for bad in (3, None, b"x"):
            with pytest.raises(InputTypeError, match="markdown"):
                tracking.describe(bad)
        for bad in ("x", {3: "x"}, {"": "x"}, [("a", "b")]):
            with pytest.raises(InputTypeError, match="tags"):
                tracking.tag(bad)
        for bad in ("x", {"a": 3}, {"a": {"b": 3}}, {"a": {"b": {"keys": "x"}}}, {"a": {"b": {"keys": [3]}}}):
            with pytest.raises(InputTypeError, match="charts"):
                tracking.layout(bad)
        for chart in ({"keys": []}, {"keys": ["x"], "kind": "pie"}, {"keys": ["x", "y"], "kind": "margin"}):
            with pytest.raises(InputError, match="charts: a/b"):
                tracking.layout({"a": {"b": chart}})
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_afterwards_it_is_reported(tmp_path):
    incidents = []
    tracking = Tracking("p", "e", "file", directory=tmp_path, on_incident=incidents.append)
    tracking.finish()
    tracking.describe("late")
    assert ["after finish()" in one.message for one in incidents] == [True]
