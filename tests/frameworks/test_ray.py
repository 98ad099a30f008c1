"""A real job on a local Ray: its driver, ranks that learn late who they are, and an actor that is killed and restarted.

Ray lives in an environment of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import probe
from probe.cli.run import environment
from probe.live.feed import Feed
from probe.runs import liveness
from probe.runs.files import RunFiles
from probe.runs.reader import Run
from tests.adapters.start_file import ROOT, TIMER, package
from tests.frameworks.ray_actors import Copied, Judge, Worker
from tests.ports import free_port

pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray, which lives in its own environment"),
    pytest.mark.filterwarnings("ignore"),  # what it and its dependencies warn of is theirs to mend
]

ACTOR = {"num_cpus": 0.1, "max_restarts": 1, "max_task_retries": 1}


@contextlib.contextmanager
def local_ray() -> Iterator[Any]:
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        try:
            yield ray
        finally:
            ray.shutdown()


@pytest.fixture
def ray() -> Iterator[Any]:
    with local_ray() as ray:
        yield ray


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a job one of whose workers was killed."""
    directory = tmp_path_factory.mktemp("job") / "run"
    with local_ray() as ray:
        train(ray, directory, killed=True)
    return directory


def until_gone(pid: int) -> None:
    """Returns once no process has this number; asks for a minute at most."""
    import psutil

    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def train(ray: Any, directory: Path, *, killed: bool) -> None:
    """A job in which rank 1 dies after step 1 and is made again by Ray, or none does."""
    workers = [ray.remote(**ACTOR)(Worker).remote(str(directory), rank) for rank in range(2)]
    judge = ray.remote(num_cpus=0.1)(Judge).options(name="judge").remote(str(directory))
    with probe.start("ray", run_dir=directory, name="driver", role="driver") as session:
        for number in range(4):
            with session.step(number):
                before = ray.get([one.step.remote(number) for one in workers])
                ray.get(judge.score.remote())
            if killed and number == 1:
                ray.kill(workers[1], no_restart=False)
                until_gone(before[1])  # Ray kills it a moment later: till then it would answer
                assert ray.get(workers[1].rank.remote()) in (None, 1)  # there again
                assert ray.get(workers[1].step.remote(number)) != before[1]
        until = time.monotonic() + 60
        while ray.get([one.rank.remote() for one in workers]) != [0, 1]:
            assert time.monotonic() < until
            time.sleep(0.1)
    for one in (*workers, judge):
        with contextlib.suppress(Exception):
            ray.kill(one)


def test_b_a_job_on_ray_has_its_ranks_its_driver_and_the_others(job: Path) -> None:
    with Run(job) as run:
        assert run.attempts == [1]  # of an actor that Ray restarts too
        assert run.ranks == [0, 1]
        steps = run.sql(
            """select distinct who(rank, process) as who, step from memory where kind = 'step' and edge = 'leave'
            order by who, step"""
        )
        known = {name: list(group["step"]) for name, group in steps.groupby("who")}
        assert known == {"driver": [0, 1, 2, 3], "rank 0": [0, 1, 2, 3], "rank 1": [0, 1, 2, 3]}
        named = run.processes.set_index("process")
        assert named["role"]["reward"] == "reward"
        scored = run.memory[run.memory["process"] == "reward"]
        assert set(scored["phase"].dropna()) == {"score"}
        assert run.incidents.empty


def test_a_a_second_job_on_ray_is_another_attempt(job: Path, ray: Any, tmp_path: Path) -> None:
    shutil.copytree(job, tmp_path / "run")
    train(ray, tmp_path / "run", killed=False)
    with Run(tmp_path / "run") as run:
        assert run.attempts == [1, 2]
        ended = run.sql("select who(rank, process) as who from memory where kind = 'step' and edge = 'leave'")
        assert ended["who"].value_counts().to_dict() == {"driver": 4, "rank 0": 4, "rank 1": 4}


