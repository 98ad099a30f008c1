"""A reward that differs between the answers of a prompt, so that advantages and gradients aren't 0."""

from __future__ import annotations

from typing import Any


def score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """A seventh for each letter, modulo 7."""
    return len(solution_str) % 7 / 7
