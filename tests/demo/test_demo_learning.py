"""The demo learns: real training, seen from the rewards of its samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from probe.demo.data import read_problems, write_problems
from probe.demo.settings import Settings
from probe.demo.trainer import Trainer


@pytest.mark.slow
def test_the_reward_rises(tmp_path: Path) -> None:
    settings = replace(Settings(), steps=16)
    path = write_problems(tmp_path / "problems.parquet", rows=settings.problems, seed=settings.seed)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        steps = dict(Trainer(settings, read_problems(path, settings)).train())
    finally:
        torch.set_num_threads(before)
    rewards = [steps[step]["reward/mean"] for step in range(settings.steps)]
    first, last = sum(rewards[:6]) / 6, sum(rewards[-6:]) / 6
    assert last - first > 0.05, (first, last)  # seeds 0 to 2 rise by 0.09
    assert max(steps[step]["actor/clipped_ratio"] for step in range(settings.steps)) > 0
