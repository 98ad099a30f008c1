"""What stands in the backends after a run of two ranks, read with the backends' own readers."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from probe.core.metric import reduce_metrics
from probe.dashboards import dashboards
from probe.hooks import phase
from probe.opened import Run
from probe.publishing import across_ranks, pictures
from probe.session import start
from tests.mlflow_server import MLflowServer
from tests.publishing import publishing_ranks
from tests.tracking.conftest import PREFIXES
from tests.tracking.tracking_readers import mlflow_client, swanlab_records, wandb_records, wandb_rows
from tests.waiting import PATIENCE_S, until

SCRIPT = Path(publishing_ranks.__file__)
STEPS = 4


def ranks(directory: Path, backends: str, count: int = 2, **variables: str) -> dict:
    """Train on so many processes; what rank 0 said."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    environment = {**plain, "PYTHONPATH": str(SCRIPT.parents[2]), **variables}
    processes = []
    for rank in range(count):
        command = [sys.executable, str(SCRIPT), str(rank), str(count), str(directory), backends, str(STEPS)]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, cwd=directory.parent)
        )
    said = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count
    return json.loads(said[0].splitlines()[-1])


def assert_nothing_went_wrong(directory: Path, *, but: str = "") -> None:
    """Nor is there an incident, but of that backend."""
    with Run(directory) as run:
        found = run.incidents[run.incidents["where"] != but]
    assert found.empty, found[["kind", "where", "message", "traceback"]].to_string()


@functools.cache
def expected(directory: Path) -> dict[int, dict[str, float]]:
    """The numbers across ranks, worked out again from the finished run."""
    with Run(directory) as run:
        assert across_ranks.ended(run) == list(range(STEPS))
        return across_ranks.numbers(run, range(STEPS), pictures.margins())


@functools.cache
def shown(directory: Path) -> set[str]:
    """The names of the figures and tables that the finished run has."""
    with Run(directory) as run:
        found = {one for name, panel in pictures.panels() for one in pictures.draw(name, panel, run)}
    assert len(found) > 20
    return found


# ----------------------------------------------------------------------------------------------------- TensorBoard


