"""The demo learns: real training, seen from the rewards of its samples."""

from __future__ import annotations

from pathlib import Path

from probe.runs.reader import Run


def test_the_reward_rises(demo: Path) -> None:
    with Run(demo) as run:
        told = run.scalars.query("rank == 0 and step >= 0").pivot_table(index="step", columns="key", values="value")
    assert told.index.tolist() == list(range(len(told)))
    rewards = told["reward/mean"].tolist()
    first, last = sum(rewards[:6]) / 6, sum(rewards[-6:]) / 6
    assert last - first > 0.05, (first, last)  # 16 steps rise by 0.12, 50 by 0.26
    assert told["actor/clipped_ratio"].max() > 0
