"""The shared look: contrast, colour blindness, escaping and thinning."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.errors import UnknownNameError
from probe.figures import theme

# Severe red-green blindness in linear RGB (Machado, Oliveira and Fernandes, 2009).
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = np.clip(to_xyz @ np.clip(rgb, 0, 1), 0, None) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("colour", [*theme.PALETTE, theme.ALARM])
@pytest.mark.parametrize("background", theme.BACKGROUND.values())
def test_every_trace_colour_shows_on_both_backgrounds(colour: str, background: str) -> None:
    light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


@pytest.mark.parametrize("seen", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["all", "deuteranopia", "protanopia"])
def test_the_first_colours_stay_apart_for_everybody(seen: np.ndarray) -> None:
    for one, other in itertools.combinations(theme.PALETTE[:4], 2):
        assert np.linalg.norm(lab(seen @ linear(one)) - lab(seen @ linear(other))) > 10, (one, other)


def test_every_colour_has_a_mark_and_a_pattern_of_its_own() -> None:
    assert len(set(theme.SYMBOLS)) == len(set(theme.PATTERNS)) == len(set(theme.PALETTE))


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
    kept = theme.thin(values, points)
    assert len(kept) <= max(points, 4)
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    assert (np.diff(kept) > 0).all()
    assert max(values[i] for i in kept) == max(values)
    assert min(values[i] for i in kept) == min(values)


def test_thinning_looks_through_nan() -> None:
    values = [float("nan")] * 50 + [9.0] + [float("nan")] * 50
    assert 50 in theme.thin(values, 10)
