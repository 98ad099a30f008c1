"""Plant every fault between rollout and training, and write into docs/design/mismatch.md how often it was named.

``python docs/make_mismatch.py [SEEDS]``: so many held-out seeds, from 10 on; thresholds were set on seeds 0 to 9. Of
each seed a small model is trained for about a minute, on a text and with a tokenizer of that seed, and each fault is
planted in its rollout at three strengths. Clean trainings are made on ten seeds or more. What was found is kept in a
file of the directory for temporary files, whose name follows the code, so that a run that was stopped goes on.
``SEEDS=0`` makes the page of what is there. ``make mismatch`` calls it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from probe.analysis import mismatch as analysis
from probe.analysis.mismatch.confident import LEAST_ANSWERS, LEAST_SHARE, LEAST_TOKENS, SURE, UNLIKELY
from probe.analysis.mismatch.judging import NOISE_K3
from probe.demo.zoo import mismatches
from probe.demo.zoo.mismatches import PLANTS, Clean, Planted
from probe.opened import Run

STRENGTHS: Final = (1.0, 0.5, 0.25)
FIRST: Final = 10
#: Clean trainings: as many show that what none of them has is rare.
CLEAN: Final = 10
#: Trainings near the limit of noise: their names, plants and strengths.
NEAR: Final = (
    ("clean", "clean", 1.0),
    ("weights with a 4-bit mantissa", "kernels", 0.25),
    ("weights with a 3-bit mantissa", "kernels", 0.5),
)
#: Steps of 32 texts for which a model is trained before: about a minute on one core.
LESSONS: Final = 800
SPLIT: Final = "## Staleness or the engine"
PAGE: Final = Path(__file__).parent / "design" / "mismatch.md"

HEAD: Final = """# How often a mismatch is named

<!-- Made by docs/make_mismatch.py (make mismatch), up to the next such line. -->

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

BORDER: Final = f"""
For a clean training the right answer is `agree`: the difference is within noise.

The weakest form of the last fault (weights with a 4-bit mantissa) is close to the noise limit, a k3 of {NOISE_K3:g}.
There `agree` is acceptable. k3 of each training:

| training | k3 |
|---|---|
"""

AFTER: Final = """
A lower limit would name more of these. The limit stays well above the clean value, because these models are small. The
bfloat16 noise of a large model isn't measured here, and `run.mismatch()` must not call it a fault.
"""

SURELY: Final = f"""
## Confident disagreement

[Confident disagreement](../guides/mismatch.md#confident-disagreement) is about tokens to which one side gives at least
{100 * SURE:.0f} % and the other at most {100 * UNLIKELY:.0f} %. The limits were set on seeds below 10. The table is of
the trainings of the first table. Shares are of the kept tokens, each counted once.

| training | kept tokens, strength 1 | confident disagreement, strength 1 | strength 0.5 | strength 0.25 |
|---|---|---|---|---|
"""


class Trial(NamedTuple):
    """One training.

    Attributes:
        plant: The fault.
        strength: Of the fault.
        seed: Of the training.
        cause: That is named; "nothing" where none can be.
        k3: Mean of r − 1 − log r over its kept tokens.
        tokens: How many these are.
        confident: On how many of them both sides are sure of opposite things.
        largest: The largest magnitude of a log ratio.
    """

    plant: str
    strength: float
    seed: int
    cause: str
    k3: float
    tokens: int
    confident: int
    largest: float


def kept_in() -> Path:
    """The file of what this code has found."""
    code = hashlib.sha256(str((LESSONS, Trial._fields)).encode())
    for folder in (Path(analysis.__file__).parent, Path(mismatches.__file__).parent):
        for path in sorted(folder.glob("*.py")):
            code.update(path.read_bytes())
    return Path(tempfile.gettempdir()) / f"probe-mismatch-{code.hexdigest()[:12]}.jsonl"


