"""What the stub of a rollout answers: random tokens."""

from __future__ import annotations

import asyncio
import random
from typing import Any


class Answers:
    """Random answers that depend on nothing but the prompt and how often it was asked.

    Those to one prompt differ in length: rows are sorted by it, since which sample is answered first differs.

    Args:
        longest: Most tokens of an answer.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._asked: dict[tuple[int, ...], int] = {}

    async def to(self, prompt: list[int]) -> list[int]:
        """The tokens of the next answer to ``prompt``."""
        key = tuple(prompt)
        count = self._asked[key] = self._asked.get(key, 0) + 1
        lengths = list(range(2, self._longest + 1))
        random.Random(repr(key)).shuffle(lengths)
        dice = random.Random(repr((key, count)))
        await asyncio.sleep(0.002)
        return [dice.randint(10, 250) for _ in range(lengths[count % len(lengths)])]


async def nothing(*_: Any, **__: Any) -> None:
    """What there is to do where no engine sleeps, wakes or holds a cache."""
