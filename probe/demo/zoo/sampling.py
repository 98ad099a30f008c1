"""A real, small training whose rollout is another copy of the model, so that faults can be planted between the two.

The model of :mod:`probe.demo.zoo.language` is trained on by its rewards: in each step a copy in bfloat16 samples
answers, half of them in two turns with what a tool says between, the model in float32 says how likely it finds each
token, and one update follows. The log-probabilities are told by ``probe.samples``; only the clock is made up.

A fault is a subclass that overrides one of the methods below "what a fault changes".
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch

from probe.demo.algorithm import group_advantages
from probe.demo.model import Policy
from probe.demo.rollout import pad_right, sample
from probe.demo.tokenizer import EOS, PAD
from probe.demo.zoo.clock import fake_time
from probe.demo.zoo.language import Language, logits_of, speaker, tool_says
from probe.demo.zoo.loop import SECOND, WALL_NS, Shape, Training
from probe.hooks import phase
from probe.recorders.samples import SamplesRecorder
from probe.sampled import samples, trained
from probe.session import Session, start
from probe.testing import FakeClock

PROMPT: Final = 6  #: tokens of a prompt
TURN: Final = 20  #: tokens of a turn, at most
GROUP: Final = 4
RATE: Final = 1e-3
SECONDS: Final = {"sync_weights": 0.1, "generate": 3.0, "old_log_prob": 0.7, "update": 2.0}


@dataclass
class Answer:
    """One answer, and what is known of its tokens.

    Attributes:
        prompt: Token ids.
        tokens: Of the response: what was sampled, and what the tool said.
        sampled: Which of them the model sampled.
        drawn: Token ids that the engine sampled, in their order: the trainer changes nothing here.
        rollout: What the engine says of each; 0 where it sampled nothing.
        version: Of the weights that sampled it, as it is told.
        rank: That trains it.
        mask: Which tokens the loss counts.
        reward: Of the answer.
        advantage: Of all its tokens.
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    rollout: list[float] = field(default_factory=list)
    version: int = 0
    rank: int = 0
    mask: list[bool] = field(default_factory=list)
    reward: float = 0.0
    advantage: float = 0.0
    train: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)

    def add(self, tokens: list[int], log_probs: list[float] | None) -> None:
        """Append what was sampled, or what a tool said."""
        self.tokens += tokens
        self.sampled += [log_probs is not None] * len(tokens)
        self.drawn += [] if log_probs is None else tokens
        self.rollout += [0.0] * len(tokens) if log_probs is None else log_probs


@dataclass
class Engine:
    """What samples some of the answers of a step.

    Attributes:
        policy: The weights, in the numbers that it computes with.
        version: Of the weights, as it tells.
        temperature: That it samples at.
    """

    policy: Policy
    version: int
    temperature: float = 1.0


