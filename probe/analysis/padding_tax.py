"""What part of the batches is padding, and why it is there.

Each (batch, field) has its own ledger whose causes sum exactly to rectangle − valid tokens. Fields of one
batch repeat the same tokens, so tokens are counted on one field of a batch, its widest; bytes are counted
on all of them. The same tokens are also told of at different moments, when a batch is put together and when
it is cut: like the recorder's metrics, all but :func:`by_source` look at the micro-batches of a (rank,
step) that has any, else at its batches.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import pandas as pd

if TYPE_CHECKING:
    from probe.runs.reader import Run

#: Sources that tell of micro-batches, and those that tell of no rectangle of the trainer's.
_PLANNED: Final = "('seqlen_balancing.partition', 'packing.packed', 'batched_data_dict.partition')"
_APART: Final = "('codec.packed', 'ulysses.padded')"

_CHOSEN: Final = f"""
with cut as (select distinct rank, step from padding where source in {_PLANNED}),
chosen as (
  select field, cause, tokens, bytes from padding left join cut
    on padding.rank = cut.rank and padding.step is not distinct from cut.step
  where source in {_PLANNED} or (cut.rank is null and source not in {_APART})
)
"""  # noqa: S608  (a user's text is quoted by literal())

# Of every batch its widest field counts, of equals "input_ids", then the first by name. The ledger of these fields, as
# `causes` and `sizes` of each (rank, step, source); `others` counts the batches whose field is another one than here.
#
# Nearly always "input_ids" is the widest field of all batches, which one look at each batch tells.
_LEDGER_OF_INPUT_IDS: Final = """
with batches as (
  select rank, step, source, batch_id, max(rectangle_tokens) as widest,
         max(rectangle_tokens) filter (field = 'input_ids') as rectangle,
         max(valid_tokens) filter (field = 'input_ids') as valid
  from padding where {where} group by all
), sizes as materialized (
  select rank, step, source, count(*) as batches, sum(rectangle) as rectangle, sum(valid) as valid,
         count(*) filter (widest is distinct from rectangle) as others
  from batches group by all
), causes as materialized (
  select rank, step, source, cause, sum(tokens) as tokens from padding
  where field = 'input_ids' and {where} group by all
)
"""

# Width and place in the order of fields are one number, of which a batch takes the largest: sorting the fields of every
# batch would take several times as long.
_LEDGER: Final = """
with fields as (
  select field, row_number() over (order by field <> 'input_ids', field) as place, count(*) over () + 1 as n
  from (select distinct field from padding where {where})
), placed as (
  select rank, step, source, batch_id, cause, tokens, rectangle_tokens, valid_tokens, place, n,
         rectangle_tokens::hugeint * n - place as width
  from padding join fields using (field) where {where}
), widest as (
  select rank, step, source, batch_id, (n - max(width) % n) % n as place from placed
  group by rank, step, source, batch_id, n
), ledger as (
  select placed.rank, placed.step, placed.source, placed.batch_id, cause, tokens, rectangle_tokens, valid_tokens
  from placed semi join widest
    on placed.rank = widest.rank and placed.batch_id = widest.batch_id and placed.place = widest.place
   and placed.source = widest.source and placed.step is not distinct from widest.step
), batches as (
  select rank, step, source, batch_id, max(rectangle_tokens) as rectangle, max(valid_tokens) as valid
  from ledger group by all
), sizes as materialized (
  select rank, step, source, count(*) as batches, sum(rectangle) as rectangle, sum(valid) as valid, 0 as others
  from batches group by all
), causes as materialized (select rank, step, source, cause, sum(tokens) as tokens from ledger group by all)
"""

#: A batch is of one rank: a large run is asked for some ranks at a time, which keeps what is looked up small.
ROWS_AT_A_TIME: Final = 5_000_000


def _told(run: Run, query: str, order: str) -> list[pd.DataFrame]:
    """The result of ``query`` over the ledger, for some ranks each."""
    return [_told_of(run, where, query, order) for where in _shares(run)]


def _shares(run: Run) -> list[str]:
    """Conditions that share out the rows by rank."""
    rows = int(run.sql("select count(*) as n from padding")["n"][0])
    if rows <= ROWS_AT_A_TIME:
        return ["true"]
    ranks = run.ranks
    firsts = ranks[:: max(1, len(ranks) * ROWS_AT_A_TIME // rows)]
    inner = [f"rank >= {first} and rank < {end}" for first, end in itertools.pairwise(firsts[1:])]
    return [f"rank < {firsts[1]}", *inner, f"rank >= {firsts[-1]}"] if len(firsts) > 1 else ["true"]


def _told_of(run: Run, where: str, query: str, order: str) -> pd.DataFrame:
    for ledger in (_LEDGER_OF_INPUT_IDS, _LEDGER):
        found = run.sql(
            f"""{ledger.format(where=where)}, told as ({query})
            select told.*, (select sum(others) from sizes) as others from told order by {order}"""  # noqa: S608  (our own names)
        )
        if len(found) and not found["others"].any():
            break
    return found.drop(columns="others")


def by_step(run: Run) -> pd.DataFrame:
    """The ledger of each step: step, cause, tokens, rectangle_tokens and valid_tokens (of the step, on each
    row).

    The tokens of a step's rows sum to rectangle_tokens − valid_tokens. Valid tokens are no row of their own.
    """
    found = _told(
        run,
        f"""
        with cut as (select distinct rank, step from sizes where source in {_PLANNED}),
        chosen as (
          select sizes.* from sizes left join cut on sizes.rank = cut.rank and sizes.step is not distinct from cut.step
          where source in {_PLANNED} or (cut.rank is null and source not in {_APART})
        ), steps as (
          select step, sum(rectangle) as rectangle_tokens, sum(valid) as valid_tokens from chosen group by step
        )
        select causes.step, cause, sum(tokens)::bigint as tokens, any_value(steps.rectangle_tokens)::bigint
               as rectangle_tokens, any_value(steps.valid_tokens)::bigint as valid_tokens
        from causes
        semi join chosen on causes.rank = chosen.rank and causes.step is not distinct from chosen.step
                        and causes.source = chosen.source
        join steps on causes.step is not distinct from steps.step
        group by causes.step, cause
        """,  # noqa: S608  (our own names)
        "step, cause",
    )
    if len(found) == 1:
        return found[0]
    sizes = pd.concat([one.drop_duplicates("step").drop(columns=["cause", "tokens"]) for one in found])
    sizes = sizes.groupby("step", as_index=False, dropna=False).sum()
    causes = pd.concat(found).groupby(["step", "cause"], as_index=False, dropna=False)[["tokens"]].sum()
    return causes.merge(sizes, on="step").set_axis(found[0].columns, axis=1).astype({"cause": object})


def by_cause(run: Run, steps: pd.DataFrame | None = None) -> pd.DataFrame:
    """The whole run's ledger: cause, tokens, ratio (of all rectangles), largest cause first; "none" left
    out. ``steps`` is what :func:`by_step` says, where it was asked already.
    """
    steps = by_step(run) if steps is None else steps
    rectangle = steps.drop_duplicates("step")["rectangle_tokens"].sum()
    frame: pd.DataFrame = steps.groupby("cause", as_index=False)[["tokens"]].sum()
    frame["ratio"] = frame["tokens"] / rectangle if rectangle else float("nan")
    told: pd.DataFrame = frame[frame["cause"] != "none"]
    return told.sort_values(["tokens", "cause"], ascending=[False, True], ignore_index=True)


def ratios(run: Run, steps: pd.DataFrame | None = None) -> pd.DataFrame:
    """The tax of each step: step, padding_tokens, rectangle_tokens, valid_tokens, ratio (padding ÷
    rectangle). ``steps`` as in :func:`by_cause`.
    """
    steps = by_step(run) if steps is None else steps
    frame = steps.groupby("step", as_index=False, dropna=False).agg(
        padding_tokens=("tokens", "sum"),
        rectangle_tokens=("rectangle_tokens", "first"),
        valid_tokens=("valid_tokens", "first"),
    )
    frame["ratio"] = frame["padding_tokens"] / frame["rectangle_tokens"].where(frame["rectangle_tokens"] > 0)
    return frame


def by_field(run: Run) -> pd.DataFrame:
    """Bytes of padding by field and cause over the whole run: field, cause, bytes, tokens; largest field
    first."""
    return run.sql(
        _CHOSEN  # noqa: S608  (a user's text is quoted by literal())
        + """
        select field, cause, sum(bytes)::bigint as bytes, sum(tokens)::bigint as tokens from chosen
        where cause <> 'none' group by field, cause having sum(bytes) > 0
        order by sum(sum(bytes)) over (partition by field) desc, field, bytes desc
        """
    )


def by_source(run: Run) -> pd.DataFrame:
    """Where padded batches are formed: source, batches, padding_tokens, rectangle_tokens, ratio; worst
    first."""
    found = _told(
        run,
        """
        with padded as (select source, sum(tokens) as padding from causes group by source)
        select source, sum(batches)::bigint as batches, any_value(padding)::bigint as padding_tokens,
               sum(rectangle)::bigint as rectangle_tokens, any_value(padding) / nullif(sum(rectangle), 0) as ratio
        from sizes join padded using (source) group by source
        """,
        "padding_tokens desc, source",
    )
    if len(found) == 1:
        return found[0]
    frame: pd.DataFrame = pd.concat(found).drop(columns="ratio").groupby("source", as_index=False).sum()
    frame["ratio"] = frame["padding_tokens"] / frame["rectangle_tokens"].where(frame["rectangle_tokens"] > 0)
    frame = frame.sort_values(["padding_tokens", "source"], ascending=[False, True], ignore_index=True)
    return frame.set_axis(found[0].columns, axis=1).astype({"source": object})
