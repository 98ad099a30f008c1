"""What makes two runs differ in the tokens that carried policy gradient: sequences × length × the share of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

from probe.analysis.difference.parts import Part, Waterfall, exact
from probe.analysis.difference.shapley import Factors, shares
from probe.records import NOT_KNOWN
from probe.sql import joined, literal, sql
from probe.text import count, percent

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Of the steps of which the fate of each token is known.
_FATES: Final = sql(
    """
with known as (
  select step from token_fates where step is not null group by step
  having coalesce(sum(tokens) filter (fate in ({not_known})), 0) = 0 and sum(tokens) > 0),
told as (select * from token_fates semi join known using (step)),
batches as (select process, batch_id, max(batch_samples) as samples from told group by process, batch_id)
select fate, sum(tokens)::double as tokens, (select count(*) from known)::double as steps,
       (select sum(samples) from batches)::double as samples
from told group by fate""",
    not_known=joined([literal(one) for one in NOT_KNOWN], ", "),
)

#: What became of tokens that carried nothing, as a part is told.
_LOST: Final = {
    "truncated": "of answers that were cut off",
    "stale": "of answers that were too old",
    "filtered": "of answers that were filtered out",
    "failed": "of answers that failed",
    "dropped": "of answers that were dropped",
    "masked": "masked",
    "no_advantage": "without advantage",
    "clipped": "clipped in every epoch",
    "clip_unknown": "not known whether clipped",
    "unknown": "not known what of",
}


def carried(a: Run, b: Run) -> Waterfall | str:
    """What makes the tokens of a step that carried policy gradient differ; why not where that can't be said.

    Args:
        a: A run.
        b: What it is compared with.
    """
    before, after = (_factors(run) for run in (a, b))
    if before is None or after is None:
        return "Tokens that carried policy gradient aren't compared: one of the runs has no record of them."
    found = shares(_number, before, after)
    told = {name: f"{words}: {percent(before[name])} → {percent(after[name])}" for name, words in _LOST.items()}
    told["sequences"] = f"{count(before['sequences'])} → {count(after['sequences'])} sequences a step"
    told["length"] = f"{count(before['length'])} → {count(after['length'])} tokens each"
    causes = {"sequences": "tokens", "length": "lengths"}
    parts = [Part(causes.get(name, "fates"), "", value, told[name]) for name, value in found.items() if value]
    ends = (_number(before), _number(after))
    return exact("carried_tokens", "Tokens of a step that carried policy gradient", "tokens", ends, parts)


def _factors(run: Run) -> dict[str, float] | None:
    frame = run.sql(_FATES) if run.has("token_fates") else pd.DataFrame()
    if frame.empty:
        return None
    tokens = {str(row.fate): float(row.tokens) for row in frame.itertuples()}
    whole, steps, samples = sum(tokens.values()), float(frame["steps"][0]), float(frame["samples"][0])
    if not samples:
        return None
    return {"sequences": samples / steps, "length": whole / samples} | {
        name: tokens.get(name, 0.0) / whole for name in _LOST
    }


def _number(of: Factors) -> float:
    return of["sequences"] * of["length"] * (1.0 - sum(of[name] for name in _LOST))