@pytest.mark.slow
def test_7_what_an_actor_recorded_is_copied_after_its_end(ray: Any, tmp_path: Path) -> None:
    """Ray kills the children of its workers; what the next look, in ten seconds, would send is sent all the same.

    Of an actor that Ray kills, and of one that nobody holds any more.
    """
    places = [tmp_path / "killed", tmp_path / "let go"]
    actors = [ray.remote(num_cpus=0.1)(Copied).remote(str(one / "run"), str(one / "copy")) for one in places]
    pids = ray.get([one.train.remote() for one in actors])
    ray.kill(actors[0])
    actors.clear()
    for place, pid in zip(places, pids, strict=True):
        until_gone(pid)
        with Run(place / "run") as run, Run(place / "copy") as copy:
            assert sorted(copy.memory["step"].dropna().unique()) == [0, 1, 2, 3]
            assert len(copy.memory) == len(run.memory)


# ------------------------------------------------------------------------ zero lines: `probe run`, and how a job ends

JOB = """
import os, signal, sys
import ray

class Worker:
    def __init__(self, rank):
        from nemo_rl.utils.timer import Timer
        self.timer = Timer()
        os.environ.update(RANK=str(rank), WORLD_SIZE="2")  # as verl's workers, after the first import

    def train(self, label):
        with self.timer.time(label):
            pass
        return os.getpid()

    def pid(self):
        return os.getpid()

how = sys.argv[1]
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
kind = ray.remote(num_cpus=0.1, max_restarts=1, max_task_retries=1)(Worker)
workers = [kind.remote(rank) for rank in range(2)]
before = ray.get([one.train.remote("first") for one in workers])
if how == "restart":
    import time
    time.sleep(1)  # what it has written by then is in its file
    ray.kill(workers[1], no_restart=False)
    while ray.get(workers[1].pid.remote()) == before[1]:  # it is ended a little later
        time.sleep(0.1)
    ray.get(workers[1].train.remote("again"))
ray.get([one.train.remote("last") for one in workers])
if how == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "error":
    raise ValueError("theirs")
if how == "shutdown":
    ray.shutdown()
"""


#: For drivers that nobody changes and nobody starts by `probe run`.
HOOKED = {"RAY_RUNTIME_ENV_HOOK": "probe_rl.ray.runtime_env"}


def run_job(tmp_path: Path, how: str, *, by: str) -> subprocess.CompletedProcess[str]:
    """The job in a process of its own; observed by `probe run`, by the start file alone, or by Ray's own variable."""
    path = package(tmp_path / "packages", "nemo_rl", **{"utils.timer": TIMER})
    script = tmp_path / "job.py"
    script.write_text(JOB)
    known = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    more = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    env = {**known, **more, "PYTHONPATH": os.pathsep.join([str(path), ROOT])}
    launch = [sys.executable, "-W", "ignore", str(script), how]
    if by == "probe run":
        launch = [sys.executable, "-m", "probe", "run", "--run-dir", str(tmp_path / "run"), "--", *launch]
    elif by == "start file":
        env = environment(env, tmp_path / "run", None)
    else:
        env |= {**HOOKED, "PROBE_RUN_DIR": str(tmp_path / "run")}
    return subprocess.run(launch, env=env, capture_output=True, text=True, timeout=400, check=False)


def phases_of(run: Run) -> dict[int, list[str]]:
    rows = run.sql("select rank, phase from memory where kind = 'phase' and edge = 'leave' order by wall_ns")
    return {int(rank): list(group["phase"]) for rank, group in rows.groupby("rank")}


def test_4_workers_of_ray_are_of_the_run_and_a_killed_one_goes_on_in_its_own_file(tmp_path: Path) -> None:
    done = run_job(tmp_path, "restart", by="probe run")
    assert done.returncode == 0, done.stderr
    assert "nemo_rl: 1 of 5 points are observed" in done.stderr
    with Run(tmp_path / "run") as run:
        assert run.attempts == [1]
        assert run.ranks == [0, 1]  # learnt late
        assert phases_of(run) == {0: ["first", "last"], 1: ["first", "again", "last"]}
    files = RunFiles(tmp_path / "run")
    assert not files.look()[0]
    assert Feed(tmp_path / "run").finished()


