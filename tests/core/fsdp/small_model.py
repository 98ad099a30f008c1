"""A small model with layers, buffers and, where asked for, tied weights."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

WIDTH, VOCABULARY = 7, 11  # neither is a multiple of the ranks

#: The names of its layers.
LAYERS = ["layers.0", "layers.1"]


class Layer(nn.Module):
    """A norm and two linear maps, the second without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 5)
        self.down = nn.Linear(5, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.down(self.up(self.norm(x)).tanh())


class Model(nn.Module):
    """An embedding, two layers and a head, with a buffer that is saved and one that isn't."""

    _no_split_modules = ("Layer",)

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(tie_word_embeddings=tied)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("scale", torch.full((1,), 1.5))
        self.register_buffer("shift", torch.arange(VOCABULARY) / 10, persistent=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * self.scale + self.shift


def make_model(seed: int = 1, tied: bool = False) -> Model:
    """The same model for the same seed."""
    torch.manual_seed(seed)
    return Model(tied)


def make_ids() -> torch.Tensor:
    """Four rows of six tokens."""
    return torch.randint(0, VOCABULARY, (4, 6), generator=torch.Generator().manual_seed(2))


def loss_of(model: nn.Module, ids: torch.Tensor) -> Any:
    """Something to train a model on."""
    return model(ids).log_softmax(-1).square().mean()


def assert_same_state(state: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """The same plain tensors under the same names, in that order."""
    assert list(state) == list(expected)
    for name, value in expected.items():
        assert type(state[name]) is torch.Tensor
        assert torch.equal(state[name], value), name
