"""The colour map: what has a name has one colour, in each language and each run; and everybody can tell them apart."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probe import dashboards
from probe.figures import colours, panel
from probe.figures.colours import Theme

STYLES = Path(__file__).parents[1] / "js" / "styles.js"
THEMES: tuple[Theme, ...] = ("light", "dark")
NAMED = [one for one in colours.defined()["hues"] if not one.startswith(("kind_", "shade_"))]
SHADES = [one for one in colours.defined()["hues"] if one.startswith("shade_")]

# Severe colour blindness of three kinds in linear RGB (Machado, Oliveira and Fernandes, 2009).
SEEN = {
    "all": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}

#: So far apart are any two of the colours that tell phases apart, for everybody (CIE 1976).
APART = 11


def linear(colour: str) -> np.ndarray[Any, Any]:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    light, dark = sorted((float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = np.clip(to_xyz @ np.clip(rgb, 0, 1), 0, None) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one: str, other: str, seen: np.ndarray[Any, Any]) -> float:
    return float(np.linalg.norm(lab(seen @ linear(one)) - lab(seen @ linear(other))))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", [*NAMED, *SHADES, "kind_1"])
def test_g_every_hue_shows_on_the_surface(name: str, theme: Theme) -> None:
    assert contrast(colours.hue(name, theme), colours.of_theme("surface", theme)) >= 3


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("text", ["ink", "ink_2", "ink_3", "alarm_text", "accent"])
def test_g_every_text_is_legible_on_the_surface(text: str, theme: Theme) -> None:
    assert contrast(colours.of_theme(text, theme), colours.of_theme("surface", theme)) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("hues", [NAMED, SHADES], ids=["phases", "shades"])
def test_g_hues_stay_apart_for_everybody(hues: list[str], seen: np.ndarray[Any, Any], theme: Theme) -> None:
    for one, other in itertools.combinations(hues, 2):
        assert difference(colours.hue(one, theme), colours.hue(other, theme), seen) >= APART, (one, other)


@pytest.mark.parametrize("theme", THEMES)
def test_g_roles_stay_apart_from_each_other(theme: Theme) -> None:
    found = sorted(set(colours.defined()["names"]["role"].values()))
    for one, other in itertools.combinations(found, 2):
        assert difference(colours.hue(one, theme), colours.hue(other, theme), SEEN["all"]) >= APART, (one, other)


def test_g_each_name_leads_to_a_hue() -> None:
    for listed in colours.defined()["names"].values():
        assert set(listed.values()) <= set(colours.defined()["hues"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gen", "generate"),
        ("update_actor", "update"),
        ("adv", "advantages"),
        ("testing", "validate"),
        ("values", "critic"),
    ],
)
def test_g_names_for_one_phase_have_one_colour(one: str, other: str) -> None:
    assert colours.style(["phase"], one) == colours.style(["phase"], other)


@pytest.mark.parametrize("theme", THEMES)
def test_g_a_phase_of_the_users_own_has_a_hue_that_no_named_one_has(theme: Theme) -> None:
    listed = {colours.hue(one, theme) for one in colours.defined()["names"]["phase"].values()}
    own = {colours.style(["phase"], f"phase {number}", theme).colour for number in range(50)}
    assert not own & listed
    assert len(own) == len(colours.defined()["own"])


def test_g_a_light_colour_has_one_dark_one() -> None:
    themes, hues = colours.defined()["themes"], colours.defined()["hues"].values()
    pairs = {(themes["light"][name], themes["dark"][name]) for name in themes["light"] if name != "scale"}
    pairs |= {(one["light"], one["dark"]) for one in hues}
    assert len(pairs) == len(colours.dark_of_light())


def frame(phases: list[str]) -> pd.DataFrame:
    rows = [
        {"step": step, "phase": one, "y": "duration", "value": 1.0 + at}
        for step in (0, 1)
        for at, one in enumerate(phases)
    ]
    return pd.DataFrame(rows)


def test_g_a_colour_goes_neither_by_size_nor_by_what_else_is_there() -> None:
    shown = dashboards.panel("phase_durations")

    def drawn(phases: list[str]) -> dict[str, str]:
        figure = panel.MARKS["stack"](shown.live or {}, frame(phases), missing="")
        return {trace.name: trace.marker.color for trace in figure.data}

    first, second = drawn(["generate", "update", "my_filter"]), drawn(["my_filter", "warm_up", "update", "generate"])
    assert {name: second[name] for name in first} == first


@pytest.fixture(scope="module")
def node() -> str:
    path = shutil.which("node")
    if path is None:
        pytest.skip("no node on this machine")
    return path


LABELS = [
    "generate",
    "update_actor",
    "my_filter",
    "größe",
    "",
    "no role",
    "rank 7",
    "rank 12",
    "longest row",
    "x" * 300,
]
COLUMNS = [["phase"], ["role"], ["cause"], ["rank"], ["role", "phase"], ["phase", "rank"], [], ["key"]]


def test_g_panel_and_figures_have_the_same_colours(node: str) -> None:
    asked = [[columns, label] for columns in COLUMNS for label in LABELS]
    asked += [[["role", "phase"], "actor · update"], [["phase", "rank"], "update · rank 1"]]
    done = subprocess.run([node, str(STYLES)], input=json.dumps(asked), capture_output=True, text=True, check=True)
    ours = [[colours.style(columns, label, theme)._asdict() for theme in THEMES] for columns, label in asked]
    assert json.loads(done.stdout) == ours
