"""What probe found: a short ranked list in plain words, each with its numbers and what to do about it.

One function a topic, each ``Run → list[Finding]``; :func:`findings` ranks what they say. Thresholds stand as
constants here, so that a reader can see what counts as a problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pandas as pd

from probe.analysis import cost as own_cost
from probe.analysis import incidents, memory, padding_tax, reduction, token_balance
from probe.analysis.listing import Findings
from probe.analysis.quantities import course
from probe.dashboards.quantities import field_of, over_run, quantity
from probe.text import at, count, name, number, percent, place, ratio, rows, seconds, size
from probe.text import memory as memory_of
from probe.text import missing as unknown

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

Severity = Literal["problem", "notice", "fine"]

#: Less of the device free than this at the largest peak is a problem.
TIGHT_HEADROOM: Final = 0.08
#: Imbalance (largest ÷ mean) from which it is worth a notice, and a problem.
UNEVEN: Final = (1.10, 1.30)
#: Padding (share of token slots) from which it is worth a notice, and a problem.
TAXED: Final = (0.15, 0.40)
#: probe's own cost, as a share of the step, that it promises to stay under.
COST_TARGET: Final = 0.005

_ADVICE: Final = {
    "longest_row": "bring rows of similar length together, or compute on packed tokens; where the model packs already, "
    "this costs bytes and no compute",
    "fixed_width": "cut columns that hold no token before computing, or lower the configured length",
    "rounding": "round up to a smaller multiple",
    "filler_rows": "choose a batch size that the ranks divide",
    "sequence_parallel": "make the length a multiple of the sequence-parallel size upstream",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was found in a run; ``weight`` orders findings of one severity, larger first."""

    severity: Severity
    topic: str  #: the dashboard that shows more, such as "memory"
    finding: str
    advice: str
    weight: float = 0.0


def findings(run: Run) -> Findings:
    """Everything that was found in ``run``, problems first.

    Returns:
        A frame of severity ("problem", "notice" or "fine"), topic, finding and advice, which a notebook shows as a list
        of whole sentences. Empty only for a run without rows.
    """
    found = [one for look in LOOKS for one in look(run)]
    order: dict[str, int] = {"problem": 0, "notice": 1, "fine": 2}
    found.sort(key=lambda one: (order[one.severity], -one.weight))
    told = [(one.severity, one.topic, one.finding, one.advice) for one in found]
    return Findings(told, columns=["severity", "topic", "finding", "advice"])


def missing_rows(run: Run) -> list[Finding]:
    """Whether rows were dropped, and of which table."""
    frame = incidents.dropped(run)
    if frame.empty:
        return []
    total = int(frame["count"].sum())
    tables = ", ".join(f"{count(row['count'])} of {row['where']}" for row in rows(frame))
    many = "s were" if total > 1 else " was"
    text = f"{count(total)} row{many} dropped because the queue was full ({tables})."
    return [Finding("problem", "overview", text, "record fewer points or make the queue larger; sums are too low", 90)]


def trouble(run: Run) -> list[Finding]:
    """Incidents other than dropped rows."""
    frame = incidents.table(run)
    frame = frame[~frame["kind"].isin(["dropped_rows", "budget"])]
    if frame.empty:
        return []
    worst = frame.iloc[0]
    total, off = int(frame["count"].sum()), bool(frame["switched_off"].any())
    text = f"{count(total)} incident{'s' if total > 1 else ''}, most often {worst['kind']} at {worst['where']}: "
    text += _short(worst["message"]) + "." + (" A listener was switched off: its rows end there." if off else "")
    return [Finding("problem" if off else "notice", "overview", text, "see the incidents below", 50 + 30 * off)]


