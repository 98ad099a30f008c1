"""Plant staleness and a temperature at several version lags, and write how the split told them apart.

``python docs/make_lag_split.py [SEEDS [MODELS]]``: so many held-out seeds, from 10 on, on synthetic logits, and so many
of them on a real small model, which takes a minute a seed. The table is a section of docs/design/mismatch.md. What was
found is kept in a file of the directory for temporary files, whose name follows the code, so that a stopped run
goes on. ``make lag-split`` calls it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Iterator
from inspect import getsource
from pathlib import Path
from typing import Final

import numpy as np

from probe.analysis import mismatch as analysis
from probe.analysis.mismatch.answer import Mismatch
from probe.analysis.mismatch.tokens import Answer, Array, Tokens
from probe.demo.zoo import lags
from probe.demo.zoo.lags import LAGS, OLDEST
from probe.opened import Run

STRENGTHS: Final = (1.0, 0.5, 0.25)
FIRST: Final = 10
PAGE: Final = Path(__file__).parent / "design" / "mismatch.md"
HEADING: Final = "## Staleness or the engine"

#: Synthetic answers, their tokens, and words to choose from.
ANSWERS, TOKENS, WORDS = 200, 40, 64
#: Standard deviations of logits, of what a version changes in them, and of the engine's noise.
SPREAD, DRIFT, NOISE = 2.5, 0.15, 0.01

HEAD: Final = f"""{HEADING}

<!-- Made by docs/make_lag_split.py (make lag-split), to the end. -->

