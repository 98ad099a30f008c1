"""The panel itself: its thread, its widget, and what it leaves behind, in real kernels where that matters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from probe.errors import InputError, InputTypeError, RunError, RunNotFoundError, UnknownNameError
from probe.live import series
from probe.opened import Run
from probe.session import start
from probe.views.panel import assets
from probe.views.panel import panel as panels
from probe.views.panel.panel import Panel, panel
from tests.live.live_run import append, in_order, roll
from tests.runs.test_attempts import train
from tests.sample_run import sample_rows, write_run
from tests.waiting import PATIENCE_S, until

PLOTLY, SVG, TEXT, HTML = "application/vnd.plotly.v1+json", "image/svg+xml", "text/plain", "text/html"
VIEW = "application/vnd.jupyter.widget-view+json"
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_panel_is_left_open():
    yield
    left = list(panels._open.values())
    for one in left:  # the test after this one finds none
        one.close()
    assert not left
    until(lambda: [one for one in threading.enumerate() if one.name == "probe-panel"], lambda threads: not threads)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", sample_rows(2, 4))


class Wire:
    """In the place of a widget's way to the browser."""

    def __init__(self, shown: Panel) -> None:
        self.heads: list[dict[str, Any]] = []
        self.broken = False
        shown.widget.send = self
        shown._pump.deliver = self

    def __call__(self, head: dict[str, Any], buffers: Any = None) -> None:
        if self.broken:
            raise OSError("the comm is gone")
        self.heads.append(json.loads(json.dumps(head)))

    @property
    def last(self) -> dict[str, Any]:
        """The last message that says how the run is; between them may be such that we are still there."""
        return next((head for head in reversed(self.heads) if "step" in head.get("state", {})), {})

    @property
    def anew(self) -> list[dict[str, Any]]:
        """The messages that take the place of all that was there: of another attempt."""
        return [head for head in self.heads if head["t"] == "k" and head.get("anew")]

    @property
    def rows(self) -> dict[str, int]:
        return {
            entry["name"]: entry["from"] + entry["n"]
            for head in self.heads
            if head["t"] == "d"
            for entry in head["tables"]
        }


# ------------------------------------------------------------------------------------------ without a notebook


def test_without_a_notebook_it_is_text(directory):
    with Panel(directory) as shown:
        assert "Peak memory" in repr(shown)
        assert "up to step 3" in repr(shown)
        assert VIEW not in shown._repr_mimebundle_()[0]
        assert not [one for one in threading.enumerate() if one.name == "probe-panel"]


def test_it_takes_whatever_has_a_run(directory, tmp_path):
    with Run(directory) as run, start("p", "e", root=tmp_path / "runs") as session:
        for source, path in ((directory, directory), (str(directory), directory), (run, directory)):
            assert Panel(source).path == str(path)
        assert Panel(session).path == str(session.directory)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"source": 3}, InputTypeError, "source: got 3"),
        ({"interval_s": 0.1}, InputError, "interval_s: got 0.1, expected at least 0.25"),
        ({"interval_s": float("nan")}, InputError, "interval_s: got nan"),
        ({"views": ["memory", "nope"]}, UnknownNameError, "views: got 'nope', expected one of data"),
        ({"views": "memory"}, InputError, "views: got 'memory', expected a list"),
        ({"views": []}, InputError, "views"),
        ({"source": "no/such/run"}, RunNotFoundError, "no/such/run"),
    ],
)
def test_wrong_arguments_are_named(directory, arguments, error, message):
    with pytest.raises(error, match=message):
        Panel(**{"source": directory, **arguments})


def test_figures_of_the_run_as_it_is_now(directory):
    with Panel(directory) as shown:
        figure = shown.figure("balance_heat", theme="dark")
        assert figure.data
        assert figure.layout.title.text == "Tokens by rank and micro-batch"
        with pytest.raises(UnknownNameError, match="nope"):
            shown.figure("nope")


def test_the_same_panel_is_shown_again(directory):
    first = panel(directory)
    repr(first)
    assert panel(Run(directory)) is first
    assert panel(directory, title="another") is not first
    first.close()
    first.close()
    assert panel(directory) is not first


