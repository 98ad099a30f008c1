"""Answers whose text is tokenised again before it is trained, in a real small model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from probe.demo.zoo.loop import Shape
from probe.demo.zoo.mismatches import Retokenised


class Fault(Retokenised):
    """The ids of both sides are told, so that the first token that differs is known exactly."""

    about: ClassVar[str] = (
        "the text of each answer is tokenised again into other tokens; at strength 0.5 half of the answers"
    )
    finds: ClassVar[str] = "not_sampled"
    tells_ids: ClassVar[bool] = True
    shape: ClassVar[Shape] = replace(Retokenised.shape, steps=8)
    lessons: ClassVar[int] = 20  #: ids are compared exactly, whatever the model has learned
    without: ClassVar[dict[str, Any]] = {"tells_ids": True, "lessons": 20}
