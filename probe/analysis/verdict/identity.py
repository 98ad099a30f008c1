"""Whether the tokens that are trained are those that were sampled, by the exact comparison of their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from probe.analysis.change import Change
from probe.analysis.framework_settings import framework
from probe.analysis.query import same
from probe.analysis.verdict.finding import SOON, Cost, Finding, Since, Where, withheld
from probe.sql import Sql, joined, sql
from probe.text import rows, short, whole

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: The newest steps that are looked at: what was repaired long ago isn't told again.
STEPS: Final = 30

#: The batches of the newest steps; what was told outside of steps stands as of one.
_NEWEST: Final = sql(
    """
    with told as (select *, coalesce(step, 0) as in_step from token_identity)
    select step, rank, process, batch_id, wall_ns, answers, trained_tokens, changed_answers, changed_tokens,
           attempt, changed_rows[1] as first_row, first_uid, first_token, sampled_id, trained_id,
           (select min(step) from told where changed_answers > 0) as since_step,
           (select min(wall_ns) from told where changed_answers > 0) as since_wall_ns
    from told where in_step > (select max(in_step) from told) - {steps}
    order by in_step, rank nulls last, process, batch_id""",
    steps=STEPS,
)


def identity(run: Run) -> Finding | None:
    """What the comparison of ids says of the newest steps; None where one side wasn't recorded."""
    told = rows(run.sql(_NEWEST)) if run.has("token_identity") else []
    compared = sum(int(one["answers"]) for one in told)
    if not compared:
        return None
    changed = [one for one in told if one["changed_answers"]]
    if not changed:
        many, steps = sum(int(one["trained_tokens"]) for one in told), len({one["step"] for one in told})
        sentence = f"All {many:,} tokens trained in the last {_many(steps, 'step')} are those that were sampled."
        why = f"The ids of {_many(compared, 'answer')} were compared, one by one."
        return Finding("fine", "identity", sentence, topic="token_balance", why=why)
    ranks = {whole(one["rank"]) for one in changed}
    rank = ranks.pop() if len(ranks) == 1 else None
    token, step = _token(run, changed[0])
    since = Since(whole(changed[0]["since_step"]), whole(changed[0]["since_wall_ns"]))
    theirs = [one for one in told if rank is None or whole(one["rank"]) == rank]
    if since.step is not None:
        theirs = [one for one in theirs if one["step"] is not None and one["step"] >= since.step]
    return Finding(
        "alarm",
        "not_sampled",
        _sentence(theirs, since.step, rank),
        topic="token_balance",
        where=Where(rank=rank, step=step, token=token),
        since=since,
        cost=_cost(changed, theirs),
        why=f"{_first(changed[0])}{_reads(run, changed[0])} From there on log-probabilities of rollout and training "
        "are of different tokens.",
        change=Change("Hand the token ids of the rollout to the trainer; don't tokenise their text again."),
        evidence_sql=_evidence(since.step, rank),
        missing=_ids(changed[0]),
        alternatives=(
            "The loss mask counts tokens that a tool or a template gave.",
            "A chat template adds or drops tokens between the turns of a conversation.",
        ),
        urgency=SOON,
        weight=75,
    )


def untold(run: Run) -> list[Finding]:
    """That it wasn't recorded which tokens were sampled, where answers were."""
    if not run.has("samples"):
        return []
    sentence = "Whether the trained tokens are those that were sampled isn't known: "
    if framework(run) == "trl":
        why = "a rollout_func samples, or a turn doesn't begin with the tokens of those before it."
        return [withheld("identity", f"{sentence}{why}", "token_balance")]
    change = Change("Record the ids of both: probe.samples(sampled_ids=…, response_ids=…).")
    return [withheld("identity", f"{sentence}their ids weren't compared.", "token_balance", change)]


def _many(count: int, noun: str) -> str:
    return noun if count == 1 and noun == "step" else f"{count:,} {noun}{'' if count == 1 else 's'}"


