"""The magics in a real IPython shell: the scope of a cell, its summary, and what happens when it fails."""

from __future__ import annotations

import re

import pytest
import torch
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output

from probe import hooks
from probe.core.protocol import DataProto
from probe.core.seqlen_balancing import micro_batches
from probe.errors import InputError
from probe.hooks import listeners
from probe.notebook import cell_summary
from probe.notebook.cell_summary import CellSummary, Direct
from probe.notebook.magic import Scoped, load_ipython_extension, parsed, unload_ipython_extension
from probe.opened import Run
from probe.session import start
from probe.testing import FakeDevice
from probe.views.panel.panel import panel
from tests.shells import ipython_shell

BALANCE = """
for part in micro_batches(batch, max_token_len=16):
    seen.append(part.batch["input_ids"].shape[0])
answer = len(seen)
answer
"""


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # another one may be active; the shell would warn of it
    monkeypatch.setattr(
        cell_summary, "PATIENCE_S", 300.0
    )  # else a summary leaves out what a busy machine hasn't written
    mask = (torch.arange(8)[None] < torch.tensor([8, 3, 5, 2])[:, None]).long()
    batch = DataProto.from_dict({"input_ids": torch.arange(32).reshape(4, 8), "attention_mask": mask})
    with ipython_shell() as made:
        load_ipython_extension(made)
        made.user_ns.update(batch=batch, micro_batches=micro_batches, seen=[], hooks=hooks)
        yield made


@pytest.fixture
def session(tmp_path):
    with start("magic", run_dir=tmp_path / "run") as opened:
        yield opened


class Ended(hooks.Listener):
    def __init__(self):
        self.found = []

    def leave(self, event, state):
        scope = event.scope
        self.found.append((scope.kind, scope.name, scope.step, scope.role, scope.phase, type(event.error).__name__))


def run(shell, cell):
    with capture_output() as captured:
        result = shell.run_cell(cell)
    return result, captured


def summary(captured):
    (output,) = [one for one in captured.outputs if "probe-batch" in one.data.get("text/html", "")]
    return output.data["text/plain"]


# ---- the scope of a cell


def test_a_cell_runs_in_its_scope_and_shows_its_last_value(shell):
    with hooks.subscribe(ended := Ended(), "scope"):
        result, captured = run(shell, "%%probe phase=update role=actor step=3\nx = 1\nhooks.current_scope().path")
    assert result.success
    assert shell.user_ns["x"] == 1
    assert "'step/update'" in captured.stdout
    assert ended.found == [
        ("phase", "update", 3, "actor", "update", "NoneType"),
        ("step", "step", 3, None, None, "NoneType"),
    ]


@pytest.mark.parametrize(("line", "kind"), [("role=critic", "watch"), ("", "cell"), ("step=0", "step")])
def test_each_argument_alone_makes_a_scope(shell, line, kind):
    with hooks.subscribe(ended := Ended(), "scope"):
        result, _ = run(shell, f"%%probe {line}\n1")
    assert result.success
    assert [one[0] for one in ended.found] == [kind]


@pytest.mark.parametrize(
    "line",
    ["phse=x", "phase=", "phase", "phase=a phase=b", "step=-1", "step=two", 'phase="a', "phase=a something"],
)
def test_bad_arguments_say_how_it_is_used_and_the_cell_does_not_run(shell, line):
    with hooks.subscribe(ended := Ended(), "scope"):
        result, captured = run(shell, f"%%probe {line}\nran = True")
    assert isinstance(result.error_in_exec, UsageError)
    assert "%%probe [phase=NAME] [role=NAME] [step=N]" in captured.stderr + captured.stdout
    assert "ran" not in shell.user_ns
    assert ended.found == []


@pytest.mark.parametrize(
    "line", ["%probe", "%probe stats", "%probe open", '%probe open "x', "%probe open nowhere/at/all"]
)
def test_bad_lines_say_how_they_are_used(shell, line):
    result, captured = run(shell, f"%probe {line}")
    assert isinstance(result.error_in_exec, UsageError)
    assert "%probe open RUN" in captured.stderr + captured.stdout


