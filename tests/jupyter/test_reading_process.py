"""The process beside a Jupyter server that reads runs: when it begins and ends, and what it and its views outlive."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.errors import RunNotFoundError
from tests.jupyter.serving import NEVER_IDLE, Server, alive, at, await_that, home, one_reader, serving
from tests.sample_run import sample_rows, write_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def idle(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose process ends after a second without a question, and that has one more directory."""
    place, more = tmp_path_factory.mktemp("idle"), f"--Runs.roots={root.parent / 'elsewhere'}"
    with serving(root, place, more, PROBE_JUPYTER_IDLE_S="1") as made:
        assert made.readers() == []
        yield made


def test_1_the_process_begins_with_the_first_view_and_ends_with_the_last(idle: Server):
    await_that(lambda: not any(map(alive, idle.readers())), idle.readers)
    reader = one_reader(idle)
    await_that(lambda: not alive(reader), idle.readers)
    again = one_reader(idle)  # it begins again
    assert again.pid != reader.pid


def test_1_directories_of_the_configuration_and_of_the_settings_are_listed_too(idle: Server, root: Path):
    secret, far = str(root.parent / "elsewhere" / "secret"), str(root.parent / "further" / "far")
    assert secret in {one["run"] for one in idle.ask("runs")[1]["runs"]}
    stream, content = f"message?{at(secret)}", {"v": 1, "t": "mark", "id": 1}
    assert idle.ask(stream, content)[0] == 200
    assert idle.ask(f"message?{at(far)}", content)[0] == 404
    gone = str(root.parent / "nowhere")
    assert idle.ask("roots", {"roots": [str(root.parent / "further"), gone]}) == (200, {})
    status, told = idle.ask("runs")
    assert (status, told["missing"]) == (200, [gone])
    assert {secret, far} < {one["run"] for one in told["runs"]}
    assert idle.ask(f"message?{at(far)}", content)[0] == 200


def test_1_it_gives_its_memory_back_outlives_what_is_killed_and_ends_with_the_server(tmp_path: Path):
    """One server for all of it, as each start takes seconds."""
    root = home(tmp_path)
    with serving(root, tmp_path, **NEVER_IDLE) as server:
        # A look whose process is killed leaves the others.
        reader = one_reader(server)
        for one in await_that(lambda: reader.children()):
            one.kill()
        await_that(lambda: all(one["verdict"] for one in server.ask("runs")[1]["runs"]))

        # What looks at runs ends when it is done: nothing that reads rows was ever loaded into the process that stays.
        assert {one["state"] for one in server.ask("runs")[1]["runs"]} == {"silent"}  # for long: nobody follows it
        await_that(lambda: not reader.children(recursive=True))
        loaded = Path(f"/proc/{reader.pid}/maps").read_text()
        assert "duckdb" not in loaded
        assert "pandas" not in loaded

        # What looks at runs ends with a process that is killed, and that one is begun again.
        write_run(root / "runs" / "late", sample_rows(1, 3), project="late")
        looking = await_that(lambda: server.ask("runs") and reader.children())
        # None of them keeps an answer beside the rows of a run.
        kept = [Path(f"/proc/{one.pid}/environ").read_bytes() for one in (reader, *looking)]
        assert all(b"PROBE_KEEP_ANSWERS=0\0" in one for one in kept)
        reader.kill()
        await_that(lambda: not any(map(alive, looking)))
        assert await_that(lambda: server.ask("runs")[0] == 200)
        again = one_reader(server)
        assert again.pid != reader.pid

        # It ends with a server that is killed.
        server.process.kill()
        await_that(lambda: not alive(again), lambda: again)