def _sentence(of: list[dict[str, Any]], step: int | None, rank: int | None) -> str:
    many, total = (sum(int(one[name]) for one in of) for name in ("changed_answers", "answers"))
    where = "" if rank is None else f" of rank {rank}"
    older = step is not None and min(one["step"] for one in of) > step
    when = f" in the last {STEPS} steps" if older else "" if step is None else f" since step {step}"
    began = f"; it began in step {step}" if older else ""
    return f"{many:,} of {total:,} answers{where}{when} are trained on tokens that weren't sampled{began}."


def _cost(changed: list[dict[str, Any]], of: list[dict[str, Any]]) -> Cost:
    tokens = sum(int(one["changed_tokens"]) for one in changed)
    trained = sum(int(one["trained_tokens"]) for one in of)
    return Cost(tokens=tokens, share=tokens / trained if trained else None, steps=len({one["step"] for one in changed}))


def _first(one: dict[str, Any]) -> str:
    """The first token that differs, with its ids where they are kept."""
    name, row = one["first_uid"], whole(one["first_row"])
    step, rank = whole(one["step"]), whole(one["rank"])
    place = "".join((f" of step {step}" if step is not None else "", f" on rank {rank}" if rank is not None else ""))
    answer = f"answer {row}{f' ({name})' if name else ''}" if row is not None else name or "an answer"
    answer += place
    token = whole(one["first_token"])
    trained, sampled = whole(one["trained_id"]), whole(one["sampled_id"])
    if trained is None:
        return f"The first is token {token} of {answer}."
    there = f"the engine sampled {sampled}" if sampled is not None else "the engine had come to its end"
    return f"The first is token {token} of {answer}: {there}, and {trained} is trained."


def _ids(one: dict[str, Any]) -> tuple[str, ...]:
    """That ids aren't kept, where they aren't."""
    if whole(one["trained_id"]) is not None:
        return ()
    if one["batch_id"] < 0:
        return ("The ids themselves aren't recorded: the agent loops that compare them keep none.",)
    return ('The ids themselves weren\'t recorded: probe.start(samples="text") records them, and the texts.',)


def _reads(run: Run, one: dict[str, Any]) -> str:
    """What that answer reads as, where texts are kept and it has a row."""
    row = whole(one["first_row"])
    if row is None or not run.has("samples"):
        return ""
    here = joined((same(name, one[name]) for name in ("process", "step", "batch_id")), " and ")
    text = run.sql(
        sql(
            "select response_text from samples where {here} and row = {row} and response_text is not null",
            here=here,
            row=row,
        )
    )
    return f" The answer reads “{short(text['response_text'][0], 80)}”." if len(text) else ""


def _token(run: Run, one: dict[str, Any]) -> tuple[int | None, int | None]:
    """The first token that differs, where its answer is of the step in which it began, has a row and can be looked at
    token by token; and the step that trains it where that is another one, or known by the answer's name alone.
    """
    row, name = whole(one["first_row"]), one["first_uid"]
    began = whole(one["step"]) == whole(one["since_step"])
    if not began or (row is None and not name) or not run.has("samples"):
        return None, None
    block = Sql("""exists (select 1 from token_blocks b where b.step is not distinct from s.step
                and b.process = s.process and b.batch_id = s.batch_id and b.row = s.row)""")
    seen = sql("(len(response_ids) > 0 or {block})", block=block if run.has("token_blocks") else Sql("false"))
    if row is None:  # told by a process that knows of no batch
        parts = [same("attempt", one["attempt"]), same("uid", name), Sql("coalesce(dropped, '') = ''")]
    else:
        parts = [*(same(of, one[of]) for of in ("process", "step", "batch_id")), sql("row = {row}", row=row)]
    here = joined(parts, " and ")
    found = rows(run.sql(sql("select step, {seen} as seen from samples s where {here} limit 1", here=here, seen=seen)))
    if not found:
        return None, None
    token = whole(one["first_token"]) if found[0]["seen"] else None
    return token, whole(found[0]["step"]) if row is None else None


def _evidence(step: int | None, rank: int | None) -> Sql:
    """The query for the batches that hold such answers."""
    where = [Sql("changed_answers > 0")]
    where += [sql("step >= {step}", step=step)] if step is not None else []
    where += [sql("rank = {rank}", rank=rank)] if rank is not None else []
    return sql("select * from token_identity where {where} order by step, rank", where=joined(where, " and "))
