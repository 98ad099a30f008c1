"""``probe run``: the command's exit code, signals and terminal are its own, and its processes are one run."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probe.cli import main
from probe.cli import run as run_command
from probe.cli.run import NOT_FOUND, _on_several_machines
from probe.runs.reader import Run
from tests.adapters.start_file import ROOT, TIMER, package

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals of POSIX")


def environ(*path: Path) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    return {**known, "PYTHONPATH": os.pathsep.join([*map(str, path), ROOT])}


def command(*arguments: str, run: Path) -> list[str]:
    return [sys.executable, "-m", "probe", "run", "--run-dir", str(run), "--", *arguments]


def probe_run(
    *arguments: str, run: Path, path: tuple[Path, ...] = (), text: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments, run=run), env=environ(*path), input=text, capture_output=True, text=True, timeout=120
    )


COUNTS = """
import os, signal, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, lambda number, _: got.append(number))
print("ready", os.getpid(), flush=True)
until = time.monotonic() + 300
while not got and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(1)  # a second one would come now
print(len(got), [int(one) for one in got], flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("code", [0, 3, 255])
def test_4_the_exit_code_is_the_commands(tmp_path, code):
    done = probe_run(sys.executable, "-c", f"import sys; sys.exit({code})", run=tmp_path / "run")
    assert done.returncode == code
    assert "no process has recorded" in done.stderr
    assert "python -I, -E or -S" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_4_a_command_that_a_signal_ended_ends_probe_run_by_the_same(tmp_path, number):
    done = probe_run(sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})", run=tmp_path / "run")
    assert done.returncode == -number


def test_4_a_command_that_is_not_there(tmp_path):
    done = probe_run("no-such-program", run=tmp_path / "run")
    assert done.returncode == NOT_FOUND
    assert "no-such-program: there is no such program" in done.stderr


@pytest.mark.parametrize("to", ["it alone", "its group"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_4_a_signal_reaches_the_command_once(tmp_path, to, number):
    child = subprocess.Popen(
        command(sys.executable, "-c", COUNTS, run=tmp_path / "run"),
        env=environ(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline().startswith("ready")
    if to == "its group":
        os.killpg(child.pid, number)
    else:
        os.kill(child.pid, number)
    out, _ = child.communicate(timeout=120)
    assert out == f"1 [{int(number)}]\n"
    assert child.returncode == 7


def test_4_killed_it_leaves_no_command_behind(tmp_path):
    if sys.platform != "linux":
        pytest.skip("of Linux alone")
    child = subprocess.Popen(
        command(sys.executable, "-c", COUNTS, run=tmp_path / "run"), env=environ(), stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    inner = int(child.stdout.readline().split()[1])
    child.kill()
    child.wait()
    until = time.monotonic() + 300
    while os.path.exists(f"/proc/{inner}") and time.monotonic() < until:
        if Path(f"/proc/{inner}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not os.path.exists(f"/proc/{inner}")
    child.stdout.close()


def test_4_standard_input_is_passed(tmp_path):
    done = probe_run(
        sys.executable, "-c", "import sys; print(sys.stdin.read().upper())", run=tmp_path / "run", text="abc"
    )
    assert done.stdout == "ABC\n"


def test_4_the_terminal_and_its_ctrl_c_are_the_commands(tmp_path):
    child = "import sys; print(sys.stdin.isatty(), sys.stdout.isatty(), flush=True)\n" + COUNTS
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, command(sys.executable, "-c", child, run=tmp_path / "run"), environ())
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # Linux says so when nobody has the terminal any more
            break
        if not more:
            break
        said += more
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"True True" in said
    assert b"1 [2]" in said
    assert os.waitstatus_to_exitcode(status) == 7


TRAINS = """
import os, sys
from nemo_rl.utils.timer import Timer
with Timer().time("generation"):
    pass
import torch.distributed as dist
dist.init_process_group("gloo")
with Timer().time("policy_training"):
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.multiprocess
def test_4_torchrun_is_one_run_and_started_again_another_attempt(tmp_path):
    path = package(tmp_path / "packages", "nemo_rl", **{"utils.timer": TIMER})
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = probe_run(*launcher, str(script), run=tmp_path / "run", path=(path,))
    assert done.returncode == 0, done.stderr
    assert "nemo_rl: 1 of 5 points are observed" in done.stderr
    assert "2 processes recorded" in done.stderr
    with Run(tmp_path / "run") as run:
        assert run.attempts == [1]
        assert run.ranks == [0, 1]
        known = run.memory.dropna(subset=["phase"])
        assert set(zip(known["rank"], known["phase"], strict=True)) == {
            (rank, phase) for rank in (0, 1) for phase in ("generation", "policy_training")
        }
    # Again, without a launcher: `probe run` itself numbers the attempts.
    done = probe_run(sys.executable, "-c", TRAINS.partition("import torch")[0], run=tmp_path / "run", path=(path,))
    assert done.returncode == 0, done.stderr
    with Run(tmp_path / "run") as run:
        assert run.attempts == [1, 2]
    assert not list((tmp_path / "run").glob("*.jsonl"))


def test_4_by_default_it_is_a_new_run_below_runs(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "probe",
            "run",
            "--project",
            "p",
            "--",
            sys.executable,
            "-c",
            "import os, json; print(json.dumps([os.environ['PROBE_RUN_DIR'], os.environ['PROBE_ATTEMPT']]))",
        ],
        env=environ(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    place, attempt = json.loads(done.stdout)
    assert Path(place).parent == tmp_path / "runs" / "p"
    assert attempt == "1"
    assert f"recording to {Path(place).relative_to(tmp_path)}" in done.stderr


@pytest.mark.parametrize(
    ("words", "known", "several"),
    [
        (["torchrun", "--nnodes", "2", "t.py"], {}, True),
        (["torchrun", "--nnodes=1:1", "t.py"], {}, False),
        (["accelerate", "launch", "--num_machines", "4"], {}, True),
        (["python", "t.py"], {"SLURM_NNODES": "2"}, True),
        (["python", "t.py"], {"SLURM_NNODES": "1"}, False),
        (["torchrun", "--standalone", "t.py"], {}, False),
    ],
)
def test_4_on_several_machines_the_number_of_the_launch_is_left_to_the_launcher(words, known, several):
    assert _on_several_machines(words, known) is several


def test_4_probe_off_runs_the_command_alone(tmp_path):
    done = subprocess.run(
        command(sys.executable, "-c", "import os; print('PROBE_RUN_DIR' in os.environ)", run=tmp_path / "run"),
        env={**environ(), "PROBE": "off"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("lenient")
def test_a_summary_that_fails_is_said_and_leaves_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError("adapters")

    monkeypatch.setattr(run_command, "_tell", fails)
    code = main(["run", "--run-dir", str(tmp_path / "run"), "--", sys.executable, "-c", "raise SystemExit(7)"])
    assert code == 7
    assert capsys.readouterr().err.splitlines()[1:] == [
        "probe: the recorded run can't be summarised: KeyError('adapters')"
    ]