@pytest.mark.slow
def test_a_training_process_imports_nothing_of_it(tmp_path):
    code = (
        "import sys, json, pathlib, probe\n"
        f"with probe.start('p', 'e', root={str(tmp_path)!r}) as session:\n"
        "    with session.step(1), probe.phase('update'): pass\n"
        "import probe.views.panel.panel\n"
        "print(json.dumps([m for m in sys.modules if '.' not in m]))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"pandas", "plotly", "ipywidgets", "anywidget", "IPython", "duckdb"} & set(json.loads(found))


def test_the_assets_are_there():
    assert re.findall(
        r"export\{\w+ as Connection,\w+ as default\}", assets.script()
    )  # one module, which imports nothing
    assert not re.search(r"^import\b", assets.script(), re.MULTILINE)
    assert ".probe-panel" in assets.styles()
    for text in (assets.script(), assets.styles(), assets._static("LICENSES.txt")):
        assert "uPlot" in text
        assert "Permission is hereby granted" in text
    assert assets.plotly_packed()[:2] == b"\x1f\x8b"
    assert assets.plotly_packed() is assets.plotly_packed()


# ----------------------------------------------------------------------------------------------- the thread


@pytest.mark.slow
def test_it_follows_a_run_that_another_process_writes(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.views.panel_writer", str(tmp_path), "40"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        path = tmp_path / "written" / "elsewhere"
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        shown = Panel(path)
        wire = Wire(shown)
        until(lambda: shown._pump.feed.step, lambda step: step == 19)
        writer.stdin.write("go on\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "written\n"
        until(lambda: shown._pump.feed.step, lambda step: step == 39)
        assert not shown.state["finished"]
        writer.communicate("end\n")
        until(lambda: shown.state["finished"])
        shown.close()
        assert wire.heads[-1]["state"]["live"] is False
        tables = {name: table.next for name, table in shown._pump.feed.tables.items()}
        assert tables["spans"] >= 80
        assert all(count == tables[name] for name, count in wire.rows.items())
        assert max(len(head["tables"]) for head in wire.heads if head["t"] == "d") >= 1
    finally:
        writer.kill()
        writer.communicate()


@pytest.mark.usefixtures("lenient")
def test_a_failure_is_kept_and_shown_and_the_thread_goes_on(directory, caplog):
    shown = Panel(directory)
    wire = Wire(shown)
    rows = in_order(sample_rows(1, 2, seed=5))
    wire.broken = True
    append(directory, rows[:50])
    until(lambda: shown.errors)
    assert shown.errors[0]["where"] == "send"
    assert "OSError: the comm is gone" in shown.errors[0]["message"]
    assert "send: OSError" in repr(shown)
    wire.broken = False
    append(directory, rows[50:])
    until(lambda: shown.state["errors"], lambda errors: not errors)
    assert "the comm is gone" not in repr(shown)
    assert len(shown.errors) == 1
    assert shown._pump.running
    shown.close()
    assert caplog.text.count("the live panel of") == 1


def test_a_new_attempt_takes_the_place_of_the_one_before_in_a_panel_that_is_open(tmp_path):
    train(tmp_path / "run", 0.25, 4)
    with Panel(tmp_path / "run") as shown:
        wire = Wire(shown)
        assert shown.state["repeated"] == ""
        train(tmp_path / "run", 0.75, 2)
        until(lambda: shown.state["repeated"])
        assert shown.state["repeated"] == "Steps 0 to 3 were recorded twice; the newest is shown."
        # The first message goes out after the state that it brings: there may be none yet.
        until(lambda: wire.last, lambda head: head and head["state"]["step"] == 1)
        (keyframe,) = wire.anew  # what the page had is gone
        assert "spans" in {entry["name"] for entry in keyframe["tables"]}
        assert "recorded twice" in repr(shown)
        with Panel(Run(tmp_path / "run", 1)) as first:
            assert "recorded twice" not in repr(first)
            assert (first.state["step"], first.state["repeated"]) == (3, "")


def test_g_the_sql_of_every_figure_gives_its_numbers(directory):
    with Panel(directory) as shown:
        panels = shown.config()["panels"]
        shown._start()
        feed = shown._pump.feed
        bars = panels["balance_bars"]["live"]
        rows = {**bars, "where": {"step": 3}, "of": "run"}
        expected = {place: value for (place,), value in series.cells(feed.tables, feed.words, rows).items()}
    with Run(directory) as run:
        for id, panel in panels.items():
            found = run.sql(panel["sql"].replace("{step}", "3")) if panel["sql"] else None
            assert found is not None or panel["live"]["mark"] == "tiles", id
        frame = run.sql(panels["balance_bars"]["sql"].replace("{step}", "3"))
    assert len(expected) > 1
    assert dict(zip(frame[bars["x"]], frame["value"], strict=True)) == pytest.approx(expected)


def test_a_page_may_choose_an_attempt_and_go_back_to_the_newest(tmp_path):
    train(tmp_path / "run", 0.25, 4)
    train(tmp_path / "run", 0.75, 2)
    shown = Panel(tmp_path / "run")
    wire = Wire(shown)
    assert (shown.state["attempts"], shown.state["attempt"]) == ([[1, 0, 3], [2, 0, 1]], None)
    name = shown._name()
    shown._marked({"v": 1, "t": "mark", "ask": "attempt", "attempt": 1})
    until(lambda: shown.state["attempt"], lambda attempt: attempt == 1)
    (keyframe,) = until(lambda: wire.anew)  # what the page had is of another attempt
    assert keyframe["state"]["step"] == 3
    assert shown._name() == name  # who asks for the panel of this run gets this one
    for nonsense in (7, "1", True, None):  # none of them is an attempt, and the last goes back
        shown._marked({"v": 1, "t": "mark", "ask": "attempt", "attempt": nonsense})
    _, keyframe = until(lambda: wire.anew, lambda found: len(found) > 1)
    assert (shown.state["attempt"], keyframe["state"]["step"]) == (None, 1)
    assert shown.state["repeated"].startswith("Steps 0 to 3 were recorded twice")
    assert not shown.errors
    shown.close()


def test_a_broken_part_is_named_and_a_mended_one_is_read(directory):
    roll(directory)
    part = next((directory / "parts").glob("memory-*"))
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with Panel(directory) as shown:
        assert part.name in repr(shown)
        shown._start()
        assert len(shown._pump.feed.tables["micro"].columns()["tokens"])  # the other parts are read
        assert part.name in str(shown.state["errors"])
    part.write_bytes(whole)
    with Panel(directory) as shown:
        assert not shown.state["errors"]


def test_a_directory_that_goes_away_ends_nothing(directory):
    shown = Panel(directory)
    Wire(shown)
    for path in directory.glob("*.jsonl"):
        path.unlink()
    shown._pump.round()
    assert shown._pump.running
    shown.close()


# ----------------------------------------------------------------------------------------------- the widget


def test_the_whole_state_is_made_only_when_it_is_asked_for(directory, monkeypatch):
    asked = []
    with Panel(directory) as shown:
        snapshot = shown._pump.snapshot
        monkeypatch.setattr(shown._pump, "snapshot", lambda: asked.append(1) or snapshot())
        widget = shown.widget
        assert len(asked) == 1  # the comm was opened
        widget.send_state("config")
        widget.get_state(key="snapshot")
        assert len(asked) == 1
        state = widget.get_state()
        assert len(asked) == 2
        assert state["snapshot_head"]["t"] == "k"
        assert {entry["name"] for entry in state["snapshot_head"]["tables"]} >= {"spans", "memory", "padding"}
        assert len(state["snapshot"]) > 1000
        assert state["plotly_gz"] is assets.plotly_packed()
        assert widget.snapshot == b""


def test_the_configuration_is_complete_and_plain(directory):
    with Panel(directory, views=["memory", "overview"], title="mine") as shown:
        config = shown.widget.config
    assert json.loads(json.dumps(config)) == config
    assert [view["id"] for view in config["views"]] == ["memory", "overview"]
    assert {id for view in config["views"] for id in view["panels"]} == set(config["panels"])
    assert all(one["live"]["mark"] and one["about"]["do"] for one in config["panels"].values())
    run = {
        "project": "arithmetic",
        "experiment": "grpo-small",
        "path": str(directory),
        "directory": str(directory),
        "world_size": 2,
    }
    assert config["run"] == {**run, "started_at": 1_790_000_000.0}
    assert (config["title"], config["limits"]) == ("mine", {"rows": 20_000, "points": 4000})


def test_the_browser_s_questions_are_answered(directory):
    shown = Panel(directory)
    wire = Wire(shown)
    shown._pump._stop.set()  # the thread may not answer in its own time here
    shown._pump._wake.set()
    shown._pump._thread.join()
    for content in ({"v": 1, "t": "mark", "id": 7, "ask": "ping"}, {"v": 2, "t": "mark"}, "nonsense", {"t": "x"}):
        shown.widget._handle_custom_msg(content, [])
    assert [head for head in wire.heads if head["t"] == "a"] == [{"v": 1, "t": "a", "id": 7}]
    shown.widget._handle_custom_msg({"v": 1, "t": "mark", "id": 8, "ask": "keyframe"}, [])
    shown._pump.round()
    assert wire.heads[-1]["t"] == "k"
    assert sum(entry["n"] for entry in wire.heads[-1]["tables"]) == sum(
        t.count for t in shown._pump.feed.tables.values()
    )
    shown.close()


def test_without_anywidget_it_is_static_and_says_what_to_install(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr(panels, "shell_of_kernel", lambda: True)
    panels.widgets.widget_class.cache_clear()
    with Panel(directory) as shown:
        bundle, _ = shown._repr_mimebundle_()
    assert VIEW not in bundle
    assert "pip install 'probe-rl[notebook]'" in bundle[TEXT]


def test_a_path_is_shown_as_a_person_would_type_it(directory, monkeypatch):
    monkeypatch.chdir(directory.parent)
    with Panel(directory) as shown:
        assert shown._hint() == 'probe.open("run").panel()'
    odd = directory.rename(directory.with_name('a "run"'))
    with Panel(odd) as shown:
        assert eval(shown._hint().removeprefix("probe.open").removesuffix(".panel()")) == 'a "run"'


def test_a_run_that_cannot_be_read_again_still_closes(directory, monkeypatch):
    import probe.views.panel.board as board

    updates: list[dict[str, Any]] = []
    monkeypatch.setattr(board, "figure", lambda *_: (_ for _ in ()).throw(RunError("no")))
    shown = Panel(directory)
    repr(shown)
    monkeypatch.setattr(shown._outputs, "replace", updates.append)
    shown._outputs.shown = True
    shown.close()
    assert len(updates) == 1
    assert shown.errors[-1]["message"] == "RunError: no"


# ----------------------------------------------------------------------------------------------- real kernels

OPEN = """
import functools, time, probe
from probe.live import feed
from probe.views.panel.panel import panel
session = probe.start("arithmetic", "first", root={root!r})
shown = panel(session)
# On a loaded machine a look takes longer than a cell waits for it, and silence is no news yet.
shown._pump.catch_up = functools.partial(shown._pump.catch_up, 300)
feed.QUIET_S = 300
shown
"""
TRAIN = """
for step in range(5):
    with session.step(step), probe.phase("update"):
        time.sleep(0.05)
    session.log({"reward/mean": step / 5}, step)
while shown.state.get("step") != 4 or shown._pump._sender.seq < 2:
    time.sleep(0.05)
time.sleep(0.6)  # the copy at the end of a cell isn't made twice within half a second
print(shown.state["step"], shown._pump._sender.seq, shown.errors)
"""


class Recording:
    """A session as a panel sees one: where it writes, and a flush that writes what it still holds.

    Args:
        directory: Of the run.
        held: Rows that only a flush writes.
    """

    def __init__(self, directory: Path, held: list[Any]) -> None:
        self.directory = directory
        self.waits: list[float] = []
        self._held = held

    def flush(self, timeout_s: float) -> None:
        self.waits.append(timeout_s)
        append(self.directory, self._held)


def test_what_a_session_still_holds_is_seen_when_its_panel_closes(tmp_path):
    every = in_order(sample_rows(2, 4))
    newest = next(index for index, row in enumerate(every) if row.step == 3)
    directory = write_run(tmp_path / "run", {0: [], 1: []})
    append(directory, every[:newest])
    source = Recording(directory, every[newest:])
    shown = Panel(source)
    wire = Wire(shown)
    assert shown.state["step"] == 2
    before = dict(wire.rows)
    shown.close()
    assert source.waits == [panels.FLUSH_S]
    assert shown.state["step"] == 7
    last = wire.heads[-1]
    assert (last["state"]["step"], last["state"]["live"]) == (7, False)
    assert wire.rows != before  # in the last message, or in one that the thread has sent before it
    shown.close()
    assert source.waits == [panels.FLUSH_S]


@pytest.mark.usefixtures("lenient")
def test_a_flush_that_fails_is_shown_and_the_panel_closes(tmp_path):
    directory = write_run(tmp_path / "run", sample_rows(2, 4))
    source = Recording(directory, [])
    source.flush = lambda timeout_s: (_ for _ in ()).throw(OSError(f"no room, after {timeout_s} s"))  # type: ignore[method-assign]  # it fails
    shown = Panel(source)
    Wire(shown)
    shown.close()
    assert shown.closed
    assert [(one["where"], one["message"]) for one in shown.errors] == [("flush", "OSError: no room, after 1.0 s")]
    assert shown.state["step"] == 7


def test_a_panel_that_nobody_showed_flushes_nothing(tmp_path):
    source = Recording(write_run(tmp_path / "run", {0: []}), [])
    Panel(source).close()
    assert source.waits == []


@pytest.mark.slow
def test_a_closed_panel_leaves_figures_and_no_widget(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    cells = [OPEN.format(root=str(tmp_path)), TRAIN, "shown.close()\nsession.close()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    seen: list[set[str]] = []
    client = NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.on_cell_executed = lambda cell, cell_index, execute_reply: seen.append(
        set(notebook.cells[0].outputs[0].data)
    )
    client.execute(env={**_environment(tmp_path)})
    assert seen == [{VIEW, TEXT}, {VIEW, TEXT}, {PLOTLY, SVG, TEXT}]
    step, seq, errors = notebook.cells[1].outputs[0].text.split(" ", 2)
    assert (step, errors.strip()) == ("4", "[]")
    assert int(seq) >= 2
    path = tmp_path / "saved.ipynb"
    nbformat.write(notebook, path)
    output, copy = nbformat.read(path, 4).cells[0].outputs
    assert dict(copy.data) == {HTML: "", TEXT: ""}  # the figures stand in the place of the live panel
    assert "up to step 4" in output.data[TEXT]
    kinds = [trace["type"] for trace in output.data[PLOTLY]["data"]]
    assert kinds[:2] == ["bar", "bar"]  # the dashboards' figures
    assert "<svg" in output.data[SVG]


@pytest.mark.slow
def test_what_is_saved_while_the_panel_is_live_is_up_to_date(tmp_path):
    """At the end of each cell, and final once the session is closed, though nobody closes the panel."""
    import nbformat
    from nbclient import NotebookClient

    close = "session.close()"
    still = "print(shown.closed, shown.state['finished'], shown._pump.running)"
    cells = [OPEN.format(root=str(tmp_path)), TRAIN, close, still]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    seen: list[str] = []
    client = NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.on_cell_executed = lambda cell, cell_index, execute_reply: seen.append(_facts(notebook))
    client.execute(env=_environment(tmp_path))
    recording, finished = "1 rank · up to step 4 · recording", "1 rank · up to step 4 · finished"
    assert [one.split(" · started")[0] for one in seen[1:]] == [recording, finished, finished]
    assert notebook.cells[3].outputs[0].text == "False True True\n"
    live, copy = (output.data for output in notebook.cells[0].outputs)
    assert set(live) == {VIEW, TEXT}
    assert set(copy) == {HTML, SVG, TEXT}
    assert copy[HTML].count("<img") == 1
    page, _ = _html(notebook)
    assert "up to step 4 · finished" in page
    assert 'src="data:image/svg+xml;base64,' in page


def test_the_copy_is_made_before_the_cell_is_over_though_the_thread_began_one(directory, monkeypatch):
    """What comes when a cell is over is lost to programs that run notebooks: the next cell finds the old copy."""
    shown, began, may_go_on, kept = Panel(directory), threading.Event(), threading.Event(), []
    shown._verdict.stop()  # what it finds comes when it likes, and is another reason for a copy
    Wire(shown)
    cells = threading.current_thread()
    monkeypatch.setattr(shown._outputs, "keep", lambda copy: kept.append(threading.current_thread() is cells))
    whole = shown._copy

    def slow() -> dict[str, Any]:
        if threading.current_thread() is not cells:
            began.set()
            may_go_on.wait(PATIENCE_S)
        return whole()

    monkeypatch.setattr(shown, "_copy", slow)
    monkeypatch.setattr(shown._outputs, "live", True)
    shown._pump._wake.set()
    assert began.wait(PATIENCE_S)  # the thread makes a copy of the very same
    monkeypatch.setattr(shown._pump, "catch_up", lambda: True)
    threading.Timer(0.2, may_go_on.set).start()
    shown._cell_ended()
    assert kept == [False, True]  # in the order in which they were begun
    shown._cell_at = 0.0
    shown._cell_ended()
    assert kept == [False, True]  # nothing is new
    shown.close()


def _html(notebook: Any) -> Any:
    from nbconvert import HTMLExporter

    return HTMLExporter().from_notebook_node(notebook)


def _facts(notebook: Any) -> str:
    """What the copy in the first cell says of the run."""
    return str(notebook.cells[0].outputs[1].data[TEXT].splitlines()[1])


@pytest.mark.slow
def test_a_killed_kernel_leaves_figures_and_says_how_to_go_on(tmp_path):
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    kill = "session.flush()\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    cells = [OPEN.format(root=str(tmp_path)), TRAIN, kill]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    with pytest.raises(DeadKernelError):
        NotebookClient(notebook, timeout=300, kernel_name="python3").execute(env=_environment(tmp_path))
    live, copy = (output.data for output in notebook.cells[0].outputs)
    assert set(live) == {VIEW, TEXT}
    assert set(copy) == {HTML, SVG, TEXT}
    assert "up to step 4 · recording" in copy[TEXT]
    hint = f'probe.open("{tmp_path}/arithmetic/first").panel()'
    for form in (live[TEXT], *copy.values()):
        assert hint in form.replace("&quot;", '"')
    with Panel(tmp_path / "arithmetic" / "first") as again:  # a new kernel goes on where the run is
        assert "up to step 4" in repr(again)


@pytest.mark.slow
def test_the_end_of_a_kernel_swaps_the_live_view_for_the_static_one(tmp_path):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", env=_environment(tmp_path))
    try:
        shown = _executed(client, OPEN.format(root=str(tmp_path)))
        display, copy = [one["content"] for one in shown if one["msg_type"] == "display_data"]
        _executed(client, TRAIN)
        client.shutdown()
        last: dict[str, Any] = {}

        def emptied() -> Any:
            """What the copy shows by now; the live view is swapped before it."""
            last.update(_swaps(client))
            return last.get(copy["transient"]["display_id"])

        until(emptied, lambda data: data == {HTML: "", TEXT: ""})
        static = last[display["transient"]["display_id"]]
        assert set(static) == {PLOTLY, SVG, TEXT}
        assert "up to step 4" in static[TEXT]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy()


def _environment(folder: Path) -> dict[str, str]:
    import os

    here = {
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "PYTHONPATH": str(ROOT),
    }
    return {**os.environ, **here}


def _executed(client: Any, code: str) -> list[Any]:
    found: list[Any] = []
    reply = client.execute_interactive(code, timeout=300, output_hook=found.append)
    assert reply["content"]["status"] == "ok", reply
    return found


def _swaps(client: Any) -> dict[str, Any]:
    """What has taken the place of outputs since the last look, by their ids."""
    from queue import Empty

    found: dict[str, Any] = {}
    while True:
        try:
            one = client.get_iopub_msg(timeout=0.1)
        except Empty:
            return found
        if one["msg_type"] == "update_display_data":
            found[one["content"]["transient"]["display_id"]] = one["content"]["data"]
