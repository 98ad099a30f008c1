"""A small training with a checkpoint manager, a stand-in for a tokenizer, and what lies in a folder."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from probe.core.checkpoint import FSDPCheckpointManager


class Training:
    """A model with dropout, its optimizer and schedule; further arguments are those of the manager."""

    def __init__(
        self,
        seed: int = 0,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        width: int = 4,
        schedule: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, width), nn.Dropout(0.3), nn.Linear(width, 2))
        self.optimizer = optimizer(self.model.parameters(), lr=1e-2)
        schedule = schedule or (lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 10))
        self.scheduler = schedule(self.optimizer)
        self.manager = FSDPCheckpointManager(self.model, self.optimizer, self.scheduler, **kwargs)

    def steps(self, count: int) -> list[float]:
        """The losses of so many steps."""
        losses = []
        for _ in range(count):
            x = torch.randn(4, 3) + float(np.random.rand()) + random.random()  # noqa: NPY002  (the global generator is what is tested)
            loss = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


class Tokenizer:
    """Saves a file and a folder and, where asked for, fails afterwards."""

    def __init__(self, text: str, fails: bool = False) -> None:
        self.text, self.fails = text, fails

    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / "tokenizer.json").write_text(self.text)
        (Path(folder) / "more").mkdir()
        (Path(folder) / "more" / "template.jinja").write_text("x")
        if self.fails:
            raise ZeroDivisionError("on purpose")


def snapshot(folder: Path) -> dict[str, bytes]:
    """What the files below a folder hold."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