def peak(run: Run) -> list[Finding]:
    """Which scope made the largest memory peak, on which rank, and what headroom was left."""
    frame = memory.largest(run)
    if frame.empty:
        return []
    row = rows(frame)[0]
    high = over_run(quantity("peak_memory"), course(run, "peak_memory"))
    high = row["peak_allocated_bytes"] if unknown(high) else high  # there is no step yet
    what = memory_of(row["source"])
    text = f"The largest peak of {what} was {at(row['peak_kind'])}{size(high)}, made by {place(row)}"
    batch = _batch_of(run, row)
    text += f" ({_said(batch)})." if batch else "."
    if row["source"] == "process_rss" or unknown(row["headroom_ratio"]):
        return [Finding("fine", "memory", text, "no accelerator capacity is known to compare it with", 40)]
    text += f" {percent(row['headroom_ratio'])} of the device's {size(row['device_total_bytes'])} was left."
    tight = row["headroom_ratio"] < TIGHT_HEADROOM
    advice = f"there is room for larger micro-batches in {name(row['phase'], 'it')}"
    if tight and batch and batch["sequences"] == 1:  # a lower cap would refuse it
        advice = "shorten the longest sequences: this one is a micro-batch by itself, which no lower cap makes smaller"
    elif tight:
        advice = "lower max_token_len of that phase"
    return [Finding("problem" if tight else "fine", "memory", text, advice, 80)]


def unequal_memory(run: Run) -> list[Finding]:
    """Whether ranks peak at clearly unlike heights in one phase."""
    frame = memory.by_phase(run)
    frame = frame[frame["ranks"] > 1]
    if frame.empty:
        return []
    gap = frame["peak_allocated_bytes"] - frame["least_rank_bytes"]
    row = rows(frame[gap == gap.max()])[0]
    share = 1 - row["least_rank_bytes"] / row["peak_allocated_bytes"]
    if share < 0.1:
        return []
    where = place({"role": row["role"], "phase": row["phase"], "name": row["name"]})
    text = (
        f"Ranks peak unequally in {where}: {size(row['peak_allocated_bytes'])} on rank {row['rank']},"
        f" {size(row['least_rank_bytes'])} on the lowest."
    )
    return [
        Finding(
            "notice",
            "memory",
            text,
            "balance tokens across ranks, or look at what only that rank holds",
            100 * share,
        )
    ]


def over_cap(run: Run) -> list[Finding]:
    """Micro-batches with more tokens than their cap."""
    total = token_balance.totals(run).iloc[0]
    if not total["over_cap"]:
        return []
    row = rows(token_balance.violations(run, 1))[0]
    many = int(total["over_cap"])
    text = f"{count(many)} of {count(total['micro_batches'])} micro-batches"
    text += f" {'are' if many > 1 else 'is'} over the cap;"
    text += f" the worst has {count(row['tokens'])} tokens of {count(row['cap_tokens'])} ({place(row)})."
    advice = "cut with strict=True, which keeps the cap"
    alone = token_balance.longer_than_cap(run)  # no way of cutting brings such a sequence under it
    if alone is not None:
        advice = f"the longest sequence has {count(alone['longest'])} tokens by itself: no cut keeps it under a cap of "
        advice += f"{count(alone['cap_tokens'])}; raise the cap, or shorten or leave out such rows"
    return [Finding("problem", "token_balance", text, advice, 85)]


def uneven(run: Run) -> list[Finding]:
    """Imbalance across ranks, with the straggler named, and over micro-batches."""
    frame = token_balance.imbalance(run)
    return [*_uneven_ranks(frame, token_balance.stragglers(run)), *_uneven_micro_batches(frame)]


def _uneven_ranks(frame: pd.DataFrame, ranks: pd.DataFrame) -> list[Finding]:
    if frame.empty or ranks.empty:
        return []
    middle = float(frame["rank_imbalance_ratio"].median())
    worst = rows(frame.nlargest(1, "rank_imbalance_ratio"))[0]
    text = f"The fullest rank has {ratio(middle)} the mean tokens in a usual step"
    text += f", {ratio(worst['rank_imbalance_ratio'])} at worst ({place({**worst, 'rank': None})})."
    severity = _grade(middle, UNEVEN)
    advice = "balance lengths across ranks before the batch is split" if severity != "fine" else "nothing to do"
    return [Finding(severity, "token_balance", text + _straggler(ranks), advice, 60 * (middle - 1))]


