"""What the installed Transformers and TRL write into trainer_state.json is opened as a run."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("trl") is None:
    pytest.skip("needs TRL, which lives in its own environment", allow_module_level=True)

from transformers import TrainerState

import probe
from probe.analysis.steps import times
from probe.runs.foreign import trainer_state
from tests.frameworks import small_trl

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]

SAVING = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_off: None) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


def trained(kind: str, folder: Path, resume: Any = None, **changes: Any) -> Any:
    made = small_trl.trainer(kind, folder, **changes)
    made.train(resume_from_checkpoint=resume)
    made.save_state()
    return made


def logged(history: list[dict[str, Any]]) -> list[tuple[int, str, float]]:
    return sorted((one["step"], key, value) for one in history for key, value in one.items() if key != "step")


def read(run: probe.Run) -> list[tuple[int, str, float]]:
    frame = run.scalars
    return sorted(zip(frame["step"].tolist(), frame["key"].tolist(), frame["value"].tolist(), strict=True))


def test_7_a_training_of_grpo_is_read_whole_from_what_it_saved(tmp_path: Path) -> None:
    made = trained("grpo", tmp_path / "out" / "grpo", **SAVING)
    history = made.state.log_history
    with probe.open(tmp_path / "out" / "grpo") as run:
        assert read(run) == logged(history)
        assert {"reward", "kl", "clip_ratio/region_mean", "completions/mean_length", "eval_reward"} <= set(
            run.scalars["key"]
        )
        took = [one["step_time"] for one in history if "step_time" in one]
        assert times(run)["largest_s"].tolist() == pytest.approx(took, abs=1e-8)
        assert times(run)["step"].tolist() == [1, 2, 3, 4]
        assert run.info.config["notes"][0] == "The log is that of trainer_state.json."
        assert not [one for one in run.info.config["notes"] if "left out" in one or "resumed" in one]
        assert [one.name for one in run.findings().withheld] == ["not_recorded", "few_steps"]
    with probe.open(tmp_path / "out" / "grpo" / "checkpoint-2") as half:
        assert half.scalars["step"].max() == 2
        assert half.info.config["trainer_state"]["global_step"] == 2


def test_7_a_mean_over_several_steps_is_no_time_of_one(tmp_path: Path) -> None:
    made = trained("grpo", tmp_path / "grpo", max_steps=5, logging_steps=2)
    with probe.open(tmp_path / "grpo") as run:
        assert read(run) == logged(made.state.log_history)
        assert "step_time" in set(run.scalars["key"])
        # TRL logs what is left over with the end, which is the time of the fifth step alone.
        assert times(run)["step"].tolist() == [5]
        assert (
            "2 log entries have the mean time of several steps: a step of these has no time of its own."
            in (run.info.config["notes"])
        )


@pytest.mark.parametrize("kind", ["sft", "plain"])
def test_7_trainers_that_tell_no_time_of_a_step_have_none(tmp_path: Path, kind: str) -> None:
    made = trained(kind, tmp_path / kind, **SAVING)
    with probe.open(tmp_path / kind) as run:
        assert read(run) == logged(made.state.log_history)
        assert {"loss", "grad_norm", "learning_rate", "eval_loss", "train_runtime"} <= set(run.scalars["key"])
        assert times(run).empty
        assert run.calls.empty


def test_7_a_training_that_was_resumed_from_an_earlier_checkpoint_is_told_of(tmp_path: Path) -> None:
    folder = tmp_path / "sft"
    trained("sft", folder, **{**SAVING, "max_steps": 6})
    trained("sft", folder, str(folder / "checkpoint-2"), **{**SAVING, "max_steps": 4, "learning_rate": 1e-3})
    with probe.open(folder) as run:
        assert run.scalars["step"].max() == 6
        told = " ".join(run.info.config["notes"])
    assert "was written after checkpoint-6/trainer_state.json, at an earlier step" in told
    assert "has log entries that checkpoint-6/trainer_state.json doesn't have" in told


def test_7_the_fields_that_are_kept_are_the_trainers() -> None:
    assert set(trainer_state._KEPT) <= {one.name for one in dataclasses.fields(TrainerState)}
