"""The answers of one step as they are browsed: group by group, sorted by what is worst, searched and narrowed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from probe.analysis.ledger.slots import AGAIN, SAMPLING
from probe.analysis.query import literal
from probe.analysis.token_blocks import unpack
from probe.errors import InputError
from probe.sql import Sql, sql
from probe.text import count, missing, rows, whole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from probe.runs.reader import Run

#: Letters of a text that are given at most; the rest is counted.
MOST_LETTERS: Final = 20_000

_ANSWERS: Final = """
select s.process, s.rank, s.batch_id, s.row, s.uid, s."group", s.prompt_tokens, s.response_tokens, s.loss_tokens,
       s.turns, s.tools, s.ended, s.truncated, s.reward, s.advantage_mean, s.advantage_smallest, s.advantage_largest,
       s.difference_mean, s.difference_largest, s.difference_at, s.entropy_mean, s.nan_count, s.weight_version,
       s.dropped, s.passes, s.micro_batches, s.masked_tokens, s.no_advantage_tokens, s.clipped_tokens,
       s.carried_tokens, s.clip_unknown_tokens, s.unknown_tokens, s.dropped_tokens, s.chosen_by,
       s.has_error, s.masked, {block} as block, {changed} as changed, {changed_at} as changed_at
from samples s where s.step = {step} order by s.process, s.batch_id, s.row
"""

_BLOCK: Final = Sql("""exists (select 1 from token_blocks b where b.step = s.step and b.process = s.process
                and b.batch_id = s.batch_id and b.row = s.row)""")

#: The comparison of the ids of its batch.
_IDENTITY: Final = Sql("""from token_identity i where i.step = s.step and i.process = s.process
                and i.batch_id = s.batch_id""")

#: What processes that know of no batch have compared, such as verl's agent loops, by the name of the answer: in
#: whichever step, for answers may be trained in a later one.
_NAMED: Final = Sql("""with named as (
  select attempt, uid, min(case when uid = first_uid then first_token end) as first_token
  from (select attempt, first_uid, first_token, unnest(changed_uids) as uid from token_identity where batch_id < 0)
  where uid <> '' group by attempt, uid)""")
_BY_NAME: Final = Sql("from named n where n.attempt = s.attempt and n.uid = s.uid and coalesce(s.dropped, '') = ''")

_CHANGED: Final = sql(
    "(exists (select 1 {of} and list_contains(i.changed_rows, s.row)) or exists (select 1 {by_name}))",
    of=_IDENTITY,
    by_name=_BY_NAME,
)
_CHANGED_AT: Final = sql(
    "coalesce((select min(i.first_token) {of} and i.changed_rows[1] = s.row), (select min(n.first_token) {by_name}))",
    of=_IDENTITY,
    by_name=_BY_NAME,
)

#: Columns that are whole numbers, and those that are floats; None where one is missing.
_COUNTS: Final = (
    *("rank", "prompt_tokens", "response_tokens", "loss_tokens", "turns", "tools", "difference_at", "changed_at"),
    *(
        "nan_count",
        "weight_version",
        "passes",
        "masked_tokens",
        "no_advantage_tokens",
        "clipped_tokens",
        "carried_tokens",
    ),
    *("clip_unknown_tokens", "unknown_tokens", "dropped_tokens"),
)

#: Columns that are flags and always known.
_FLAGS: Final = ("block", "changed")

_NUMBERS: Final = (
    *("reward", "advantage_mean", "advantage_smallest", "advantage_largest"),
    *("difference_mean", "difference_largest", "entropy_mean"),
)

#: Names an answer in its step: process, batch and its place in that.
Key = tuple[str, int, int]


class Changed(NamedTuple):
    """Answers of a step that are trained on other tokens than were sampled.

    Attributes:
        answers: How many there are.
        named: Of how many it is known which they are: of a batch the first 64.
        sampled_for: How many of them were compared by processes that only know which step they were sampled for.
    """

    answers: int = 0
    named: int = 0
    sampled_for: int = 0


_NONE: Final = Changed()


class Group(NamedTuple):
    """Answers of one prompt, as far as they have a row.

    Attributes:
        name: Its name; "" where it has none, and the answer stands alone.
        members: Places of its answers in :attr:`StepSamples.answers`, in the batch's order.
        equal: Whether the rewards of the whole group, two or more, are equal; None where not all of them are known.
    """

    name: str
    members: list[int]
    equal: bool | None


@dataclass(frozen=True)
class Wish:
    """What is to be seen of a step, and in which order.

    Attributes:
        sort: One of :data:`SORTS`.
        only: One of :data:`ONLY`.
        search: Text that the answer's name, its group or a recorded text contains, whatever the case.
        group: The name of a group; None: all.
        micro_batch: Answers that were trained in the micro-batch of this number; None: all.
        phase: Of that micro-batch; "" where it isn't known.
        process: Of that micro-batch, likewise.
    """

    sort: str = "difference"
    only: str = "all"
    search: str = ""
    group: str | None = None
    micro_batch: int | None = None
    phase: str = ""
    process: str = ""


@dataclass(frozen=True)
class Arranged:
    """The lines of a view: groups, each followed by its answers.

    Attributes:
        lines: ("group", place of the group) or ("answer", place of the answer).
        answers: How many answers are among them.
        note: What couldn't be done as it was wished; "" where all could.
    """

    lines: list[tuple[str, int]]
    answers: int
    note: str = ""


def _magnitude(answer: Mapping[str, Any], *names: str) -> float:
    found = [abs(answer[name]) for name in names if answer[name] is not None]
    return max(found, default=-math.inf)


#: Orders by name, the worst first; how bad an answer is, -inf where that isn't known. NaN comes before everything.
SORTS: Final[Mapping[str, Callable[[Mapping[str, Any]], float]]] = {
    "difference": lambda one: math.inf if one["nan_count"] else _magnitude(one, "difference_largest"),
    "advantage": lambda one: _magnitude(one, "advantage_smallest", "advantage_largest"),
    "tokens": lambda one: one["response_tokens"],
    "reward": lambda one: -math.inf if one["reward"] is None else -one["reward"],
    "batch": lambda _: 0.0,  # all are alike: the batch's order stays
}


@dataclass
class StepSamples:
    """The answers of one step that have a row.

    Attributes:
        step: The step.
        answers: Each as a dict: the columns of ``samples`` without texts; missing numbers are None.
        groups: Answers of one prompt in one batch.
        group_of: The group of each answer.
        sampled: How many answers were told, those without a row too; None where that isn't known.
        changed: Those that are trained on other tokens than were sampled, without a row too.
    """

    step: int
    answers: list[dict[str, Any]]
    sampled: int | None = None
    changed: Changed = _NONE
    groups: list[Group] = field(default_factory=list)
    group_of: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        held: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for at, one in enumerate(self.answers):
            alone = () if one["group"] else (one["row"],)
            held[one["process"], one["batch_id"], one["group"], *alone].append(at)
        self.groups = [Group(key[2], members, self._equal(members)) for key, members in held.items()]
        self.group_of = [0] * len(self.answers)
        for number, group in enumerate(self.groups):
            for at in group.members:
                self.group_of[at] = number

    def _equal(self, members: Sequence[int]) -> bool | None:
        rewards = [self.answers[at]["reward"] for at in members]
        if len(rewards) < 2 or None in rewards:
            return None
        equal = len(set(rewards)) == 1
        if equal and any(self.answers[at]["chosen_by"] != "all" for at in members):
            return None  # others of the group have no row, and may have another reward
        return equal

    @classmethod
    def read(cls, run: Run, step: int) -> StepSamples:
        """Those of one step.

        Args:
            run: The run.
            step: The step.
        """
        if not run.has("samples"):
            return cls(step, [])
        block = _BLOCK if run.has("token_blocks") else Sql("false")
        compared = run.has("token_identity")
        nothing = (Sql(""), Sql("false"), Sql("null"))
        named, changed, changed_at = (_NAMED, _CHANGED, _CHANGED_AT) if compared else nothing
        answers = sql(_ANSWERS, step=int(step), block=block, changed=changed, changed_at=changed_at)
        frame = run.sql(sql("{named} {answers}", named=named, answers=answers))
        told = _changed(run, step) if compared else _NONE
        found = [_answer(one) for one in rows(frame)]
        if run.has("later_passes"):
            _train_again(run, step, found)
        return cls(step, found, _sampled(run, step), told)

    def arranged(self, wish: Wish, found: frozenset[Key] | None = None) -> Arranged:
        """The lines that a wish asks for.

        Args:
            wish: The wish; its search is done by the caller, see :func:`searched`.
            found: Answers that the search found; None: nobody searches.

        Raises:
            InputError: There is no such order or narrowing.
        """
        if wish.sort not in SORTS:
            raise InputError(f"sort: got {wish.sort!r}, expected one of {', '.join(SORTS)}")
        if wish.only not in ONLY:
            raise InputError(f"only: got {wish.only!r}, expected one of {', '.join(ONLY)}")
        held, why = self._kept(wish.only)
        if found is not None:
            held = {at for at in held if key_of(self.answers[at]) in found}
        if wish.group is not None:
            held = {at for at in held if self.answers[at]["group"] == wish.group}
        held, note = self._trained_in(wish, held)
        return Arranged(self._lines(wish.sort, held), len(held), " ".join(filter(None, (why, note))))

    def _kept(self, only: str) -> tuple[set[int], str]:
        """The answers that a narrowing keeps, and what is to be said of it."""
        held = {at for at in range(len(self.answers)) if ONLY[only](self, at)}
        many = self.changed
        if only != "changed" or len(held) >= many.answers:  # more: they were sampled for another step
            return held, ""
        of = f"{count(many.answers)} {'answer' if many.answers == 1 else 'answers'}"
        of += " sampled for this step" if many.sampled_for else " of this step"
        trained = f"{of} {'is' if many.answers == 1 else 'are'} trained on tokens that weren't sampled"
        if not many.named:
            every = set(range(len(self.answers)))
            return every, f"{trained}. Which ones isn't recorded: these are all of the step."
        least = "" if many.named == many.answers else " A batch names its first 64."
        whose = "of this step's named ones" if many.sampled_for else "of them"
        return held, f"{trained}; {count(len(held))} {whose} {'has' if len(held) == 1 else 'have'} a row.{least}"

    def _trained_in(self, wish: Wish, held: set[int]) -> tuple[set[int], str]:
        """Of ``held`` the answers of a micro-batch; all of them, with the reason, where that isn't known."""
        if wish.micro_batch is None:
            return held, ""
        if wish.phase in (*AGAIN, *SAMPLING):
            of = f"micro-batch {wish.micro_batch} of {wish.phase}"
            return held, f"Which answers were in {of} isn't recorded: these are all of the step."
        known = {at for at in held if any(number >= 0 for number in self.answers[at]["micro_batches"])}
        if not known and held:
            return held, "Which micro-batch trained which answer isn't recorded: these are all of the step."
        if any(self.answers[at]["process"] == wish.process for at in known):
            known = {at for at in known if self.answers[at]["process"] == wish.process}
        return {at for at in known if wish.micro_batch in self.answers[at]["micro_batches"]}, ""

    def _lines(self, sort: str, held: set[int]) -> list[tuple[str, int]]:
        score = SORTS[sort]
        ordered = []
        for number, group in enumerate(self.groups):
            members = [at for at in group.members if at in held]
            if members:
                scores = {at: score(self.answers[at]) for at in members}
                members.sort(key=lambda at: -scores[at])
                ordered.append((-max(scores.values()), number, members))
        lines: list[tuple[str, int]] = []
        for _, number, members in sorted(ordered):
            if self.groups[number].name:
                lines.append(("group", number))
            lines += (("answer", at) for at in members)
        return lines


