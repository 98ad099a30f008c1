"""The fit of micro-batches' peaks: with as many of the regressors as can be told apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.analysis.fit import Fit, fit
from probe.analysis.unseen import Unseen, left_of, unseen, varies

Array = NDArray[np.float64]

#: What a micro-batch is told by, in this order.
REGRESSORS: Final = ("tokens", "longest", "rows")

#: Micro-batches that a model is from, at least.
FEWEST: Final = 20
#: (largest − smallest) ÷ mean tokens, without a twentieth at either end: below it a slope is a guess.
VARIETY: Final = 0.15
#: A trend over the steps counts from so many times its own error, as in :mod:`probe.analysis.growth`.
_SURE: Final = 4.5
#: How much of a regressor must not be foretold by the others (1 − R²), or it is left out.
_OWN: Final = 0.01
#: Floors of so many processes are told apart; beyond, those with the largest peaks are looked at.
_PROCESSES: Final = 32


def too_little(frame: pd.DataFrame) -> str:
    """What keeps micro-batches from telling what a token costs, "" where nothing does.

    Args:
        frame: The micro-batches.
    """
    if len(frame) < FEWEST:
        return f"Only {len(frame)} micro-batches have a peak; {FEWEST} are needed."
    low, high = np.quantile(frame["tokens"].to_numpy(dtype=float), [0.05, 0.95])
    if high - low < VARIETY * float(frame["tokens"].mean()):
        return f"Its micro-batches are all alike: nine tenths of them have {low:,.0f} to {high:,.0f} tokens."
    return ""


def fitted(frame: pd.DataFrame, tells: str) -> tuple[Fit, tuple[Unseen, ...]] | None:
    """The fit, with as many of the regressors as can be told apart, and those that can't.

    Args:
        frame: The micro-batches.
        tells: The experiment that would tell their coefficients.
    """
    largest = frame.groupby("process")["peak"].max().nlargest(_PROCESSES).index
    here = frame[frame["process"].isin(largest)]
    floors = {f"floor of {one}": (here["process"] == one).to_numpy(dtype=float) for one in sorted(largest)}
    every = {name: here[name].to_numpy(dtype=float) for name in REGRESSORS}
    chosen = {name: values for name, values in every.items() if varies(values)}
    for name in ("rows", "longest"):
        others = {one: values for one, values in chosen.items() if one != name}
        if name in chosen and _own_share(every[name], floors | others) < _OWN:
            chosen = others
    if "tokens" not in chosen:
        return None
    measured = here["peak"].to_numpy(dtype=float)
    columns = floors | chosen
    found, steps = _fit(columns, measured), here["step"].to_numpy(dtype=float)
    if len(np.unique(steps)) >= 4:
        drifting = _fit(columns | {"step": steps}, measured)
        if drifting is not None and abs(drifting["step"]) > _SURE * drifting.error("step"):
            found = drifting
    if found is None:
        return None
    left_out = [name for name in ("rows", "longest") if name not in chosen]
    return found, tuple(unseen(name, every[name], columns, found.names, tells) for name in left_out)


def _fit(columns: Mapping[str, Array], measured: Array) -> Fit | None:
    return fit(list(columns), np.stack(list(columns.values()), axis=1), measured, uneven=True)


def _own_share(values: Array, others: Mapping[str, Array]) -> float:
    """How much of a regressor the others don't foretell, 0 to 1."""
    left, _ = left_of(values, np.stack(list(others.values()), axis=1))
    spread = float(((values - values.mean()) ** 2).sum())
    return float((left**2).sum()) / spread if spread else 0.0