def test_1_the_list_says_what_the_open_panel_of_a_run_shows(tmp_path: Path):
    from probe.jupyter.reading import Reading

    reading = Reading([str(home(tmp_path))])
    try:

        def listed() -> Any:
            found = {one["run"]: one["verdict"] for one in reading.runs()["runs"]}["runs/first"]
            return found if found and found["worst"] else None

        judged = await_that(listed, reading.runs)
        assert reading._judge is not None
        reading._judge.close()  # what it has found stays
        panel = reading.panel("runs/first")
        await_that(lambda: panel._verdict.told["findings"], lambda: panel._verdict.told)
        other = {**panel._verdict.told["findings"][0], "kind": "tuning", "sentence": "The panel says so."}
        panel._verdict.stop()  # what it has found stays
        panel._verdict.told = {**panel._verdict.told, "findings": [other]}
        shown = listed()
        assert shown["worst"] == other
        assert shown["alarms"] == 0
        assert shown["peak_bytes"] == judged["peak_bytes"]
        panel.pump.feed.attempt = 1  # of another attempt the panel says something else
        assert listed()["worst"] == judged["worst"]
    finally:
        reading.close()


def test_1_a_run_that_takes_long_to_be_read_is_not_let_go_meanwhile(tmp_path: Path):
    from probe.jupyter import reading as module

    reading = module.Reading([str(home(tmp_path))])
    try:
        panel = reading.panel("runs/first")
        assert panel.ready.wait(300)
        panel.ready.clear()  # as while it is still being read
        (path,) = reading._panels
        long_ago = time.monotonic() - 10 * module.KEPT_S
        reading._panels[path] = panel, long_ago
        reading.tidy()
        assert not panel.closed
        panel.ready.set()
        reading._panels[path] = panel, long_ago
        reading.tidy()
        assert panel.closed
    finally:
        reading.close()


def test_5_a_link_that_comes_later_hides_the_run_and_ends_its_panel(tmp_path: Path):
    from probe.jupyter.reading import Reading

    root, secret = home(tmp_path), tmp_path / "secret.jsonl"
    secret.write_text("{}")
    (root / "runs" / "first" / "parts").mkdir()
    reading = Reading([str(root)])
    try:
        assert [one["run"] for one in reading.runs()["runs"]] == ["runs/first"]
        panel = reading.panel("runs/first")
        (root / "runs" / "first" / "parts" / "memory-rank00007-0.parquet").symlink_to(secret)
        assert reading.runs()["runs"] == []
        assert panel.ready.wait(300)
        reading.tidy()
        assert panel.closed
    finally:
        reading.close()


def test_1_a_panel_whose_run_is_deleted_tells_its_pages(tmp_path: Path):
    from probe.jupyter.reading import Reading

    root = home(tmp_path)
    reading = Reading([str(root)])
    try:
        panel = reading.panel("runs/first")
        assert panel.ready.wait(300)
        shutil.rmtree(root / "runs" / "first")
        reading.tidy()
        assert panel.closed
        with pytest.raises(RunNotFoundError):
            reading.panel("runs/first")
    finally:
        reading.close()


def test_1_a_tab_and_the_list_need_neither_anywidget_nor_ipywidgets(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path\n"
        "sys.modules.update(dict.fromkeys(('anywidget', 'ipywidgets', 'IPython')))\n"
        "from probe.jupyter.reading import Reading\n"
        "reading = Reading([sys.argv[1]]); panel = reading.panel('runs/first')\n"
        "assert panel.ready.wait(300); print(panel.config()['title'], [one['run'] for one in reading.runs()['runs']])\n"
        "reading.close()"
    )
    done = subprocess.run([sys.executable, "-c", code, home(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "shop / first ['runs/first']\n", done.stderr


def test_1_a_server_that_nobody_asks_loads_nothing_that_reads():
    code = (
        "import sys, json, probe.jupyter.handlers; "
        "print(json.dumps(sorted({one.split('.')[0] for one in sys.modules}), default=str))"
    )
    loaded = set(json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))
    assert not loaded & {"torch", "numpy", "pandas", "duckdb", "pyarrow", "plotly", "msgspec"}


def test_5_runs_beside_a_run_are_read_only_where_they_are_below_a_root(tmp_path: Path):
    from probe.jupyter.reading import Reading

    root = home(tmp_path)
    for place, name, beside in ((root, "runs/first", True), (root / "runs" / "first", ".", False)):
        reading = Reading([str(place)])
        try:
            panel = reading.panel(name)
            assert panel.beside is beside
            assert panel.ready.wait(300)
            command = panel._verdict._aside._command
            assert ("--alone" in command) is not beside
        finally:
            reading.close()