def key_of(answer: Mapping[str, Any]) -> Key:
    """What names an answer in its step."""
    return answer["process"], answer["batch_id"], answer["row"]


def _without_advantage(found: StepSamples, at: int) -> bool:
    return found.answers[at]["no_advantage_tokens"] > 0 or found.groups[found.group_of[at]].equal is True


#: What may be seen alone, by name.
ONLY: Final[Mapping[str, Callable[[StepSamples, int], bool]]] = {
    "all": lambda _found, _at: True,
    "truncated": lambda found, at: found.answers[at]["truncated"] is True,
    "dropped": lambda found, at: bool(found.answers[at]["dropped"]),
    "failed": lambda found, at: found.answers[at]["has_error"] is True,
    "nan": lambda found, at: found.answers[at]["nan_count"] > 0,
    "no_advantage": _without_advantage,
    "blocks": lambda found, at: found.answers[at]["block"],
    "changed": lambda found, at: found.answers[at]["changed"],
}


def _answer(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: None if isinstance(value, float) and missing(value) else value for name, value in row.items()}
    found |= {name: whole(row[name]) for name in _COUNTS}
    found |= {name: None if missing(row[name]) else float(row[name]) for name in _NUMBERS}
    found |= {name: None if missing(row[name]) else bool(row[name]) for name in ("truncated", "has_error", "masked")}
    found["micro_batches"] = [int(one) for one in row["micro_batches"]]
    found |= {name: int(row[name]) for name in ("batch_id", "row")} | {name: bool(row[name]) for name in _FLAGS}
    return found


