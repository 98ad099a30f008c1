"""What a panel leaves behind in notebooks of real kernels: closed, killed, saved while it is live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.views.panel.panel import Panel
from tests.views.mime_types import COPY, HTML, PLOTLY, SVG, TEXT, VIEW
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_panel_is_left_open")

ROOT = Path(__file__).parents[2]


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
    assert set(copy) == {COPY, HTML, SVG, TEXT}
    assert copy[HTML].count("<img") == 1
    page, _ = _html(notebook)
    assert "up to step 4 · finished" in page
    assert 'src="data:image/svg+xml;base64,' in page


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
    assert set(copy) == {COPY, HTML, SVG, TEXT}
    assert "up to step 4 · recording" in copy[TEXT]
    hint = f'probe.open("{tmp_path}/arithmetic/first").panel()'
    for form in (live[TEXT], copy[HTML], copy[SVG], copy[TEXT]):
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
