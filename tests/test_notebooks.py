"""The notebooks: each runs from top to bottom, and is stored with what it showed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))

#: What is trained takes less time here.
SHORTER = {'"--steps", "8"': '"--steps", "2"', "steps=8, warmup_steps=40": "steps=3, warmup_steps=40"}


def test_there_are_notebooks() -> None:
    names = [path.stem for path in NOTEBOOKS]
    assert names == [
        "01_first_look",
        "02_who_wastes_tokens",
        "03_where_is_the_peak",
        "04_inside_a_batch",
        "05_reopen_and_share",
        "06_which_tokens_taught_the_model",
    ]


@pytest.mark.slow  # for nbformat alone
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_output(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert not [one for one in outputs if one.output_type == "error"]
    shown = [one.data for one in outputs if "data" in one]
    assert shown
    assert not [one for one in shown if "application/vnd.jupyter.widget-view+json" in one and len(one) == 1]
    assert "widgets" not in notebook.metadata  # state is never the only copy of anything
    assert path.stat().st_size < 400_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# The kernel's client warns of what is its own: ports without encryption on loopback, tasks at its end.
@pytest.mark.filterwarnings("ignore:.*:ResourceWarning", "ignore:.*:DeprecationWarning")
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    copy = tmp_path / path.name
    shutil.copy(path, copy)
    notebook = nbformat.read(copy, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            for asked, less in SHORTER.items():
                cell.source = cell.source.replace(asked, less)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where, store_widget_state=False).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def test_d_the_notebook_on_wasted_tokens_answers_its_question() -> None:
    import nbformat

    notebook = nbformat.read(next(one for one in NOTEBOOKS if one.stem.startswith("02")), 4)
    texts = [
        output.data.get("text/plain", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    (table,) = [text for text in texts if "percent_padding" in text]
    lines = [line.split() for line in table.splitlines() if line[:1].isdigit() and len(line.split()) > 5]
    ways = {name: [int(one) for one in numbers[:4]] for _, name, *numbers in lines}
    assert set(ways) == {"by_rows", "by_tokens", "sorted_and_trimmed"}
    assert all(slots - tokens == fixed + longest for slots, tokens, fixed, longest in ways.values())
    assert ways["sorted_and_trimmed"][0] < ways["by_rows"][0] / 4  # the cure


def test_15_notebook_06_finds_the_planted_fault_and_shows_the_number_after_its_cure() -> None:
    import nbformat

    notebook = nbformat.read(next(one for one in NOTEBOOKS if one.stem.startswith("06")), 4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    told = "".join(output.get("text", "") for output in outputs)
    shown = [output.data.get("text/plain", "") for output in outputs if "data" in output]
    assert "The fault was named first" in told
    counted = r"(?:of (\d+) sampled|slots of \w+; its micro-batches have (\d+))"
    sums = re.findall(rf"^([\d +]+) = (\d+) {counted}", told, re.MULTILINE)
    assert len(sums) == 3
    for parts, total, *others in sums:  # both ledgers are exact
        assert sum(map(int, parts.split(" + "))) == int(total) == int("".join(others))
    (table,) = [text for text in shown if "effective_sample" in text and "carried" in text]
    before, after = [line.split() for line in table.splitlines() if line[:1] == "1"]
    assert (before[0], before[1], after[0], after[1]) == ("1.4", "temperature", "1.0", "agree")
    assert float(after[2]) < float(before[2]) / 100
    assert any("accidental_reducer" in text for text in shown)


def test_d_notebook_05_ends_on_a_picture_with_something_in_it() -> None:
    import nbformat

    notebook = nbformat.read(next(one for one in NOTEBOOKS if one.stem.startswith("05")), 4)
    *_, last = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    figure = last["application/vnd.plotly.v1+json"]
    assert len(figure["data"]) >= 2
    assert all(len(trace["x"]) > 0 for trace in figure["data"])
