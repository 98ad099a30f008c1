"""Draw pairs of runs whose true change is known, and write how often ``probe check`` is wrong: docs/design/noise.md.

``python docs/make_noise.py [DRAWS]``: so many pairs for each kind of noise and number of steps, 3,000 unless given; a
few minutes on two cores. ``make noise`` calls it. The same draws give the same page.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent)]

from tests.analysis.noisy_runs import HARDER, SPREAD, WORLDS, wrong  # noqa: E402  (found through the line above)

PAGE: Final = DOCS / "design" / "noise.md"
STEPS: Final = (10, 20, 50, 100, 200, 500)
MARGIN: Final = 0.05
CONFIDENCE: Final = 0.95

HEAD: Final = """# Noise: how often a check is wrong

This page shows how often [`probe check`](../guides/ci.md) judges a change wrongly. It is for anyone who has to decide
whether a build may fail on its verdict.

The promise: a run whose true change is exactly the limit is called *within* in at most 5 of 100 checks, and *beyond* in
at most 5 of 100, at 95 % confidence. A change on the other side of the limit is judged wrongly less often.

## The method

1. The first step of a run that has four or more is left out.
2. Each step of the run is divided by the base run's step of the same number. What both share drops out, such as the
   sizes of their batches, or answers that get longer. If runs share less than half of the shorter one's steps, the two
   runs are compared as wholes. Numbers that aren't all above 0 are subtracted instead.
3. The change is that of the typical step: Huber's M-estimate of the logarithms. Stragglers hardly move it.
4. Its bounds are Student's. The number of independent steps comes from the autocorrelation, which is taken at its upper
   95 % bound. Averages of 2, 4, 8 … steps are looked at too, and the widest bound counts.
5. If the upper bound is at most the limit, the run is *within* it. If the lower bound is above it, the run is *beyond*.
   Otherwise the verdict is *not shown*. `--min` swaps the bounds.

Nothing is drawn at random: the same rows give the same verdict. The code and the sources of its formulas are in
`probe/analysis/noise.py`.

## Measured
"""

TAIL: Final = """
## What it can't know

* Noise that lasts as long as the runs looks like a change. If one machine is slower than the other, the run on it is
  slower, and the check says so. Use the same machine for both runs.
* If only one of the runs has stragglers, its typical step is the same, and so is the verdict. Their cost is in the mean
  time of a step, which [`probe compare`](../guides/compare.md) explains.
* The promise is for one limit. Of ten limits at 95 %, each has its own 5 %. Use `--confidence 0.99`.
"""


def measured(world: str, steps: int, draws: int) -> tuple[float, float, float]:
    """Share of the pairs called within, share called beyond, and how far the bound is from the change."""
    within, beyond, reach = wrong(
        (WORLDS | HARDER)[world], steps, draws, margin=MARGIN, confidence=CONFIDENCE, paired=True
    )
    return within / draws, beyond / draws, reach


def page(found: dict[tuple[str, int], tuple[float, float, float]], draws: int) -> Iterator[str]:
    """The text of the page."""
    yield f"""{HEAD}
Each cell is of {draws:,} pairs of runs. The true change and the limit are both +{100 * MARGIN:.0f} %. The first number
is the share called *within*, the second the share called *beyond*, in per cent. Both should be at most
{100 * (1 - CONFIDENCE):.0f}. The noise of a step is {100 * SPREAD:.0f} % (standard deviation of the logarithm).

| steps | {" | ".join(map(str, STEPS))} |
|---|{"---|" * len(STEPS)}
"""
    yield from shares(found, WORLDS)
    worst = max(max(found[world, steps][:2]) for world in WORLDS for steps in STEPS)
    yield f"""
The largest share is {100 * worst:.1f} %.

Noise with a longer memory, or in levels, is outside the promise. Some of these shares are larger than 5:

| steps | {" | ".join(map(str, STEPS))} |
|---|{"---|" * len(STEPS)}
"""
    yield from shares(found, HARDER)
    yield f"""
## How many steps are needed

How far the upper bound is above the change, in percentage points, in the median pair. A run without any change is shown
to be within +5 % where the number is well below 5. It falls with the square root of the number of steps, and grows in
proportion to the noise.

| steps | {" | ".join(map(str, STEPS))} |
|---|{"---|" * len(STEPS)}
"""
    for world in WORLDS:
        yield f"| {world} | {' | '.join(f'{100 * found[world, n][2]:.2g}' for n in STEPS)} |\n"
    yield TAIL


def shares(found: dict[tuple[str, int], tuple[float, float, float]], worlds: Iterable[str]) -> Iterator[str]:
    """The rows of what was called within, and beyond."""
    for world in worlds:
        cells = " | ".join(f"{100 * one:.1f}, {100 * other:.1f}" for one, other, _ in (found[world, n] for n in STEPS))
        yield f"| {world} | {cells} |\n"


def main() -> None:
    """Write the page."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    asked = [(world, steps) for world in WORLDS | HARDER for steps in STEPS]
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        told = pool.map(measured, *zip(*asked, strict=True), [draws] * len(asked))
        found = dict(zip(asked, told, strict=True))
    PAGE.write_text("".join(page(found, draws)), encoding="utf-8")


if __name__ == "__main__":
    main()
