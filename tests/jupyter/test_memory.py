"""Who holds memory on a Jupyter server's machine: real processes, and the driver's list of them as it is documented."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from probe.devices import Gpus
from probe.jupyter import holders as module
from probe.jupyter.holders import Holders
from probe.jupyter.kernels import kernels
from probe.jupyter.memory import Memory
from probe.jupyter.reading import Reading
from tests.nvml import GIB, FakeNvml, NVMLError, gpu, process
from tests.sample_run import sample_rows, write_run

OTHER = 2**22 + 1  #: an id that no process of Linux has


class Tree:
    """A process, as a kernel, with a child; both have the driver's device open where they use it."""

    def __init__(self, place: Path, **variables: str) -> None:
        (place / "dev").mkdir(parents=True)
        self.device = place / "dev" / "nvidia0"
        self.device.touch()
        hold = f"device = open({str(self.device)!r}); "
        child = f"{hold}import time; print('ready', flush=True); time.sleep(1000)"
        code = (
            f"{hold}import subprocess, sys\n"
            f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
            "child.stdout.readline(); print(child.pid, flush=True); sys.stdin.read()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
        )
        assert self.process.stdout is not None
        self.child = int(self.process.stdout.readline())

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        for one in (psutil.Process(self.child), self.process):
            one.kill()
        self.process.communicate()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path / "tree")
    yield made
    made.end()


def kernel(pid: int, path: str = "a/train.ipynb", **more: Any) -> dict[str, Any]:
    session = {"path": path, "name": Path(path).name, "type": "notebook"}
    told = {"id": f"k{pid}", "pid": pid, "name": "python3", "state": "idle", "last": "2026-11-28T10:00:00.5Z"}
    return {**told, "sessions": [session], **more}


def test_a_kernel_and_its_child_are_one_holder_with_its_notebook_and_since_when_it_is_idle(tree: Tree) -> None:
    used = [(tree.pid, 30), (tree.child, 50)]
    (one,) = Holders([kernel(tree.pid)], 1, {}).on_gpu(used)
    assert (one["what"], one["bytes"], one["count"]) == ("kernel", 80, 2)
    assert [(part["pid"], part["bytes"]) for part in one["processes"]] == [(tree.child, 50), (tree.pid, 30)]
    child, own = one["processes"]
    assert own["name"] is None
    assert child["name"].startswith("python")
    assert one["kernel"]["sessions"] == [{"path": "a/train.ipynb", "name": "train.ipynb", "type": "notebook"}]
    assert (one["kernel"]["state"], one["kernel"]["since_s"]) == ("idle", 1795860000.5)
    assert one["run"] is None
    (one,) = Holders([kernel(tree.pid, last="")], 1, {}).on_gpu(used)
    assert one["kernel"]["since_s"] is None


def test_a_process_of_a_run_is_named_also_below_a_kernel_and_its_children_are_its_own(tree: Tree) -> None:
    here = {tree.child: {"run": "runs/first", "who": "rank 3", "role": "actor"}}
    used = [(tree.pid, 30), (tree.child, 50)]
    rank, own = Holders([kernel(tree.pid)], 1, here).on_gpu(used)
    assert (rank["what"], rank["kernel"]["id"], rank["run"]) == ("kernel", f"k{tree.pid}", here[tree.child])
    assert (own["what"], own["run"], own["bytes"]) == ("kernel", None, 30)
    rank, other = Holders([], 1, here).on_gpu(used)
    assert (rank["what"], rank["run"]["who"], rank["kernel"]) == ("run", "rank 3", None)
    assert other["what"] == "process"
    (whole,) = Holders([], 1, {tree.pid: here[tree.child]}).on_gpu(used)
    assert (whole["what"], whole["bytes"], whole["count"]) == ("run", 80, 2)


