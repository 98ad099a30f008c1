"""A panel's outputs in a cell: the live one with what its host wants, and the copy beside it, in a real shell."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import pytest

from probe.live import feed
from probe.session import start
from probe.views.panel import outputs
from probe.views.panel.panel import Panel
from tests.shells import ipython_shell
from tests.waiting import PATIENCE_S, until

PLOTLY, SVG, TEXT, HTML = "application/vnd.plotly.v1+json", "image/svg+xml", "text/plain", "text/html"
COPY = "application/vnd.probe.copy+json"
VIEW = outputs.WIDGET_VIEW


class Publisher:
    """In the place of the kernel's: keeps what is displayed, by display id."""

    def __init__(self) -> None:
        self.shown: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}

    def publish(self, data: Any, metadata: Any, key: str, *, update: bool = False) -> None:
        assert update == (key in self.shown), "an update needs a display, and a display is made once"
        self.shown.setdefault(key, []).append((dict(data), dict(metadata or {})))

    def now(self) -> list[dict[str, Any]]:
        """The data of each output as it stands."""
        return [states[-1][0] for states in self.shown.values()]


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # another one may be active; the shell would warn of it
    with ipython_shell() as made:
        monkeypatch.setattr(made, "kernel", object(), raising=False)  # it has one, and so is a notebook's
        yield made


@pytest.fixture
def shown(shell, tmp_path, monkeypatch):
    """A panel of an open session, shown by a cell."""
    publisher = Publisher()
    monkeypatch.setattr(outputs, "_display", lambda: _display_of(publisher))
    with start("shown", run_dir=tmp_path / "run") as session:
        shell.user_ns["panel"] = panel = Panel(session)
        panel._verdict.stop()  # what it finds comes when it likes, and is another reason for a copy
        # On a loaded machine a look takes longer than a cell waits for it, and silence is no news yet.
        monkeypatch.setattr(panel._pump, "catch_up", functools.partial(panel._pump.catch_up, PATIENCE_S))
        monkeypatch.setattr(feed, "QUIET_S", PATIENCE_S)
        panel._ipython_display_()
        yield shell, session, panel, publisher
        panel.close()


def _display_of(publisher: Publisher) -> Any:
    def display(data: Any, *, raw: bool, display_id: str, metadata: Any = None) -> None:
        publisher.publish(data, metadata, display_id)

    def update_display(data: Any, *, raw: bool, display_id: str) -> None:
        publisher.publish(data, None, display_id, update=True)

    return types.SimpleNamespace(display=display, update_display=update_display)


def test_the_copy_follows_the_cells_and_is_final_when_the_session_has_closed(shown):
    shell, session, panel, publisher = shown
    live, copy = publisher.now()
    assert set(live) == {VIEW, TEXT}
    assert set(copy) == {COPY, HTML, SVG, TEXT}
    assert "no step yet" in copy[TEXT]
    for step in range(3):
        with session.step(step):
            pass
    session.flush()
    shell.run_cell("1 + 1;")
    assert "up to step 2 · recording" in publisher.now()[1][TEXT]
    session.close()
    shell.run_cell("1 + 1;")  # at once: a run that has finished isn't left for later
    assert "up to step 2 · finished" in publisher.now()[1][TEXT]
    assert not panel.closed
    assert len(next(iter(publisher.shown.values()))) == 1, "else its view would be made anew"
    before = len(publisher.shown[panel._outputs._copy_id])
    shell.run_cell("1 + 1;")
    assert len(publisher.shown[panel._outputs._copy_id]) == before, "nothing new, nothing sent"


def test_the_copy_is_final_when_a_run_ends_though_no_cell_runs(shown):
    _, session, _, publisher = shown
    with session.step(0):
        pass
    session.close()
    until(lambda: publisher.now()[1][TEXT], lambda text: "up to step 0 · finished" in text)


def test_closing_puts_figures_in_the_place_of_the_widget_and_empties_the_copy(shown):
    shell, _, panel, publisher = shown
    panel.close()
    live, copy = publisher.now()
    assert set(live) == {PLOTLY, SVG, TEXT}
    assert copy == outputs.NOTHING
    assert shell.events.callbacks["post_run_cell"] == []
    shell.run_cell("1 + 1;")
    assert publisher.now()[1] == outputs.NOTHING


@pytest.mark.usefixtures("lenient")
def test_a_copy_that_cannot_be_made_is_told_in_the_panel_and_not_in_the_cell(shown, monkeypatch):
    shell, session, panel, _ = shown
    monkeypatch.setattr(panel, "_copy", lambda: 1 / 0)
    with session.step(0):
        pass
    session.flush()
    assert shell.run_cell("7;").success
    assert {one["where"] for one in panel.errors} == {"copy"}  # once in each of its rounds
    assert panel._pump._fails_in_a_row == 0, "the panel itself goes on at its pace"


def test_colab_gets_the_metadata_that_it_wants(shell, tmp_path, monkeypatch):
    asked = []
    colab = types.ModuleType("google.colab.output")
    colab.enable_custom_widget_manager = lambda: asked.append(1)
    colab._widgets = types.SimpleNamespace(_installed_url="https://colab.example/manager.js")
    monkeypatch.setitem(sys.modules, "google.colab.output", colab)
    publisher = Publisher()
    monkeypatch.setattr(outputs, "_display", lambda: _display_of(publisher))
    with start("colab", run_dir=tmp_path / "run") as session, Panel(session) as panel:
        panel._ipython_display_()
        wanted = {VIEW: {"colab": {"custom_widget_manager": {"url": "https://colab.example/manager.js"}}}}
        assert next(iter(publisher.shown.values()))[0][1] == wanted
        assert panel._repr_mimebundle_()[1] == wanted
    assert asked


def test_a_terminal_has_no_kernel():
    assert outputs.shell_of_kernel() is None
