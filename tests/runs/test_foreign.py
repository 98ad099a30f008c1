"""What verl and TensorBoard wrote without probe is opened as a run; what they don't tell is missing."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.analysis.steps import durations, times
from probe.cli import main
from probe.errors import RunNotFoundError
from probe.runs.foreign import read, reading, verl_files

PHASES = {"gen": 2.0, "reward": 0.25, "old_log_prob": 0.5, "update_actor": 1.0}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


def metrics(step: int) -> dict[str, Any]:
    told = {f"timing_s/{name}": value + step / 10 for name, value in PHASES.items()}
    return told | {"timing_s/step": 4.0 + step, "critic/score/mean": 0.1 * step, "actor/lr": 1e-6}


def verl_log(path: Path, steps: int = 5) -> Path:
    """As verl 0.9.1's FileLogger writes it, the last line torn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": metrics(step)}) for step in range(1, steps + 1)]
    path.write_text("\n".join(lines) + '\n{"step": 6, "da')
    return path


def dumps(directory: Path, steps: int = 2) -> Path:
    """As verl 0.9.1's trainer.rollout_data_dir has them."""
    directory.mkdir(parents=True)
    for step in range(1, steps + 1):
        rows = [
            {
                "input": f"question {row // 2}",
                "output": "é" * row,
                "gts": None,
                "score": row / 4,
                "step": step,
                "uid": f"u{row}",
            }
            for row in range(4)
        ]
        (directory / f"{step}.jsonl").write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows))
    return directory