def _straggler(ranks: pd.DataFrame) -> str:
    first = rows(ranks.head(1))[0]
    often = f"in {count(first['largest_in'])} of {count(first['rounds'])} batches"
    # By chance each rank is the fullest in its share of the batches.
    if first["largest_in"] >= first["rounds"] * min(0.9, 1.5 / len(ranks)):
        return f" Rank {first['rank']} was the straggler {often}."
    return f" No rank stands out: rank {first['rank']} leads, fullest {often}." if first["largest_in"] else ""


def _uneven_micro_batches(frame: pd.DataFrame) -> list[Finding]:
    if frame.empty:
        return []
    middle = float(frame["micro_batch_imbalance_ratio"].median())
    # What waiting after each micro-batch costs on top of waiting once at the end.
    wait = float((frame["sync_wait_ratio"] / frame["rank_imbalance_ratio"]).median())
    wait = 1.0 if unknown(wait) else wait  # a lone rank waits for nobody
    text = f"Within a rank the largest micro-batch has {ratio(middle)} the mean tokens in a usual step"
    if wait >= 1.02:
        text += f"; where ranks wait for each other after each one, that costs {percent(wait - 1)} more time"
    grade = _grade(max(wait, middle / 1.5), UNEVEN)
    advice = "let all ranks cut together (dp_group) and order micro-batches by size"
    advice = advice if grade != "fine" else "nothing to do"
    return [Finding(grade, "token_balance", text + ".", advice, 50 * (max(wait, middle / 1.5) - 1))]


def tax(run: Run) -> list[Finding]:
    """The padding tax and its largest cause."""
    total = over_run(quantity("padding_tax"), course(run, "padding_tax"))
    if unknown(total):
        return []
    causes = padding_tax.by_cause(run)
    if causes.empty or not total:
        return [_kept_padding(run)]
    parts = ", ".join(f"{percent(row['share_ratio'])} {row['cause'].replace('_', ' ')}" for row in rows(causes.head(4)))
    text = f"Padding fills {percent(total)} of the token slots of a usual step; by cause it is {parts}."
    severity = _grade(total, TAXED)
    advice = _ADVICE.get(causes["cause"][0], "see which field and source it comes from")
    return [Finding(severity, "padding_tax", text, advice if severity != "fine" else "nothing to do", 70 * total)]


def _kept_padding(run: Run) -> Finding:
    """Of a run that computes on no padding: what the batches that its micro-batches were cut from hold of it."""
    kept = rows(padding_tax.not_computed(run))[0]
    if unknown(kept["padding_tokens"]) or not kept["padding_tokens"]:
        return Finding(
            "fine", "padding_tax", "Nothing is computed on padding, and the batches hold none.", "nothing to do"
        )
    share = kept["padding_tokens"] / kept["rectangle_tokens"]
    text = (
        f"Nothing is computed on padding: micro-batches are packed. The batches that are put together before hold"
        f" {percent(share)} of it, {size(kept['bytes'])} over the run, which cost memory and no compute."
    )
    severity: Severity = "notice" if share >= TAXED[1] else "fine"
    return Finding(severity, "padding_tax", text, "keep these batches jagged where memory or the network is short", 5)


def misread_metrics(run: Run) -> list[Finding]:
    """Metrics reduced by a substring that only happens to be there, and metrics that were given NaN."""
    frame = reduction.audit(run)
    found = []
    wrong = frame[frame["accidental"]]
    if len(wrong):
        listed = "; ".join(
            f"{row['key']} shows the {'smallest' if row['reducer'] == 'min' else 'largest'} value"
            f" because of “{row['reducer']}” in “{row['inside']}”"
            for row in rows(wrong.head(3))
        )
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        matters = bool(wrong["differs"].any())
        text = f"{len(wrong)} metric{'s are' if len(wrong) > 1 else ' is'} reduced by accident: {listed}{more}."
        advice = "rename the key, or give a typed Metric" + ("" if matters else "; its values never differed so far")
        found.append(Finding("problem" if matters else "notice", "reductions", text, advice, 70))
    broken = frame[frame["nan_count"] > 0]
    if len(broken):
        row = rows(broken.nlargest(1, "nan_count"))[0]
        text = f"{count(row['nan_count'])} NaN went into {row['key']} (last result {number(row['last'])})"
        text += f"; {len(broken) - 1} other metrics had some too." if len(broken) > 1 else "."
        found.append(
            Finding(
                "problem",
                "reductions",
                text,
                "find the step in the reductions and the batch it came from",
                75,
            )
        )
    return found


