"""Small trainings of TRL's and Transformers' trainers, each made once in a process, and what is recorded of them."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import probe
from probe.opened import Run
from tests.frameworks import small_trl

KINDS = small_trl.KINDS
ONLINE = ("grpo", "rloo")

#: What a training is changed by, beside each trainer as it is.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gradient checkpointing": ("sft", {"gradient_checkpointing": True}),
    "loader workers": ("sft", {"dataloader_num_workers": 2}),
    "evaluation and saving": (
        "sft",
        {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2},
    ),
    "evaluated preferences": ("dpo", {"eval_strategy": "steps", "eval_steps": 2}),
    "the plain trainer, evaluated": ("plain", {"eval_strategy": "epoch", "save_strategy": "epoch", "max_steps": 9}),
    "several iterations": ("grpo", {"num_iterations": 2, "max_steps": 4}),
    "steps per generation": ("grpo", {"steps_per_generation": 4, "max_steps": 4}),
    "two generations a step": ("grpo", {"steps_per_generation": 1, "max_steps": 2}),
    "answers evaluated": ("rloo", {"eval_strategy": "steps", "eval_steps": 2}),
    "checkpointed answers": ("grpo", {"gradient_checkpointing": True, "loss_type": "dapo", "beta": 0.0}),
}
RUNS = {**{kind: (kind, {}) for kind in KINDS}, **VARIANTS}


@functools.cache
def plain(name: str) -> dict[str, Any]:
    """What a training without probe leaves. That it is repeatable shows where an observed one leaves the same."""
    left = small_trl.outcome(trained(name))
    steps = [one for one in left["logged"] if "grad_norm" in one]
    assert steps
    assert all(one["grad_norm"] > 0 for one in steps)
    if RUNS[name][0] in ONLINE:
        assert all(one["reward_std"] > 0 for one in steps if "reward_std" in one)  # advantages aren't all 0
    return left


def trained(name: str, base: Any = None, **more: Any) -> Any:
    kind, changes = RUNS[name]
    folder = Path(tempfile.mkdtemp())
    made = small_trl.trainer(kind, folder / "out", base, **{**changes, **more})
    made.train()
    return made


class Observed(NamedTuple):
    """A training under observation.

    Attributes:
        made: Its trainer.
        notes: What its `compute_loss` received.
        told: The tokens that the loss counts, of each micro-batch, as a listener heard them.
        run: What was recorded.
    """

    made: Any
    notes: list[dict[str, Any]]
    told: list[Any]
    run: Run


@functools.cache
def observed(name: str) -> Observed:
    """Trains once for all that is asked of the training."""
    notes: list[dict[str, Any]] = []
    told: list[Any] = []

    class Hear(probe.Listener):
        def fire(self, event: probe.Event) -> None:
            told.append(event.values["effective"])

    directory = Path(tempfile.mkdtemp()) / "run"
    attached = probe.attach("trl")
    with probe.start("trl", run_dir=directory), probe.subscribe(Hear(), "micro_batch.told"):
        made = trained(name, small_trl.witness(notes))
    for one in attached:
        assert one.detach() == []
    return Observed(made, notes, told, probe.open(directory))


def steps_of(run: Run) -> list[int]:
    """Steps that have ended."""
    rows = run.table("memory")
    return sorted(rows[(rows["kind"] == "step") & (rows["edge"] == "leave")]["step"].tolist())


def listed(column: Any) -> list[Any]:
    return [None if missing else int(one) for one, missing in zip(column, column.isna(), strict=True)]
