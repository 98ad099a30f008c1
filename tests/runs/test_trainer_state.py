"""Transformers' trainer_state.json is opened as a run; what it doesn't tell is missing, and what is none is refused."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.analysis.steps import times
from probe.cli import main
from probe.errors import InputError, RunNotFoundError
from probe.runs.foreign import json_stream, read, trainer_state
from probe.runs.foreign.json_stream import MalformedError, TornError, members

#: What a state has beside its log, as Transformers 5.10 writes it.
STATE = {"best_metric": None, "epoch": 0.5, "is_world_process_zero": True, "max_steps": 8, "stateful_callbacks": {}}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


def grpo(step: int, took: float | None = None) -> dict[str, Any]:
    """What TRL's GRPO logs of a step, and a few of its keys."""
    entry = {"step": step, "epoch": step / 8, "loss": -0.1 * step, "reward": step / 4, "completions/mean_length": 6.75}
    return entry | {"grad_norm": 1.0, "step_time": 1.0 + step if took is None else took}


def evaluated(step: int, loss: float = 0.5) -> dict[str, Any]:
    return {"step": step, "epoch": step / 8, "eval_loss": loss, "eval_runtime": 0.25}


def state(path: Path, history: Any, **more: Any) -> Path:
    """As ``TrainerState.save_to_json`` writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    last = max(
        (one["step"] for one in history if isinstance(one, dict) and isinstance(one.get("step"), int)), default=0
    )
    told = STATE | {"global_step": last, "log_history": history} | more
    path.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n")
    return path


def values(run: probe.Run, key: str) -> dict[int, list[float]]:
    frame = run.scalars[run.scalars["key"] == key]
    return {int(step): of["value"].tolist() for step, of in frame.groupby("step")}


def notes(run: probe.Run) -> list[str]:
    return list(run.info.config["notes"])


def test_7_a_state_of_grpo_is_opened_with_its_metrics_and_the_steps_that_it_tells(tmp_path: Path, capsys: Any) -> None:
    end = {"step": 4, "epoch": 0.5, "train_runtime": 20.0, "train_loss": -0.25}
    history = [grpo(1), grpo(2), evaluated(2), grpo(3), grpo(4), evaluated(4, 0.25), end]
    file = state(tmp_path / "outputs" / "grpo" / "trainer_state.json", history)
    for place in (file, file.parent):
        with probe.open(place) as run:
            assert (run.info.project, run.info.experiment) == ("outputs", "grpo")
            assert run.info.config["read_from"] == str(place)
            assert run.info.config["trainer_state"]["max_steps"] == 8
            assert set(run.scalars["key"]) == {key for one in history for key in one} - {"step"}
            assert values(run, "reward") == {1: [0.25], 2: [0.5], 3: [0.75], 4: [1.0]}
            # Training, evaluation and the end have logged at one step: all of it is there.
            assert values(run, "eval_loss") == {2: [0.5], 4: [0.25]}
            assert values(run, "epoch") == {1: [0.125], 2: [0.25, 0.25], 3: [0.375], 4: [0.5, 0.5, 0.5]}
            assert times(run)["largest_s"].tolist() == [2.0, 3.0, 4.0, 5.0]
            ends = run.sql("select step, end_ns from spans where kind = 'step' order by step")["end_ns"]
            assert ends.iloc[-1] == file.stat().st_mtime_ns
            assert ends.diff().iloc[1:].tolist() == [3e9, 4e9, 5e9]
            assert run.memory.empty
            assert run.micro_batches.empty
    assert main(["findings", str(file)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Not judged: This run was read from Transformers' trainer_state.json, which doesn't record memory" in told
    assert "The file has no clock" in told
    assert main(["report", str(file.parent), "-o", str(tmp_path / "report.html")]) == 0
    assert "completions/mean_length" in (tmp_path / "report.html").read_text()


def test_7_a_time_is_that_of_a_step_only_where_one_step_was_logged(tmp_path: Path) -> None:
    # The first step was logged by itself, the next ones by threes: step_time is their mean. Evaluation in between.
    history = [grpo(1, 2.0), grpo(4, 3.0), evaluated(4), grpo(7, 5.0), grpo(8, 1.5)]
    file = state(tmp_path / "grpo" / "trainer_state.json", history)
    with probe.open(file) as run:
        steps = run.sql("select step, duration as took from spans where kind = 'step' order by step")
        assert steps.to_numpy().tolist() == [[1, 2.0], [8, 1.5]]
        assert values(run, "step_time") == {1: [2.0], 4: [3.0], 7: [5.0], 8: [1.5]}
        assert "2 log entries have the mean time of several steps: a step of these has no time of its own." in notes(
            run
        )
        logged = run.sql("select step, max(wall_ns) as at_ns from scalars group by step order by step")
        back = (file.stat().st_mtime_ns - logged["at_ns"]) / 1e9
        assert back.tolist() == [9.0 + 15.0 + 1.5, 15.0 + 1.5, 1.5, 0.0]


@pytest.mark.parametrize("took", [None, "3", True, -1.0, float("nan"), float("inf"), 1e300, [1.0]])
def test_7_what_is_no_time_makes_no_step(tmp_path: Path, took: Any) -> None:
    history = [{"step": step, "loss": 1 / step, "step_time": took, "train_runtime": 9.0} for step in (1, 2)]
    with probe.open(state(tmp_path / "sft" / "trainer_state.json", history)) as run:
        assert values(run, "loss") == {1: [1.0], 2: [0.5]}
        assert times(run).empty
        assert run.calls.empty
        assert notes(run)[:2] == [
            "The file has no clock: all its entries have the time at which the file last changed.",
            "The time of a step isn't known.",
        ]
        told = run.findings()
        assert [one.name for one in told.withheld] == ["not_recorded"]
        assert "The time of a step isn't known." in told.withheld[0].reasons


def test_7_of_several_checkpoints_the_one_that_got_farthest_counts(tmp_path: Path, capsys: Any) -> None:
    history = [grpo(step) for step in range(1, 9)]
    root = tmp_path / "grpo"
    for step in (2, 4, 8):
        state(root / f"checkpoint-{step}" / "trainer_state.json", history[:step])
    state(root / "best" / "trainer_state.json", history[:1])  # no checkpoint of the trainer's
    with probe.open(root) as run:
        assert run.scalars["step"].max() == 8
        assert notes(run)[0] == "The log is that of checkpoint-8/trainer_state.json."
        assert not any("resumed" in one for one in notes(run))
    with probe.open(root / "checkpoint-4") as run:
        assert (run.info.project, run.info.experiment) == ("grpo", "checkpoint-4")
        assert run.scalars["step"].max() == 4
    # Two of the same step: the file that was written last, which has the end.
    end = {"step": 8, "train_runtime": 50.0}
    last = state(root / "trainer_state.json", [*history, end])
    os.utime(last, ns=(0, (root / "checkpoint-8" / "trainer_state.json").stat().st_mtime_ns + 10**9))
    with probe.open(root) as run:
        assert values(run, "train_runtime") == {8: [50.0]}
        assert notes(run)[0] == "The log is that of trainer_state.json."
    assert main(["list", str(tmp_path), "--json"]) == 0
    assert [one["experiment"] for one in json.loads(capsys.readouterr().out)["runs"]] == ["grpo"]


def test_7_states_that_disagree_are_told_of(tmp_path: Path) -> None:
    root = tmp_path / "grpo"
    history = [grpo(step) for step in range(1, 9)]
    first = state(root / "checkpoint-8" / "trainer_state.json", history)
    other = state(root / "checkpoint-6" / "trainer_state.json", [*history[:4], grpo(5, 9.0), grpo(6, 9.0)])
    os.utime(other, ns=(0, first.stat().st_mtime_ns + 10**9))  # resumed from 4, and hasn't come as far yet
    with probe.open(root) as run:
        assert values(run, "step_time")[5] == [6.0]
        told = " ".join(notes(run))
    assert (
        "checkpoint-6/trainer_state.json has log entries that checkpoint-8/trainer_state.json doesn't have: 2." in told
    )
    assert (
        "checkpoint-6/trainer_state.json was written after checkpoint-8/trainer_state.json, at an earlier step" in told
    )
    # One that ends in the middle is taken only where none is whole.
    first.write_text(first.read_text()[:-400])
    with probe.open(root) as run:
        assert values(run, "step_time")[5] == [9.0]
        assert "checkpoint-8/trainer_state.json can't be read to its end." in notes(run)


def test_7_of_a_torn_state_what_stands_before_the_tear_is_read(tmp_path: Path) -> None:
    file = state(tmp_path / "grpo" / "trainer_state.json", [grpo(step) for step in range(1, 5)])
    whole = file.read_text()
    file.write_text(whole[: whole.index('"step": 4')])
    with probe.open(file) as run:
        assert run.scalars["step"].max() == 3
        assert "The file ends in the middle: what stood behind is missing." in notes(run)


def test_7_hostile_entries_are_left_out_and_counted(tmp_path: Path) -> None:
    entries = [
        '{"step": 1, "loss": NaN, "reward": -Infinity, "note": "x", "nested": {"a": [1]}, "on": true, "off": null}',
        '{"step": 2, "loss": 1, "loss": 2}',
        f'{{"step": 3, "large": 1{"0" * 400}, "digits": {"9" * 5000}, "{"k" * 600}": 1.0}}',
        '{"loss": 3}',
        '{"step": -1, "loss": 4}',
        '{"step": 1.5, "loss": 5}',
        '{"step": true, "loss": 6}',
        f'{{"step": {2**70}, "loss": 7}}',
        '"text"',
        "[1, 2]",
        '{"step": 4, "loss": 8, "\\ud800": 1.5}',
    ]
    file = tmp_path / "grpo" / "trainer_state.json"
    file.parent.mkdir()
    file.write_text(f'{{"global_step": 4, "log_history": [{",".join(entries)}], "max_steps": "{"x" * 300}"}}')
    with probe.open(file) as run:
        told = notes(run)
        loss = values(run, "loss")
        assert loss[1][0] is None or loss[1][0] != loss[1][0]
        assert loss[2] == [2.0]
        assert loss[4] == [8.0]
        assert set(loss) == {1, 2, 4}
        assert run.sql("select isinf(value) as inf from scalars where key = 'reward'")["inf"].tolist() == [True]
        assert set(run.scalars["key"]) == {"loss", "reward", "large", "digits", r"\ud800"}
    assert "Log entries without a step were left out: 7." in told
    assert "Logged values that are no numbers, or were logged twice, were left out: 5." in told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1, 2]", "it has '\\[' where '{' was expected"),
        ("", "it ends in the middle"),
        ('{"global_step": 1, "log_history": {"step": 1}}', "it has '{' where '\\[' was expected"),
        ('{"global_step": 1, "log_history": []} {', "something follows the object"),
        ('{"log_history": [], "log_history": []}', "a key is given twice"),
        ('{"global_step": 1, "log_history": [1 2]}', "it has '2' where ',' was expected"),
        ('{"log_history": [' + "[" * 100_000 + "]" * 100_000 + "]}", "nested too deeply"),
        ('{"log_history": ["' + "x" * 3 * json_stream.LARGEST + '"]}', "longer than"),
        ('{"log_history": [nonsense' + " " * 3 * json_stream.LARGEST + "]}", "a value is no JSON"),
        ('{1: 2, "log_history": []}', "a key is no text"),
    ],
)
def test_7_what_is_no_state_is_refused_in_a_sentence(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "grpo" / "trainer_state.json"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(MalformedError, match=why):
        list(members(file, "log_history"))
    if text:
        with pytest.raises(InputError, match="is no state of Transformers' trainer: "):
            probe.open(file)
    assert not list((tmp_path / "temporary").rglob("run.json"))


def test_7_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "trainer_state.json"
    file.write_bytes(b'{"log_history": ["\xff"]}')
    with pytest.raises(MalformedError, match="isn't UTF-8"):
        list(members(file, "log_history"))
    file.write_bytes(b'{"log_history": [1')
    with pytest.raises(TornError):
        list(members(file, "log_history"))


def test_7_other_json_files_are_taken_for_no_state(tmp_path: Path) -> None:
    others = {
        "config.json": '{"model_type": "qwen2", "global_step": 3}',
        "state.json": '{"log_history": "none", "global_step": 3}',
        "history.json": '[{"step": 1}]',
        "scores.json": '{"log_history": [{"step": 1}]}',
        "odd.json": '{"global_step": "3", "log_history": []}',
    }
    for name, text in others.items():
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name) is None
        with pytest.raises(RunNotFoundError, match="is a file"):
            probe.open(tmp_path / name)
    assert trainer_state.states_in(tmp_path) == []
    # By another name it is known by what it holds, in whatever order.
    renamed = tmp_path / "of_yesterday.json"
    renamed.write_text('{"log_history": [{"step": 1, "loss": 2.5}], "global_step": 1}')
    with probe.open(renamed) as run:
        assert run.info.experiment == "of_yesterday"
        assert values(run, "loss") == {1: [2.5]}


def test_7_a_large_state_is_read_in_bounded_memory(tmp_path: Path) -> None:
    peaks = []
    for many in (2_000, 20_000):
        file = state(tmp_path / str(many) / "trainer_state.json", [grpo(step) for step in range(1, many + 1)])
        tracemalloc.start()
        made = read(file)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert made is not None
        with (made / "process-driver.jsonl").open() as lines:
            assert sum(1 for _ in lines) == 1 + many * 7
    assert peaks[1] < 1.5 * peaks[0], peaks