def cost(run: Run) -> list[Finding]:
    """What probe itself took."""
    found = course(run, "own_cost")
    usual = over_run(quantity("own_cost"), found)
    if unknown(usual):
        return []
    frame, worst = own_cost.by_step(run), max(one for one in found.values if not unknown(one))
    frame, first = frame[frame[field_of(quantity("own_cost"))].notna()], own_cost.first_step_ms(run)
    text = f"probe took {percent(usual)} of the time of the steps on the training thread of its worst rank"
    hooks, writer = (seconds(frame[key].mean() / 1e3) for key in ("hooks_ms", "writer_cpu_ms"))
    text += f" ({percent(worst)} in the worst step); on the mean rank {hooks} a step, and its writer thread {writer}."
    text += "" if unknown(first) else f" The first step, which isn't in it, paid {seconds(first / 1e3)}."
    dear = usual > COST_TARGET
    advice = "choose fewer recorders, or larger steps" if dear else f"within its target of {percent(COST_TARGET)}"
    return [Finding("notice" if dear else "fine", "overview", text, advice, 5)]


def left_out(run: Run) -> list[Finding]:
    """What the budget of ``probe.start`` left out, and what remains."""
    frame = incidents.table(run)
    frame = frame[frame["kind"] == "budget"].sort_values("count", ascending=False)
    if frame.empty:
        return []
    points = ", ".join(f"{count(row['count'])} at {row['where']}" for row in rows(frame.head(3)))
    more = f" and {count(len(frame) - 3)} other points" if len(frame) > 3 else ""
    text = f"{count(frame['count'].sum())} rows of inner points were left out to keep the budget: {points}{more}"
    usual = over_run(quantity("own_cost"), course(run, "own_cost"))
    text += "." if unknown(usual) else f"; probe took {percent(usual)} of the time of the steps all the same."
    advice = "counts and times of these points are too low; all else is whole"
    return [Finding("notice", "overview", text, advice, 6)]


#: The topics, in no order: findings rank themselves.
LOOKS: Final = (missing_rows, left_out, trouble, peak, unequal_memory, over_cap, uneven, tax, misread_metrics, cost)


def _batch_of(run: Run, row: dict[str, Any]) -> dict[str, int]:
    """Tokens, sequences and longest of the micro-batch that made a peak; empty where they aren't known."""
    if unknown(row["micro_batch"]):
        return {}
    frame = memory.by_tokens(run, rank=row["rank"])
    here = frame[(frame["rank"] == row["rank"]) & (frame["peak_allocated_bytes"] == row["peak_allocated_bytes"])]
    if here.empty:
        return {}
    one = here.iloc[0]
    return {key: int(one[key]) for key in ("tokens", "sequences", "longest")}


def _said(batch: dict[str, int]) -> str:
    many = "s" if batch["sequences"] != 1 else ""
    tokens, sequences, longest = (count(batch[key]) for key in ("tokens", "sequences", "longest"))
    return f"{tokens} tokens in {sequences} sequence{many}, longest {longest}"


def _grade(value: float, limits: tuple[float, float]) -> Severity:
    return "problem" if value >= limits[1] else "notice" if value >= limits[0] else "fine"


def _short(text: str, length: int = 120) -> str:
    line = " ".join(str(text).split()).rstrip(".")
    return line if len(line) <= length else line[: length - 1] + "…"
