"""The panel as an object: what it takes, what it is without a notebook, its widget and its figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from probe.errors import InputError, InputTypeError, RunError, RunNotFoundError, UnknownNameError
from probe.live import series
from probe.opened import Run
from probe.session import start
from probe.views.panel import assets
from probe.views.panel import panel as panels
from probe.views.panel.panel import Panel, panel
from tests.views.mime_types import TEXT, VIEW
from tests.views.panel_wire import Wire

pytestmark = pytest.mark.usefixtures("no_panel_is_left_open")


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
