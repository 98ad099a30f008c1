"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from probe.cli import COMMANDS, main, make_parser
from probe.cli.demo import commands
from probe.opened import Run
from tests.tracking.tracking_readers import mlflow_client

QUICK = ["demo", "--steps", "2", "--ranks", "1", "--track", "file"]


def probe(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "probe", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "COLUMNS": "100", **variables},
    )


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["demo", "--steps", "0"],
        ["demo", "--steps", "many"],
        ["demo", "--ranks", "0"],
        ["demo", "--seed", "-1"],
        ["demo", "--track", "console,carrier-pigeon"],
        ["demo", "--no-such-option"],
    ],
)
def test_misuse_ends_with_2_and_says_what_was_expected(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "usage: probe" in said
    assert arguments == [] or arguments[-1].split(",")[-1] in said


@pytest.mark.parametrize("arguments", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_ends_with_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: probe" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example_that_can_be_typed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = capsys.readouterr().out.split("\nexample:\n")[1].splitlines()
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "probe"
        arguments = arguments[: arguments.index("|")] if "|" in arguments else arguments
        assert make_parser().parse_args(arguments).command == command


def test_help_brings_nothing_heavy() -> None:
    code = (
        "import sys, contextlib, io, probe.cli\n"
        "for arguments in [['--help'], ['--version'], *([one, '--help'] for one in probe.cli.COMMANDS)]:\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "        probe.cli.main(arguments)\n"
        "    heavy = {'torch', 'pandas', 'plotly', 'mlflow', 'pyarrow', 'duckdb', 'numpy'} & set(sys.modules)\n"
        "    assert not heavy, (arguments, heavy)\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"probe {metadata.version('probe-rl')}\n"


def test_only_the_command_that_is_asked_for_is_imported() -> None:
    code = (
        "import sys, probe.cli\n"
        "probe.cli.make_parser('sql')\n"
        "print(sorted(name for name in sys.modules if name in probe.cli.COMMANDS.values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "['probe.cli.sql']"


def test_an_interruption_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("probe.cli.sql.find_run", interrupted)
    assert main(["sql", "run", "select 1"]) == 130
    assert capsys.readouterr().err == "probe sql: interrupted\n"


def test_an_error_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "no\x1b[2Jrun", "select 1"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_directory_that_holds_a_run_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert main([*QUICK, "--run-dir", str(tmp_path)]) == 2
    assert f"{str(tmp_path)!r} already holds a run" in capsys.readouterr().err
    monkeypatch.setenv("PROBE_RUN_DIR", str(tmp_path))
    assert main(QUICK) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_the_demo_ends_with_a_report_and_where_to_look(demo: Path) -> None:
    said = demo.with_name("said.txt").read_text()  # on a terminal so wide that a finding has a line of its own
    lines = said.splitlines()
    with Run(demo) as run:
        worst = run.findings()[0]
    title = next(at for at, line in enumerate(lines) if "What probe found" in line)
    first = lines[title + 4]  # below the head of the table
    assert worst.sentence in first
    assert worst.change is None or worst.change.advice in first
    assert f"run         {demo}" in lines
    assert f"report      {demo / 'report.html'}" in lines
    assert f"metrics     {demo / 'metrics.jsonl'}" in lines
    assert "reward 0." in said
    assert "GRPO" in said
    assert "reward/mean" not in said
    assert "Traceback" not in said
    assert "<html" in (demo / "report.html").read_text(encoding="utf-8")
    assert (demo / "problems.parquet").exists()


@pytest.mark.multiprocess
def test_the_demo_goes_on_where_it_was(demo: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(demo, tmp_path / "my run")
    with Run(directory) as run:
        steps = sorted(run.calls.query("name == 'step'")["step"].unique())
    more = probe("demo", "--resume", str(directory), "--steps", str(len(steps) + 1), "--track", "console")
    assert more.returncode == 0, more.stderr
    assert "of 1 steps" in more.stdout
    assert "reward/mean" in more.stdout  # the console takes the place of the bar
    assert "GRPO" not in more.stdout
    with Run(directory) as run:
        assert sorted(run.calls.query("name == 'step'")["step"].unique()) == [*steps, len(steps)]


def test_every_backend_has_the_metrics_and_its_command(demo: Path) -> None:
    said = demo.with_name("said.txt").read_text().splitlines()
    assert f"TensorBoard tensorboard --logdir {demo}" in said
    assert f"served by   mlflow ui --backend-store-uri sqlite:///{demo / 'mlflow.db'}" in said
    assert any(line.startswith("In TensorBoard, Custom Scalars has the dashboards") for line in said)
    assert list((demo / "tensorboard").glob("events.out.tfevents.*"))
    assert (demo / "mlflow.db").stat().st_size > 0
    assert '"reward/mean"' in (demo / "metrics.jsonl").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # of MLflow's client
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_g_the_demo_prints_the_address_of_the_run_itself_in_mlflow(demo: Path) -> None:
    said = demo.with_name("said.txt").read_text().splitlines()
    (address,) = [line.split()[1] for line in said if line.startswith("MLflow ")]
    experiment, run = re.fullmatch(r"http://127\.0\.0\.1:5000/#/experiments/(\d+)/runs/(\w+)", address).groups()
    found = mlflow_client(f"sqlite:///{demo / 'mlflow.db'}").get_run(run)
    assert found.info.experiment_id == experiment
    assert found.data.tags["run_directory"] == str(demo)


def test_a_failure_ends_with_1_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    assert main([*QUICK, "--run-dir", str(blocked / "run")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("probe demo: run directory")
    assert "Traceback" not in said


def test_commands_can_be_pasted() -> None:
    where = {
        "tensorboard": "/runs/my demo/tb",
        "mlflow": "sqlite:////runs/my demo/mlflow.db",
        "file": "/m.jsonl",
    }
    assert commands(where, "#/experiments/1/runs/a") == {
        "TensorBoard": "tensorboard --logdir '/runs/my demo/tb'",
        "MLflow": "http://127.0.0.1:5000/#/experiments/1/runs/a",
        "served by": "mlflow ui --backend-store-uri 'sqlite:////runs/my demo/mlflow.db'",
        "metrics": "/m.jsonl",
    }
    assert commands({"mlflow": "http://tracker:5000/#/experiments/1/runs/a"}) == {
        "MLflow": "http://tracker:5000/#/experiments/1/runs/a"
    }
    assert commands({"console": "standard output"}) == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--resume", "nowhere"], "nowhere"), (["--resume", "nowhere", "--seed", "1"], "--resume")],
)
def test_a_resume_that_cannot_be_is_refused(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *arguments]) == 2
    found = capsys.readouterr().err
    assert said in found
    assert "Traceback" not in found
    assert not any(tmp_path.iterdir())
