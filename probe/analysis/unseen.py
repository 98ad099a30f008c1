"""What a run's micro-batches leave open: regressors that didn't vary by themselves, so that no coefficient is known.

All micro-batches may have had four rows; or a row's tokens were always as many, so that rows and tokens rose together.
What such a regressor costs is then part of the floor, or of what a token costs. A prediction holds where it is what it
was, or what the others foretell of it. Beyond that nothing is known, and no peak is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: A regressor that differs by less than this share of itself counts as the same.
LITTLE: Final = 0.02

_WORDS: Final = {
    "longest": ("longest row", "a token of the longest row"),
    "rows": ("number of rows", "a row"),
}


@dataclass(frozen=True)
class Unseen:
    """A regressor that has no coefficient.

    Attributes:
        name: ``"longest"`` or ``"rows"``.
        foretold: What the others say of it: a coefficient for each regressor of the fit, (k,).
        below: How far it was under that, at most; 0 or less.
        above: How far it was over that, at most; 0 or more.
        usual: Its mean.
        why: Why nothing is told beyond it, and what would tell, in words.
    """

    name: str
    foretold: Array
    below: float
    above: float
    usual: float
    why: str

    def beyond(self, regressors: Array, values: Array) -> Array:
        """How far micro-batches are from what was seen of it: 0 where they aren't, below 0 where they have less.

        Args:
            regressors: Of the fit, (n, k).
            values: Of this one, (n,).
        """
        foretold = regressors @ self.foretold
        little = LITTLE * np.maximum(self.usual, np.abs(foretold))
        apart = values - foretold
        over, under = apart - (self.above + little), apart - (self.below - little)
        found: Array = np.where(over > 0, over, np.where(under < 0, under, 0.0))
        return found


def unseen(name: str, values: Array, columns: Mapping[str, Array], names: Sequence[str], experiment: str) -> Unseen:
    """What was seen of a regressor that is left out of a fit.

    Args:
        name: Of it.
        values: Of it, (n,).
        columns: Those that foretell it, by name: each (n,).
        names: Of the fit's regressors; what isn't among ``columns`` foretells nothing.
        experiment: What would tell its coefficient, a sentence.
    """
    known = np.stack(list(columns.values()), axis=1)
    left, solved = left_of(values, known)
    by_name = dict(zip(columns, solved, strict=True))
    foretold = np.array([by_name.get(one, 0.0) for one in names])
    below, above = min(0.0, float(left.min())), max(0.0, float(left.max()))
    return Unseen(name, foretold, below, above, float(values.mean()), f"{_why(name, values)} {experiment}")


def varies(values: Array) -> bool:
    """Whether a regressor differs between micro-batches by more than a little.

    Args:
        values: Of it, (n,).
    """
    return float(values.std()) > LITTLE * float(values.mean())


def left_of(values: Array, known: Array) -> tuple[Array, Array]:
    """What other regressors leave of one, (n,), and the coefficients by which they foretell it, (k,).

    Args:
        values: Of it, (n,).
        known: The others, (n, k).
    """
    scale = np.maximum(np.abs(known).max(axis=0), 1e-300)
    solved, *_ = np.linalg.lstsq(known / scale, values, rcond=None)
    return values - known / scale @ solved, solved / scale


def _why(name: str, values: Array) -> str:
    what, of_one = _WORDS[name]
    if varies(values):
        return f"The {what} only followed the tokens, so what {of_one} needs by itself isn't known."
    low, high = int(values.min()), int(values.max())
    seen = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"Each micro-batch had {seen} {_held(name, high)}, so what {of_one} needs isn't known."


def _held(name: str, count: int) -> str:
    if name == "longest":
        return "tokens in its longest row"
    return "row" if count == 1 else "rows"


def experiment_of(rows: Array, cap: int | None, settings: Mapping[str, tuple[str | None, Any]]) -> str:
    """What would tell a coefficient at the least cost: one step that is cut otherwise.

    Fewer rows and shorter ones can't run out of memory; where each micro-batch has one row, two are the fewest that
    tell.

    Args:
        rows: Of the micro-batches, (n,).
        cap: Under which they were cut; None without a cap.
        settings: By ``"rows"`` and ``"longest"`` the name of the setting and what it is, where they are known.
    """
    if varies(rows):
        key, now = settings.get("longest", (None, None))
        half = now // 2 if isinstance(now, int) else 0
        what = f"{key} = {half}" if key is not None and half else "rows of half their length"
        return f"Run one step with {what}: shorter rows can't run out of memory."
    most = int(rows.max())
    if cap is not None:
        return f"Run one step with a cap of {2 * cap if most == 1 else max(1, cap // 2):,} tokens."
    key, now = settings.get("rows", (None, None))
    if key is None or not isinstance(now, int) or now < 1:
        key, now = None, most
    then = now // 2 if now > 1 else 2
    what = f"{key} = {then}" if key is not None else f"{then} {'row' if then == 1 else 'rows'} in each micro-batch"
    why = "" if now == 1 else ": fewer rows can't run out of memory"
    return f"Run one step with {what}{why}."
