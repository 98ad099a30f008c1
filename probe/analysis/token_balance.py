"""How evenly tokens lie over micro-batches and over ranks, and who makes the others wait.

Imbalance is largest ÷ mean: 1 is perfect, 2 means that the largest has twice the mean. Batches of several
ranks belong together when they are the n-th of their (step, phase): that is a "round".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from probe import text as words
from probe.analysis.query import empty, literal, same

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Columns of :func:`heat`.
HEAT: Final = (
    "rank",
    "micro_batch",
    "tokens",
    "cap_tokens",
    "over_cap",
    "sequences",
    "longest",
    "shortest",
    "step",
    "phase",
    "round",
)

# Sums are of integers and decimals: of floats the last bits change with the order in which threads bring them.
_ROUNDS: Final = """
with cut as (
  select *, dense_rank() over (partition by rank, step, phase order by batch_id) as round from micro_batches
), per_batch as (
  select rank, step, phase, round, sum(tokens)::bigint as tokens, max(tokens) as largest, avg(tokens) as mean,
         count(*) as micro_batches, sum(over_cap::int) as over_cap
  from cut group by all
), per_slot as (
  select step, phase, round, micro_batch, max(tokens) as largest, avg(tokens) as mean
  from cut group by all
), waits as (
  select step, phase, round, sum(largest) / nullif(sum(mean::decimal(38, 12))::double, 0) as sync_wait_ratio
  from per_slot group by all
), rounds as (
  select step, phase, round, count(*) as ranks, sum(tokens)::bigint as tokens,
         max(tokens) / nullif(avg(tokens), 0) as rank_imbalance_ratio,
         max(largest / nullif(mean, 0)) as micro_batch_imbalance_ratio,
         arg_max(rank, (tokens, -rank)) as straggler, max(tokens) as straggler_tokens, avg(tokens) as mean_tokens,
         max(micro_batches) as micro_batches, sum(over_cap)::bigint as over_cap
  from per_batch group by all having sum(tokens) > 0
)
"""


def rounds(run: Run) -> pd.DataFrame:
    """One row for each batch that all ranks cut: how even it was.

    Returns:
        Step, phase, round (from 1), ranks, tokens, rank_imbalance_ratio, micro_batch_imbalance_ratio (the worst
        rank's), sync_wait_ratio (what ranks lose that wait for each other after every micro-batch: sum over
        the slots of the largest ÷ sum of the means), straggler (rank with most tokens), straggler_tokens,
        mean_tokens, micro_batches, over_cap (number of micro-batches); in order of step.
    """
    return run.sql(
        _ROUNDS  # noqa: S608  (a user's text is quoted by literal())
        + """
        select rounds.*, sync_wait_ratio from rounds join waits
          on rounds.step is not distinct from waits.step and rounds.phase is not distinct from waits.phase
         and rounds.round = waits.round
        order by rounds.step, rounds.phase, rounds.round
        """
    )


def imbalance(run: Run) -> pd.DataFrame:
    """:func:`rounds` by step, its worst round standing for it.

    Returns:
        Step, rank_imbalance_ratio, micro_batch_imbalance_ratio, sync_wait_ratio, straggler (of the round with the
        worst rank_imbalance_ratio), phase (of that round), over_cap.
    """
    return run.sql(
        _ROUNDS  # noqa: S608  (a user's text is quoted by literal())
        + """
        select rounds.step as step, max(rank_imbalance_ratio) as rank_imbalance_ratio,
               max(micro_batch_imbalance_ratio) as micro_batch_imbalance_ratio,
               max(sync_wait_ratio) as sync_wait_ratio,
               arg_min(straggler, (-rank_imbalance_ratio, rounds.phase, rounds.round)) as straggler,
               arg_min(rounds.phase, (-rank_imbalance_ratio, rounds.phase, rounds.round)) as phase,
               sum(over_cap)::bigint as over_cap
        from rounds join waits
          on rounds.step is not distinct from waits.step and rounds.phase is not distinct from waits.phase
         and rounds.round = waits.round
        where rounds.step is not null group by rounds.step order by rounds.step
        """
    )


def by_step(run: Run) -> pd.DataFrame:
    """:func:`imbalance` of every step, with its tokens, in one look at the micro-batches.

    Returns:
        Step, tokens (of the phase that cut the most, over all ranks: a step cuts the same sequences several times, for
        log-probs, then for updates), rank_imbalance_ratio and sync_wait_ratio, NaN where no micro-batch holds a token.
    """
    return run.sql(
        _ROUNDS  # noqa: S608  (our own names)
        + """
        , cuts as (
          select step, phase, sum(tokens)::double as tokens from per_batch where step is not null group by all),
        uneven as (
          select rounds.step as step, max(rank_imbalance_ratio) as rank_imbalance_ratio,
                 max(sync_wait_ratio) as sync_wait_ratio
          from rounds join waits
            on rounds.step = waits.step and rounds.phase is not distinct from waits.phase and rounds.round = waits.round
          group by rounds.step
        )
        select step, max(tokens) as tokens, any_value(rank_imbalance_ratio) as rank_imbalance_ratio,
               any_value(sync_wait_ratio) as sync_wait_ratio
        from cuts left join uneven using (step) group by step
        """
    )


def choices(run: Run, limit: int = 24) -> pd.DataFrame:
    """Which rounds :func:`heat` can show: the most uneven, those with most over the cap, then by unevenness.

    Returns:
        Label, step, phase, round; at most ``limit`` rows.
    """
    frame = rounds(run)
    if frame.empty:
        return empty(("label", "step", "phase", "round"))
    frame["worst"] = frame[["sync_wait_ratio", "rank_imbalance_ratio"]].max(axis=1)
    frame = frame.sort_values(["worst", "step", "round"], ascending=[False, True, True], kind="stable")
    first, others = frame.head(1), frame.iloc[1:].sort_values("over_cap", ascending=False, kind="stable")
    frame = pd.concat([first, others]).head(limit)
    repeated = bool(frame["round"].max() > 1)
    label = [_label(row, repeated) for row in words.rows(frame)]
    label[0] += " (most uneven)"
    return frame[["step", "phase", "round"]].reset_index(drop=True).assign(label=label)


def _label(row: dict[Any, Any], repeated: bool) -> str:
    parts = [_step(row["step"])]
    if not pd.isna(row["phase"]):
        parts.append(str(row["phase"]))
    if repeated:
        parts.append(f"batch {row['round']}")
    parts.append(f"{row['worst']:.2f}×")
    if row["over_cap"]:
        parts.append(f"{row['over_cap']} over the cap")
    return " · ".join(parts)


def heat(run: Run, step: int | None = None, phase: str | None = None, round: int | None = None) -> pd.DataFrame:
    """Tokens of every micro-batch on every rank in one round, which is the most uneven one unless ``round``
    is given.

    Returns:
        Columns :data:`HEAT`, by rank and micro-batch.
    """
    if round is None:
        found = choices(run, 1)
        if found.empty:
            return empty(HEAT)
        step, phase, round = (None if pd.isna(v) else v for v in found.iloc[0][["step", "phase", "round"]])
    frame = run.sql(
        f"""
        select rank, micro_batch, tokens, cap_tokens, over_cap, sequences, list_max(lengths) as longest,
               list_min(lengths) as shortest, step, phase, round
        from (select *, dense_rank() over (partition by rank, step, phase order by batch_id) as round
              from micro_batches
              where {same("step", None if step is None else int(step))} and {same("phase", phase)})
        where round = {literal(int(round or 1))} order by rank, micro_batch
        """  # noqa: S608  (a user's text is quoted by literal())
    )
    return frame[list(HEAT)]


def stragglers(run: Run) -> pd.DataFrame:
    """Each rank's part in the imbalance, the one that was largest most often first.

    Returns:
        Rank, rounds, largest_in (rounds in which it had the most tokens and the round was not even),
        share_ratio (its tokens ÷ the mean of the ranks, over all rounds), tokens.
    """
    return run.sql(
        _ROUNDS  # noqa: S608  (a user's text is quoted by literal())
        + """
        select per_batch.rank, count(*) as rounds,
               count(*) filter (rounds.straggler = per_batch.rank and rounds.rank_imbalance_ratio > 1)
                 as largest_in,
               sum(per_batch.tokens) / nullif(sum(rounds.mean_tokens::decimal(38, 12))::double, 0) as share_ratio,
               sum(per_batch.tokens)::bigint as tokens
        from per_batch join rounds
          on rounds.step is not distinct from per_batch.step
         and rounds.phase is not distinct from per_batch.phase
         and rounds.round = per_batch.round
        where rounds.ranks > 1
        group by per_batch.rank order by largest_in desc, share_ratio desc, per_batch.rank
        """
    )


def violations(run: Run, limit: int = 200) -> pd.DataFrame:
    """Micro-batches over their cap, the worst first: rank, step, phase, micro_batch, tokens, cap_tokens, …"""
    return run.sql(
        f"""select rank, step, role, phase, micro_batch, tokens, cap_tokens,
        tokens - cap_tokens as excess_tokens, sequences, list_max(lengths) as longest, source
        from micro_batches where over_cap
        order by excess_tokens desc, step, rank, micro_batch limit {int(limit)}"""  # noqa: S608  (a user's text is quoted by literal())
    )


def totals(run: Run) -> pd.DataFrame:
    """One row: micro_batches, tokens, over_cap, empty_micro_batches, utilisation_ratio (tokens ÷ caps, of
    those that have a cap and aren't empty)."""
    return run.sql(
        """select count(*) as micro_batches, coalesce(sum(tokens), 0)::bigint as tokens,
        count(*) filter (over_cap) as over_cap, count(*) filter (sequences = 0) as empty_micro_batches,
        sum(tokens) filter (cap_tokens is not null and sequences > 0)
          / nullif(sum(cap_tokens) filter (sequences > 0), 0) as utilisation_ratio
        from micro_batches"""
    )


def _step(step: Any) -> str:
    return "outside steps" if pd.isna(step) else f"step {int(step)}"
