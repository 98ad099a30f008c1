"""verl's metrics under observation: its reducers, its logger, and the files that its own loggers write."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import probe
from probe import frameworks
from probe.adapters import automatic

if importlib.util.find_spec("verl") is None:
    pytest.skip("needs verl, which lives in its own environment", allow_module_level=True)

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("without_trl"),
]


# --------------------------------------------------------------------------------------------------------- reducers


def test_1_the_rules_of_both_reducers_are_recorded(attached, session):
    from verl.trainer.ppo.v1.utils import MetricsAggregator
    from verl.utils.metric import reduce_metrics

    reduced = reduce_metrics({"critic/terminal_reward/mean": [0.2, 0.8], "loss": [1.0, 3.0]})
    aggregator = MetricsAggregator()
    for quality, samples in ((0.2, 1), (0.8, 3)):
        aggregator.add_step_metrics(
            {"reward/summary_quality/mean": quality, "actor/lr": quality, "loss": quality}, sample_count=samples
        )
    aggregated = aggregator.get_aggregated_metrics()
    session.flush()
    rows = session.run.table("reductions")
    told = {
        (row["point"], row["key"]): row for row in rows.assign(point=["first"] * 2 + ["second"] * 3).to_dict("records")
    }
    assert {where: row["reducer"] for where, row in told.items()} == {
        ("first", "critic/terminal_reward/mean"): "min",
        ("first", "loss"): "mean",
        ("second", "reward/summary_quality/mean"): "sum",
        ("second", "actor/lr"): "last",
        ("second", "loss"): "weighted_avg",
    }
    for (point, key), row in told.items():
        assert row["value"] == (reduced if point == "first" else aggregated)[key]
        assert row["chosen_by"] == "name"
        assert row["count"] == 2
    assert told["second", "loss"]["smallest"] == 0.2


def test_15_1_the_auditor_names_what_both_reducers_choose_by_an_accidental_word(attached, session):
    """verl sums `reward/summary_quality/mean` and takes the smallest `critic/terminal_reward/mean`."""
    from verl.trainer.ppo.v1.utils import MetricsAggregator
    from verl.utils.metric import reduce_metrics

    for step in range(2):
        with session.step(step):
            reduced = reduce_metrics({"critic/terminal_reward/mean": [0.2, 0.8], "loss": [1.0, 3.0]})
            aggregator = MetricsAggregator()
            for quality, samples in ((0.2, 1), (0.8, 3)):
                aggregator.add_step_metrics(
                    {"reward/summary_quality/mean": quality, "kl": quality}, sample_count=samples
                )
            aggregated = aggregator.get_aggregated_metrics()
        session.log({**reduced, **aggregated}, step)
    session.flush()
    told = {one.metric: one for one in session.run.audit()}
    summed = told["reward/summary_quality/mean"]
    assert (summed.trap, summed.reported, summed.expected_by) == ("accidental_reducer", 1.0, "sequence-weighted mean")
    assert summed.expected == summed.sequence_weighted == pytest.approx(0.65, abs=1e-15)
    assert summed.token_weighted is None
    smallest = told["critic/terminal_reward/mean"]
    assert (smallest.trap, smallest.reported, smallest.expected) == ("accidental_reducer", 0.2, 0.5)
    assert (told["kl"].trap, told["kl"].reported) == (None, aggregated["kl"])
    assert told["kl"].sequence_weighted == pytest.approx(0.65, abs=1e-15)
    assert told["loss"].trap is None
    found = session.run.findings().named("accidental_reducer")
    assert "reward/summary_quality/mean shows the sum of its values because of “sum” in “summary”" in found.sentence


# ----------------------------------------------------------------------------------------------------------- logger


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """verl's tracker as it is where the environment names no run directory: it takes probe's name, and no more."""
    from probe.adapters import verl_logger

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(automatic, "_tried", set())
    module = importlib.import_module("verl.utils.tracking")
    verl_logger._patches.take_off()  # verl has loaded the plugin, which did what follows
    before = module.Tracking.__init__, list(module.Tracking.supported_backend)
    verl_logger.accept(module)
    yield module.Tracking
    for one in frameworks.attached():
        one.detach()
    if probe.current_session() is not None:
        probe.current_session().close()
    assert verl_logger._patches.take_off() == []
    assert (module.Tracking.__init__, module.Tracking.supported_backend) == before


CONFIG = {"trainer": {"total_epochs": 3, "wandb_proxy": None}, "api_key": "sk-123"}


def test_1_probe_is_a_logger_of_verls_and_observes_from_then_on(tracking, tmp_path):
    logger = tracking("sums", "first", ["console", "probe"], CONFIG)
    logger.log({"actor/loss": 0.5}, step=4)
    session = probe.current_session()
    assert session.directory == tmp_path / "runs" / "sums" / "first"
    assert [one.framework for one in frameworks.attached()] == ["verl", "ray"]
    session.flush()
    run = session.run
    assert run.info.project == "sums"
    assert run.info.config["trainer"]["total_epochs"] == 3
    assert "sk-123" not in json.dumps(run.info.config)
    scalars = run.table("scalars")
    assert list(zip(scalars["key"], scalars["step"], scalars["value"], strict=True)) == [("actor/loss", 4, 0.5)]


def test_1_without_the_name_nothing_is_recorded(tracking, tmp_path):
    logger = tracking("sums", "first", ["console"], CONFIG)
    logger.log({"actor/loss": 0.5}, step=4)
    assert probe.current_session() is None
    assert frameworks.attached() == []
    assert not (tmp_path / "runs").exists()


def test_1_a_name_that_verl_does_not_know_is_refused_as_before(tracking):
    with pytest.raises(AssertionError, match="probes is not supported"):
        tracking("sums", "first", ["console", "probes"], CONFIG)
    assert "probe" not in tracking.supported_backend


def test_7_what_verl_s_own_file_logger_and_rollout_dump_write_is_opened(tmp_path: Path, monkeypatch) -> None:
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.utils.tracking import FileLogger

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "grpo.jsonl"))
    logger = FileLogger("gsm8k", "grpo")
    for step in (1, 2):
        logger.log({"actor/pg_loss": 0.5 * step, "timing_s/step": 3.0, "timing_s/gen": 2.0}, step)
        answers = (["q", "q"], ["a", "b"], ["1", "1"], [1.0, 0.0], {"acc": [1, 0]})
        RayPPOTrainer._write_generations(*answers, str(tmp_path / "rollouts"), step)
    logger.finish()
    with probe.open(tmp_path / "grpo.jsonl", rollouts=tmp_path / "rollouts") as run:
        losses = run.sql("select value from scalars where key = 'actor/pg_loss' order by step")
        assert losses["value"].tolist() == [0.5, 1.0]
        assert run.sql("select step_time_s from steps")["step_time_s"].tolist() == [3.0, 3.0]
        rollouts = run.tables["rollout_dumps"]
        assert rollouts["reward"].tolist() == [1.0, 0.0, 1.0, 0.0]
        assert rollouts["response_text"].tolist() == ["a", "b", "a", "b"]
