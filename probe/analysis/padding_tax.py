"""What part of the batches is padding, and why it is there.

Each (batch, field) has its own ledger whose causes sum exactly to rectangle − valid tokens. Fields of one
batch repeat the same tokens, so tokens are counted on one field of a batch, its widest; bytes are counted
on all of them. The same tokens are also told of at different moments, when a batch is put together and when
it is cut: like the recorder's metrics, all but :func:`by_source` look at the micro-batches of a (rank,
step) that has any, else at its batches.
"""

from __future__ import annotations

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
  select padding.* from padding left join cut
    on padding.rank = cut.rank and padding.step is not distinct from cut.step
  where source in {_PLANNED} or (cut.rank is null and source not in {_APART})
)
"""  # noqa: S608  (a user's text is quoted by literal())

# The widest field of a batch; of equals "input_ids", then the first by name.
_LEDGER: Final = """
, fields as (
  select rank, batch_id, step, source, field, max(rectangle_tokens) as rectangle
  from chosen group by all
), widest as (
  select * from fields qualify row_number() over (
    partition by rank, batch_id, step, source order by rectangle desc, field <> 'input_ids', field) = 1
), ledger as (
  select chosen.* from chosen semi join widest
    on chosen.rank = widest.rank and chosen.batch_id = widest.batch_id and chosen.field = widest.field
   and chosen.source = widest.source and chosen.step is not distinct from widest.step
)
"""


def by_step(run: Run) -> pd.DataFrame:
    """The ledger of each step: step, cause, tokens, rectangle_tokens and valid_tokens (of the step, on each
    row).

    The tokens of a step's rows sum to rectangle_tokens − valid_tokens. Valid tokens are no row of their own.
    """
    return run.sql(
        _CHOSEN  # noqa: S608  (a user's text is quoted by literal())
        + _LEDGER
        + """
        , batches as (
          select step, sum(rectangle) as rectangle_tokens, sum(valid) as valid_tokens from (
            select step, rank, batch_id, source, max(rectangle_tokens) as rectangle,
                   max(valid_tokens) as valid
            from ledger group by all) group by step
        )
        select ledger.step, cause, sum(tokens)::bigint as tokens, any_value(batches.rectangle_tokens)::bigint
               as rectangle_tokens, any_value(batches.valid_tokens)::bigint as valid_tokens
        from ledger join batches on ledger.step is not distinct from batches.step
        group by ledger.step, cause order by ledger.step, cause
        """
    )


def by_cause(run: Run) -> pd.DataFrame:
    """The whole run's ledger: cause, tokens, ratio (of all rectangles), largest cause first; "none" left
    out."""
    steps = by_step(run)
    rectangle = steps.drop_duplicates("step")["rectangle_tokens"].sum()
    frame: pd.DataFrame = steps.groupby("cause", as_index=False)[["tokens"]].sum()
    frame["ratio"] = frame["tokens"] / rectangle if rectangle else float("nan")
    told: pd.DataFrame = frame[frame["cause"] != "none"]
    return told.sort_values(["tokens", "cause"], ascending=[False, True], ignore_index=True)


def ratios(run: Run) -> pd.DataFrame:
    """The tax of each step: step, padding_tokens, rectangle_tokens, valid_tokens, ratio (padding ÷
    rectangle)."""
    steps = by_step(run).groupby("step", as_index=False, dropna=False)
    frame = steps.agg(
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
    return run.sql(
        "with chosen as (select * from padding)"  # noqa: S608  (a user's text is quoted by literal())
        + _LEDGER
        + """
        select source, count(*) as batches, sum(padding)::bigint as padding_tokens,
               sum(rectangle)::bigint as rectangle_tokens, sum(padding) / nullif(sum(rectangle), 0) as ratio
        from (select source, rank, step, batch_id, sum(tokens) as padding, max(rectangle_tokens) as rectangle
              from ledger group by all)
        group by source order by padding_tokens desc, source
        """
    )
