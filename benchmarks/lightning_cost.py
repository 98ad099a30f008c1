"""What observing Lightning's Trainer costs a step: what the run says of it, and on against off, as in ``trl_cost``.

In TRL's environment: ``make .venv-frameworks/.made; .venv-frameworks/bin/python -m benchmarks lightning_cost``.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.measure import Size
from benchmarks.trl_cost import KINDS, SIZES, STEPS, WARM, compared, observed

#: Batches of a step, and rows of a batch.
BATCHES, ROWS = 2, 4


def rows(size: Size = Size.USUAL) -> list[dict[str, Any]]:
    return [compared(name, _train) for name in KINDS[size]]


def _train(name: str, on: bool) -> tuple[float, list[float], list[float]]:
    import torch

    torch.manual_seed(0)
    begun: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer, module = _trainer(name, folder, begun), _module(name)
        batches: Any = _batches(name)  # a list is a data set, too
        data = torch.utils.data.DataLoader(batches, batch_size=None)
        if on:
            cost, took = observed(Path(folder) / "run", "lightning", lambda: trainer.fit(module, data))
        else:
            trainer.fit(module, data)
            cost, took = [], []
    kept = begun[WARM:]
    return statistics.median(b - a for a, b in itertools.pairwise(kept)), cost, took


def _batches(name: str) -> list[dict[str, Any]]:
    import torch

    length = SIZES[name][2]
    lengths = torch.tensor([length - 8 * (at % 3) for at in range(ROWS)])[:, None]
    mask = torch.arange(length) < lengths
    ids = torch.randint(0, 256, mask.shape)
    one = {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)}
    return [one] * (BATCHES * STEPS[name])


def _module(name: str) -> Any:
    import lightning
    import torch

    hidden, layers, _ = SIZES[name]

    class Model(lightning.LightningModule):  # type: ignore[misc]
        """A transformer that predicts each token of its input."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = torch.nn.Embedding(256, hidden), torch.nn.Linear(hidden, 256)
            layer = torch.nn.TransformerEncoderLayer(hidden, 4, 4 * hidden, batch_first=True)
            self.body = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

        def training_step(self, batch: Any, index: int) -> Any:
            padded = batch["attention_mask"] == 0
            logits = self.out(self.body(self.embedding(batch["input_ids"]), src_key_padding_mask=padded))
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    return Model()


def _trainer(name: str, folder: str, begun: list[float]) -> Any:
    import lightning

    class Clock(lightning.Callback):  # type: ignore[misc]
        """When each step begins, in CPU time of the training thread."""

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if index % BATCHES == 0:
                begun.append(time.thread_time())

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # what it warns of is its to mend
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return lightning.Trainer(
        max_steps=STEPS[name], accelerator="cpu", devices=1, accumulate_grad_batches=BATCHES, default_root_dir=folder,
        callbacks=[Clock()], **quiet,
    )  # fmt: skip


if __name__ == "__main__":
    for one in rows(Size.FULL):
        print(one)
