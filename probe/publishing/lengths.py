"""How long the sequences of a step are, as a histogram for each phase that cuts them into micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from probe.publishing.across_ranks import segment
from probe.tracking.media import Histogram

if TYPE_CHECKING:
    from probe.runs.reader import Run

PREFIX: Final = "probe/token_balance/sequence_tokens/"

#: Bins of a histogram.
BINS: Final = 30


def histograms(run: Run, steps: Sequence[int]) -> Iterator[tuple[int, str, Histogram]]:
    """Step, name and histogram of the tokens of each sequence, over all ranks.

    A sequence counts as often as the phase has cut it: twice where the phase goes over a batch twice.
    """
    if not steps:
        return
    frame = run.sql(
        """
        with own as (select step, phase, unnest(lengths) as tokens from micro_batches where step between ? and ?)
        select step, coalesce(phase, 'no_phase') as phase, tokens, count(*) as count from own
        group by all order by step, phase, tokens
        """,
        [min(steps), max(steps)],
    )
    wanted = set(steps)
    for (step, phase), part in frame.groupby(["step", "phase"], sort=True):
        if step in wanted:
            yield int(step), PREFIX + segment(str(phase)), counted(part["tokens"].tolist(), part["count"].tolist())


def counted(tokens: Sequence[int], counts: Sequence[int]) -> Histogram:
    """The histogram of whole numbers that occur so often; its bins are of one whole width, so that none is uneven.

    >>> counted([3, 4, 6], [1, 2, 1])
    Histogram(edges=(2.5, 3.5, 4.5, 5.5, 6.5), counts=(1, 2, 0, 1))
    """
    least, most = min(tokens), max(tokens)
    width = -(-(most - least + 1) // BINS)
    edges = np.arange(least, most + width + 1, width) - 0.5
    if edges[-2] > most:
        edges = edges[:-1]
    found, _ = np.histogram(tokens, bins=edges, weights=counts)
    return Histogram(tuple(edges.tolist()), tuple(int(one) for one in found))
