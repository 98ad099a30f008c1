"""Micro-batches of equal work, beside the installed verl's: how many, the heaviest beside the mean, and the time.

Both cut the same rows under the same cap on tokens and balance the same estimate of work, its ``calculate_workload``.
Where probe needs fewer micro-batches they are fuller, and the cap leaves less room to make them even; of as many none
is heavier than verl's heaviest (``tests/frameworks/test_verl_drop_in.py``).
verl has an environment of its own: ``make .venv-verl/.made; .venv-verl/bin/python -m benchmarks balance``; elsewhere
there is no row.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from benchmarks.measure import Size, row, seconds
from benchmarks.partition import lengths_of
from probe.core.balancing.partition import calculate_workload
from probe.core.seqlen_balancing import rearrange_micro_batches

#: Shape of the lengths, rows, and the cap in tokens.
CASES = (("lognormal", 512, 32_768), ("uniform", 256, 32_768), ("bimodal", 512, 32_768))
WIDTH = 16_384


def batch_of(lengths: Sequence[int]) -> TensorDict:
    """What cutting needs: a mask, and what verl looks at for the width."""
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).to(torch.int8)
    return TensorDict({"attention_mask": mask, "input_ids": mask.clone()}, batch_size=[len(lengths)])


def heaviest(lengths: Sequence[int], cut: Sequence[Sequence[int]]) -> float:
    """The heaviest micro-batch's work ÷ the mean."""
    work = [sum(calculate_workload([lengths[one] for one in part])) for part in cut]
    return max(work) / (sum(work) / len(work))


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    """A row for each shape of lengths; without verl there is none."""
    if importlib.util.find_spec("verl") is None:
        return []
    from verl.utils import seqlen_balancing as theirs

    cases = CASES[: size.pick(1, len(CASES))]
    repeats = size.pick(1, 9)
    return [_compared(*case, theirs.rearrange_micro_batches, repeats) for case in cases]


def _compared(shape: str, count: int, cap: int, other: Callable[..., Any], repeats: int) -> dict[str, Any]:
    lengths = [min(one, WIDTH) for one in lengths_of(shape, count)]
    batch = batch_of(lengths)
    works: list[Callable[[], Any]] = [lambda: rearrange_micro_batches(batch, cap), lambda: other(batch, cap)]
    (_, mine), (_, its) = (work() for work in works)
    told = [f"{len(cut)} micro-batches, heaviest ÷ mean {heaviest(lengths, cut):.4f}" for cut in (mine, its)]
    ours_s, theirs_s = seconds(*works, repeats=repeats)
    note = f"{told[0]}; verl {told[1]}" + (
        "; fewer are fuller, which leaves less to even out" if len(mine) < len(its) else ""
    )
    return row(f"cut {count} {shape} rows, {cap:,} tokens each / verl", ours_s, theirs_s, "", note)


if __name__ == "__main__":
    for one in rows():
        print(one["name"], f"{one['ratio']:.3f}", one["note"])