def _train_again(run: Run, step: int, answers: list[dict[str, Any]]) -> None:
    """Add to the answers of a step what later steps trained of them. Micro-batches stay those of the step."""
    by_key = {key_of(one): one for one in answers}
    query = sql(
        """select process, batch_id, rows, passes, carried_tokens, clipped_tokens from later_passes
           where step = {step}""",
        step=int(step),
    )
    for row in rows(run.sql(query)):
        numbers = (row[name] for name in ("rows", "passes", "carried_tokens", "clipped_tokens"))
        for at, passes, carried, clipped in zip(*numbers, strict=True):
            found = by_key.get((row["process"], row["batch_id"], at))
            if found is not None:
                found["passes"] = (found["passes"] or 0) + passes
                found["carried_tokens"] += carried
                found["clipped_tokens"] += clipped
                found["clip_unknown_tokens"] -= carried + clipped


def _changed(run: Run, step: int) -> Changed:
    frame = run.sql(
        sql(
            """select coalesce(sum(changed_answers), 0)::bigint as answers,
               coalesce(sum(coalesce(len(changed_rows), 0) + coalesce(len(changed_uids), 0)), 0)::bigint as named,
               coalesce(sum(changed_answers) filter (batch_id < 0), 0)::bigint as sampled_for
               from token_identity where step = {step}""",
            step=int(step),
        )
    )
    return Changed(*(int(frame[name].iloc[0]) for name in Changed._fields))


