"""What a new user meets in the first ten minutes: the README's lines, plain dicts, and what is missing."""

from __future__ import annotations

import contextlib
import html
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import probe
from probe.cli import main
from probe.core.protocol import DataProto
from probe.errors import InputError, MissingKeyError, ShapeError

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks_of(text: str) -> list[tuple[str, str, str]]:
    """Heading, language and code of each fenced block, in order."""
    found, heading = [], ""
    for one in re.finditer(r"^## ([^\n]+)$|^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        heading = one[1] or heading
        if one[2]:
            found.append((heading, one[2], one[3]))
    return found


def test_d_the_ten_lines_of_the_readme_run_as_they_stand(tmp_path: Path) -> None:
    """In one new process, with nothing before them, and all commands and lines of Python that come after them."""
    code = [
        code for heading, language, code in blocks_of(README) if heading == "Ten lines to try" and language == "python"
    ]
    assert len(code) == 2
    lines = [line for line in code[0].splitlines() if line and not line.startswith(("import ", "from "))]
    assert len(lines) <= 16
    for switch in ("on", "off"):
        place = tmp_path / switch
        place.mkdir()
        environment = {**os.environ, "PROBE": switch, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code[0]], cwd=place, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert list((tmp_path / "off").iterdir()) == []
    with contextlib.chdir(tmp_path / "on"):
        namespace: dict[str, object] = {}
        exec(code[1], namespace)
        run = namespace["run"]
        assert len(run.micro_batches)
        assert len(run.padding)
        assert not len(run.incidents)
        assert run.sql("select count(distinct step) as n from memory")["n"][0] >= 3
        for command in commands():
            assert main(command) == 0


def commands() -> list[list[str]]:
    """Those of the README that end, of this run."""
    (text,) = [code for heading, language, code in blocks_of(README) if heading == "Without a notebook"]
    lines = [re.sub(r"\s+#.*", "", line).split() for line in text.splitlines()]
    found = [line[1:] for line in lines if line[1] in ("report", "findings", "list", "doctor")]
    assert len(found) == 4
    return found


def test_d_the_readme_says_what_a_notebook_needs() -> None:
    (code,) = [
        code for heading, language, code in blocks_of(README) if heading == "In a notebook" and language == "python"
    ]
    assert "import probe" in code
    assert any(
        "[notebook" in code or ",notebook" in code for _, language, code in blocks_of(README) if "pip install" in code
    )


def test_d_dicts_are_cut_into_dicts() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]])
    batch = {
        "input_ids": mask * 7, "attention_mask": mask, "uid": ["a", "b", "c", "d"], "score": np.arange(4.0),
        "pair": (0, 1, 2, 3), "temperature": 0.7, "scale": torch.tensor(2.0),
    }  # fmt: skip
    parts = list(probe.micro_batches(batch, max_token_len=3))
    assert all(type(part) is dict and list(part) == list(batch) for part in parts)
    assert sorted(uid for part in parts for uid in part["uid"]) == ["a", "b", "c", "d"]
    for part in parts:
        rows = ["abcd".index(uid) for uid in part["uid"]]
        assert torch.equal(part["input_ids"], batch["input_ids"][rows])
        assert part["score"].tolist() == [float(row) for row in rows]
        assert part["pair"] == tuple(rows)
        assert (part["temperature"], part["scale"]) == (0.7, batch["scale"])
    by_data_proto = probe.micro_batches(DataProto.from_dict({"attention_mask": mask}), max_token_len=3)
    assert probe.micro_batches(batch, max_token_len=3).indices == by_data_proto.indices
    with pytest.raises(ShapeError, match=r"batch\['uid'\]: got 1 rows, expected 4"):
        probe.micro_batches({**batch, "uid": ["a"]}, max_token_len=3)
    with pytest.raises(InputError, match=r"got a dict with \['a'\], expected tensors"):
        probe.micro_batches({"a": 1}, max_token_len=3)


def test_d_a_column_of_a_batch_is_found_by_its_name() -> None:
    data = DataProto.from_dict(
        {"input_ids": torch.arange(6).reshape(2, 3)}, {"uid": np.array(["a", "b"], dtype=object)}
    )
    assert data["input_ids"] is data.batch["input_ids"]
    assert data["uid"] is data.non_tensor_batch["uid"]
    with pytest.raises(MissingKeyError, match="there is no column 'ids'; the batch has 'input_ids', 'uid'"):
        data["ids"]
    with pytest.raises(KeyError, match="the batch has none"):
        DataProto()["ids"]


def test_d_the_demo_says_which_extra_it_lacks_before_it_begins(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "datasets" else there(name, *more)
    )
    assert main(["demo"]) == 1
    said = capsys.readouterr()
    assert said.err == (
        "probe demo: probe demo needs the package 'datasets'; install it with: pip install 'probe-rl[demo]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_d_the_demo_records_nothing_where_probe_is_off(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBE", "off")
    assert main(["demo"]) == 2
    assert "PROBE=off in the environment: nothing is recorded" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_d_without_anywidget_a_notebook_says_what_to_install(tmp_path, monkeypatch) -> None:
    import IPython.display

    from probe.views.panel import panel as panels

    shown: list[dict[str, str]] = []
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr(panels, "shell_of_kernel", lambda: True)
    monkeypatch.setattr(IPython.display, "display", lambda bundle, **_: shown.append(bundle))
    panels.widgets.widget_class.cache_clear()
    with probe.start("p", run_dir=tmp_path / "run") as session, panels.Panel(session) as panel:
        panel._ipython_display_()
    panels.widgets.widget_class.cache_clear()
    assert "pip install 'probe-rl[notebook]'" in shown[0]["text/plain"]
    assert "pip install 'probe-rl[notebook]'" in html.unescape(shown[0]["text/html"])
    assert "image/svg+xml" in shown[1]


def test_d_make_shows_pip_at_work_and_lets_root_see_a_notebook(tmp_path) -> None:
    def said(target: str, user: int) -> str:
        (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
        (tmp_path / "id").chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    (install,) = [line for line in said("demo", 0).splitlines() if "pip install" in line and "--editable" in line]
    assert "--quiet" not in install
    assert "-q" not in install.split()
    assert "jupyter lab --allow-root" in said("notebook", 0)
    assert "--allow-root" not in said("notebook", 1000)
