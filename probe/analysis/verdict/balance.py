"""How tokens lie over ranks, mini-batches and micro-batches, and what it costs where they lie unevenly.

All of it counts tokens: that one rank has more of them doesn't say that it takes longer. Waiting is judged by time, in
:mod:`probe.analysis.waiting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from probe.analysis import time_shares, token_balance
from probe.analysis.change import Change
from probe.analysis.framework_settings import number, setting
from probe.analysis.quantities import course
from probe.analysis.verdict import facts
from probe.analysis.verdict.finding import Cost, Finding, Since, Where
from probe.dashboards.courses import over_run
from probe.dashboards.quantities import quantity
from probe.sql import Sql, sql
from probe.text import count, percent, place, ratio, rows, whole
from probe.text import missing as unknown

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

#: Imbalance (largest ÷ mean) from which it is worth a change.
UNEVEN: Final = 1.10
#: One that is seen at all.
SEEN: Final = 1.01
#: An imbalance is worth a change only where at least this share of a step could be saved.
WORTH: Final = 0.02
#: A sequence of at least this share of a rank's tokens in a round, and so many times the mean sequence, is a giant.
GIANT, TIMES = 0.4, 4.0
#: A giant is the cause where what it has above a usual sequence is this share of what its rank has above the others.
EXPLAINS: Final = 0.8

_FULLEST: Final = Sql("""
with per as (
  select step, phase, round, rank, sum(tokens)::bigint as tokens, count(*) as micro_batches, max(longest) as longest,
         sum(sequences)::bigint as sequences
  from micro_batches_counted where rank is not null and step is not null group by all)
select step, phase, round, count(*) as ranks, max(tokens) as most, avg(tokens) as mean,
       arg_max(rank, (tokens, -rank)) as rank, arg_max(longest, tokens) as longest,
       sum(tokens) / greatest(sum(sequences), 1) as usual, min(micro_batches) as fewest,
       max(micro_batches) as most_micro_batches
