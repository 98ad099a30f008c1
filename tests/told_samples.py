"""A small run that tells of samples: two groups of three answers in each of two steps; the second one is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

import probe

LENGTHS: Final = [2, 4, 5, 6, 3, 9]


def told_samples(directory: Path, *, texts: Literal["text"] | None = "text") -> Path:
    """Answer 1 differs most between rollout and training, 4 has NaN, 5 is truncated and dropped; group b has equal
    rewards. Micro-batch 0 of the update has group a, micro-batch 1 the answers 3 and 4.
    """
    with probe.start("p", "told", run_dir=directory, rank=0, world_size=1, samples=texts) as session:
        for step in (1, 2):
            with session.step(step):
                probe.samples(LENGTHS, **_told())
                if step == 2:
                    _train()
    return directory


def _told() -> dict[str, Any]:
    rollout = [np.full(length, -1.0) for length in LENGTHS]
    train = [values.copy() for values in rollout]
    for row, at, by in [(0, 0, 0.3), (1, 2, -3.0), (2, 0, 0.1), (3, 1, 0.02), (5, 4, 0.05)]:
        train[row][at] += by
    train[4][1] = np.nan
    return {
        "prompt_tokens": [7] * 6,
        "groups": ["a", "a", "a", "b", "b", "b"],
        "ended": ["stop"] * 5 + ["length"],
        "dropped": [None] * 5 + ["truncated"],
        "rewards": [1.0, 0.0, 0.5, 1.0, 1.0, 1.0],
        "advantages": [1.0, -0.8, -0.2, 0.0, 0.0, 0.0],
        "log_probs": train,
        "rollout_log_probs": rollout,
        "prompts": [f"What is <b>{row // 3}</b>?" for row in range(6)],
        "responses": [f"answer {row}" for row in range(6)],
        "begin_ns": [1_000] * 6,
        "end_ns": [1_000 + 1_000_000 * one for one in LENGTHS],
        "replicas": ["x", "y"] * 3,
        "response_ids": [[10 + row] * length for row, length in enumerate(LENGTHS)],
    }


def _train() -> None:
    for index, rows in enumerate([[0, 1, 2], [3, 4]]):
        with probe.phase("update_actor"), probe.micro_batch(index, lengths=[7 + LENGTHS[row] for row in rows]):
            probe.trained(rows, clipped=[[0] * LENGTHS[row] for row in rows])
