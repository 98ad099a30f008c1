"""Two runs side by side, by ``probe.compare`` and by the command; what else the command says of runs."""

from __future__ import annotations

import builtins
import dataclasses
import json
import shutil
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

import probe
from probe.analysis.verdict import findings
from probe.cli import main
from probe.errors import InputTypeError, RunNotFoundError
from probe.records import GIB, Memory, MicroBatch
from probe.session import start
from probe.text import plain
from tests.sample_run import clock, open_run


def trained(directory: Path, config: object, lengths: list[int], loss: float) -> Path:
    mask = (torch.arange(16)[None] < torch.tensor(lengths)[:, None]).long()
    with start("p", run_dir=directory, config=config) as session:
        for step in range(3):
            with session.step(step), probe.phase("update"):
                for _ in probe.micro_batches({"input_ids": mask, "attention_mask": mask}, max_token_len=64):
                    time.sleep(0.02)  # steps that are spent in the update, however busy the machine is
                session.log({"loss": loss + step}, step)
    return directory


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    trained(folder / "before", {"actor": {"lr": 1e-6, "clip": 0.2}, "seed": 1}, [16] * 8, 4.0)
    trained(folder / "after", {"actor": {"lr": 2e-6, "clip": 0.2}, "rows": 8}, [4] * 8, 1.0)
    return folder


@pytest.fixture
def two(recorded: Path, tmp_path: Path) -> tuple[Path, Path]:
    place = tmp_path / "runs" / "p"
    shutil.copytree(recorded, place)
    return place / "before", place / "after"


def test_d_two_runs_are_compared_by_metrics_configuration_and_findings(two: tuple[Path, Path]) -> None:
    with probe.open(two[0]) as a, probe.open(two[1]) as b:
        found = probe.compare(a, b)
    metrics = found.metrics.set_index("metric")
    assert metrics.loc["loss", ["a", "b"]].tolist() == [6.0, 3.0]
    assert metrics.loc["loss", "change_ratio"] == pytest.approx(-0.5)
    assert metrics.loc["padding_tax", ["a", "b"]].tolist() == [0.0, 0.75]
    assert metrics.loc["tokens", ["a", "b"]].tolist() == [128.0, 32.0]
    config = {row.key: (row.a, row.b) for row in found.config.itertuples()}
    assert config == {"actor.lr": (1e-6, 2e-6), "seed": (1, "(absent)"), "rows": ("(absent)", 8)}
    tax = found.findings[found.findings["about"] == "tax"].iloc[0]
    assert tax["kind_b"] == "tuning"
    assert tax["kind_a"] == "fine"
    for told in (repr(found), found._repr_html_()):
        assert "actor.lr" in told
        assert "Padding fills 75 % of the token slots" in " ".join(told.split())
        assert "−50 %" in told
    assert "Worth a change: Padding fills" in repr(found)
    assert "tuning" not in repr(found)


def test_d_what_was_looked_at_stands_once_above_all_that_was_found_of_it(two: tuple[Path, Path]) -> None:
    with probe.open(two[0]) as a, probe.open(two[1]) as b:
        found = probe.compare(a, b)
    told = [("unjudged", "withheld", None, f"Lacking {number}.", None) for number in (1, 2, 3)]
    told.append(("tax", None, "tuning", None, "Padding."))
    found = dataclasses.replace(found, findings=pd.DataFrame(told, columns=found.findings.columns, dtype="object"))
    lines = repr(found).partition("\nFindings\n")[2].splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["unjudged", "tax"]
    assert [line.split()[-1] for line in lines if "Lacking" in line] == ["1.", "2.", "3."]
    assert found._repr_html_().count("unjudged") == 1


def test_d_runs_are_compared_by_their_paths_too_or_an_error_says_what_was_expected(two: tuple[Path, Path]) -> None:
    before, after = two
    with probe.open(after) as opened:
        for pair in ((before, str(after)), (str(before), opened)):
            found = probe.compare(*pair)
            assert (found.a, found.b) == (str(before), str(after))
            assert "actor.lr" in found.config["key"].tolist()
    for pair in (("a", "b"), (str(before), "before")):
        with pytest.raises(RunNotFoundError):
            probe.compare(*pair)
    with pytest.raises(InputTypeError, match="expected two runs, or two batches"):
        probe.compare(str(before), {"x": [1]})


def test_d_the_same_run_has_the_same_configuration_and_numbers(two: tuple[Path, Path]) -> None:
    with probe.open(two[0]) as a, probe.open(two[0]) as b:
        found = probe.compare(a, b)
    assert found.config.empty
    assert (found.metrics["a"] == found.metrics["b"]).all()
    assert "Configuration\nBoth runs have the same." in repr(found)