def test_an_exception_passes_unchanged_and_is_recorded(shell, session):
    shell.user_ns["boom"] = boom = ValueError("<b>no</b>")
    result, captured = run(shell, "%%probe phase=update\ny = 2\nraise boom")
    assert result.error_in_exec is boom
    assert shell.user_ns["y"] == 2
    assert "raised ValueError: <b>no</b>" in summary(captured)
    assert "<b>no" not in captured.outputs[0].data["text/html"]
    assert "----> 3 raise boom" in re.sub(
        r"\x1b\[[0-9;]*m", "", captured.stdout
    )  # the line as it stands in the notebook
    assert "exec(code" not in captured.stdout
    calls = session.run.calls
    assert calls[calls["point"] == "scope.phase"]["error"].tolist() == ["ValueError: <b>no</b>"]


def test_a_cell_that_is_no_python_does_not_run(shell):
    with hooks.subscribe(ended := Ended(), "scope"):
        result, _ = run(shell, "%%probe phase=a\nran = True\nif:")
    assert isinstance(result.error_in_exec, SyntaxError)
    assert "ran" not in shell.user_ns
    assert ended.found == []


def test_await_is_refused_before_anything_runs(shell):
    result, captured = run(shell, "%%probe phase=a\nran = True\nimport asyncio\nawait asyncio.sleep(0)")
    assert isinstance(result.error_in_exec, UsageError)
    assert "with probe.phase" in captured.stderr + captured.stdout
    assert "ran" not in shell.user_ns


def test_a_semicolon_and_magics_inside_work_as_in_any_cell(shell):
    result, captured = run(shell, "%%probe phase=a\nhome = !echo hello\n12345;")
    assert result.success
    assert "12345" not in captured.stdout
    assert list(shell.user_ns["home"]) == ["hello"]


# ---- the summary


def test_with_a_session_the_numbers_are_those_of_its_run(shell, session):
    result, captured = run(shell, "%%probe phase=update role=actor step=1\n" + BALANCE)
    assert result.success
    told = summary(captured)
    assert f"from the rows of run {session.directory}" in told
    micro, padding = session.run.micro_batches, session.run.padding
    assert f"micro-batches {len(micro)} with {micro['tokens'].sum()} tokens" in told
    assert micro["tokens"].sum() == 18
    spare = padding[padding["field"] == "input_ids"]["tokens"].sum()
    assert spare == 4 * 8 - 18
    assert "44 % of 32 tokens (fixed_width 9, longest_row 5)" in told
    assert "peak process memory (RSS)" in told


def test_without_a_session_the_same_numbers_are_measured_here(shell, tmp_path):
    before = list(listeners._subscriptions)
    _, captured = run(shell, "%%probe phase=update\n" + BALANCE)
    told = summary(captured)
    assert "measured directly: no session is open" in told
    assert "with 18 tokens" in told
    assert listeners._subscriptions == before
    shell.user_ns["seen"].clear()
    with start("magic", run_dir=tmp_path / "run"):
        _, again = run(shell, "%%probe phase=update\n" + BALANCE)
    told, again = (re.search(r"micro-batches .*? tokens \([^)]*\)", one)[0] for one in (told, summary(again)))
    assert told == again


def test_a_summary_speaks_of_its_own_cell_alone(shell, session):
    for _ in range(2):
        _, captured = run(shell, "%%probe phase=update\nseen.clear()" + BALANCE)
        assert "with 18 tokens" in summary(captured)
    _, captured = run(shell, "%%probe phase=update\n1 + 1")
    assert "tokens none recorded" in summary(captured)