@pytest.fixture(scope="module")
def tracked(one_mlflow_server: MLflowServer, tmp_path_factory):
    """Of one run that all backends have (W&B where it is installed): its directory, and what rank 0 said."""
    one_mlflow_server.start()
    directory = tmp_path_factory.mktemp("tracked") / "run"
    backends = "tensorboard,file,mlflow" + (",wandb" if importlib.util.find_spec("wandb") else "")
    variables = {"MLFLOW_TRACKING_URI": one_mlflow_server.url, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    return directory, ranks(directory, backends, **variables)


@pytest.fixture(scope="module")
def board(tracked):
    """Run directory, what rank 0 said, and TensorBoard's reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory, said = tracked
    sizes = {"scalars": 0, "histograms": 0, "tensors": 0}
    return directory, said, EventAccumulator(said["locations"]["tensorboard"], size_guidance=sizes).Reload()


@pytest.mark.slow
def test_b_a_secret_of_the_configuration_is_in_no_file_of_a_published_run(
    tracked, one_mlflow_server: MLflowServer
) -> None:
    for place in (tracked[0], one_mlflow_server.place):
        files = [path for path in place.rglob("*") if path.is_file()]
        assert len(files) > 2
        for path in files:
            assert publishing_ranks.SECRET.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_tensorboard_has_each_number_over_ranks_once(board) -> None:
    directory, said, reader = board
    found: dict[int, dict[str, float]] = {step: {} for step in range(STEPS)}
    for name in reader.Tags()["scalars"]:
        if name.startswith("probe/across_ranks/"):
            for event in reader.Scalars(name):
                assert name not in found[event.step]
                found[event.step][name] = event.value
    for step, values in expected(directory).items():
        assert found[step] == pytest.approx(values, rel=1e-6, nan_ok=True)
    assert (
        found[0]["probe/across_ranks/token_balance/rank_tokens_largest"]
        > (found[0]["probe/across_ranks/token_balance/rank_tokens_smallest"])
    )
    assert found[0]["probe/across_ranks/rank_imbalance_ratio"] > 1
    lines = [json.loads(line) for line in Path(said["locations"]["file"]).read_text().splitlines()]
    again = [(line["step"], key) for line in lines for key in line["data"]]
    assert len(again) == len(set(again))
    assert not any("media" in line and line["media"] for line in lines)  # pictures are no lines of metrics


@pytest.mark.slow
def test_tensorboard_has_the_histograms_of_all_ranks(board) -> None:
    _, _, reader = board
    for step in range(STEPS):
        lengths = torch.cat([publishing_ranks.batch(rank, step).batch["attention_mask"].sum(1) for rank in (0, 1)])
        (event,) = [one for one in reader.Histograms("probe/token_balance/sequence_tokens/update") if one.step == step]
        value = event.histogram_value
        assert value.num == len(lengths)
        assert value.min == lengths.min() - 0.5
        assert value.sum == lengths.sum()


@pytest.mark.slow
def test_tensorboard_has_the_layout_of_the_dashboards(board) -> None:
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    _, _, reader = board
    newest = reader.Tensors(metadata.CONFIG_SUMMARY_TAG)[-1]
    layout = layout_pb2.Layout.FromString(newest.tensor_proto.string_val[0])
    assert [one.title for one in layout.category] == [one.title for one in dashboards()]
    charts = {chart.title: chart for category in layout.category for chart in category.chart}
    (margin,) = charts["Time of a step across ranks (s)"].margin.series
    assert [margin.lower, margin.value, margin.upper] == [
        f"probe/across_ranks/step_time_s_{word}" for word in ("smallest", "mean", "largest")
    ]
    scalars = set(reader.Tags()["scalars"])
    for chart in charts.values():
        for series in chart.margin.series:
            assert {series.lower, series.value, series.upper} <= scalars
        for tag in chart.multiline.tag:
            assert tag.strip("^$").replace("\\", "") in scalars


@pytest.mark.slow
def test_tensorboard_has_words_tables_and_hyper_parameters(board) -> None:
    directory, said, reader = board
    tensors = set(reader.Tags()["tensors"])
    summary = reader.Tensors("probe/findings/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert summary.startswith("**probe found ")
    assert f"The whole run, up to step {STEPS - 1}; 2 ranks." in summary
    tags = reader.Tensors("probe/tags/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "| world_size | 2 |" in tags
    tables = {f"{name}/text_summary" for name in shown(directory) if name.endswith("_table")}
    assert tables <= tensors
    assert all(table > "probe/findings/text_summary" for table in tables)  # G: TensorBoard sorts texts by name
    hparams = reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"model/width" in hparams
    assert not [one for one in Path(said["locations"]["tensorboard"]).iterdir() if "tfevents" not in one.name]


class Followed(NamedTuple):
    """What the backends said of a run in which NaN appeared, while it went on."""

    directory: Path
    healthy_text: str
    text: str
    healthy_tags: dict[str, str]
    tags: dict[str, str]
    described: dict[str, str]


@pytest.fixture(scope="module")
def followed(one_mlflow_server: MLflowServer, tmp_path_factory) -> Followed:
    one_mlflow_server.start()
    directory = tmp_path_factory.mktemp("followed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", one_mlflow_server.url)
        patch.setattr("probe.session.patience.END_S", PATIENCE_S)
        client = mlflow_client(one_mlflow_server.url)
        # Of reductions alone: every figure that isn't empty is drawn in each edition.
        options = {"track": "tensorboard,mlflow", "publish": 1.0, "recorders": ["memory", "reduction"]}
        with start("published", run_dir=directory, rank=0, world_size=1, **options) as session:
            run_id = session.tracking.logger["mlflow"].run_id
            _step(session, 0, 0.5)
            healthy_text = _text(directory, lambda text: text.startswith("**probe found "))
            healthy_tags = _tags(client, run_id, lambda tags: "probe.verdict" in tags)
            _step(session, 1, math.nan)
            text = _text(directory, lambda text: "NaN went into" in text)
            tags = _tags(client, run_id, lambda tags: tags.get("probe.verdict") == "alarm")
            described = _tags(client, run_id, lambda tags: "NaN went into" in tags.get("mlflow.note.content", ""))
        session.publisher.wait(600.0)
    return Followed(directory, healthy_text, text, healthy_tags, tags, described)


@pytest.mark.slow
def test_3_the_text_in_tensorboard_names_the_alarm_while_the_run_goes_on(followed: Followed) -> None:
    with Run(followed.directory) as run:
        (worst,) = run.findings().of("alarm")
    assert "alarm" not in followed.healthy_text
    for text in (followed.text, _text(followed.directory, lambda text: "The whole run" in text)):
        assert text.startswith("**probe found 1 alarm")
        assert text.split("### Alarms")[1].strip().startswith(f"* {worst.sentence}")


def _text(directory: Path, condition) -> str:
    """TensorBoard's text of the findings as soon as it is as it must become, read by TensorBoard's reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tag = "probe/findings/text_summary"

    def texts() -> list[str]:
        readers = [
            EventAccumulator(str(file), size_guidance={"tensors": 0}).Reload()
            for file in sorted(directory.rglob("*tfevents*"))
        ]
        told = [reader.Tensors(tag)[-1] for reader in readers if tag in reader.Tags()["tensors"]]
        return [one.tensor_proto.string_val[0].decode() for one in told]

    found = until(texts, lambda all_of_them: any(map(condition, all_of_them)))
    return next(filter(condition, found))


# ----------------------------------------------------------------------------------------------------------- MLflow


@pytest.mark.slow
def test_a_real_mlflow_server_has_everything(tracked, mlflow_server: str, tmp_path: Path) -> None:
    directory, said = tracked
    assert_nothing_went_wrong(directory, but="wandb")  # which takes no step before its newest
    client = mlflow_client(mlflow_server)
    run = client.get_run(said["run_id"])
    assert run.info.status == "FINISHED"
    _check_words(run, directory)
    _check_numbers(client, run, expected(directory))
    _check_artifacts(client, run, directory, tmp_path)


@pytest.mark.slow
def test_3_tags_on_a_real_mlflow_server_say_the_verdict_and_are_renewed_as_the_run_goes(followed: Followed) -> None:
    assert followed.healthy_tags["probe.verdict"] != "alarm"
    assert followed.tags["probe.finding"] == "nan"
    assert followed.tags["probe.sentence"].startswith("NaN went into actor/pg_loss (update · step 1 · rank 0)")
    assert followed.described["mlflow.note.content"].startswith("**probe found 1 alarm")


def _step(session, step: int, value: float) -> None:
    with session.step(step), phase("update"):
        reduce_metrics({"actor/pg_loss": [0.5, value]})


def _tags(client, run_id: str, condition) -> dict[str, str]:
    """The run's tags as soon as they are as they must become."""
    return until(lambda: client.get_run(run_id).data.tags, condition)


def _check_words(run, directory: Path) -> None:
    tags = run.data.tags
    assert tags["mlflow.note.content"].startswith("**probe found ")
    assert "The whole run" in tags["mlflow.note.content"]
    assert tags["probe.verdict"] in ("alarm", "tuning", "fine")
    assert tags["probe.sentence"]
    assert (tags["project"], tags["experiment"], tags["world_size"]) == ("published", "ranks", "2")
    assert tags["torch_version"] == torch.__version__
    assert tags["run_directory"] == str(directory)
    assert run.data.params["model/width"] == "8"


def _check_numbers(client, run, numbers: dict[int, dict[str, float]]) -> None:
    for name in ("system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"):
        assert run.data.metrics[name] > 0
    for key in set().union(*numbers.values()):
        history = client.get_metric_history(run.info.run_id, key)
        # Samples are taken twice a second, so that a short step may have none, and no number of them.
        assert sorted(one.step for one in history) == [step for step in numbers if key in numbers[step]], key
        for one in history:
            assert one.value == pytest.approx(numbers[one.step][key], nan_ok=True), key


def _check_artifacts(client, run, directory: Path, place: Path) -> None:
    listed = {
        one.path
        for folder in ("memory", "overview", "token_balance", "padding_tax", "reductions")
        for one in client.list_artifacts(run.info.run_id, f"figures/probe/{folder}")
    }
    for name in shown(directory):
        assert name.endswith("_table") or f"figures/{name}.json" in listed
    page = Path(client.download_artifacts(run.info.run_id, "figures.html", str(place)))
    text = page.read_text()
    assert "Plotly.newPlot" in text
    assert all(name in text for name in shown(directory) if not name.endswith("_table"))
    # G: at most 8 MB of figures in a run; 15 pages with plotly in each were 72 MB.
    kept = [page, *Path(client.download_artifacts(run.info.run_id, "figures", str(place))).rglob("*.json")]
    assert sum(one.stat().st_size for one in kept) <= 8_000_000
    table = client.download_artifacts(
        run.info.run_id, "tables/probe/token_balance/balance_stragglers_table.json", str(place)
    )
    assert len(json.loads(Path(table).read_text())["data"]) == 2  # one row a rank


# -------------------------------------------------------------------------------------------------------------- W&B


@pytest.mark.slow
def test_weights_and_biases_has_the_same(tracked) -> None:
    pytest.importorskip("wandb")
    directory, said = tracked
    where = urllib.parse.unquote(said["locations"]["wandb"])
    found: dict[str, list] = {}
    for _, row in wandb_rows(where):
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    figures = {name: values[-1]["_type"] for name, values in found.items() if isinstance(values[-1], dict)}
    for name in shown(directory):
        assert figures[name] == ("table-file" if name.endswith("_table") else "plotly-file")
    assert figures["probe/token_balance/sequence_tokens/update"] == "histogram"
    notes = [record.run.notes for record in wandb_records(where) if record.WhichOneof("record_type") == "run"]
    assert any(note.startswith("**probe found ") for note in notes)


# ---------------------------------------------------------------------------------------------------------- SwanLab


@pytest.mark.slow
def test_swanlab_has_the_same(tmp_path: Path) -> None:
    pytest.importorskip("swanlab", reason="swanlab lives in an environment of its own")
    said = ranks(tmp_path / "run", "swanlab", SWANLAB_MODE="offline")
    records = swanlab_records(said["locations"]["swanlab"])
    media = {record.media.key for record in records if record.WhichOneof("record_type") == "media"}
    assert shown(tmp_path / "run") <= media
    numbers = [(one.scalar.step, one.scalar.key) for one in records if one.WhichOneof("record_type") == "scalar"]
    assert len(numbers) == len(set(numbers))
    for step, values in expected(tmp_path / "run").items():
        assert {(step, name) for name in values} <= set(numbers)


# --------------------------------------------------------------------------------------------------- looking is free


@pytest.mark.multiprocess
def test_a_publisher_loads_no_view_in_the_worker_and_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    (tmp_path / "on").mkdir()
    observed = ranks(tmp_path / "on" / "run", "tensorboard", 1, PUBLISH="0.5", WEIGHTS=str(tmp_path / "on.pt"))
    assert observed["loaded"] == []
    assert_nothing_went_wrong(tmp_path / "on" / "run")
    plain = publishing_ranks.train(0, STEPS, None)
    assert observed["losses"] == plain[0]
    for one, other in zip(torch.load(tmp_path / "on.pt"), plain[1], strict=True):
        assert torch.equal(one, other)
    assert (tmp_path / "on" / "run" / "tracking" / "publishing.json").exists()  # it was really publishing
