"""Answers that are cut off at the limit of their length."""

from __future__ import annotations

from typing import Any, ClassVar

from probe.demo.zoo.loop import Training


class Fault(Training):
    """From step 6 on most answers don't come to an end."""

    about: ClassVar[str] = "from step 6 on 80 % of the answers are truncated"
    finds: ClassVar[str] = "cut_off"
    kind: ClassVar[str] = "tuning"
    config: ClassVar[dict[str, Any]] = {"max_token_len": 1000, "response_width": 1024}

    def metrics(self, step: int, rank: int) -> dict[str, Any]:
        found = super().metrics(step, rank)
        if step >= 6:
            found["response_length/clip_ratio"] = [0.8 * self.strength]
        return found
