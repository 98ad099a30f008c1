"""Logits and labels that are the same for the same seed."""

from __future__ import annotations

import torch


def made(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of this shape and a label for each row of them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    return logits, torch.randint(shape[-1], shape[:-1], generator=generator)