def test_d_a_run_is_compared_with_nothing_but_a_run(two: tuple[Path, Path]) -> None:
    with probe.open(two[0]) as a, pytest.raises(InputTypeError, match="got a run and dict, expected two runs"):
        probe.compare(a, {})
    assert not probe.compare({"x": 1}, {"x": 2}).same


def test_d_the_commands_compare_list_and_tell_findings(two: tuple[Path, Path], capsys, monkeypatch) -> None:
    assert main(["compare", str(two[0]), str(two[1])]) == 0
    assert "actor.lr" in capsys.readouterr().out
    assert main(["compare", str(two[0]), str(two[1]), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["key"] for row in told["config"]} == {"actor.lr", "seed", "rows"}
    assert {row["metric"]: row["b"] for row in told["metrics"]}["loss"] == 3.0

    assert main(["findings", str(two[1]), "--json"]) == 0
    with probe.open(two[1]) as run:
        assert json.loads(capsys.readouterr().out) == plain([one.to_dict() for one in findings(run).everything])
    assert main(["findings", str(two[1])]) == 0
    assert "◐ Worth a change: Padding fills 75 %" in capsys.readouterr().out

    monkeypatch.chdir(two[0].parent.parent.parent)
    (two[0].parent / "broken").mkdir()
    (two[0].parent / "broken" / "run.json").write_text("{")
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert [Path(one["path"]).name for one in listed] == ["after", "before", "broken"]
    assert [(one["processes"], one["steps"]) for one in listed] == [(1, 3), (1, 3), (None, None)]
    assert listed[2]["error"]
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert str(two[1]) in lines[1]
    assert main(["list", "nowhere"]) == 2
    assert "DIR: there is no directory at 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["runs/p/after", "runs/p", "runs", "."])
def test_d_open_takes_what_the_commands_take(two: tuple[Path, Path], monkeypatch, given: str) -> None:
    monkeypatch.chdir(two[0].parent.parent.parent)
    for path in (given, Path(given), f"file://{Path(given).absolute()}"):
        with probe.open(path) as run:
            assert run.path == str(two[1])
    with pytest.raises(RunNotFoundError, match="path: there is nothing at 'runs/nowhere'"):
        probe.open("runs/nowhere")
    with pytest.raises(InputTypeError, match="path: got 3"):
        probe.open(3)


def test_d_a_star_import_replaces_no_name_of_pythons() -> None:
    names: dict[str, object] = {}
    exec("from probe import *", names)
    taken = names.keys() - {"__builtins__"}
    assert not taken & set(dir(builtins))
    assert not taken & sys.stdlib_module_names
    assert {"start", "micro_batches", "phase", "DataProto"} <= taken


def rows_of(tokens: int, sequences: int, cap: int, *, total_gib: int = 80) -> list[object]:
    lengths = [tokens // sequences] * sequences
    stamp = {"rank": 0, "step": 0, "phase": "update", "role": "actor"}
    return [
        MicroBatch(
            **stamp, time_ns=clock(0) + 1, scope_id=1, micro_batch=0, batch_id=1, micro_batches=1, sequences=sequences,
            lengths=lengths, tokens=tokens, cap_tokens=cap, over_cap=tokens > cap,
        ),
        Memory(
            **stamp, time_ns=clock(0) + 2, scope_id=2, parent_id=1, micro_batch=0, edge="enter", kind="micro_batch",
            name="0", source="cuda", allocated_bytes=GIB, device_total_bytes=total_gib * GIB,
        ),
        Memory(
            **stamp, time_ns=clock(0) + 3, scope_id=2, parent_id=1, micro_batch=0, edge="leave", kind="micro_batch",
            name="0", source="cuda", allocated_bytes=GIB, peak_allocated_bytes=79 * GIB, peak_kind="exact",
            device_total_bytes=total_gib * GIB, device_used_bytes=79 * GIB, host_duration_ns=1,
        ),
    ]  # fmt: skip


def test_d_the_advice_for_one_sequence_that_is_too_long_is_no_setting_that_raises(tmp_path: Path) -> None:
    with open_run(tmp_path / "one", {0: rows_of(9000, 1, 8192)}) as run:
        advice = {one.topic: one.change.advice for one in findings(run).of("tuning")}
    assert "strict" not in advice["token_balance"]
    assert "9,000 tokens by itself: no cut keeps it under a cap of 8,192" in advice["token_balance"]
    assert advice["memory"].startswith("Shorten the longest sequences")
    with open_run(tmp_path / "many", {0: rows_of(9000, 3, 8192)}) as run:
        advice = {one.topic: one.change.advice for one in findings(run).of("tuning")}
    assert advice["token_balance"] == "Cut with strict=True, which keeps the cap."
    assert advice["memory"] == "Lower the number of tokens that a micro-batch may have."
