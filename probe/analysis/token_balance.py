"""How evenly tokens lie over micro-batches and across ranks, and which rank is the fullest.

Imbalance is largest ÷ mean: 1 is perfect, 2 means that the largest has twice the mean. How large it is say the
quantities ``rank_imbalance``, ``sync_wait`` and ``micro_batch_imbalance``. Batches of several ranks belong together
when they are the n-th of their (step, phase): that is a "round" (the view ``micro_batches_counted``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from probe import text as words
from probe.analysis.quantities import courses
from probe.analysis.query import empty, same
from probe.dashboards.compile import series
from probe.dashboards.quantities import field_of, quantity
from probe.dashboards.spec import listed
from probe.sql import Sql, joined, sql

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Columns of :func:`heat`.
HEAT: Final = (
    "rank",
    "who",
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

#: What says how uneven batches are.
UNEVEN: Final = ("rank_imbalance", "micro_batch_imbalance", "sync_wait")

#: Who has most in each round. A process without a rank is none of those that wait: where there are ranks, they alone
#: are compared.
_ROUNDS: Final = Sql("""
per_batch as (
  select rank, step, phase, round, sum(tokens)::bigint as tokens, count(*) as micro_batches, sum(over) as over_cap
  from micro_batches_counted group by rank, if(rank is null, process, null), step, phase, round
), compared as (
  select * from per_batch qualify rank is not null or count(rank) over (partition by step, phase, round) = 0
), rounds as (
  select step, phase, round, count(rank) as ranks, sum(tokens)::bigint as tokens,
         if(count(rank) > 1, arg_max(rank, (tokens, -rank)), null) as straggler, max(tokens) as straggler_tokens,
         min(tokens) = max(tokens) as even, avg(tokens) as mean_tokens, max(micro_batches) as micro_batches,
         sum(over_cap)::bigint as over_cap
  from compared group by all having sum(tokens) > 0
)
""")

_ROUND: Final = ("step", "phase", "round")


def rounds(run: Run) -> pd.DataFrame:
    """One row for each batch that all ranks cut: how even it was.

    Args:
        run: The run.

    Returns:
        Step, phase, round (from 1), ranks, tokens, straggler (the fullest rank; missing where only one cut),
        straggler_tokens, mean_tokens, micro_batches, over_cap (number of micro-batches), and of this round alone
        rank_imbalance_ratio, micro_batch_imbalance_ratio (the worst rank's) and sync_wait_ratio (what ranks lose that
        wait for each other after every micro-batch); in order of step.
    """
    found = {field_of(quantity(name)): _of_rounds(name) for name in UNEVEN}
    joins = [_joined_by_round(Sql(name), query) for name, query in found.items()]
    values = [sql("{name}.value as {name}", name=Sql(name)) for name in found]
    return run.sql(
        sql(
            """with {rounds} select rounds.* exclude (even), {values} from rounds {joins}
        order by rounds.step, rounds.phase, rounds.round""",
            rounds=_ROUNDS,
            values=values,
            joins=joined(joins, ""),
        )
    )


def _joined_by_round(name: Sql, query: Sql) -> Sql:
    same_round = [sql("{name}.{one} is not distinct from rounds.{one}", name=name, one=Sql(one)) for one in _ROUND]
    return sql(" left join ({query}) {name} on {same}", query=query, name=name, same=joined(same_round, " and "))


def _of_rounds(name: str) -> Sql:
    """The query for a quantity in each round, where the quantity itself takes the worst of them."""
    spec = dict(quantity(name))
    per = [one for one in listed(spec.pop("per", None)) if one not in _ROUND]
    return Sql(series({**spec, **({"per": per} if per else {}), "x": "step", "by": ["phase", "round"]}))


def rates(run: Run) -> pd.DataFrame:
    """How many tokens a step goes through in a second.

    Args:
        run: The run.

    Returns:
        Step and the quantities tokens, tokens_per_second (each token of a batch once) and tokens_processed_per_second
        (in each phase and epoch that computes on it). NaN where a step has no such value.
    """
    names = ("tokens", "tokens_per_second", "tokens_processed_per_second")
    found = courses(run, [quantity(name) for name in names])
    columns = [pd.Series(one.values, index=one.steps, name=name) for name, one in zip(names, found, strict=True)]
    return pd.concat(columns, axis=1).sort_index().rename_axis("step").reset_index()


def imbalance(run: Run) -> pd.DataFrame:
    """How uneven each step was, and who was fullest in its worst round.

    Args:
        run: The run.

    Returns:
        Step, rank_imbalance_ratio, micro_batch_imbalance_ratio, sync_wait_ratio (the quantities), straggler and phase
        (of the round with the worst rank_imbalance_ratio), over_cap.
    """
    specs = [quantity(name) for name in UNEVEN]
    frame = rounds(run).dropna(subset=["step"])
    worst = frame.sort_values(["step", "rank_imbalance_ratio"], ascending=[True, False], kind="stable")
    found = worst.drop_duplicates("step")[["step", "straggler", "phase"]].reset_index(drop=True)
    found["over_cap"] = frame.groupby("step")["over_cap"].sum().to_numpy()
    for place, (spec, course) in enumerate(zip(specs, courses(run, specs), strict=True), 1):
        values = found["step"].map(dict(zip(course.steps, course.values, strict=True)))
        found.insert(place, field_of(spec), values.astype("float64"))
    return found


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
    label[0] += "" if pd.isna(frame["worst"].iloc[0]) else " (most uneven)"
    return frame[["step", "phase", "round"]].reset_index(drop=True).assign(label=label)


def _label(row: dict[Any, Any], repeated: bool) -> str:
    parts = [_step(row["step"])]
    if not pd.isna(row["phase"]):
        parts.append(str(row["phase"]))
    if repeated:
        parts.append(f"batch {row['round']}")
    if not pd.isna(row["worst"]):  # a lone rank is compared with nobody
        parts.append(f"{row['worst']:.2f}×")
    if row["over_cap"]:
        parts.append(f"{row['over_cap']} over the cap")
    return " · ".join(parts)


def heat(run: Run, step: int | None = None, phase: str | None = None, round: int | None = None) -> pd.DataFrame:
    """Tokens of every micro-batch on every rank in one round, which is the most uneven one unless ``round``
    is given.

    Returns:
        Columns :data:`HEAT`, by rank (then those without one) and micro-batch.
    """
    if round is None:
        found = choices(run, 1)
        if found.empty:
            return empty(HEAT)
        step, phase, round = (None if pd.isna(v) else v for v in found.iloc[0][["step", "phase", "round"]])
    frame = run.sql(
        sql(
            """
        select rank, who(rank, process) as who, micro_batch, tokens, cap as cap_tokens, over::boolean as over_cap,
               sequences, longest, shortest, step, phase, round
        from micro_batches_counted
        where {same_step} and {same_phase}
          and round = {round}
        order by rank, who, micro_batch
        """,
            same_step=same("step", None if step is None else int(step)),
            same_phase=same("phase", phase),
            round=int(round or 1),
        )
    )
    return frame[list(HEAT)]


def stragglers(run: Run) -> pd.DataFrame:
    """Each rank's part in the imbalance, the one that was largest most often first.

    Returns:
        Rank, rounds, largest_in (rounds in which it had the most tokens and the round was not even),
        share_ratio (its tokens ÷ the mean of the ranks, over all rounds), tokens.
    """
    return run.sql(
        sql(
            """with {rounds}
        select per_batch.rank, count(*) as rounds,
               count(*) filter (rounds.straggler = per_batch.rank and not rounds.even) as largest_in,
               sum(per_batch.tokens) / nullif(sum(rounds.mean_tokens::decimal(38, 12))::double, 0) as share_ratio,
               sum(per_batch.tokens)::bigint as tokens
        from per_batch join rounds
          on rounds.step is not distinct from per_batch.step
         and rounds.phase is not distinct from per_batch.phase
         and rounds.round = per_batch.round
        where rounds.ranks > 1
        group by per_batch.rank order by largest_in desc, share_ratio desc, per_batch.rank
        """,
            rounds=_ROUNDS,
        )
    )


def violations(run: Run, limit: int = 200) -> pd.DataFrame:
    """Micro-batches over their cap, the worst first: rank, step, phase, micro_batch, tokens, cap_tokens, …"""
    return run.sql(
        sql(
            """select rank, step, role, phase, micro_batch, tokens, cap_tokens,
        tokens - cap_tokens as excess_tokens, sequences, list_max(lengths) as longest, source
        from micro_batches where over_cap
        order by excess_tokens desc, step, rank, micro_batch limit {limit}""",
            limit=int(limit),
        )
    )


def longer_than_cap(run: Run) -> dict[str, Any] | None:
    """The longest sequence above its micro-batch's cap by itself: longest, cap_tokens. None without one."""
    frame = run.sql(
        """select list_max(lengths) as longest, cap_tokens from micro_batches
        where over_cap and list_max(lengths) > cap_tokens order by longest desc, cap_tokens limit 1"""
    )
    return None if frame.empty else {str(key): int(value) for key, value in frame.iloc[0].items()}


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
