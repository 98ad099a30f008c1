"""Faults between rollout and training, each planted in a real small model: what the mismatch verdict is tested on.

``strength`` 1 is plain; what it is measured in is halved twice for the weaker ones.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Final

import numpy as np
import torch

from probe.demo.model import Policy
from probe.demo.zoo.language import Language
from probe.demo.zoo.sampling import Answer, Engine, Sampling, rounded


class Planted(Sampling):
    """A fault between rollout and training."""

    cause: ClassVar[str] = "agree"  #: what the verdict must say
    finds: ClassVar[str] = "mismatch"


class Clean(Sampling):
    """Nothing but bfloat16."""

    cause: ClassVar[str] = "agree"


class Temperature(Planted):
    """The engine samples at another temperature, and says how likely a token was at it."""

    cause: ClassVar[str] = "temperature"
    about: ClassVar[str] = "the engine samples at temperature 1.4; the trainer computes log-probabilities at 1"

    def engine(self, policies: list[Policy], step: int, rank: int, part: int) -> Engine:
        return Engine(rounded(policies[step]), step, 1 + 0.4 * self.strength)


class Shift(Planted):
    """What the engine says stands one position late."""

    cause: ClassVar[str] = "shift"
    about: ClassVar[str] = (
        "the engine's log-probabilities are shifted right by one position; at strength 0.5 in half of the rows"
    )

    def retell(self, answers: list[Answer], language: Language, drawing: np.random.Generator) -> None:
        for one in _some(answers, self.strength, drawing):
            one.rollout = [0.0, *one.rollout[:-1]]


class WrongMask(Planted):
    """The mask stands one position late: the first token of a tool counts, the first sampled one after it doesn't."""

    cause: ClassVar[str] = "shift"
    about: ClassVar[str] = "the loss mask is shifted right by one position; at strength 0.5 in half of the rows"

    def retell(self, answers: list[Answer], language: Language, drawing: np.random.Generator) -> None:
        for one in _some(answers, self.strength, drawing):
            one.mask = [False, *one.mask[:-1]]


class Untrained(Planted):
    """What tools said counts in the loss."""

    cause: ClassVar[str] = "untrained"
    about: ClassVar[str] = "the tools' replies count in the loss; at strength 0.5 in half of the rows"

    def retell(self, answers: list[Answer], language: Language, drawing: np.random.Generator) -> None:
        for one in _some(answers, self.strength, drawing):
            one.mask = [True] * len(one.mask)


class Retokenised(Planted):
    """The trainer tokenises the text again, and cuts a word otherwise: all that follows stands elsewhere."""

    cause: ClassVar[str] = "retokenised"
    about: ClassVar[str] = (
        "the text is tokenised again, with other tokens from some position on; at strength 0.5 in half of the rows"
    )

    def retell(self, answers: list[Answer], language: Language, drawing: np.random.Generator) -> None:
        for one in _some(answers, self.strength, drawing):
            _cut_otherwise(one, language, drawing)


class Stale(Planted):
    """From step 4 on the engine lags behind, and says so."""

    cause: ClassVar[str] = "stale"
    about: ClassVar[str] = "from step 4 on the engine samples with weights 4 versions old and reports that version"

    def engine(self, policies: list[Policy], step: int, rank: int, part: int) -> Engine:
        version = step - round(4 * self.strength) if step >= 4 else step
        return Engine(rounded(policies[version]), version)


class Unsynced(Stale):
    """The same where the engine says that its weights are the newest: what was to renew them left them as they were."""

    cause: ClassVar[str] = "unsynced"
    about: ClassVar[str] = (
        "from step 4 on the engine samples with weights 4 versions old but reports the newest version"
    )

    def engine(self, policies: list[Policy], step: int, rank: int, part: int) -> Engine:
        old = super().engine(policies, step, rank, part)
        return Engine(old.policy, step)


class OneRank(Planted):
    """The engine of rank 1 has weights of its own: a transfer that went wrong."""

    cause: ClassVar[str] = "rank"
    rank: ClassVar[int | None] = 1
    about: ClassVar[str] = "the weights of rank 1's engine have random errors of 20 % of their size"

    def engine(self, policies: list[Policy], step: int, rank: int, part: int) -> Engine:
        policy = policies[step]
        return Engine(rounded(off(policy, 0.2 * self.strength, self.seed) if rank == 1 else policy), step)


class SomeRows(Planted):
    """One of the four engines behind each rank has weights of its own."""

    cause: ClassVar[str] = "rows"
    about: ClassVar[str] = "the weights of one engine of four have random errors of 20 % of their size"

    def engine(self, policies: list[Policy], step: int, rank: int, part: int) -> Engine:
        policy = policies[step]
        return Engine(rounded(off(policy, 0.2 * self.strength, self.seed) if part == 2 else policy), step)


class Kernels(Planted):
    """The engine computes with weights of a few bits."""

    cause: ClassVar[str] = "kernels"
    about: ClassVar[str] = "the engine's weights have a mantissa of 2 bits (strength 0.5: 3 bits, 0.25: 4 bits)"

    def engine(self, policies: list[Policy], step: int, rank: int, part: int) -> Engine:
        return Engine(rounded(few_bits(policies[step], 2 - round(np.log2(self.strength)))), step)


#: By name.
PLANTS: Final[dict[str, type[Sampling]]] = {
    "clean": Clean,
    "temperature": Temperature,
    "shift": Shift,
    "wrong_mask": WrongMask,
    "untrained": Untrained,
    "retokenised": Retokenised,
    "stale": Stale,
    "unsynced": Unsynced,
    "one_rank": OneRank,
    "some_rows": SomeRows,
    "kernels": Kernels,
}


def off(policy: Policy, share: float, seed: int) -> Policy:
    """A copy whose matrices have noise of a share of their own size on them."""
    generator = torch.Generator().manual_seed(seed)
    found = copy.deepcopy(policy)
    with torch.no_grad():
        for one in found.parameters():
            if one.ndim == 2:
                one.add_(share * one.std() * torch.randn(one.shape, generator=generator))
    return found


def few_bits(policy: Policy, bits: int) -> Policy:
    """A copy whose matrices keep so many bits behind the leading one."""
    found = copy.deepcopy(policy)
    with torch.no_grad():
        for one in found.parameters():
            if one.ndim == 2:
                fraction, exponent = torch.frexp(one)
                one.copy_(torch.ldexp(torch.round(fraction * 2 ** (bits + 1)) / 2 ** (bits + 1), exponent))
    return found


def _some(answers: list[Answer], share: float, drawing: np.random.Generator) -> list[Answer]:
    order = drawing.permutation(len(answers))[: round(share * len(answers))]
    return [answers[int(at)] for at in order]


def _cut_otherwise(one: Answer, language: Language, drawing: np.random.Generator) -> None:
    """Cut one token of the first turn in two: the rest moves by one, and the last token falls off."""
    mine = [at for at, sampled in enumerate(one.sampled) if sampled]
    order = drawing.permutation([at for at in mine if at >= 3] or mine)
    for at in order.tolist():
        text = language.decode([one.tokens[at]])
        if len(text) < 2:
            continue
        cut = int(drawing.integers(1, len(text)))
        parts = [*language.encode(text[:cut]), *language.encode(text[cut:])]
        if len(parts) < 2:
            continue
        many, tokens = len(one.tokens), [*one.tokens[:at], *parts, *one.tokens[at + 1 :]]
        sampled = [*one.sampled[:at], *[True] * len(parts), *one.sampled[at + 1 :]]
        one.tokens, one.sampled, one.mask = tokens[:many], sampled[:many], sampled[:many]
        return
