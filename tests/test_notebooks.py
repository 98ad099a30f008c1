"""The notebooks: each runs from top to bottom, and is stored with what it showed."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))

#: The demo with a little of its training: what it does is the same, and that it learns is tested elsewhere.
SHORT_DEMO = """
import sys
from dataclasses import replace
from probe.cli import demo, main

told = demo._settings
demo._settings = lambda arguments: replace(told(arguments), warmup_steps=4, prompts_per_rank=6, mini_batch_per_rank=24)
sys.exit(main(["demo", *sys.argv[1:]]))
"""

#: The small training of a fault, with a model that speaks less well.
SHORT_FAULT = """
from dataclasses import replace
from probe.cli import main
from probe.demo.zoo.sampling import Sampling

Sampling.lessons, Sampling.shape = 20, replace(Sampling.shape, steps=4)
"""

#: What is trained takes less time here.
SHORTER = {
    '"-m", "probe", "demo", "--steps", "8"': f'"-c", {SHORT_DEMO!r}, "--steps", "2", "--ranks", "1"',
    "steps=8, warmup_steps=40": "steps=2, warmup_steps=20",
    "from probe.cli import main\n": SHORT_FAULT,
}

#: The kernel is one for all notebooks, as most of its time it would import the same: each begins in a place of its own
#: and with no name of the one before.
BEGIN = "%cd -q {place}\n%reset -f"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """The manager of a kernel."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


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
def test_a_notebook_runs(path: Path, tmp_path: Path, kernel: Any) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, 4)
    shorter = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            for asked, less in SHORTER.items():
                if asked in cell.source:
                    cell.source = cell.source.replace(asked, less)
                    shorter.append(asked)
    assert len(shorter) == {"01": 1, "06": 2}.get(path.stem[:2], 0)  # what takes time there is known here
    notebook.cells.insert(0, nbformat.v4.new_code_cell(BEGIN.format(place=tmp_path)))
    client = NotebookClient(notebook, km=kernel, timeout=600, startup_timeout=300, store_widget_state=False)
    try:
        client.execute()
    finally:
        client.kc.stop_channels()
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


def test_d_the_notebook_on_sharing_ends_on_a_picture_that_compares_caps() -> None:
    import nbformat

    notebook = nbformat.read(next(one for one in NOTEBOOKS if one.stem.startswith("05")), 4)
    pictures = [
        output.data["application/vnd.plotly.v1+json"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "application/vnd.plotly.v1+json" in output.get("data", {})
    ]
    (line,) = pictures[-1]["data"]
    caps = [int(text.removeprefix("cap ")) for text in line["text"]]
    counts, largest = (np.frombuffer(base64.b64decode(line[axis]["bdata"]), "f8").tolist() for axis in "xy")
    assert caps == sorted(caps)
    assert 256 in caps  # what the run itself had
    assert counts == sorted(counts, reverse=True)
    assert largest == sorted(largest)
    assert all(tokens <= cap for tokens, cap in zip(largest, caps, strict=True))


def test_d_no_notebook_calls_its_run_by_another_number_of_ways() -> None:
    text = next(one for one in NOTEBOOKS if one.stem.startswith("02")).read_text()
    assert "in three ways" in text
    assert 'f\\"three-ways-' in text
