"""What a scheduler or a terminal sends to a whole job ends nothing that runs beside the training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from probe import _signals
from probe.runs.reader import Run
from tests.tracking.tracking_readers import tensorboard_scalars

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300

SCRIPT = """
    import json, os, signal, sys, time
    import probe
    from probe import session as sessions
    from probe.testing import FakeDevice
    sessions.patience.END_S = 300.0
    heard = []
    of_the_job = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
    for number in of_the_job:
        signal.signal(number, lambda number, _: heard.append(number))

    def send():
        for number in of_the_job:
            os.killpg(0, number)

    light = {"recorders": ["memory"], "device": FakeDevice()}  # which needn't import torch, and fills few panels
    where = {"run_dir": "run", "rank": 0, "world_size": 1, **light}
    opened = probe.start("p", "e", track="tensorboard", publish=1, alarms=True, upload="copy", **where)
    send()  # while what runs beside it begins
    with opened.step(1):
        pass
    beside = [opened.publisher._process, opened.alarms._process]
    while not opened.publisher._steps:
        time.sleep(0.02)
    send()  # and while it works
    with opened.step(2):
        pass
    alive = [one.poll() for one in beside]
    opened.close()
    print(json.dumps([sorted(heard), alive, opened.alarms._process.wait()]))
"""


@pytest.mark.slow
def test_a3_signals_to_the_whole_job_end_nothing_beside_the_training(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
        start_new_session=True,
    )
    heard, alive, ended = json.loads(done.stdout)
    assert heard == sorted([*map(int, _signals.OF_THE_JOB)] * 2)  # the training decides what each means
    assert alive == [None, None]
    assert ended == 0  # what ends by itself when it is told to isn't aborted
    with Run(tmp_path / "run") as run:
        assert run.incidents.empty
    with Run(tmp_path / "copy") as copied:
        assert set(copied.memory["step"].dropna()) == {1, 2}
    assert tensorboard_scalars(tmp_path / "run" / "tensorboard")


def test_a3_a_signal_that_comes_while_a_process_begins_waits_until_it_is_ignored() -> None:
    code = """
        import sys
        print("there", flush=True)
        sys.stdin.readline()
        from probe import _signals
        _signals.ignore()
        print("on", flush=True)
        sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with _signals.kept_back():
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        for said in ("there\n", "on\n"):
            assert process.stdout.readline() == said
            for number in _signals.OF_THE_JOB:
                process.send_signal(number)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a3_one_that_is_not_ignored_means_what_it_meant() -> None:
    code = "import os, signal; from probe import _signals; _signals.ignore(signal.SIGTERM); os.kill(os.getpid(), 15)"
    with _signals.kept_back():
        process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    assert process.wait(TIMEOUT_S) == -signal.SIGTERM
