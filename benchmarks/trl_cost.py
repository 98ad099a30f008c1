"""What observing TRL's SFT trainer and Transformers' Trainer costs a step: what the run says of it, and on against off.

In TRL's own environment: ``make .venv-frameworks/.made; .venv-frameworks/bin/python -m benchmarks trl_cost``. A
training of each kind takes its turn with probe and without; the model is as large as the step is to be long. Where
there is a GPU, a larger model trains on it as well.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Size, row
from benchmarks.own_cost import _interval
from probe.adapters.attachment import attach
from probe.own_cost import COST, STEP
from probe.runs.reader import Run
from probe.session import start

#: The one of a GPU: there the thread that trains waits most of a step, and what counts is wall time.
GPU = "GPU"
#: Hidden size, layers, tokens of a row: steps of some 30 ms, and of a second, on two cores; and of 100 ms on an H100.
SIZES = {"few steps": (32, 2, 24), "short steps": (32, 2, 24), "long steps": (384, 6, 400), GPU: (1024, 24, 1000)}
STEPS = {"few steps": 5, "short steps": 24, "long steps": 5, GPU: 20}
ROUNDS = {"few steps": 1, "short steps": 12, "long steps": 4, GPU: 4}
#: Which of them are measured.
KINDS = {Size.SMALL: ["few steps"], Size.USUAL: ["short steps"], Size.FULL: ["short steps", "long steps"]}
WARM = 2

#: Trains once at a size, observed or not: seconds for a step (on a GPU of the clock, else this thread's CPU time), and
#: what the run says that each of its steps cost and took, in ms.
Train = Callable[[str, bool], tuple[float, list[float], list[float]]]


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    import torch

    gpu = [GPU] if torch.cuda.is_available() and size is not Size.SMALL else []
    return [compared(name, _train) for name in KINDS[size] + gpu]


def compared(name: str, train: Train) -> dict[str, Any]:
    """One row: trainings with probe and without, in turns."""
    plain: list[float] = []
    with_probe: list[float] = []
    said: list[float] = []
    steps: list[float] = []
    for index in range(ROUNDS[name]):
        for on in (True, False)[:: 1 if index % 2 else -1]:
            took, cost, long = train(name, on)
            (with_probe if on else plain).append(took)
            if on:
                said += cost
                steps += long
    both = [b - a for a, b in zip(plain, with_probe, strict=True)]
    low, high = _interval(both)
    account, share = statistics.median(said), sum(said) / sum(steps)
    note = (
        f"a step takes {statistics.median(plain) * 1e3:.4g} ms; the run reports {account:.3g} ms, {share:.2%} of it, "
    )
    note += f"in wall time; measured: {statistics.median(both) * 1e3:.3g} ms more with probe (95 % interval "
    note += f"{low * 1e3:.3g} to {high * 1e3:.3g} ms), in {'wall' if name == GPU else 'thread CPU'} time"
    target = "at most 1 % of a 1 s step, at most 5 ms of a shorter one"
    return row(f"{name}: with probe / without", statistics.median(with_probe), statistics.median(plain), target, note)


def observed(directory: Path, framework: str, train: Callable[[], Any]) -> tuple[list[float], list[float]]:
    """Train under observation: what the run says that each of its steps cost and took, in ms."""
    attached = attach(framework)
    with start("benchmark", run_dir=directory):
        train()
    for one in attached:
        one.detach()
    with Run(directory) as run:
        said = run.scalars[run.scalars["step"] > WARM]
    cost, took = (said[said["key"] == key]["value"].tolist() for key in (COST, STEP))
    return cost, took


def _train(name: str, on: bool) -> tuple[float, list[float], list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        trainer, clock = _trainer(name, Path(folder))
        if not on:
            trainer.train()
            return clock.seconds(), [], []
        cost, took = observed(Path(folder) / "run", "trl", trainer.train)
        return clock.seconds(), cost, took


def _trainer(name: str, folder: Path) -> tuple[Any, Any]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import (
        DataCollatorForLanguageModeling,
        Qwen2Config,
        Qwen2ForCausalLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from tests.frameworks.small_trl import tokenizer

    class Clock(TrainerCallback):
        """When each step begins, in CPU time of the training thread; on a GPU in wall time."""

        now = staticmethod(time.perf_counter if name == GPU else time.thread_time)

        def __init__(self) -> None:
            self.begun: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun.append(self.now())

        def seconds(self) -> float:
            return statistics.median(b - a for a, b in zip(self.begun[WARM:], self.begun[WARM + 1 :], strict=False))

    hidden, layers, length = SIZES[name]
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers}
    config = Qwen2Config(vocab_size=258, num_attention_heads=4, num_key_value_heads=2, pad_token_id=256, **sizes)
    one, clock = tokenizer(), Clock()
    data = [one("x" * (length - 8 * (at % 3))) for at in range(8 * STEPS[name])]
    arguments: dict[str, Any] = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    arguments |= {"bf16": True} if name == GPU else {"use_cpu": True}
    trainer = Trainer(
        model=Qwen2ForCausalLM(config),
        args=TrainingArguments(
            output_dir=str(folder / "out"), max_steps=STEPS[name], report_to=[], disable_tqdm=True,
            save_strategy="no", logging_steps=1, **arguments,
        ),
        train_dataset=data,
        data_collator=DataCollatorForLanguageModeling(one, mlm=False),
        callbacks=[clock],
    )  # fmt: skip
    return trainer, clock


if __name__ == "__main__":
    for one in rows(Size.FULL):
        print(one)
