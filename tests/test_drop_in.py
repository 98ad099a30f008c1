"""``docs/drop_in.md``: every row of its table of strictness is true, and every case is a row."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from probe.errors import ProbeError
from tests.stricter import OF_NEMO_RL, OF_VERL

PAGE = Path(__file__).resolve().parent.parent / "docs" / "drop_in.md"
CASES = {**OF_VERL, **OF_NEMO_RL}


def rows(title: str) -> list[list[str]]:
    """The table below a title, cell by cell, without its head."""
    section = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (text,) = [one for one in section if one.startswith(title)]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_c_the_table_has_a_row_and_a_reason_for_each_case():
    found = rows("Where probe is stricter")
    assert [row[0] for row in found] == list(CASES)
    for row in found:
        assert len(row) == 4, row
        assert all(len(cell) > 3 for cell in row), row  # what peers do, what probe does, and why


@pytest.mark.parametrize("case", CASES)
def test_c_probe_is_stricter_as_the_table_says(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module, use = CASES[case]
    with pytest.raises(ProbeError) as caught:
        use(import_module(f"probe.core.{module}"))
    said = next(row[2] for row in rows("Where probe is stricter") if row[0] == case)
    assert said == type(caught.value).__name__
    assert list(tmp_path.iterdir()) == []
