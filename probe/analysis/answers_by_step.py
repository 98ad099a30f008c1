"""What is recorded of the answers of each step: how long they are, how many were truncated, what had no advantage.

Queries for :func:`probe.analysis.by_step.by_step`, and for the audit of logged numbers.
"""

from __future__ import annotations

from typing import Final

from probe.analysis.query import literal
from probe.records import FATES
from probe.sql import Sql, joined, sql

#: Fates of whole answers that are dropped before the loss, and of their tokens that it leaves out.
DROPPED: Final = FATES[: FATES.index("masked")]
_COUNTED: Final = joined([literal(one) for one in FATES[FATES.index("masked") + 1 :]], ", ")
_DROPPED: Final = joined([literal(one) for one in DROPPED], ", ")


def without_advantage(steps: Sql, least: float = 0.0) -> Sql:
    """The query for the tokens of each step that have no advantage.

    Args:
        steps: A condition on ``step``.
        least: Only steps in which this share of the tokens that the loss counts, or more, has none.

    Returns:
        By step ``without_tokens``, ``loss_tokens``, those that the loss counts or may count, ``sampled_tokens`` and
        ``wall_ns``, when the last of them was told; and ``equal_tokens``, those without advantage in groups whose
        rewards are all equal, null where groups weren't told. Steps whose loss counts no token are left out.
    """
    return sql(
        """
        select step, coalesce(sum(tokens) filter (fate = 'no_advantage'), 0)::bigint as without_tokens,
               sum(tokens) filter (fate in ({counted}))::bigint as loss_tokens, sum(tokens)::bigint as sampled_tokens,
               (sum(equal_tokens) filter (fate = 'no_advantage'))::double as equal_tokens, max(wall_ns) as wall_ns
        from token_fates where {steps} group by step
        having loss_tokens > 0 and without_tokens >= {least} * loss_tokens order by step""",
        counted=_COUNTED,
        steps=steps,
        least=least,
    )


def truncated(steps: Sql, least: float = 0.0) -> Sql:
    """The query for the share of each step's answers that were truncated.

    Of a large batch only some answers have a row. Those that were chosen by what they are stand for themselves, and
    those that were drawn for all others of their batch. Batches of which that isn't known of each kept answer, or of
    which none was drawn, are left out.

    Args:
        steps: A condition on ``step``.
        least: Only steps with this share or more.

    Returns:
        By step ``share``, ``answers`` that it is of, ``truncated_rows`` among those with a row, ``whole``, whether each
        answer has one, and ``wall_ns``.
    """
    return sql(
        """
        with kept as (
          select step, process, batch_id, count(*) as rows_kept, count(truncated) as told,
                 count(*) filter (truncated) as cut, count(*) filter (chosen_by = 'random') as drawn,
                 count(*) filter (truncated and chosen_by = 'random') as drawn_cut, max(wall_ns) as wall_ns
          from samples where {steps} group by step, process, batch_id),
        batches as (
          select step, process, batch_id, max(batch_samples) as answers, max(kept_samples) as kept_samples
          from token_fates where {steps} group by step, process, batch_id),
        each as (
          select step, answers, cut, answers = rows_kept as whole, wall_ns,
                 case when answers = rows_kept then cut::double
                      else cut - drawn_cut + (answers - (rows_kept - drawn)) * drawn_cut / drawn end as estimated
          from batches join kept using (step, process, batch_id)
          where told = rows_kept and rows_kept = kept_samples and (answers = rows_kept or drawn > 0))
        select step, sum(estimated) / sum(answers) as share, sum(answers)::bigint as answers,
               sum(cut)::bigint as truncated_rows, bool_and(whole) as whole, max(wall_ns) as wall_ns
        from each group by step having share >= {least} order by step""",
        steps=steps,
        least=least,
    )


def lengths(steps: Sql) -> Sql:
    """The query for how long the answers of each step are, whatever of them has a row.

    Args:
        steps: A condition on ``step``.

    Returns:
        By step and process ``rank``, ``answers``, ``tokens``, and ``left_answers`` and ``left_tokens``, those of
        answers that weren't dropped.
    """
    return sql(
        """
        with batches as (
          select step, process, batch_id, any_value(rank) as rank, max(batch_samples) as answers,
                 max(batch_tokens) as tokens,
                 coalesce(sum(samples) filter (fate in ({dropped})), 0) as dropped_answers,
                 coalesce(sum(tokens) filter (fate in ({dropped})), 0) as dropped_tokens
          from token_fates where {steps} group by step, process, batch_id)
        select step, process, any_value(rank) as rank, sum(answers)::bigint as answers, sum(tokens)::bigint as tokens,
               sum(answers - dropped_answers)::bigint as left_answers,
               sum(tokens - dropped_tokens)::bigint as left_tokens
        from batches group by step, process order by step, process""",
        dropped=_DROPPED,
        steps=steps,
    )


def truncated_rows(steps: Sql) -> Sql:
    """The query for the answers with a row that were truncated, without those that were dropped.

    Args:
        steps: A condition on ``step``.

    Returns:
        By step and process ``truncated_rows``, ``told_rows``, those of which it is known, and ``whole``, whether these
        are all of its answers.
    """
    return sql(
        """
        with kept as (
          select step, process, count(*) filter (truncated) as truncated_rows, count(truncated) as told_rows
          from samples where coalesce(dropped, '') = '' and {steps} group by step, process),
        batches as (
          select step, process, sum(batch_samples) as answers from token_fates
          where fate = 'carried' and {steps} group by step, process)
        select step, process, truncated_rows, told_rows, coalesce(told_rows = answers, false) as whole
        from kept left join batches using (step, process) order by step, process""",
        steps=steps,
    )


def between(first: int, last: int) -> Sql:
    """The condition for steps from the first to the last of two."""
    return sql("step between {first} and {last}", first=int(first), last=int(last))
