"""Where the tokens of a run went: the sampled ones, each with one fate, and the slots that were computed.

Both ledgers are exact: fates sum to the sampled tokens and slots to what each phase computed, in whole numbers. A slot
costs its phase's seconds divided by its slots, so that seconds and money sum to those of the steps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from probe.analysis.ledger.accounts import Ledger
from probe.analysis.ledger.gathering import gathered
from probe.errors import InputError
from probe.runs.layout import GPU_HOUR_VARIABLE
from probe.runs.layout import gpu_hour as price

if TYPE_CHECKING:
    import pandas as pd

    from probe.runs.reader import Run

__all__ = ["GPU_HOUR_VARIABLE", "Ledger", "by_step", "ledger"]


def ledger(
    run: Run, *, first: int | None = None, last: int | None = None, gpu_hour: float | None = None
) -> Ledger | None:
    """The ledgers of a run, or of a stretch of its steps.

    Args:
        run: The run.
        first: The first step; None begins with the run's.
        last: The last step; None ends with the last that has ended on every rank that told of it.
        gpu_hour: What an hour of one accelerator costs; None asks the environment (``PROBE_GPU_HOUR``), and
            then the run, which keeps what the environment said as it was recorded; without either there is no money.

    Returns:
        The ledgers; None where no samples were recorded, or no such step has ended.

    Raises:
        InputError: ``gpu_hour`` isn't a number above 0.
    """
    if gpu_hour is not None and not 0 < gpu_hour < math.inf:
        raise InputError(f"gpu_hour: got {gpu_hour}, expected a number above 0")
    return gathered(run, first, last, _price(run, gpu_hour))


def by_step(run: Run) -> pd.DataFrame:
    """What became of the sampled tokens, step by step.

    Args:
        run: The run.

    Returns:
        Step, fate, tokens and sampled_tokens (of the step, on each row); by step and fate. The tokens of a step's rows
        sum to its sampled_tokens.
    """
    return run.sql(
        """
        with told as (select step, fate, sum(tokens)::bigint as tokens from token_fates group by step, fate)
        select step, fate, tokens, sum(tokens) over (partition by step)::bigint as sampled_tokens
        from told where tokens > 0 order by step, fate
        """
    )


def _price(run: Run, gpu_hour: float | None) -> float | None:
    """The price of an hour; None where nobody says it."""
    if gpu_hour is not None:
        return gpu_hour
    return price() or run.info.gpu_hour