from per group by all having count(*) > 1 and sum(tokens) > 0
""")


def over_cap(run: Run) -> list[Finding]:
    """Micro-batches with more tokens than their cap."""
    total = token_balance.totals(run).iloc[0]
    if not total["over_cap"]:
        return []
    row = rows(token_balance.violations(run, 1))[0]
    many = int(total["over_cap"])
    text = f"{count(many)} of {count(total['micro_batches'])} micro-batches {'are' if many > 1 else 'is'} over the cap;"
    text += f" the worst has {count(row['tokens'])} tokens of {count(row['cap_tokens'])} ({place(row)})."
    change = Change("Cut with strict=True, which keeps the cap.")
    alone = token_balance.longer_than_cap(run)  # no way of cutting brings such a sequence under it
    if alone is not None:
        name, now = setting(run, "micro_batch_tokens")
        advice = f"The longest sequence has {count(alone['longest'])} tokens by itself: no cut keeps it under a cap of "
        advice += f"{count(alone['cap_tokens'])}. Raise the cap, or shorten or leave out such rows."
        change = Change(advice, name, alone["longest"] if name else None, number(now))
    return [
        Finding(
            "tuning",
            "over_cap",
            text,
            topic="token_balance",
            where=Where.of(row),
            cost=Cost(tokens=int(row["excess_tokens"])),
            change=change,
            evidence_sql="select * from micro_batches where over_cap",
            weight=85,
        )
    ]


def ranks(run: Run) -> list[Finding]:
    """Tokens over ranks: of the whole step, of its mini-batches, and whether one sequence is behind it."""
    frame = run.sql(sql("{fullest} order by step, phase, round", fullest=_FULLEST))
    if frame.empty:
        return []
    shares = time_shares.of_phases(run)
    frame["uneven"] = frame["most"] / frame["mean"]
    steps = frame.groupby(["step", "phase"], dropna=False, as_index=False).agg(
        uneven=("uneven", "max"), rounds=("round", "count"), most=("most", "sum"), mean=("mean", "sum")
    )
    worst: dict[str, Any] = {}
    wasted_s = wasted = 0.0  # of a step, in all its phases: one change saves them together
    for phase, here in steps.groupby("phase", dropna=False):
        middle, waited = float(here["uneven"].median()), float((1 - here["mean"] / here["most"]).median())
        name = None if unknown(phase) else str(phase)
        seconds, share = shares.get(name, (float("nan"), float("nan")))
        cost = waited * (1.0 if unknown(share) else share)
        wasted, wasted_s = min(1.0, wasted + cost), wasted_s + waited * seconds
        if not worst or cost > worst["cost"]:
            worst = {
                "phase": name,
                "uneven": middle,
                "cost": cost,
                "waited": waited,
            }
    worst |= {"cost": wasted, "seconds": wasted_s}
    here = frame[frame["phase"].isna() if worst["phase"] is None else frame["phase"] == worst["phase"]]
    return [_of_ranks(run, here, worst)]


def _of_ranks(run: Run, frame: pd.DataFrame, worst: dict[str, Any]) -> Finding:
    top = rows(frame.nlargest(1, "uneven"))[0]
    where = Where.of({**top, "step": None}, rank=_always(frame))
    usual = over_run(quantity("rank_imbalance"), course(run, "rank_imbalance"))
    usual = worst["uneven"] if unknown(usual) else float(usual)
    text = f"The fullest rank of a batch has {ratio(usual)} the mean tokens in a usual step"
    if top["uneven"] >= SEEN:
        text += f", {ratio(top['uneven'])} at worst ({place({**top, 'rank': None})}, rank {top['rank']})"
    text += "."
    who = where.rank
    text += f" It is always rank {who}." if who is not None else ""
    worth = worst["uneven"] >= UNEVEN and worst["cost"] >= WORTH
    if not worth:
        return Finding("fine", "rank_balance", text, "token_balance", cost=Cost(share=worst["cost"]), weight=30)
    above = (frame["most"] - frame["mean"]) * frame["ranks"] / (frame["ranks"] - 1)  # the others' mean
    explained = float(((frame["longest"] - frame["usual"]) / above.where(above > 0)).clip(upper=1).median())
    giant = (
        float((frame["longest"] >= GIANT * frame["most"]).mean()) >= 0.5
        and float((frame["longest"] / frame["usual"]).median()) >= TIMES
        and explained >= EXPLAINS
    )
    several = bool((frame["round"] > 1).any())
    name, setting_name = "uneven_ranks", "balance_ranks"
    advice = "Balance the lengths across ranks before the batch is split."
    if giant:
        name = "giant_sequence"
        longest = whole(frame["longest"].max())
        text = (
            f"One long sequence makes its rank the fullest: the longest has {count(longest)} tokens, "
            f"{count(frame['longest'].median() / frame['usual'].median())} times a usual one, and its rank has "
            f"{ratio(worst['uneven'])} the mean tokens in a usual step."
        )
        advice = "Limit the length of sequences, or split such rows off: balancing can't divide one sequence."
    elif several and _balanced_as_a_whole(run, worst["phase"]):
        name = "uneven_mini_batches"
        text = (
            f"Batches are balanced over the ranks, but mini-batches aren't: in a usual step the fullest rank "
            f"of a mini-batch has {ratio(worst['uneven'])} the mean tokens, and the others wait for it in each."
        )
        advice = "Balance the lengths within each mini-batch too."
    change_name, now = setting(run, setting_name) if name == "uneven_ranks" else (None, None)
    cost = Cost(seconds=None if unknown(worst["seconds"]) else worst["seconds"], share=worst["cost"])
    return Finding(
        "tuning",
        name,
        text,
        topic="token_balance",
        where=where,
        since=Since(whole(frame["step"].min())),
        cost=cost,
        explained=explained if giant else None,
        why=f"Ranks that have fewer tokens wait {percent(worst['waited'])} of {worst['phase'] or 'that time'}, "
        "if all are equally fast per token.",
        change=Change(advice, change_name, True if change_name and not now else None, now),
        evidence_sql=sql(
            """select * from ({fullest}) where most > {uneven} * mean
            and {at}""",
            fullest=_FULLEST,
            uneven=UNEVEN,
            at=facts.at(where, "phase", "rank"),
        ),
        weight=100 * worst["cost"],
    )


def _always(frame: pd.DataFrame) -> int | None:
    """The rank that is the fullest nearly always; None where it changes. Where most rounds are uneven, the even ones
    before or after them don't count.
    """
    uneven = frame[frame["uneven"] >= 1 + (UNEVEN - 1) / 2]
    told = uneven if len(uneven) >= len(frame) / 2 else frame[frame["uneven"] >= SEEN]
    if len(told) < len(frame) / 2:  # which rank is the first of equals says nothing
        return None
    often = told["rank"].value_counts(normalize=True)
    return int(often.index[0]) if len(told) >= 3 and often.iloc[0] >= 0.9 else None


def _balanced_as_a_whole(run: Run, phase: str | None) -> bool:
    """Whether the sums over all mini-batches of a step are even."""
    frame = run.sql(
        """
        with per as (select step, phase, rank, sum(tokens) as tokens from micro_batches_counted
                     where rank is not null and step is not null group by all)
        select phase, step, max(tokens) / nullif(avg(tokens), 0) as uneven from per group by all having count(*) > 1
        """
    )
    here = frame[frame["phase"].isna() if phase is None else frame["phase"] == phase]
    return bool(len(here)) and float(here["uneven"].median()) < 1 + (UNEVEN - 1) / 2


def micro_batches(run: Run) -> list[Finding]:
    """Micro-batches within a rank, where ranks wait for each other after each one."""
    frame = token_balance.imbalance(run)
    if frame.empty:
        return []
    middle = float(frame["micro_batch_imbalance_ratio"].median())
    # What waiting after each micro-batch costs on top of waiting once at the end.
    wait = float((frame["sync_wait_ratio"] / frame["rank_imbalance_ratio"]).median())
    wait = 1.0 if unknown(wait) else wait  # a lone rank waits for nobody
    text = f"Within a rank the largest micro-batch has {ratio(middle)} the mean tokens in a usual step"
    if wait >= 1.02:
        text += f"; where ranks wait for each other after each one, that costs {percent(wait - 1)} more time"
    uneven = wait >= UNEVEN
    advice = "Cut on all ranks together (dp_group), and sort micro-batches by size."
    return [
        Finding(
            "tuning" if uneven else "fine",
            "uneven_micro_batches" if uneven else "micro_batch_balance",
            f"{text}.",
            topic="token_balance",
            cost=Cost(share=wait - 1 if uneven else None),
            change=Change(advice) if uneven else None,
            evidence_sql="select * from micro_batches_counted" if uneven else "",
            confidence="medium",
            alternatives=("It costs nothing if ranks don't wait after each micro-batch.",) if uneven else (),
            weight=40 * (wait - 1),
        )
    ]
