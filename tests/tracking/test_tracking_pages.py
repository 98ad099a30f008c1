"""The page of all figures, where they are too many or too large for it."""

from __future__ import annotations

import random

import pytest

from probe.tracking import pages
from probe.tracking.media import Figure
from probe.tracking.pages import PACKED_BYTES, Pages

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def filled(*sizes: int) -> Pages:
    """A page of figures that can't be packed well, each of so many letters."""
    rng, made = random.Random(0), Pages()
    for number, size in enumerate(sizes):
        name = f"figure {number:02}"
        made.queue_figure(name, name, Figure(f'"{"".join(rng.choices(LETTERS, k=size))}"'))
    return made


def left_out(page: Pages) -> list[int]:
    sections = page.text().split("<section>")[1:]
    return [number for number, one in enumerate(sections) if "too large" in one]


@pytest.mark.parametrize(
    ("sizes", "gone"),
    [
        ([10], []),
        ([400_000] * 3, []),
        ([10, 1_000_000, 900_000, 500_000], [1]),  # the largest goes first
        ([900_000, 900_000, 900_000], [0, 1]),
        ([3_000_000], [0]),
    ],
)
def test_the_largest_figures_are_left_out_and_as_few_as_can_be(sizes: list[int], gone: list[int]) -> None:
    page = filled(*sizes)
    assert left_out(page) == gone
    assert len(page._packed({path: path for path in page._figures})[0]) <= PACKED_BYTES


def test_many_figures_that_are_too_large_are_not_packed_again_for_each_that_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[int] = []
    pack = pages._pack

    def counted(text: str) -> str:
        packed.append(len(text))
        return pack(text)

    page = filled(*[100_000] * 64)
    pages._plotly_packed()
    monkeypatch.setattr(pages, "_pack", counted)
    assert left_out(page) == list(range(50))  # 14 of equal size fit
    assert len(packed) <= 8  # all, and then one for each halving