def test_7_verl_s_file_logger_is_opened_with_its_metrics_steps_and_phases(tmp_path: Path) -> None:
    log = verl_log(tmp_path / "logs" / "gsm8k" / "grpo.jsonl")
    with probe.open(log) as run:
        assert (run.info.project, run.info.experiment) == ("gsm8k", "grpo")
        assert run.info.config["read_from"] == str(log)
        scalars = run.scalars
        score = scalars[scalars["key"] == "critic/score/mean"]
        assert score["step"].tolist() == [1, 2, 3, 4, 5]
        assert score["value"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
        assert set(scalars["key"]) == set(metrics(1))
        steps = times(run)
        assert steps["largest_s"].tolist() == pytest.approx([5.0, 6.0, 7.0, 8.0, 9.0])
        taken = durations(run).set_index(["step", "phase"])["mean_s"]
        assert taken[3, "gen"] == pytest.approx(2.3)
        assert taken[5, "update_actor"] == pytest.approx(1.5)
        # The last line was written when the file last changed; steps follow each other.
        ends = run.sql("select step, end_ns as ended, duration as took from spans where kind = 'step' order by step")
        assert ends["ended"].iloc[-1] == log.stat().st_mtime_ns
        assert ends["ended"].diff().iloc[1:].tolist() == pytest.approx((ends["took"].iloc[1:] * 1e9).tolist(), rel=1e-6)
        # Nothing is told of memory, tokens or padding: nothing is there.
        assert run.memory.empty
        assert run.micro_batches.empty
        assert run.samples.empty
        told = run.findings()
        assert not told.alarms
        report = probe.write_report(run, tmp_path / "report.html").read_text()
    assert "critic/score/mean" in report


def test_7_rollout_dumps_are_a_table_without_tokens(tmp_path: Path, capsys: Any) -> None:
    log = verl_log(tmp_path / "logs" / "grpo.jsonl")
    rollouts = dumps(tmp_path / "elsewhere")
    with probe.open(log, rollouts=rollouts) as run:
        table = run.tables["rollout_dumps"]
        assert table["step"].tolist() == [1] * 4 + [2] * 4
        assert table["reward"].tolist() == [0.0, 0.25, 0.5, 0.75] * 2
        assert table["prompt"].tolist() == [0, 0, 1, 1] * 2
        assert table["response_text"][3] == "ééé"
        assert table["uid"][1] == "u1"
        assert "tokens" not in " ".join(table.columns)
        both = run.sql("select avg(reward) as mean from rollout_dumps where step = 2")
        assert both["mean"][0] == pytest.approx(0.375)
        assert run.samples.empty
    with probe.open(log) as alone:
        assert "rollout_dumps" not in list(alone.tables)

    # Beside the log they are found, and the commands take the directory.
    rollouts.rename(log.parent / "rollouts")
    assert main(["sql", str(log.parent), "select count(*) as n from rollout_dumps", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == [{"n": 8}]
    assert "was not written by probe" in told.err
    assert main(["list", str(log.parent), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    assert (listed["experiment"], listed["error"]) == ("logs", None)
    assert main(["findings", str(log)]) == 0


def test_7_tensorboard_s_directory_is_opened_by_its_own_reader(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    directory = tmp_path / "tensorboard_log" / "gsm8k" / "grpo"
    writer = EventFileWriter(str(directory))
    for step in range(1, 4):
        values = [Summary.Value(tag=key, simple_value=value) for key, value in metrics(step).items()]
        writer.add_event(Event(step=step, wall_time=1e9 + 10 * step, summary=Summary(value=values)))
    nan = [Summary.Value(tag="grad_norm", simple_value=math.nan)]
    writer.add_event(Event(step=3, wall_time=1e9 + 30, summary=Summary(value=nan)))
    writer.close()
    with probe.open(directory) as run:
        scalars = run.scalars
        score = scalars[scalars["key"] == "critic/score/mean"]
        assert score["value"].tolist() == pytest.approx([0.1, 0.2, 0.3])
        assert score["wall_ns"].tolist() == [int((1e9 + 10 * step) * 1e9) for step in (1, 2, 3)]
        assert scalars[scalars["key"] == "grad_norm"]["value"].isna().tolist() == [True]
        assert times(run)["largest_s"].tolist() == pytest.approx([5.0, 6.0, 7.0])
        assert run.memory.empty


def written(directory: Path, steps: int = 2) -> Path:
    """Event files as SummaryWriter leaves them."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(directory))
    for step in range(1, steps + 1):
        values = [Summary.Value(tag="train/loss", simple_value=1 / step)]
        writer.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=values)))
    writer.close()
    return directory


@pytest.mark.parametrize(
    ("given", "inside"),
    [
        ("tensorboard_log", "gsm8k/grpo"),  # verl's: <project>/<experiment>
        ("outputs/grpo", "runs/Nov28_10-00-00_node1"),  # of an output_dir of TRL's and Transformers' trainers
        ("outputs", "grpo/runs/Nov28_10-00-00_node1"),
        (".", "lightning_logs/version_0"),
    ],
)
def test_7_the_commands_find_event_files_as_deep_as_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, given: str, inside: str
) -> None:
    place = tmp_path / "work" / given
    written(place / inside)
    written(place / inside / "hparams")  # of that training, not one of its own
    written(place / ".hidden")
    (place / "notes.txt").write_text("ours")
    monkeypatch.chdir(tmp_path / "work")
    assert main(["findings", given]) == 0
    assert f"{place.resolve() / inside} was not written by probe" in capsys.readouterr().err
    assert main(["sql", given, "select count(*) as n from scalars", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 2}]
    assert main(["list", given, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    assert (listed["experiment"], listed["error"]) == (inside.rpartition("/")[2], None)


def test_7_nothing_is_found_deeper_than_said_and_a_link_is_no_second_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    deep = written(tmp_path / "work" / "a" / "b" / "c" / "d")
    assert main(["findings", str(tmp_path / "work")]) == 2
    assert "nor up to 3 directories below" in capsys.readouterr().err
    assert main(["findings", str(tmp_path / "work" / "a")]) == 0
    two = [verl_log(tmp_path / "work" / "a" / "b" / "c" / name) for name in ("one.jsonl", "two.jsonl")]
    (tmp_path / "work" / "latest").symlink_to(deep.parent)
    found = reading.readable_below(tmp_path / "work", 4)
    assert sorted(one.resolve() for one in found) == sorted([*two, deep])
    assert found[0].parent.name == "latest"  # the upper ones first
    monkeypatch.setattr(reading, "_LOOKED", 3)
    with pytest.raises(
        RunNotFoundError, match="more than 3 files and directories, expected a directory nearer the log"
    ):
        probe.open(tmp_path / "work")


def test_7_files_are_read_again_only_where_they_have_changed_and_what_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = verl_log(tmp_path / "grpo.jsonl", 2)
    first = read(log)
    assert first is not None
    made = (first / "run.json").stat().st_mtime_ns
    assert read(log) == first
    assert (first / "run.json").stat().st_mtime_ns == made
    if os.name == "posix":
        assert first.parents[1].stat().st_mode & 0o077 == 0
    with monkeypatch.context() as newer:
        newer.setattr(reading, "_READERS", reading._READERS + 1)
        assert read(log) != first  # a newer probe reads again
    verl_log(log, 3)
    second = read(log)
    assert second != first
    with probe.open(log) as run:
        assert run.scalars["step"].max() == 3
    for name, text in (("notes.jsonl", '{"a": 1}\n'), ("broken.jsonl", "{"), ("train.txt", "loss 1")):
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name) is None
        with pytest.raises(RunNotFoundError, match="is a file"):
            probe.open(tmp_path / name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1.jsonl").write_text('{"question": 1}\n')
    assert verl_files.dumps_in(tmp_path / "data") == []
    with pytest.raises(RunNotFoundError, match="there is no run in"):
        probe.open(tmp_path / "data")


def test_7_what_a_log_does_not_tell_of_time_is_not_made_up(tmp_path: Path) -> None:
    log = tmp_path / "sft.jsonl"
    log.write_text(
        "".join(json.dumps({"step": step, "data": {"loss": 1 / step, "note": "x"}}) + "\n" for step in (1, 2))
    )
    with probe.open(log) as run:
        assert run.scalars["value"].tolist() == [1.0, 0.5]
        assert times(run).empty
        assert run.calls.empty


def test_7_a_validation_follows_its_step_and_phases_stand_in_verl_s_order(tmp_path: Path) -> None:
    """verl's step doesn't contain its validation, which is logged with it: 30 s beside a step of 6."""
    log = tmp_path / "grpo.jsonl"
    phases = {"timing_s/update_weights": 1.0, "timing_s/save_checkpoint": 2.0, "timing_s/gen": 2.5}
    phases["timing_s/step"] = 6.0
    told = [phases, phases | {"timing_s/testing": 30.0}, phases]
    log.write_text("".join(json.dumps({"step": step, "data": one}) + "\n" for step, one in enumerate(told, 1)))
    with probe.open(log) as run:
        spans = run.sql("select step, name, kind, begin_ns, end_ns from spans order by begin_ns, kind desc")
        of_steps = spans[spans["kind"] == "step"]
        begins = ((of_steps["begin_ns"] - of_steps["begin_ns"].iloc[0]) / 1e9).tolist()
        assert begins == [0.0, 6.0, 42.0]
        assert of_steps["end_ns"].iloc[-1] == log.stat().st_mtime_ns
        assert times(run)["largest_s"].tolist() == [6.0] * 3
        for step in (1, 2, 3):
            here = spans[spans["step"] == step]
            assert here["name"].tolist() == ["step", "gen", "save_checkpoint", "update_weights"]
            assert ((here["begin_ns"] - here["begin_ns"].iloc[0]) / 1e9).tolist() == [0.0, 0.0, 2.5, 4.5]
        logged = run.sql("select wall_ns from scalars where key = 'timing_s/testing'")["wall_ns"].tolist()
        assert logged == [of_steps["end_ns"].iloc[1] + 30 * 10**9]


def test_7_two_such_runs_are_compared_by_what_they_tell(tmp_path: Path) -> None:
    one = verl_log(tmp_path / "one.jsonl")
    slower = {"timing_s/gen": 12.0, "timing_s/step": 20.0}
    lines = [json.dumps({"step": step, "data": metrics(step) | slower}) for step in range(1, 6)]
    (tmp_path / "other.jsonl").write_text("\n".join(lines))
    with probe.open(one) as a, probe.open(tmp_path / "other.jsonl") as b:
        found = probe.compare(a, b)
    (of,) = found.difference.waterfalls
    assert (of.measure, of.before, of.after) == ("step_time", pytest.approx(7.5), pytest.approx(20.0))
    assert math.fsum(part.value for part in of.parts) == of.change
    assert {part.phase: part.value for part in of.parts if part.phase == "gen"}["gen"] == pytest.approx(12 - 2.35)
    assert set(of.by_cause) == {"rest"}
    assert len(found.difference.missing) == 2