def _sampled(run: Run, step: int) -> int | None:
    if not run.has("token_fates"):
        return None
    frame = run.sql(
        sql(
            """select sum(n)::bigint as n from (select max(batch_samples) as n from token_fates where step = {step}
            group by process, batch_id)""",
            step=int(step),
        )
    )
    return whole(frame["n"].iloc[0])


def near(run: Run, step: int) -> int | None:
    """The step with samples that is nearest to one, the earlier of two; None where no step has any."""
    if not run.has("samples"):
        return None
    steps = Sql("select distinct step from samples where step is not null")
    frame = run.sql(
        sql("select step from ({steps}) order by abs(step - {step}), step limit 1", steps=steps, step=int(step))
    )
    return None if frame.empty else whole(frame["step"].iloc[0])


def searched(run: Run, step: int, text: str) -> frozenset[Key]:
    """The answers of a step whose name, group, end or recorded text contains a text, whatever the case."""
    said = Sql("""concat_ws(' ', uid, "group", ended, dropped, prompt_text, response_text)""")
    query = sql(
        """select process, batch_id, row from samples
                where step = {step} and contains(lower({said}), lower({text}))""",
        step=int(step),
        said=said,
        text=literal(text),
    )
    frame = run.sql(query)  # a user's text is quoted by literal()
    return frozenset((str(one["process"]), int(one["batch_id"]), int(one["row"])) for one in rows(frame))


class Tokens(NamedTuple):
    """What is known of the tokens of one answer.

    Attributes:
        arrays: By name, each (tokens,), see :func:`probe.analysis.token_blocks.unpack`; empty without a block.
        ids: Token ids of the answer, empty where they aren't recorded.
        prompt: Text of the prompt; None where it isn't recorded.
        text: That of the answer, likewise.
    """

    arrays: dict[str, npt.NDArray[np.generic]]
    ids: list[int]
    prompt: str | None
    text: str | None


def tokens_of(run: Run, step: int, key: Key) -> Tokens | None:
    """What is known of the tokens of one answer; None where there is no such answer.

    Args:
        run: The run.
        step: Its step.
        key: What names it in that.
    """
    process, batch_id, row = key
    where = sql(
        "step = {step} and process = {process} and batch_id = {batch_id} and row = {row}",
        step=int(step),
        process=literal(process),
        batch_id=int(batch_id),
        row=int(row),
    )
    found = rows(
        run.sql(sql("select prompt_text, response_text, response_ids from samples where {where}", where=where))
    )
    if not found:
        return None
    blocks = []
    if run.has("token_blocks"):
        blocks = rows(run.sql(sql("select tokens, arrays, dtypes, data from token_blocks where {where}", where=where)))
    texts = [one if isinstance(one, str) else None for one in (found[0]["prompt_text"], found[0]["response_text"])]
    ids = [int(one) for one in found[0]["response_ids"]]
    return Tokens(unpack(blocks[0]) if blocks else {}, ids, *texts)