def test_what_is_not_known_is_none_and_comes_last(tree: Tree) -> None:
    first, last = Holders([kernel(tree.pid)], 1, {}).on_gpu([(tree.child, None), (OTHER, 5)])
    assert (first["bytes"], last["what"], last["bytes"]) == (5, "kernel", None)
    (half,) = Holders([kernel(tree.pid)], 1, {}).on_gpu([(tree.child, None), (tree.pid, 5)])
    assert (half["bytes"], [part["bytes"] for part in half["processes"]]) == (5, [5, None])


def test_the_server_another_process_and_one_that_this_system_does_not_know(tree: Tree, tmp_path: Path) -> None:
    script = tmp_path / "serve model.py"
    script.write_text(f"device = open({str(tree.device)!r}); print(1, flush=True); input()")
    with subprocess.Popen(
        [sys.executable, "-u", str(script), "--api-key=secret"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as served:
        assert served.stdout is not None
        served.stdout.readline()
        used = [(tree.pid, 9), (served.pid, 8), (OTHER, 7)]
        server, other, stranger = Holders([], tree.pid, {}).on_gpu(used)
        served.communicate(b"\n")
    assert (server["what"], server["name"]) == ("server", None)
    assert (other["what"], other["user"]) == ("process", None)
    assert other["name"].startswith("python")
    assert other["name"].endswith(" serve model.py")  # and no argument, which may be a secret
    assert (stranger["what"], stranger["name"], stranger["count"]) == ("stranger", None, 1)


def test_of_another_user_s_process_only_name_and_user_are_told(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for hidden in ("cmdline", "environ"):
        monkeypatch.setattr(psutil.Process, hidden, lambda _: pytest.fail("nobody may ask for this"))
    monkeypatch.setattr(module, "_is_mine", lambda _: False)
    (one,) = Holders([], 1, {}).on_gpu([(tree.pid, 9)])
    assert (one["what"], one["user"]) == ("process", psutil.Process().username())
    assert one["name"].startswith("python")
    assert " " not in one["name"]


@pytest.mark.skipif(sys.platform != "linux", reason="there it can't be asked which files are open")
def test_an_id_of_the_host_is_no_process_of_this_container_that_has_the_same(tree: Tree) -> None:
    """A driver that counts by the host's ids names a kernel's id by chance: it has no device of the driver's open."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as idle:
        (one,) = Holders([kernel(idle.pid)], 1, {}).on_gpu([(idle.pid, 40 * GIB)])
        idle.communicate(b"\n")
    assert (one["what"], one["kernel"]) == ("stranger", None)


def test_what_outlives_its_kernel_is_told_by_its_notebook_and_only_to_its_own_server(tmp_path: Path) -> None:
    notebook = str(tmp_path / "home" / "a" / "left.ipynb")
    tree = Tree(tmp_path, JPY_PARENT_PID="4242", JPY_SESSION_NAME=notebook)
    try:
        tree.process.kill()
        tree.process.wait()

        def asked(server: int) -> dict[str, Any]:
            name = lambda path: path.relative_to(tmp_path / "home").as_posix()  # noqa: E731 - a stand-in of one line
            (one,) = Holders([], server, {}, name).on_gpu([(tree.child, 5)])
            return one

        assert (asked(4242)["what"], asked(4242)["path"]) == ("left", "a/left.ipynb")
        assert (asked(4243)["what"], asked(4243)["path"]) == ("process", None)
    finally:
        psutil.Process(tree.child).kill()
        tree.process.communicate()


def test_without_a_gpu_the_resident_memory_of_kernels_and_runs_is_told_with_their_children(tree: Tree) -> None:
    told = Memory(SimpleNamespace(read=list, why="no driver")).read(Holders([kernel(tree.pid)], 1, {}))  # type: ignore[arg-type]
    assert (told["kind"], told["why"]) == ("rss", "no driver")
    (machine,) = told["devices"]
    assert machine["total_bytes"] == psutil.virtual_memory().total
    (one,) = machine["holders"]
    assert {part["pid"] for part in one["processes"]} == {tree.pid, tree.child}
    for part in one["processes"]:
        assert part["bytes"] == pytest.approx(psutil.Process(part["pid"]).memory_info().rss, rel=0.3)
    assert one["bytes"] == sum(part["bytes"] for part in one["processes"])
    assert Holders([], os.getpid(), {}).resident() == []  # neither the server nor others


def test_of_many_children_the_largest_are_told_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holders, "_who", lambda *_: {**dict.fromkeys(("kernel", "run", "path")), "what": "server"})
    (one,) = Holders([], 1, {}).on_gpu((pid, pid) for pid in range(1, 101))
    assert (one["count"], len(one["processes"]), one["bytes"]) == (100, module.MOST_PROCESSES, 5050)
    assert one["processes"][0]["pid"] == 100


def test_the_reading_process_puts_gpus_kernels_and_runs_together(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = gpu(used=60 * GIB, compute=[process(tree.pid, 20 * GIB), process(tree.child, 40 * GIB)])
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(told, NVMLError("GPU is lost")))
    write_run(tmp_path / "home" / "runs" / "first", sample_rows(1, 2), project="shop", experiment="first")
    from probe.jupyter import describing

    here = {tree.child: {"who": "rank 0", "role": None}}
    monkeypatch.setattr(describing, "here", lambda _: here)
    monkeypatch.setattr(describing, "now", lambda _: [SimpleNamespace(closed=False, alive=None)])
    monkeypatch.setattr(describing, "state", lambda _: {"state": "live"})
    reading = Reading([str(tmp_path / "home")])
    try:
        found = reading.memory([kernel(tree.pid)], os.getpid())
        assert reading._judge is None  # nothing is looked for in runs that nobody lists
        whole, lost = found["devices"]
        assert (found["kind"], whole["number"], whole["used_bytes"], whole["listed"]) == ("gpu", "0", 60 * GIB, True)
        rank, own = whole["holders"]
        assert (rank["bytes"], rank["run"]["run"], rank["run"]["who"]) == (40 * GIB, "runs/first", "rank 0")
        assert (own["bytes"], own["kernel"]["sessions"][0]["path"]) == (20 * GIB, "a/train.ipynb")
        assert (lost["why"], lost["listed"], lost["holders"]) == ("GPU is lost", False, [])
    finally:
        reading.close()


def test_asking_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Slow(Gpus):
        def read(self) -> list[Any]:
            asked.append(1)
            time.sleep(0.05)
            return []

    memory = Memory(Slow())
    for _ in range(3):
        memory.read(Holders([], 1, {}))
    assert len(asked) == 1
    later = time.monotonic() + 31
    monkeypatch.setattr(time, "monotonic", lambda: later)
    memory.read(Holders([], 1, {}))
    assert len(asked) == 2


def test_the_kernels_of_the_server_are_told_with_who_uses_them() -> None:
    from jupyter_client.provisioning import LocalProvisioner

    local, gone = LocalProvisioner(), KeyError("gone")
    local.pid = 77
    provisioners = {"a": local, "b": SimpleNamespace(pid=78), "d": LocalProvisioner()}
    model = {"name": "python3", "last_activity": "2026-11-28T10:00:00Z", "execution_state": "busy"}

    def get(kernel: str) -> Any:
        if kernel not in provisioners:
            raise gone
        return SimpleNamespace(provisioner=provisioners[kernel])

    async def sessions() -> list[dict[str, Any]]:
        used = {"path": "a/train.ipynb", "name": "train.ipynb", "type": "notebook", "id": "s"}
        return [{**used, "kernel": {"id": "a"}}, {**used, "path": "c", "type": "console", "kernel": {"id": "a"}}]

    manager = SimpleNamespace(list_kernels=lambda: [{"id": one, **model} for one in "abcd"], get_kernel=get)
    (one,) = asyncio.run(
        kernels(SimpleNamespace(list_sessions=sessions), manager)
    )  # b runs elsewhere, c is gone, d begins
    assert (one["id"], one["pid"], one["state"], one["last"]) == ("a", 77, "busy", "2026-11-28T10:00:00Z")
    assert [(used["path"], used["type"]) for used in one["sessions"]] == [
        ("a/train.ipynb", "notebook"),
        ("c", "console"),
    ]
