"""The shared look: escaping and thinning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.errors import UnknownNameError
from probe.figures import theme, thinning


def test_an_unknown_theme_names_the_choices() -> None:
    with pytest.raises(UnknownNameError, match="theme: got 'sepia', expected one of dark, light"):
        theme.blank("sepia")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "<a href='javascript:x'>y</a>", "a & b", '"'])
def test_labels_hold_no_markup(text: str) -> None:
    shown = theme.label(text)
    assert "<" not in shown
    assert ">" not in shown


def test_words_for_nothing_are_kept_and_wrapped() -> None:
    why = "because " * 20
    figure = theme.nothing(why)
    assert theme.why(figure) == why
    assert "<br>" in figure.layout.annotations[0].text
    assert theme.why(theme.blank()) is None


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_both_ends_and_both_extremes(values: list[float], points: int) -> None:
    kept = thinning.thin(values, points)
    assert len(kept) <= max(points, 4)
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    assert (np.diff(kept) > 0).all()
    assert max(values[i] for i in kept) == max(values)
    assert min(values[i] for i in kept) == min(values)


def test_thinning_looks_through_nan() -> None:
    values = [float("nan")] * 50 + [9.0] + [float("nan")] * 50
    assert 50 in thinning.thin(values, 10)
