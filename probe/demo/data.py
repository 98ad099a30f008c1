"""The task's data: a parquet file of prompts and answers, whose problems are in :mod:`probe.demo.problems`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from probe.core.rl_dataset import RLHFDataset
from probe.demo.problems import problem
from probe.demo.settings import Settings
from probe.demo.tokenizer import tokenizer


def write_problems(path: Path, *, rows: int, seed: int) -> Path:
    """Write ``rows`` distinct problems to the parquet file ``path``, in the columns that RL datasets have.

    ``prompt`` is a chat of one message, ``reward_model`` holds the answer as ``ground_truth``.
    """
    rng = random.Random(seed)
    found: dict[str, dict[str, str]] = {}
    while len(found) < rows:
        one = problem(rng)
        found.setdefault(one["prompt"], one)
    pq.write_table(pa.Table.from_pylist([_row(index, one) for index, one in enumerate(found.values())]), path)
    return path


def _row(index: int, problem: dict[str, str]) -> dict[str, Any]:
    return {
        "data_source": f"arithmetic/{problem['kind']}",
        "prompt": [{"role": "user", "content": problem["prompt"]}],
        "reward_model": {"style": "rule", "ground_truth": problem["answer"]},
        "extra_info": {"index": index},
    }


def read_problems(path: Path, settings: Settings, cache_dir: Path | None = None) -> RLHFDataset:
    """The rows of the parquet file as prompts of tokens, padded on the left to ``settings.prompt_width``."""
    config = {
        "max_prompt_length": settings.prompt_width,
        "truncation": "error",
        "filter_overlong_prompts": False,  # the generator makes none
        "cache_dir": str(cache_dir or path.parent / "cache"),
    }
    return RLHFDataset(str(path), tokenizer(), config)