class Sampling(Training):
    """A training that samples; nothing is wrong with it but that its engine computes in bfloat16."""

    shape: ClassVar[Shape] = Shape(ranks=2, steps=10, sequences=16)
    lessons: ClassVar[int] = 120  #: that the model has had before
    about: ClassVar[str] = "the engine computes in bfloat16, the trainer in float32"
    finds: ClassVar[str] = ""
    tells_ids: ClassVar[bool] = False  #: whether ids are told, of what is sampled and of what is trained

    # ------------------------------------------------------------------------------------- what a fault changes

    def engine(self, policies: list[Policy], step: int, rank: int, part: int) -> Engine:
        """What samples one of the four parts of a rank's answers; ``policies`` are those of all steps so far."""
        return Engine(rounded(policies[step]), step)

    def retell(self, answers: list[Answer], language: Language, drawing: np.random.Generator) -> None:
        """Change what the trainer is given of the answers of a step."""

    # -------------------------------------------------------------------------------------------- how it is run

    def run(self, directory: Path) -> Path:
        """Train, then let each rank tell of its answers."""
        told = list(self.simulated())
        for rank in range(self.shape.ranks):
            clock = FakeClock()
            with fake_time(clock, WALL_NS):
                clock.advance(SECOND)
                kept = [SamplesRecorder(), "scalars"]
                config = {"seed": self.seed}
                with start(
                    "zoo",
                    run_dir=directory,
                    rank=rank,
                    world_size=self.shape.ranks,
                    config=config,
                    recorders=kept,
                ) as session:
                    for step, answers in enumerate(told):
                        _record(session, clock, step, [one for one in answers if one.rank == rank], ids=self.tells_ids)
        return directory

    def simulated(self) -> Iterator[list[Answer]]:
        """The answers of each step, as the trainer is given them."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the same sums on every machine
        try:
            yield from self._simulated()
        finally:
            torch.set_num_threads(threads)

    def _simulated(self) -> Iterator[list[Answer]]:
        language, first = speaker(self.seed % 1000, self.lessons)
        policy = copy.deepcopy(first)
        optimizer = torch.optim.Adam(policy.parameters(), RATE)
        policies: list[Policy] = []
        for step in range(self.shape.steps):
            policies.append(copy.deepcopy(policy))
            drawing = np.random.default_rng([self.seed, step, 3])
            answers = self._sampled(policies, language, step, drawing)
            self.retell(answers, language, drawing)
            _advantages(answers, language)
            _learned(policy, optimizer, answers)
            yield answers

    def _sampled(
        self, policies: list[Policy], language: Language, step: int, drawing: np.random.Generator
    ) -> list[Answer]:
        found: list[Answer] = []
        size = self.shape.sequences // 4
        for rank in range(self.shape.ranks):
            for part in range(4):
                prompt = _prompt(language, drawing)
                answers = [Answer(list(prompt), rank=rank) for _ in range(size)]
                engine = self.engine(policies, step, rank, part)
                seed = int(drawing.integers(2**62))
                _turns(engine, answers, language, drawing, torch.Generator().manual_seed(seed), two=part % 2 == 1)
                found += answers
        return found


@lru_cache(maxsize=4)  # all answers of a step are sampled with one
def rounded(policy: Policy) -> Policy:
    """A copy in bfloat16, as an engine holds it."""
    return copy.deepcopy(policy).to(torch.bfloat16)


def _prompt(language: Language, drawing: np.random.Generator) -> list[int]:
    from probe.demo.zoo.language import story

    return language.encode(story(drawing, 3))[:PROMPT]


def _turns(
    engine: Engine,
    answers: list[Answer],
    language: Language,
    drawing: np.random.Generator,
    generator: torch.Generator,
    *,
    two: bool,
) -> None:
    _turn(engine, answers, generator)
    if two:
        for one in answers:
            one.add(language.encode(tool_says(drawing)), None)
        _turn(engine, answers, generator)
    for one in answers:
        one.version, one.mask = engine.version, list(one.sampled)


def _turn(engine: Engine, answers: list[Answer], generator: torch.Generator) -> None:
    before = [[*one.prompt, *one.tokens] for one in answers]
    width = max(map(len, before))
    rows = torch.tensor([[PAD] * (width - len(one)) + one for one in before])
    drawn, log_probs, *_ = sample(engine.policy, rows, TURN, generator, engine.temperature)
    for one, tokens, told in zip(answers, drawn.tolist(), log_probs.tolist(), strict=True):
        count = sum(token != PAD for token in tokens)
        one.add(tokens[:count], told[:count])


def _advantages(answers: list[Answer], language: Language) -> None:
    """Texts with many letters "e" are rewarded; answers stand in groups side by side."""
    texts = [language.decode([t for t, mine in zip(a.tokens, a.sampled, strict=False) if mine]) for a in answers]
    rewards = torch.tensor([text.count("e") / max(len(text), 1) for text in texts])
    compared = group_advantages(rewards, GROUP)
    for one, reward, advantage in zip(answers, rewards.tolist(), compared.tolist(), strict=True):
        one.reward, one.advantage = reward, advantage


def _learned(policy: Policy, optimizer: torch.optim.Optimizer, answers: list[Answer]) -> None:
    """Say how likely the model finds the tokens, and make one update."""
    rows = pad_right([[*one.prompt, *one.tokens] for one in answers], max(len(a.tokens) for a in answers) + PROMPT)
    all_of_them = logits_of(policy, rows[:, :-1]).log_softmax(-1)
    own = all_of_them.gather(2, rows[:, 1:, None])[..., 0]
    entropies = -(all_of_them.exp() * all_of_them).sum(-1)
    mask, weight = torch.zeros_like(own), torch.zeros_like(own)
    for at, one in enumerate(answers):
        inside = slice(len(one.prompt) - 1, len(one.prompt) - 1 + len(one.tokens))
        one.train, one.entropy = own[at, inside].tolist(), entropies[at, inside].tolist()
        mask[at, inside] = torch.tensor(one.mask, dtype=mask.dtype)
        weight[at, inside] = one.advantage
    loss = -(own * weight * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _record(session: Session, clock: FakeClock, step: int, answers: list[Answer], *, ids: bool) -> None:
    def passes(name: str) -> None:
        with phase(name):
            clock.advance(int(SECONDS[name] * SECOND))

    with session.step(step):
        for name in ("sync_weights", "generate", "old_log_prob"):
            passes(name)
        _tell(answers, step, ids=ids)
        with phase("update"):
            trained(range(len(answers)))
            clock.advance(int(SECONDS["update"] * SECOND))


def _tell(answers: list[Answer], step: int, *, ids: bool) -> None:
    each: dict[str, list[Any]] = {
        "mask": [np.array(one.mask) for one in answers],
        "rollout_log_probs": [np.array(one.rollout, np.float32) for one in answers],
        "log_probs": [np.array(one.train, np.float32) for one in answers],
        "entropies": [np.array(one.entropy, np.float32) for one in answers],
    }
    if ids:
        each |= {"sampled_ids": [one.drawn for one in answers], "response_ids": [one.tokens for one in answers]}
    samples(
        [len(one.tokens) for one in answers],
        prompt_tokens=[len(one.prompt) for one in answers],
        turns=[2 if not all(one.sampled) else 1 for one in answers],
        groups=[f"{one.rank}/{at // GROUP}" for at, one in enumerate(answers)],
        ended=["stop" if EOS in one.tokens[-1:] else "length" for one in answers],
        rewards=[one.reward for one in answers],
        advantages=[one.advantage for one in answers],
        weight_versions=[one.version for one in answers],
        trainer_version=step,
        clipped=False,
        **each,
    )
