"""What micro-batches come to: counts, imbalance, padding, and the regressors of time and of memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from probe.analysis.what_if.cutting import Made

#: By name what a number is; the docs' table and the frames have them in this order.
NUMBERS: Final = {
    "micro_batches": "micro-batches of the rank with the most, over all rounds of the step",
    "over_cap": "micro-batches above the cap, of all ranks",
    "largest_tokens": "tokens of the largest micro-batch",
    "rank_imbalance_ratio": "tokens of the fullest rank in the step ÷ the mean over ranks",
    "mini_batch_imbalance_ratio": "sum over rounds of the fullest rank's tokens ÷ the sum of the means",
    "padding_tokens": "tokens that are computed and hold nothing, of all ranks",
    "waiting_ratio": "share of their time in which ranks wait for the fullest of each round, if time follows tokens",
    "micro_batch_waiting_ratio": "the same where ranks wait for each other after each micro-batch, as under FSDP",
}


@dataclass(frozen=True)
class Width:
    """How wide what is computed on is.

    Attributes:
        padded: Whether rows are padded to the longest of their micro-batch; else they are packed.
        fixed: Padded to so many tokens instead; None for none.
        round_to: Widths of padded rows, and sums of packed ones, are multiples of it.
        shared: Whether a micro-batch is as wide on all ranks, as wide as its longest row on any of them.
        most: Padded rows are no wider, rounding or not; None for no such width.
        rows_to: Packed rows take a multiple of it, each.
    """

    padded: bool = False
    fixed: int | None = None
    round_to: int = 1
    shared: bool = False
    most: int | None = None
    rows_to: int = 1

    def computed(self, lengths: Sequence[int], tokens: int, longest: int = 0) -> int:
        """Tokens that are computed for a micro-batch.

        Args:
            lengths: Of its rows.
            tokens: Their sum.
            longest: Row of it on any rank, where they share its width.
        """
        if not lengths:
            return 0
        if not self.padded:
            if self.rows_to > 1:
                tokens = sum(-(-one // self.rows_to) * self.rows_to for one in lengths)
            return -(-tokens // self.round_to) * self.round_to
        wide = self.fixed or -(-max(longest, *lengths) // self.round_to) * self.round_to
        return len(lengths) * (wide if self.most is None else min(wide, self.most))

    def longest(self, made: Made) -> list[int]:
        """The longest row of each micro-batch over all ranks; nothing where they don't share widths.

        Args:
            made: Lengths of the rows of each micro-batch of each rank.
        """
        if not self.shared:
            return []
        return [max(map(max, filter(None, place)), default=0) for place in itertools.zip_longest(*made, fillvalue=[])]


@dataclass
class RankWork:
    """What time goes by: of one rank in one round.

    Attributes:
        count: Micro-batches.
        computed: Tokens that are computed.
        squares: Sum of the squared lengths.
        process: Whose pace it has; "" where that isn't known.
    """

    count: int = 0
    computed: int = 0
    squares: int = 0
    process: str = ""


@dataclass
class StepNumbers:
    """What a step comes to.

    Attributes:
        values: By the names of :data:`NUMBERS`.
        slowest: Of each round the work of the rank that has most to compute.
        works: Of each round the work of every rank.
        micro_batches: (tokens computed, longest row, rows) of each micro-batch, without repetitions.
    """

    values: dict[str, float] = field(default_factory=dict)
    slowest: list[RankWork] = field(default_factory=list)
    works: list[list[RankWork]] = field(default_factory=list)
    micro_batches: set[tuple[int, int, int]] = field(default_factory=set)


def step_numbers(rounds: Sequence[Made], cap_tokens: int | None, width: Width) -> StepNumbers:
    """The numbers of one step.

    Args:
        rounds: Lengths of the rows of each micro-batch of each rank, in each round.
        cap_tokens: Most tokens of a micro-batch; None where there is no cap.
        width: How wide what is computed on is.
    """
    found = StepNumbers()
    ranks = max((len(made) for made in rounds), default=0)
    whole, counts = [0] * ranks, [0] * ranks
    over = largest = padding = 0
    fullest = mean = waits_full = waits_mean = in_step_full = 0.0
    for made in rounds:
        tokens_here, works = [], []
        each: list[list[int]] = []
        longest = width.longest(made)
        for rank, parts in enumerate(made):
            work, here = RankWork(len(parts)), 0
            each.append([])
            for place, lengths in enumerate(parts):
                tokens = sum(lengths)
                computed = width.computed(lengths, tokens, longest[place] if longest else 0)
                here += tokens
                work.computed += computed
                each[-1].append(computed)
                work.squares += sum([one * one for one in lengths])
                padding += computed - tokens
                over += cap_tokens is not None and tokens > cap_tokens
                largest = max(largest, tokens)
                if lengths:
                    found.micro_batches.add((computed, max(lengths), len(lengths)))
            whole[rank] += here
            counts[rank] += len(parts)
            tokens_here.append(here)
            works.append(work)
        if works:
            found.works.append(works)
            found.slowest.append(max(works, key=lambda one: (one.computed, one.squares)))
            fullest += max(tokens_here)
            mean += sum(tokens_here) / len(tokens_here)
            waits_full += found.slowest[-1].computed
            waits_mean += sum(one.computed for one in works) / len(works)
            in_step_full += sum([max(one) for one in itertools.zip_longest(*each, fillvalue=0)])
    total = sum(whole)
    found.values = {
        "micro_batches": max(counts, default=0),
        "over_cap": over,
        "largest_tokens": largest,
        "rank_imbalance_ratio": max(whole) * len(whole) / total if total else math.nan,
        "mini_batch_imbalance_ratio": fullest / mean if mean else math.nan,
        "padding_tokens": padding,
        "micro_batch_waiting_ratio": 1 - waits_mean / in_step_full if in_step_full else math.nan,
        "waiting_ratio": 1 - waits_mean / waits_full if waits_full else math.nan,
    }
    return found
