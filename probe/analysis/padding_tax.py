"""What part of the batches is padding, and why it is there.

Each (batch, field) has its own ledger whose causes sum exactly to rectangle − valid tokens. Which rows count is said by
the views ``padding_counted`` and ``padding_widest`` (``probe/runs/views.sql``): tokens are counted on one field of a
batch, its widest, and bytes on all of them; of a process and step that has micro-batches these count, else its batches.
How large the tax is says the quantity ``padding_tax``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run


def by_step(run: Run) -> pd.DataFrame:
    """The ledger of each step.

    Args:
        run: The run.

    Returns:
        Step, cause, tokens, rectangle_tokens and valid_tokens (of the step, on each row); by step and cause. The tokens
        of a step's rows sum to rectangle_tokens − valid_tokens. Valid tokens are no row of their own.
    """
    return run.sql(
        """
        with told as materialized (select * from padding_widest where counted = 2),
        steps as (select step, sum(rectangle)::bigint as rectangle_tokens, sum(valid)::bigint as valid_tokens
                  from told group by step)
        select told.step, cause, sum(tokens)::bigint as tokens, any_value(rectangle_tokens) as rectangle_tokens,
               any_value(valid_tokens) as valid_tokens
        from told join steps on told.step is not distinct from steps.step
        where cause is not null group by told.step, cause order by told.step, cause
        """
    )


def by_cause(run: Run) -> pd.DataFrame:
    """The whole run's padding by cause.

    Args:
        run: The run.

    Returns:
        Cause, tokens, share_ratio (of all padding); the largest cause first, without "none".
    """
    return run.sql(
        """
        select cause, sum(tokens)::bigint as tokens, sum(tokens) / nullif(sum(sum(tokens)) over (), 0) as share_ratio
        from padding_widest where counted = 2 and cause <> 'none' group by cause order by tokens desc, cause
        """
    )


def by_field(run: Run) -> pd.DataFrame:
    """Bytes of padding by field and cause over the whole run.

    Args:
        run: The run.

    Returns:
        Field, cause, bytes, tokens; the largest field first.
    """
    return run.sql(
        """
        select field, cause, sum(bytes)::bigint as bytes, sum(tokens)::bigint as tokens from padding_counted
        where counted > 0 and cause <> 'none' group by field, cause having sum(bytes) > 0
        order by sum(sum(bytes)) over (partition by field) desc, field, bytes desc
        """
    )


def not_computed(run: Run) -> pd.DataFrame:
    """Padding of batches that are kept but not computed on: those of steps whose micro-batches count instead.

    Args:
        run: The run.

    Returns:
        One row: padding_tokens and rectangle_tokens (of each batch its widest field), and bytes (of all fields); each
        batch counts as often as it was put together.
    """
    return run.sql(
        """
        with kept as (select sum(bytes)::bigint as bytes from padding_counted
                      where counted = 0 and source like 'data_proto.%' and cause <> 'none')
        select sum(tokens)::bigint as padding_tokens, sum(rectangle)::bigint as rectangle_tokens,
               any_value(kept.bytes) as bytes
        from padding_widest, kept where counted = 0 and source like 'data_proto.%'
        """
    )
