"""Plant every fault between rollout and training, and write into docs/design/mismatch.md how often it was named.

``python docs/make_mismatch.py [SEEDS]``: so many held-out seeds, from 10 on; thresholds were set on seeds 0 to 9. Of
each seed a small model is trained for about a minute, on a text and with a tokenizer of that seed, and each fault is
planted in its rollout at three strengths. What was found is kept in a file of the directory for temporary files, whose
name follows the code, so that a run that was stopped goes on. ``SEEDS=0`` makes the page of what is there. ``make
mismatch`` calls it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from probe.analysis import mismatch as analysis
from probe.demo.zoo import mismatches
from probe.demo.zoo.mismatches import PLANTS, Clean, Planted
from probe.opened import Run

STRENGTHS: Final = (1.0, 0.5, 0.25)
FIRST: Final = 10
#: Steps of 32 texts for which a model is trained before: about a minute on one core.
LESSONS: Final = 800
SPLIT: Final = "## Staleness or the engine"
PAGE: Final = Path(__file__).parent / "design" / "mismatch.md"

HEAD: Final = """# How often a mismatch is named

This page shows how often [`run.mismatch()`](../guides/mismatch.md) names the right cause. It is for anyone who has to
decide whether to trust its judgement.

Each trial is a real training with one planted fault:

1. A small causal transformer trains for about a minute on texts of a small language. Its byte-pair tokenizer is trained
   on texts of the same language.
2. The model then trains on rewards for ten steps on two ranks. A bfloat16 copy of it is the rollout engine. Half of the
   answers have two turns, with a tool's reply in between.
3. The fault is planted in this engine, or in the data that reaches the trainer, at one of three strengths.
4. `run.mismatch()` judges the run. It sees only what a run keeps: four answers per rank and step, with
   half-precision log-probabilities.

Thresholds were set on seeds 0 to 9. `make mismatch` made this page on seeds from 10 on; each seed has its own texts,
tokenizer and model. A cell shows how often the fault was named, out of all trainings. Other answers are counted in
parentheses. A cell is empty if no training was made.

| fault | planted | right answer | strength 1 | strength 0.5 | strength 0.25 |
|---|---|---|---|---|---|
"""

TAIL: Final = """
For a clean training the right answer is `agree`: the difference is within noise.

The weakest form of the last fault (weights with a 4-bit mantissa) is close to the noise limit, a k3 of 3e-4. There
`agree` is acceptable. k3 on seeds 0, 1 and 10 to 12:

| training | k3 |
|---|---|
| clean | 7.6e-5 to 8.9e-5 |
| weights with a 4-bit mantissa | 2.0e-4 to 3.6e-4 |
| weights with a 3-bit mantissa | 6.8e-4 to 1.1e-3 |

A lower limit would name all of these. The limit stays three times above the clean value, because these models are
small. The bfloat16 noise of a large model isn't measured here, and `run.mismatch()` must not call it a fault.
"""


def kept_in() -> Path:
    """The file of what this code has found."""
    code = hashlib.sha256(str(LESSONS).encode())
    for folder in (Path(analysis.__file__).parent, Path(mismatches.__file__).parent):
        for path in sorted(folder.glob("*.py")):
            code.update(path.read_bytes())
    return Path(tempfile.gettempdir()) / f"probe-mismatch-{code.hexdigest()[:12]}.jsonl"


def found_in(path: Path) -> dict[tuple[str, float, int], str]:
    """What was found so far: the cause by plant, strength and seed."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(name, strength, seed): cause for name, strength, seed, cause in map(json.loads, lines)}


def of_seed(seed: int, path: Path) -> None:
    """Make what isn't there yet of a seed."""
    there = found_in(path)
    for name, kind in PLANTS.items():
        for strength in STRENGTHS if name != "clean" else STRENGTHS[:1]:
            if (name, strength, seed) in there:
                continue
            taught = type(kind.__name__, (kind,), {"lessons": LESSONS})
            with tempfile.TemporaryDirectory() as folder, Run(taught(strength, seed).run(Path(folder) / "run")) as run:
                judged = run.mismatch()
            cause = "nothing" if judged is None else judged.judgement.cause
            with path.open("a") as file:
                file.write(json.dumps([name, strength, seed, cause]) + "\n")
            sys.stderr.write(f"{name} {strength:g} seed {seed}: {cause}\n")


def cell(found: dict[tuple[str, float, int], str], name: str, strength: float, cause: str) -> str:
    """How often a fault was named, and what was said instead."""
    told = Counter(said for (plant, how, _), said in found.items() if (plant, how) == (name, strength))
    if not told:
        return ""
    others = ", ".join(f"{said} {count}" for said, count in told.items() if said != cause)
    return f"{told[cause]}/{sum(told.values())}" + (f" ({others})" if others else "")


def page(found: dict[tuple[str, float, int], str]) -> Iterator[str]:
    """The text of the page."""
    yield HEAD
    for name, kind in PLANTS.items():
        assert issubclass(kind, Planted | Clean)
        cells = " | ".join(cell(found, name, strength, kind.cause) for strength in STRENGTHS)
        yield f"| {name.replace('_', ' ')} | {kind.about} | {kind.cause} | {cells} |\n"
    sums = []
    for strength in STRENGTHS:
        told = [(plant, said) for (plant, how, _), said in found.items() if how == strength and plant != "clean"]
        hits = sum(said == getattr(PLANTS[plant], "cause", "") for plant, said in told)
        sums.append(f"{hits}/{len(told)}" if told else "")
    yield f"| all faults | | | {' | '.join(sums)} |\n{TAIL}"
    seeds = sorted({seed for _, _, seed in found})
    if seeds:
        made = f"Made on seeds {seeds[0]} to {seeds[-1]}, on {platform.machine()}"
        yield f"\n{made}, Python {platform.python_version()}.\n"


def main() -> None:
    """Write the page."""
    many, path = int(sys.argv[1]) if len(sys.argv) > 1 else 5, kept_in()
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        for running in [pool.submit(of_seed, seed, path) for seed in range(FIRST, FIRST + many)]:
            running.result()
    _, heading, split = PAGE.read_text().partition(SPLIT)  # that part is make_lag_split.py's
    PAGE.write_text("".join(page(found_in(path))) + (f"\n{heading}{split}" if heading else ""))


if __name__ == "__main__":
    main()
