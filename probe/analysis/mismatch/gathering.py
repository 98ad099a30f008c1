"""From the rows of a run to the tokens that are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe import text as words
from probe.analysis.mismatch.tokens import Answer, Tokens
from probe.analysis.token_blocks import unpack
from probe.sql import joined, literal, sql

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Most answers that are looked at; of more they are drawn from all steps and ranks, the same each time.
MOST_ANSWERS: Final = 1000

#: Why an answer is kept that was drawn from those that are left, or as all are.
_DRAWN: Final = joined([literal(one) for one in ("all", "random", "")], ", ")

_NEEDED: Final = ("rollout_log_probs", "log_probs")
_KNOWN: Final = (
    "step",
    "rank",
    "batch_id",
    "row",
    "weight_version",
    "trainer_version",
    "replica",
    "wall_ns",
    "process",
)


def gathered(run: Run, first: int | None = None, last: int | None = None, most: int = MOST_ANSWERS) -> Tokens | None:
    """The tokens of the answers whose blocks a run keeps.

    Args:
        run: The run.
        first: The first step; None begins with the run's.
        last: The last step; None ends with the run's.
        most: Answers at most.

    Returns:
        The tokens of these answers in the order of their steps; None where no block has both log-probabilities.
    """
    if not run.has("token_blocks"):
        return None
    answers = [_answer(row) for row in words.rows(run.sql(_query(first, last, most)))]
    return Tokens(answers) if answers else None


def _query(first: int | None, last: int | None, most: int) -> str:
    both = [sql("list_contains(arrays, {name})", name=literal(name)) for name in _NEEDED]
    since = [sql("step >= {first}", first=int(first))] if first is not None else []
    until = [sql("step <= {last}", last=int(last))] if last is not None else []
    where = joined([*both, *since, *until], " and ")
    # The steps are whole numbers, everything else is our own. A batch has one version of the trainer, told with each of
    # its replicas.
    return sql(
        """
        with told as (select * from token_blocks where {where}
                      order by hash(step, process, batch_id, row) limit {most}),
             trainers as (select process, batch_id, max(trainer_version) as trainer_version from rollouts
                          where batch_id >= 0 group by process, batch_id),
             batches as (select process, batch_id, step, max(batch_samples) as answers from token_fates
                         group by process, batch_id, step),
             kept as (select process, batch_id, step, count(*) as many,
                             count(*) filter (chosen_by in ({drawn})) as drawn from token_blocks where {where}
                      group by process, batch_id, step)
        select told.step, told.rank, told.process, told.batch_id, told.row, told.tokens, told.arrays, told.dtypes,
               told.data, told.wall_ns, told.chosen_by in ({drawn}) as drawn, kept.many as kept_answers,
               kept.drawn as drawn_answers, batches.answers as batch_answers,
               samples.weight_version, samples.replica, samples.turns,
               trainers.trainer_version, list_extract(samples.micro_batches, 1) as micro_batch
        from told left join samples
          on samples.process = told.process and samples.batch_id = told.batch_id and samples.row = told.row
          and samples.step is not distinct from told.step
        left join trainers on trainers.process = told.process and trainers.batch_id = told.batch_id
        left join batches on batches.process = told.process and batches.batch_id = told.batch_id
          and batches.step is not distinct from told.step
        left join kept on kept.process = told.process and kept.batch_id = told.batch_id
          and kept.step is not distinct from told.step
        order by told.step, told.process, told.time_ns, told.row""",
        where=where,
        drawn=_DRAWN,
        most=int(most),
    )


def _answer(row: dict[str, Any]) -> Answer:
    arrays = unpack(row)
    known = {name: row[name] for name in _KNOWN}
    known["micro_batch"] = None if words.missing(row["micro_batch"]) or row["micro_batch"] < 0 else row["micro_batch"]
    mask = arrays.get("mask")
    return Answer(
        rollout=arrays["rollout_log_probs"],
        train=arrays["log_probs"],
        mask=np.ones(int(row["tokens"]), bool) if mask is None else mask,
        entropy=arrays.get("entropies"),
        advantage=arrays.get("advantages"),
        known=known,
        weight=_weight(row),
    )


def _weight(row: dict[str, Any]) -> float:
    """How many answers of its batch one stands for: a drawn one for its part of all that weren't chosen by what they
    are, and any of the others for itself.

    Where it isn't known how large the batch was, or none of the others was kept, those that were chosen stand for none.
    """
    many, drawn = int(row["kept_answers"]), int(row["drawn_answers"])
    batch = None if words.missing(row["batch_answers"]) else max(int(row["batch_answers"]), many)
    if row["drawn"]:
        return 1.0 if batch is None else (batch - (many - drawn)) / drawn
    return float(batch is not None and (drawn > 0 or batch == many))
