"""Histograms of sequence lengths: every sequence of every rank, by step and phase."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from probe.publishing import lengths
from tests.publishing.publishing_rows import cut, run_of


def test_all_ranks_each_step_and_phase(tmp_path: Path) -> None:
    rows = {
        0: [cut(0, 1, [3, 3, 4]), cut(0, 1, [9], phase=None), cut(0, 2, [8]), cut(0, 3, [])],
        1: [cut(1, 1, [6, 3]), cut(1, 5, [1])],
    }
    with run_of(tmp_path, rows) as run:
        found = {(step, name): one for step, name, one in lengths.histograms(run, [1, 2, 3])}
        assert list(lengths.histograms(run, [])) == []
    update = "probe/token_balance/sequence_tokens/update"
    assert set(found) == {(1, update), (1, "probe/token_balance/sequence_tokens/no_phase"), (2, update)}
    assert found[1, update].counts == (3, 1, 0, 1)
    assert found[1, update].edges == (2.5, 3.5, 4.5, 5.5, 6.5)
    assert found[2, update].counts == (1,)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 5000), min_size=1))
def test_every_sequence_is_in_its_bin(tokens: list[int]) -> None:
    counts = Counter(tokens)
    made = lengths.counted(list(counts), list(counts.values()))
    assert sum(made.counts) == len(tokens)
    assert len(made.counts) <= lengths.BINS
    widths = {high - low for low, high in zip(made.edges, made.edges[1:], strict=False)}
    assert len(widths) == 1
    assert widths.pop().is_integer()
    for low, high, count in zip(made.edges, made.edges[1:], made.counts, strict=False):
        assert count == sum(low < one < high for one in tokens)
    assert made.counts[0] > 0
    assert made.counts[-1] > 0