def test_device_time_and_exact_peaks_come_from_the_device():
    device = FakeDevice(total_bytes=10_000, segment_bytes=10)
    base = CellSummary("t", "", 5)
    with Direct(device) as direct, hooks.phase("update") as opened:
        device.enqueue(2_000_000)
        with hooks.phase("inner"):
            device.allocate(700).free()
        device.allocate(100)
        device.run()
    device.run()
    found = direct.summary(opened.scope, base)
    assert found.peak_bytes == 700
    assert found.peak_kind == "exact"
    assert found.device_ns == 2_000_000
    assert "device time 2.00 ms" in repr(found)


@pytest.mark.usefixtures("lenient")
def test_a_broken_run_never_fails_the_cell(shell, session, monkeypatch):
    session.run  # noqa: B018  (it is there)
    (session.directory / "run.json").rename(session.directory / "gone.json")
    result, captured = run(shell, "%%probe phase=a\nx = 7")
    (session.directory / "gone.json").rename(session.directory / "run.json")
    assert result.success
    assert shell.user_ns["x"] == 7
    assert "the summary failed" in summary(captured)


# ---- lines


def test_status_says_what_is_recorded(shell, tmp_path):
    result, _ = run(shell, "%probe status")
    assert "none is open" in repr(result.result)
    assert re.search(r"listeners +none", repr(result.result))
    with start("magic", run_dir=tmp_path / "run") as session, hooks.phase("p"):
        result, _ = run(shell, "%probe status")
        session.recording.incident("backend", "<i>", "did not answer", None)
        assert session.flush(300)
        again, _ = run(shell, "%probe status")
    told = repr(result.result)
    assert str(session.directory) in told
    assert "recorder MemoryRecorder, recorder " in told
    assert "incident" in repr(again.result)
    assert "<i>" not in again.result._repr_html_()


@pytest.mark.usefixtures("lenient")
def test_status_leaves_out_a_listener_that_was_switched_off(shell, session):
    class Broken(hooks.Listener):
        def fire(self, event):
            raise ValueError("no")

        def __repr__(self):
            return "the broken one"

    point = hooks.point("test_magic.status", "a moment of a test")
    with hooks.subscribe(Broken(), "test_magic.status"):
        result, _ = run(shell, "%probe status")
        assert "the broken one" in repr(result.result)
        for _ in range(5):
            hooks.emit(point)
        result, _ = run(shell, "%probe status")
    assert "the broken one" not in repr(result.result)


def test_open_gives_the_run(shell, tmp_path):
    with start("magic", run_dir=tmp_path / "a run"):
        pass
    result, _ = run(shell, f'run = %probe open "{tmp_path}/a run"')
    assert result.success
    with shell.user_ns["run"] as opened:
        assert isinstance(opened, Run)
        assert opened.info.project == "magic"


def test_14_3_a_tab_is_asked_for_by_the_line_by_the_session_and_by_a_run(shell, tmp_path):
    with start("magic", run_dir=tmp_path / "run") as session:
        with session.step(0):
            pass
        asked = [shell.run_line_magic("probe", "tab"), session.panel(where="tab")]
    asked += [shell.run_line_magic("probe", f"tab {tmp_path / 'run'}"), Run(tmp_path / "run").panel(where="tab")]
    for one in asked:
        bundle = one._repr_mimebundle_()
        assert bundle["application/vnd.probe.tab+json"]["run"] == str(tmp_path / "run")
        assert "pip install 'probe-rl[notebook]'" in bundle["text/plain"]  # where nothing draws a tab
    with pytest.raises(UsageError, match="this kernel records none; name one"):
        shell.run_line_magic("probe", "tab")
    with pytest.raises(InputError, match="runs of the Jupyter server's own machine"):
        panel("s3://bucket/run", where="tab")


def test_loading_twice_and_unloading(shell):
    load_ipython_extension(shell)
    assert run(shell, "%%probe phase=a\n1")[0].success
    unload_ipython_extension(shell)
    with capture_output():
        assert not shell.run_cell("%probe status").success


def test_names_with_spaces():
    assert parsed('phase="old log prob" role=actor') == Scoped("old log prob", "actor", None)
    assert parsed("").title == "cell"