This table shows how well the [split by version lag](../guides/mismatch.md#staleness-or-the-engine) tells stale weights
from the engine. In each trial a quarter of the answers is sampled by the trainer's own weights, and the others by
older ones. The engine's part is known: the trial also computes what an engine with the trainer's weights says of the
same tokens.

A cell shows in how many trials staleness was told from noise. The number behind it is the median of the stale part
that was found ÷ the part that was planted.

| trial | planted | right answer | strength 1 | strength 0.5 | strength 0.25 |
|---|---|---|---|---|---|
"""

TAIL: Final = f"""
* *Logits*: {ANSWERS} answers of {TOKENS} tokens, of weights 0, 2, 4 and {OLDEST} versions old. The logits of each token
  are normally distributed (standard deviation {SPREAD:g}, {WORDS} words). A version changes them by noise of {DRIFT:g},
  times the strength. The engine adds noise of {NOISE:g}.
* *Small model*: a training as in the table above, but shorter: the model learned from {lags.Lagged.lessons} batches of
  texts before. Strength 0.5 and 0.25 are half and a quarter of the {OLDEST} versions. About 80 answers count in the
  split.

What the table doesn't show:

* If the engine makes a large difference and there are few answers, a small stale part isn't told from noise. The
  answer then gives its error, which falls with the square root of their number. `run.mismatch()` looks at up to 1,000.
* Where rollout and training agree, nothing is said of staleness, so that the first row has no consequence.
* The split assumes that the engine makes the same difference at all lags. If older answers also come from another
  replica, or from harder prompts, that counts as staleness.
"""


def kept_in() -> Path:
    """The file of what this code has found."""
    code = hashlib.sha256(repr((ANSWERS, TOKENS, WORDS, SPREAD, DRIFT, NOISE, getsource(on_logits))).encode())
    for path in [*sorted(Path(analysis.__file__).parent.glob("*.py")), Path(lags.__file__)]:
        code.update(path.read_bytes())
    return Path(tempfile.gettempdir()) / f"probe-lag-split-{code.hexdigest()[:12]}.jsonl"


def normed(logits: Array) -> Array:
    """Log-probabilities of logits (n, words)."""
    top = logits - logits.max(1, keepdims=True)
    return np.asarray(top - np.log(np.exp(top).sum(1, keepdims=True)))


def on_logits(name: str, strength: float, seed: int) -> tuple[Tokens, float, float]:
    """Answers on synthetic logits, and k2 of what the engine makes and of what is beyond it."""
    drawing, kind = np.random.default_rng([seed, 15]), LAGS[name]
    temperature = 1 + 0.4 * strength if kind.hot else 1.0
    answers, engine, everything = [], 0.0, 0.0
    for at in range(ANSWERS):
        lag, step = 2 * (at % 4), at // 4
        logits = SPREAD * drawing.normal(size=(TOKENS, WORDS))
        noise = NOISE * drawing.normal(size=logits.shape)
        drift = DRIFT * strength * np.sqrt(lag) * drawing.normal(size=logits.shape) * kind.old
        train = normed(logits)
        fresh, rollout = (normed((logits + noise + one) / temperature) for one in (0.0, drift))
        drawn = (rollout + drawing.gumbel(size=rollout.shape)).argmax(1)[:, None]
        told, own, mine = (np.take_along_axis(one, drawn, 1)[:, 0] for one in (rollout, fresh, train))
        engine += float(((mine - own) ** 2).sum()) / 2
        everything += float(((mine - told) ** 2).sum()) / 2
        known = {"step": step, "rank": at % 2, "weight_version": step - lag, "trainer_version": step}
        answers.append(Answer(told, mine, np.ones(TOKENS), known=known))
    many = ANSWERS * TOKENS
    return Tokens(answers), engine / many, (everything - engine) / many


def on_a_model(name: str, strength: float, seed: int) -> tuple[Tokens, float, float]:
    """The same of a real small model: what its run keeps."""
    trained = LAGS[name](strength, seed)
    with tempfile.TemporaryDirectory() as folder, Run(trained.run(Path(folder) / "run")) as run:
        found = run.mismatch()
    if found is None:
        raise SystemExit(f"{name} {strength:g} seed {seed}: the run has no log-probabilities")
    kept = [(*(one.known[name] for name in ("step", "rank", "row")), one.weight) for one in found.tokens.answers]
    return found.tokens, *trained.planted(kept)


TRIALS: Final = {"logits": on_logits, "small model": on_a_model}


def told(trial: str, name: str, strength: float, seed: int) -> list[object]:
    """What the split says of one trial, and what was planted."""
    tokens, engine, stale = TRIALS[trial](name, strength, seed)
    found = Mismatch(tokens).split
    if found is None:
        raise SystemExit(f"{trial} {name} {strength:g} seed {seed}: the split was withheld")
    return [trial, name, strength, seed, found.clear, found.engine, found.stale, found.error, engine, stale]


def made(seeds: int, models: int, path: Path) -> Iterator[list[object]]:
    """Each trial, made where it isn't there yet."""
    lines = path.read_text().splitlines() if path.exists() else []
    there = {tuple(one[:4]): one for one in map(json.loads, lines)}
    for trial, many in (("logits", seeds), ("small model", models)):
        for seed in range(FIRST, FIRST + many):
            for name in LAGS:
                for strength in STRENGTHS if name != "nothing" else STRENGTHS[:1]:
                    if (key := (trial, name, strength, seed)) not in there:
                        there[key] = told(*key)
                        with path.open("a") as file:
                            file.write(json.dumps(there[key]) + "\n")
                        sys.stderr.write(f"{there[key]}\n")
                    yield there[key]


def cell(found: list[list[object]]) -> str:
    """How often staleness was told from noise, and how much of it was found."""
    if not found:
        return ""
    said = f"{sum(bool(one[4]) for one in found)}/{len(found)}"
    if not LAGS[str(found[0][1])].old:
        return said
    return f"{said}, {np.median([float(str(one[6])) / float(str(one[9])) for one in found]):.2f}"


def page(found: list[list[object]]) -> Iterator[str]:
    """The text of the section."""
    yield HEAD
    for trial in TRIALS:
        for name, kind in LAGS.items():
            ours = [one for one in found if one[:2] == [trial, name]]
            cells = " | ".join(cell([one for one in ours if one[2] == strength]) for strength in STRENGTHS)
            right = "staleness" if kind.old else "no staleness"
            yield f"| {trial} | {kind.about} | {right} | {cells} |\n"
    yield TAIL
    for trial in TRIALS:
        seeds = sorted({int(str(one[3])) for one in found if one[0] == trial})
        yield f"\n{trial.capitalize()}: seeds {', '.join(map(str, seeds))}." if seeds else ""
    yield f"\nMade on {platform.machine()}, Python {platform.python_version()}.\n"


def main() -> None:
    """Write the section; what stands above it stays."""
    seeds, models = (int(sys.argv[at]) if len(sys.argv) > at else many for at, many in ((1, 20), (2, 5)))
    found = list(made(seeds, models, kept_in()))
    PAGE.write_text(PAGE.read_text().partition(HEADING)[0].rstrip() + "\n\n" + "".join(page(found)))


if __name__ == "__main__":
    main()