@pytest.mark.parametrize(
    ("how", "by"),
    [("exit", "start file"), ("shutdown", "Ray's variable"), ("error", "start file")],
)
def test_4_a_job_that_ended_never_looks_killed_because_ray_ended_its_actors(tmp_path: Path, how: str, by: str) -> None:
    """Without anybody who looks after it: the driver's own end tells the actors, before Ray ends them."""
    done = run_job(tmp_path, how, by=by)
    assert done.returncode == (1 if how == "error" else 0), done.stderr
    assert ("ValueError: theirs" in done.stderr) == (how == "error")
    files = RunFiles(tmp_path / "run")
    assert Feed(tmp_path / "run").finished()
    assert not liveness.all_gone(files)
    with Run(tmp_path / "run") as run:
        assert phases_of(run) == {0: ["first", "last"], 1: ["first", "last"]}


def test_4_a_job_whose_driver_was_killed_looks_like_it(tmp_path: Path) -> None:
    done = run_job(tmp_path, "crash", by="probe run")
    assert done.returncode == -signal.SIGKILL
    until = time.monotonic() + 60
    while not liveness.all_gone(RunFiles(tmp_path / "run")):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert not Feed(tmp_path / "run").finished()


# ----------------------------------------------------------------------------- a cluster that was there before the job

LATER_JOB = """
import os, sys
import ray

class Worker:
    def train(self):
        from nemo_rl.utils.timer import Timer
        with Timer().time("update"):
            pass
        return {name: os.environ.get(name) for name in ("MINE", "PROBE_RUN_DIR")}, sys.path

ray.init(address=sys.argv[1], runtime_env={"env_vars": {"MINE": "theirs"}}, log_to_driver=False, logging_level="ERROR")
worker = ray.remote(num_cpus=0.1)(Worker).remote()
told, path = ray.get(worker.train.remote())
print(told)
print(path)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The address of a cluster that knows nothing of a run, with a path of its own."""
    packages = package(tmp_path_factory.mktemp("packages"), "nemo_rl", **{"utils.timer": TIMER})
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "RAY_"))}
    more = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    more |= {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}  # of 30 in which somebody's requests could be answered
    place, port = tempfile.mkdtemp(prefix="ray", dir="/tmp"), free_port()  # a socket's path is short
    command = [
        str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--include-dashboard=false",
        "--num-cpus=2", "--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={place}",
        "--min-worker-port=0", "--max-worker-port=0", f"--ray-client-server-port={free_port()}",
    ]  # fmt: skip
    log = Path(place) / "start.log"
    with log.open("w") as out:
        head = subprocess.Popen(
            command, env={**known, **more, "PYTHONPATH": os.pathsep.join([str(packages), ROOT])},
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    until = time.monotonic() + 120
    while "Ray runtime started" not in log.read_text():
        assert head.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.2)
    yield f"127.0.0.1:{port}"
    head.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        head.wait(30)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(head.pid, signal.SIGKILL)
    head.wait()
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("way", ["address", "auto", "off", "Ray's variable"])
def test_4_workers_of_a_cluster_that_was_there_before_are_of_the_run(cluster: str, tmp_path: Path, way: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(LATER_JOB)
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "RAY_"))}
    more = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": ROOT}
    more |= {"RAY_ADDRESS": cluster} if way == "auto" else {}
    more |= {"PROBE_RUNTIME_ENV": "off"} if way == "off" else {}
    launch = [sys.executable, "-W", "ignore", str(script), "auto" if way == "auto" else cluster]
    if way == "Ray's variable":
        more |= {**HOOKED, "PROBE_RUN_DIR": str(tmp_path / "run")}
    else:
        launch = [sys.executable, "-m", "probe", "run", "--run-dir", str(tmp_path / "run"), "--", *launch]
    done = subprocess.run(
        launch, env={**known, **more}, capture_output=True, text=True, timeout=400, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told, path = map(eval, done.stdout.splitlines()[-2:])
    assert told == {"MINE": "theirs", "PROBE_RUN_DIR": None if way == "off" else str(tmp_path / "run")}
    assert any("packages" in one for one in path)  # its own path is kept
    with Run(tmp_path / "run") as run:
        rows = run.sql("select phase, attempt from memory where kind = 'phase' and edge = 'leave'")
        assert rows.to_dict("split")["data"] == ([] if way == "off" else [["update", 1]])
    if way != "off":
        assert Feed(tmp_path / "run").finished()


TRAIN_JOB = """
import sys
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    from nemo_rl.utils.timer import Timer
    with Timer().time("update"):
        pass

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
made = {"scaling_config": ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5})}
TorchTrainer(train, **made, run_config=RunConfig(storage_path=sys.argv[2])).fit()
"""


def test_12_workers_of_ray_train_are_of_the_run_by_its_own_variable(cluster: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(TRAIN_JOB)
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "RAY_"))}
    more = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": ROOT}
    more |= {"RAY_TRAIN_CALLBACKS": "probe_rl.ray.TrainCallback", "RAY_TRAIN_V2_ENABLED": "1"}
    more |= {"PROBE_RUN_DIR": str(tmp_path / "run")}
    launch = [sys.executable, "-W", "ignore", str(script), cluster, str(tmp_path / "results")]
    done = subprocess.run(launch, env={**known, **more}, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    with Run(tmp_path / "run") as run:
        assert run.ranks == [0, 1]
        assert phases_of(run) == {0: ["update"], 1: ["update"]}
    assert Feed(tmp_path / "run").finished()
    assert not liveness.all_gone(RunFiles(tmp_path / "run"))


@pytest.mark.usefixtures("lenient")
def test_12_what_workers_of_ray_train_recorded_last_is_written_before_they_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from probe_rl.ray import TrainCallback

    waited: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "wait", lambda asked, **told: waited.append({"asked": len(asked), **told}))
    callback = TrainCallback()
    callback.environ = {"PROBE_RUN_DIR": str(tmp_path / "run")}
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1):
        with probe.phase("update"):
            pass
        callback.before_worker_group_shutdown(SimpleNamespace(execute_async=lambda write: [write()]))
        written = (tmp_path / "run" / "rank-00000.jsonl").read_text()
    assert '"update"' in written
    assert waited == [{"asked": 1, "num_returns": 1, "timeout": 5}]  # a worker that hangs holds nobody up for longer
    # One that is gone, and a job that isn't recorded, are no error.
    callback.before_worker_group_shutdown(SimpleNamespace())
    callback.environ = {}
    callback.before_worker_group_shutdown(None)


