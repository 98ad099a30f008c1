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
                          where batch_id >= 0 group by process, batch_id)
        select told.step, told.rank, told.process, told.batch_id, told.row, told.tokens, told.arrays, told.dtypes,
               told.data, told.chosen_by, told.wall_ns, samples.weight_version, samples.replica, samples.turns,
               trainers.trainer_version, list_extract(samples.micro_batches, 1) as micro_batch
        from told left join samples
          on samples.process = told.process and samples.batch_id = told.batch_id and samples.row = told.row
          and samples.step is not distinct from told.step
        left join trainers on trainers.process = told.process and trainers.batch_id = told.batch_id
        order by told.step, told.process, told.time_ns, told.row""",
        where=where,
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
        known={**known, "chosen_by": row["chosen_by"]},
    )
