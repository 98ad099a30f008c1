"""Every knob of the demo, in one place; kept with the run as its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from probe.demo.problems import ANSWER_WIDTH, PROMPT_WIDTH


@dataclass(frozen=True)
class Settings:
    """Counts are per rank where the name says so, and of the whole job otherwise."""

    steps: int = 50
    seed: int = 0
    problems: int = 400  #: rows of the parquet file
    warmup_steps: int = 60  #: supervised, before the first step: enough to be right now and then
    prompts_per_rank: int = 48
    group_size: int = 8  #: responses to each prompt
    mini_batch_per_rank: int = 96  #: responses behind one optimizer step
    epochs: int = 2  #: passes over the responses of a step; from the second update on, clipping matters
    max_tokens: int = 1000  #: cap of a micro-batch
    prompt_width: int = PROMPT_WIDTH
    model_width: int = 128
    response_width: int = ANSWER_WIDTH + 1  #: one more for the end token
    learning_rate: float = 4e-4
    warmup_learning_rate: float = 2e-3
    save_every: int = 20  #: steps between checkpoints; the last step is always saved
    checkpoints_to_keep: int = 2
    clip: float = 0.2  #: of the policy ratio
    largest_gradient: float = 1.0  #: norm above which the gradient is scaled down