ASKED = """
import sys
from probe_rl.ray import TrainCallback

class Workers:
    def execute(self, fn, *args):
        raise RuntimeError("a worker is gone")

TrainCallback().after_worker_group_start(Workers())
print(sorted(one for one in sys.modules if one.partition(".")[0] == "probe")[:1])
"""


@pytest.mark.parametrize("named", [True, False])
def test_12_ray_trains_callback_loads_nothing_where_nobody_asks_and_never_raises(tmp_path: Path, named: bool) -> None:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "RAY_"))}
    known |= {"PYTHONPATH": ROOT, **({"PROBE_RUN_DIR": str(tmp_path / "run")} if named else {})}
    launch = [sys.executable, "-W", "ignore", "-P", "-c", ASKED]
    done = subprocess.run(launch, env=known, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "['probe']\n" if named else "[]\n"), done.stderr
    assert ("a worker is gone" in done.stderr) == named


@pytest.mark.usefixtures("lenient")
def test_12_a_worker_whose_environment_has_no_probe_works_as_before(tmp_path: Path) -> None:
    """The hook is sent as it stands: a worker needs nothing of ours to load it."""
    from ray import cloudpickle

    from probe_rl.ray import TrainCallback, _observe

    callback = TrainCallback()
    callback.environ = {"MINE": "theirs"}
    (tmp_path / "sent").write_bytes(cloudpickle.dumps((_observe, callback)))
    code = (
        "import os, sys; from types import SimpleNamespace; from ray import cloudpickle;"
        "sys.modules['probe_rl'] = sys.modules['probe'] = None;"
        f"hook, callback = cloudpickle.loads(open({str(tmp_path / 'sent')!r}, 'rb').read()); hook();"
        "callback.after_worker_group_start(SimpleNamespace(execute=lambda fn, *args: fn(*args)));"
        "print(os.environ['MINE'], 'works')"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "theirs works\n"), done.stderr
    assert done.stderr.count("probe can't observe process ") == 2
