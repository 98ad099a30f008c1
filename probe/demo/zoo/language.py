"""A small language of its own, a byte-pair tokenizer trained on it, and a model that has learned to speak it.

Texts are sentences of a grammar with names, numbers and sums, so that some tokens follow from what stands before them
and others are a free choice, as in a real text. Everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from probe.demo.model import Policy
from probe.demo.rollout import pad_right
from probe.demo.tokenizer import EOS, PAD

VOCABULARY: Final = 320
POSITIONS: Final = 96
WIDTH: Final = 96

_NAMES: Final = ["anna", "ben", "carla", "david", "elena", "frank", "greta", "henry", "irene", "jonas", "katja", "leo"]
_VERBS: Final = ["buys", "sells", "counts", "carries", "washes", "paints", "weighs", "collects", "forgets", "repairs"]
_LOOKS: Final = ["green", "yellow", "heavy", "broken", "wooden", "tiny", "expensive", "shiny", "ordinary", "wonderful"]
_THINGS: Final = [
    "apples",
    "lanterns",
    "bicycles",
    "bottles",
    "blankets",
    "carpets",
    "hammers",
    "kettles",
    "ladders",
    "mirrors",
    "needles",
    "oranges",
]
_PLACES: Final = ["market", "station", "harbour", "library", "bakery", "workshop", "garden", "museum"]


class Language:
    """Texts and their tokens.

    Args:
        seed: Of the texts that the tokenizer is trained on.
    """

    def __init__(self, seed: int) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        self._inner: Any = Tokenizer(models.BPE())
        self._inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        self._inner.decoder = decoders.Metaspace(prepend_scheme="never")
        special = ["<pad>", "<eos>"]
        trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
        drawing = np.random.default_rng([seed, 1])
        self._inner.train_from_iterator((story(drawing, 40) for _ in range(50)), trainer)

    def encode(self, text: str) -> list[int]:
        """Its tokens."""
        found: list[int] = self._inner.encode(text).ids
        return found

    def decode(self, tokens: list[int]) -> str:
        """Their text, without padding and ends."""
        found: str = self._inner.decode([one for one in tokens if one not in (PAD, EOS)])
        return found


def story(drawing: np.random.Generator, sentences: int) -> str:
    """So many sentences."""
    return " ".join(_sentence(drawing) for _ in range(sentences))


def tool_says(drawing: np.random.Generator) -> str:
    """What a tool gives back."""
    return f" result {drawing.integers(100, 1000)} units in stock ."


def _sentence(drawing: np.random.Generator) -> str:
    def one(words: Sequence[str]) -> str:
        return words[int(drawing.integers(len(words)))]

    kind = drawing.random()
    if kind < 0.3:
        left, right = (int(number) for number in drawing.integers(1, 50, 2))
        return f"{left} plus {right} is {left + right} ."
    if kind < 0.5:
        return f"{one(_NAMES)} waits for {one(_NAMES)} at the {one(_PLACES)} ."
    return f"{one(_NAMES)} {one(_VERBS)} {drawing.integers(2, 99)} {one(_LOOKS)} {one(_THINGS)} at the {one(_PLACES)} ."


def visible_to(mask: torch.Tensor) -> torch.Tensor:
    """Which keys each query sees, (B, 1, W, W), of rows whose tokens are where ``mask`` (B, W) says so."""
    width = mask.shape[1]
    return (mask[:, None].expand(-1, width, -1).tril() | torch.eye(width, dtype=torch.bool))[:, None]


def logits_of(policy: Policy, rows: torch.Tensor) -> torch.Tensor:
    """Float32 logits (B, W, V) about the token after each, of rows (B, W) padded on the right."""
    mask = rows.ne(PAD)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits: torch.Tensor = policy(rows, positions, visible_to(mask))
    return logits.float()


@lru_cache(maxsize=4)
def speaker(seed: int, lessons: int) -> tuple[Language, Policy]:
    """The language, and a model that was trained to speak it for so many steps.

    Args:
        seed: Of texts, weights and order.
        lessons: Steps of 32 texts; 40 take some seconds, 600 about a minute.
    """
    language = Language(seed)
    drawing = np.random.default_rng([seed, 2])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Policy(VOCABULARY, POSITIONS, width=WIDTH)
    optimizer = torch.optim.AdamW(policy.parameters(), 3e-3, weight_decay=0.0)
    for lesson in range(lessons):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (lesson + 1) / 10) * (1 - 0.9 * lesson / lessons)
        texts = [language.encode(story(drawing, 6))[: POSITIONS // 2] for _ in range(32)]
        rows = pad_right([[*one, EOS] for one in texts], POSITIONS // 2 + 1)
        logits = logits_of(policy, rows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return language, policy.eval()