def found_in(path: Path) -> list[Trial]:
    """What was found so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Trial(*json.loads(line)) for line in lines]


def of_seed(seed: int, names: Collection[str], path: Path) -> None:
    """Make what isn't there yet of a seed.

    Args:
        seed: The seed.
        names: Of the plants.
        path: The file of what was found.
    """
    there = {one[:3] for one in found_in(path)}
    for name in names:
        kind = PLANTS[name]
        for strength in STRENGTHS if name != "clean" else STRENGTHS[:1]:
            if (name, strength, seed) in there:
                continue
            taught = type(kind.__name__, (kind,), {"lessons": LESSONS})
            with tempfile.TemporaryDirectory() as folder, Run(taught(strength, seed).run(Path(folder) / "run")) as run:
                judged = run.mismatch()
            if judged is None:
                raise SystemExit(f"{name} {strength:g} seed {seed}: the run has no log-probabilities")
            held, ratio = judged.tokens.held, np.abs(judged.tokens.log_ratio)
            sizes = int(held.sum()), judged.confident.tokens, float(ratio[held].max())
            trial = Trial(name, strength, seed, judged.judgement.cause, float(judged.measures.k3 or 0.0), *sizes)
            with path.open("a") as file:
                file.write(json.dumps(trial) + "\n")
            sys.stderr.write(f"{trial}\n")


def whole(found: Sequence[Trial]) -> list[Trial]:
    """The trials of seeds of which none is missing, and the clean ones of others."""
    many = Counter(one.seed for one in found)
    return [one for one in found if one.plant == "clean" or many[one.seed] == 1 + len(STRENGTHS) * (len(PLANTS) - 1)]


def told(found: Sequence[Trial], name: str, strength: float) -> list[Trial]:
    """The trials of a plant at one strength."""
    return [one for one in found if (one.plant, one.strength) == (name, strength)]


def cell(trials: Sequence[Trial], cause: str) -> str:
    """How often a fault was named, and what was said instead."""
    if not trials:
        return ""
    said = Counter(one.cause for one in trials)
    others = ", ".join(f"{word} {count}" for word, count in said.items() if word != cause)
    return f"{said[cause]}/{len(trials)}" + (f" ({others})" if others else "")


def share(trials: Sequence[Trial]) -> str:
    """The share of the tokens on which both sides are sure of opposite things."""
    if not trials:
        return ""
    many, of = sum(one.confident for one in trials), sum(one.tokens for one in trials)
    return f"{100 * many / of:.2g} %" if many else "0"


def page(found: Sequence[Trial]) -> Iterator[str]:
    """The text of the page, above the section that isn't this script's."""
    yield HEAD
    for name, kind in PLANTS.items():
        assert issubclass(kind, Planted | Clean)
        cells = " | ".join(cell(told(found, name, strength), kind.cause) for strength in STRENGTHS)
        yield f"| {name.replace('_', ' ')} | {kind.about} | {kind.cause} | {cells} |\n"
    sums = []
    for strength in STRENGTHS:
        faults = [one for one in found if one.strength == strength and one.plant != "clean"]
        hits = sum(one.cause == getattr(PLANTS[one.plant], "cause", "") for one in faults)
        sums.append(f"{hits}/{len(faults)}" if faults else "")
    yield f"| all faults | | | {' | '.join(sums)} |\n{BORDER}"
    for name, plant, strength in NEAR:
        numbers = [one.k3 for one in told(found, plant, strength)]
        yield f"| {name} | {min(numbers):.1e} to {max(numbers):.1e} |\n" if numbers else ""
    yield f"{AFTER}{SURELY}"
    for name in PLANTS:
        tokens = f"{sum(one.tokens for one in told(found, name, STRENGTHS[0])):,}"
        cells = " | ".join(share(told(found, name, strength)) for strength in STRENGTHS)
        yield f"| {name.replace('_', ' ')} | {tokens} | {cells} |\n"
    yield from _limits(told(found, "clean", STRENGTHS[0]))
    seeds, clean = (sorted({one.seed for one in found if (one.plant == "clean") == own}) for own in (False, True))
    if seeds and clean:
        yield f"\nMade on seeds {seeds[0]} to {seeds[-1]} (clean: {clean[0]} to {clean[-1]}), on {platform.machine()}, "
        yield f"Python {platform.python_version()}.\n"


def _limits(clean: Sequence[Trial]) -> Iterator[str]:
    """What clean trainings say of the limits: of n tokens without one a share below 3 ÷ n, at 95 % confidence."""
    many, tokens = sum(one.confident for one in clean), sum(one.tokens for one in clean)
    if not tokens:
        return
    yield f"""
The largest log ratio of a token in the clean trainings is {max(one.largest for one in clean):.2f}; the limits need \
{np.log(SURE / UNLIKELY):.1f}. """
    if not many:
        yield f"No such token among {tokens:,} means a share below\n{300 / tokens:.2g} %, at 95 % confidence. "
    yield f"`run.mismatch()` speaks of it from {100 * LEAST_SHARE:g} % on, and from {LEAST_TOKENS} tokens in\n"
    yield f"{LEAST_ANSWERS} answers on. The noise of larger models isn't measured here.\n"


def main() -> None:
    """Write the page."""
    many, path = int(sys.argv[1]) if len(sys.argv) > 1 else 5, kept_in()
    seeds = {
        seed: list(PLANTS) if seed < FIRST + many else ["clean"] for seed in range(FIRST, FIRST + max(many, CLEAN))
    }
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        for running in [pool.submit(of_seed, seed, names, path) for seed, names in seeds.items() if many]:
            running.result()
    _, heading, split = PAGE.read_text().partition(SPLIT)  # that part is make_lag_split.py's
    PAGE.write_text("".join(page(whole(found_in(path)))) + (f"\n{heading}{split}" if heading else ""))


if __name__ == "__main__":
    main()
