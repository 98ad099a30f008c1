"""Answers of weights of several ages in one step, as of a run that samples ahead: trials of the split by version lag.

The four parts of a rank's answers are sampled by weights 0, 2, 4 and 6 versions old, at strength 0.5 and 0.25 half and
a quarter of that. What the engine alone makes of the same tokens is known: with the trainer's own weights it says how
likely it finds them, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

import numpy as np
import torch

from probe.demo.model import Policy
from probe.demo.rollout import pad_right
from probe.demo.zoo.language import Language, logits_of
from probe.demo.zoo.sampling import PROMPT, Answer, Engine, Sampling, rounded

#: Versions that the last of the four parts is behind, at strength 1.
OLDEST: Final = 6


class Lagged(Sampling):
    """An engine that lags behind, and the same answers as an engine with the trainer's weights would have told them."""

    hot: ClassVar[bool] = False  #: whether the engine samples at another temperature
    old: ClassVar[bool] = True  #: whether older versions are other weights; else they are told alone

    def __init__(self, strength: float = 1.0, seed: int = 0) -> None:
        super().__init__(strength, seed)
        self._fresh: Engine | None = None
        self._told: list[tuple[list[Answer], list[list[float]]]] = []

    def engine(self, policies: list[Policy], step: int, rank: int, part: int) -> Engine:
        lag = min(round(OLDEST * self.strength * part / 3), step)
        temperature = 1 + 0.4 * self.strength if self.hot else 1.0
        self._fresh = Engine(rounded(policies[step]), step, temperature)
        return Engine(rounded(policies[step - lag * self.old]), step - lag, temperature)

    def retell(self, answers: list[Answer], language: Language, drawing: np.random.Generator) -> None:
        if self._fresh is not None:
            self._told.append((answers, log_probs_of(self._fresh, answers)))

    def planted(self, kept: Iterable[tuple[int, int, int, float]]) -> tuple[float, float]:
        """k2 of the sampled tokens of some answers: what the engine makes with the trainer's own weights, and what is
        beyond it.

        Args:
            kept: Step, rank, row and weight of each answer.
        """
        engine = everything = count = 0.0
        for step, rank, row, weight in kept:
            answers, fresh = self._told[step]
            at = [at for at, one in enumerate(answers) if one.rank == rank][row]
            mine = np.array(answers[at].mask)
            train = np.array(answers[at].train)
            engine += weight * float(((train - np.array(fresh[at]))[mine] ** 2).sum()) / 2
            everything += weight * float(((train - np.array(answers[at].rollout))[mine] ** 2).sum()) / 2
            count += weight * int(mine.sum())
        return engine / count, (everything - engine) / count


class NotOlder(Lagged):
    """Versions differ, and weights don't: nothing is stale."""

    about: ClassVar[str] = "nothing: the weights of all versions are equal, and the engine computes in bfloat16"
    old: ClassVar[bool] = False


class Old(Lagged):
    """Older weights, and nothing else."""

    about: ClassVar[str] = "weights 0, 2, 4 and 6 versions old"


class Hot(Lagged):
    """A temperature at all lags; weights of all versions are equal."""

    about: ClassVar[str] = "the engine samples at temperature 1.4, at all lags; the weights of all versions are equal"
    hot: ClassVar[bool] = True
    old: ClassVar[bool] = False


class OldAndHot(Lagged):
    """Both."""

    about: ClassVar[str] = "both: temperature 1.4, and weights 0, 2, 4 and 6 versions old"
    hot: ClassVar[bool] = True


#: By name.
LAGS: Final[dict[str, type[Lagged]]] = {"nothing": NotOlder, "staleness": Old, "temperature": Hot, "both": OldAndHot}


@torch.no_grad()
def log_probs_of(engine: Engine, answers: list[Answer]) -> list[list[float]]:
    """What an engine says of the tokens of some answers, natural logarithms, a list each.

    Args:
        engine: Its weights and temperature.
        answers: Their prompts and tokens, the same number of prompt tokens each.
    """
    rows = pad_right([[*one.prompt, *one.tokens] for one in answers], PROMPT + max(len(one.tokens) for one in answers))
    told = (logits_of(engine.policy, rows[:, :-1]) / engine.temperature).log_softmax(-1)
    own = told.gather(2, rows[:, 1:, None])[..., 0]
    return [
        own[at, len(one.prompt) - 1 : len(one.prompt) - 1 + len(one.tokens)].tolist() for at, one in enumerate(answers)
    ]
