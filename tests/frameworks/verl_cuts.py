"""Cuts many batches with the verl that is on the path and with probe's rule; prints how many were alike, as JSON.

``python verl_cuts.py SEED BATCHES``; as rank RANK of WORLD_SIZE it agrees with the others on how many parts there are.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import warnings
from importlib.metadata import version
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import verl.utils.seqlen_balancing as theirs
from tensordict import TensorDict

from probe.core.balancing.replay import Cut, keeps_the_cap, replay_ranks
from probe.errors import InputError

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def drawn(rng: random.Random, rows: int) -> list[int]:
    """Half of the batches have few different lengths: ties are what is hard."""
    values = [rng.randint(1, 400) for _ in range(rows if rng.random() < 0.5 else rng.choice([1, 5]))]
    return [rng.choice(values) for _ in range(rows)]


def batch_of(lengths: list[int]) -> TensorDict:
    offsets = torch.tensor([0, *itertools.accumulate(lengths)])
    ids = torch.nested.nested_tensor_from_jagged(torch.zeros(sum(lengths), dtype=torch.long), offsets)
    return TensorDict({"input_ids": ids}, batch_size=[len(lengths)])


def main(seed: int, batches: int) -> None:
    group = None
    if RANKS > 1:
        torch.distributed.init_process_group("gloo")
        group = torch.distributed.group.WORLD
        theirs.get_device_name = lambda: "cpu"  # verl asks for the machine's, to put a number on it
    # Which rows is the question: copying them is most of the time, and nobody looks at the copies.
    theirs.tu.index_select_tensor_dict = lambda batch, rows: None
    strict = keeps_the_cap(version("verl"))
    rng, same, above, refused, different = random.Random(seed), 0, 0, 0, []
    for number in range(batches):
        rows = rng.randint(4, 40 if number % 5 == 0 else 12)  # verl's own loop takes the square of them
        ranks = [drawn(rng, rows) for _ in range(RANKS)]
        longest = max(max(one) for one in ranks)
        cap = rng.randint(longest, 3 * longest)
        ordered, divisor = rng.random() < 0.7, rng.choice([None, None, 2])
        shared: dict[str, Any] = {"cap_tokens": cap, "ordered": ordered, "divisor": divisor, "counts_agreed": RANKS > 1}
        cuts = [Cut(packer="verl.rearrange_micro_batches", lengths=one, strict=strict, **shared) for one in ranks]
        try:
            ours = replay_ranks(cuts)[RANK]
        except InputError:
            ours = None
        try:
            own = theirs.rearrange_micro_batches(
                batch_of(ranks[RANK]), cap, group, divisor, use_dynamic_bsz_balance=ordered
            )[1]
            own = [[int(row) for row in part] for part in own]
        except (AssertionError, ValueError):
            own = None
        same += ours == own
        refused += own is None
        above += own is not None and any(sum(ranks[RANK][row] for row in part) > cap for part in own)
        if ours != own:
            different.append(repr((cuts[RANK], own, ours)))
    told = {"verl": version("verl"), "same": same, "above": above, "refused": refused, "different": different[:3]}
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
