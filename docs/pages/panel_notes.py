"""What a panel's page says of it beyond the caption, which has room for three short sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Facts by the id of the panel, each a bullet.
NOTES: Final[Mapping[str, tuple[str, ...]]] = {
    "memory_timeline": (
        "A box runs from its scope's begin to its end. Its colour is the role.",
        "Point at a box for its phase, micro-batch, step and rank.",
        "In the live panel the dashed line is the device's capacity. It is drawn once use comes close to it.",
        "The lines of the live panel miss peaks between two samples. The panels of peaks have them.",
    ),
    "memory_by_phase": (
        "The longest bar decides whether the job fits.",
        "Unequal ranks call for balancing, not for a smaller batch.",
    ),
    "memory_by_tokens": (
        "A phase has a line if it has at least 8 micro-batches, its peak rises with the tokens, and R² ≥ 0.5.",
        "Without a line, token count does not predict the peak.",
        "Dots far above the line have another cause than tokens.",
    ),
    "phase_durations": (
        "A bar with a gap exceeds the scale. Its value stands beside it.",
        "With many steps each bar is the median of several. Grey shows their range.",
    ),
    "own_cost": ("probe measures its cost itself.", "The first step of a process is not in it."),
    "incidents": ("Rows that a budget left out are no error: they were left out on request.",),
    "padding_over_steps": ("Against the longest row, bucket by length or cut by tokens.",),
    "padding_time": (
        "Only micro-batches that ran in a scope and have a padded width are counted.",
        "The estimate takes time to follow token slots, as it does where the model computes on the padded rectangle.",
        "Where rows are packed before the model, padding costs no time.",
    ),
    "reduction_spread": (
        "A reducer found inside a word is one such as “min” in “timing”.",
        "A typed Metric brings its own reducer.",
        "In the live panel “by token” and “by sequence” are means by what the values stand for, where that is known.",
        "There, “chosen by” says whether the name or the type chose the reducer.",
    ),
    "token_rate": (
        "The first line is the tokens of the batch ÷ the time of the step.",
        "The second counts a token in each phase and each epoch that computes on it.",
    ),
    "balance_stragglers": (
        "Where no bar is hatched, no rank stands out.",
        "Whether other ranks wait for it is told by times, not by tokens.",
    ),
    "token_fates": (
        "A token counts for the first fate that applies.",
        "No advantage: filter groups with equal rewards, or sample prompts of middling difficulty.",
        "Truncated: raise the limit.",
        "Clipped: fewer epochs, or a smaller learning rate.",
    ),
    "overview_tiles": (
        "Peak memory is the largest of the run. Probe's own errors are counted over all of it.",
        "Put the scrubber on a step: numbers and dots are then of that step.",
    ),
    "memory_boxes": ("A box runs from its begin to its end.",),
    "memory_parts": ("Other processes' memory is known only where the driver tells it.",),
    "metrics": ("With many steps several share a point. It is their median, and the band is their range.",),
}
