"""What a mismatch verdict lacks: which log-probabilities, which versions, or answers; and what records it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from probe.analysis.change import Change
from probe.analysis.framework_settings import number, setting
from probe.analysis.mismatch.tokens import NOT_KNOWN
from probe.analysis.withheld import Withheld
from probe.sql import joined, sql
from probe.text import rows

if TYPE_CHECKING:
    from probe.analysis.mismatch.judgement import Judgement
    from probe.analysis.mismatch.lag import Lags
    from probe.analysis.mismatch.tokens import Tokens
    from probe.runs.reader import Run

#: Why nothing is told of numbers that were filled in.
FILLED_IN: Final = (
    "the rollout gives every token a log-probability of exactly 0. Greedy sampling does that, and so do numbers that "
    "were never filled in."
)

#: Fewer tokens or answers than these tell nothing.
LEAST_TOKENS, LEAST_ANSWERS = 100, 6
#: Tokens that one side alone finds impossible are told of from so many on, and from this share on.
LEAST_IMPOSSIBLE, SHARE_IMPOSSIBLE = 3, 5e-4

_TOPIC: Final = "token_balance"

_AGREE: Final = "Whether rollout and training agree about their tokens isn't known"
_APART: Final = "Whether older weights or the engine make the difference isn't known"


def unrecorded(run: Run, first: int | None = None, last: int | None = None) -> Withheld | None:
    """Which side's log-probabilities are missing, where answers are told at all but the tokens of none can be compared.

    Args:
        run: The run.
        first: The first step that is asked about; None begins with the run's.
        last: The last one, likewise.

    Returns:
        None where nothing is missing, or no engine stands apart from the trainer.
    """
    if not run.has("samples"):
        return None
    since = [sql("coalesce(step, 0) >= {first}", first=int(first))] if first is not None else []
    until = [sql("coalesce(step, 0) <= {last}", last=int(last))] if last is not None else []
    inside = joined([*since, *until] or [sql("true")], " and ")
    told = rows(
        run.sql(
            sql(
                """
                select count(*) as answers, count(rollout_log_prob_mean) as rollout, count(log_prob_mean) as training,
                       count(difference_mean) as both from samples where {inside}""",
                inside=inside,
            )
        )
    )[0]
    if not told["answers"]:
        return None
    if told["both"]:
        sentence = f"{_AGREE}: the tokens of no answer are kept; those of a batch may take 128 KiB."
        metrics = Change("Look at the metrics probe/samples/mismatch_k1 and mismatch_k3: they are of all tokens.")
        return Withheld("agreement", sentence, _TOPIC, metrics)
    name, now = setting(run, "rollout_log_probs")
    if setting(run, "samples_by_engine")[1] is False:
        return None  # the model that trains samples, too
    sides = [words for side, words in (("rollout", "the rollout's"), ("training", "the trainer's")) if not told[side]]
    sentence = f"{_AGREE}: {' and '.join(sides) or 'both sides’'} log-probabilities weren't recorded"
    sentence += "." if sides else " of the same answers."
    change = None if now else Change("Record them.", name, True, now)
    if name is None:
        change = Change("Record both: probe.samples(rollout_log_probs=…, log_probs=…).")
    return Withheld("agreement", sentence, _TOPIC, change)


def filled_in(tokens: Tokens) -> bool:
    """Whether the rollout tells a log-probability of exactly 0 of every token, though training isn't sure of them.

    Args:
        tokens: Of all answers, some of them compared.
    """
    rollout, train = tokens.rollout[tokens.compared], tokens.train[tokens.compared]
    return bool((rollout == 0).all() and (train < 0).any())


def impossible(tokens: Tokens) -> int:
    """How many tokens aren't compared since one side alone gives them a probability of 0; 0 where these are few.

    Args:
        tokens: Of all answers.
    """
    many = int(tokens.impossible.sum())
    told = many >= LEAST_IMPOSSIBLE and many >= SHARE_IMPOSSIBLE * int(tokens.compared.sum())
    return many if told else 0


def undecided(tokens: Tokens, judged: Judgement) -> Withheld:
    """That the tokens don't tell.

    Args:
        tokens: Of all answers.
        judged: The judgement, which says why: there are too few, or their numbers aren't what they should be.
    """
    change = Change("Look at more steps: four answers of each recorded batch keep their tokens.")
    if filled_in(tokens):
        change = Change("Sample at a temperature above 0, and have the engine return log-probabilities.")
    elif impossible(tokens):
        change = Change("Look at these tokens: a mask over the vocabulary, or a filled-in number, makes such ones.")
    return Withheld("agreement", f"{_AGREE}: {judged.why}", _TOPIC, change)


def unsplit(tokens: Tokens, told: Lags, sync: Change | None = None) -> Withheld | None:
    """What is missing to tell stale weights from the engine.

    Args:
        tokens: Of all answers.
        told: How old the weights of each answer are.
        sync: How to have answers of the trainer's own weights, by the settings of this run's framework.

    Returns:
        None where nothing is missing.
    """
    count = np.bincount(tokens.row[tokens.held], minlength=len(tokens.answers))
    behind = told.behind[count > 0]
    known, fresh, old = behind[behind != NOT_KNOWN], behind == 0, behind > 0
    change: Change | None = Change("Record both versions: probe.samples(weight_versions=…, trainer_version=…).")
    few = [
        f"{int(count[count > 0][flags].sum())} tokens of {int(flags.sum())} answers are of {whose}; at least "
        f"{LEAST_TOKENS} of {LEAST_ANSWERS} are needed."
        for flags, whose in ((fresh, "the trainer's own weights"), (old, "older weights"))
        if flags.any() and (int(flags.sum()) < LEAST_ANSWERS or int(count[count > 0][flags].sum()) < LEAST_TOKENS)
    ]
    if told.uncounted:
        why = "the trainer's version wasn't recorded, and weight versions don't rise as steps do."
    elif not len(known):
        sampled = (tokens.known("weight_version") == NOT_KNOWN).all()
        why = f"{'which weights sampled the answers' if sampled else 'the version of the trainer'} wasn't recorded."
    elif told.by_steps and not old.any():
        why = "the trainer's version wasn't recorded, and all answers may lag behind it alike."
    elif (known < 0).all():
        why = "the answers tell newer weights than the trainer's, so that the two don't count versions alike."
    elif not fresh.any():
        least = int(known[known > 0].min())
        why = (
            "no answer was sampled by the trainer's own weights; the newest are "
            f"{least} version{'s' if least > 1 else ''} old."
        )
        change = sync or Change("Update the engine's weights right before some of the steps.")
    elif few:
        why, change = few[0], Change("Look at more steps: four answers of each recorded batch keep their tokens.")
    else:
        return None
    return Withheld("mismatch_split", f"{_APART}: {why}", _TOPIC, change)


def syncs(run: Run) -> Change | None:
    """How to have answers of the trainer's own weights, by the settings of a run's framework; None where it has none,
    or already syncs with each step.

    Args:
        run: The run.
    """
    name, now = setting(run, "weights_every")
    every = number(now)
    if name is None or every is None or every <= 1:
        return None
    return Change("Update the engine's weights after each step.", name, 1, now)
