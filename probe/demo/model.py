"""A small decoder-only transformer in plain torch, with a key-value cache for sampling.

Letters in comments: B rows, Q query positions, K key positions, D width, V vocabulary.
"""

from __future__ import annotations

from typing import ClassVar, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from probe.demo.tokenizer import PAD

#: Keys and values of one layer, each (B, heads, K, D / heads).
Cache = list[tuple[Tensor, Tensor]]


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor, cache: Cache | None) -> Tensor:
        rows, queries, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(rows, queries, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0][0], k], dim=2), torch.cat([cache[0][1], v], dim=2)
            cache[:] = [(k, v)]
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, queries, width))
        added: Tensor = self.feed(self.norm_feed(x))
        return x + added


#: A logit of what is never drawn: its probability is 0 in every dtype, and 0 times it is a number.
NEVER: Final = -1e4


class Policy(nn.Module):
    """Tokens to logits over the next token.

    Args:
        vocabulary: Number of different tokens.
        positions: Number of different positions, the longest sequence.
        width: Numbers for each token.
        heads: Attention heads of a layer.
        layers: Number of layers.
    """

    _no_split_modules: ClassVar = ["Block"]  #: each of which is sharded as one, see ``apply_fsdp2``

    def __init__(self, vocabulary: int, positions: int, *, width: int, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, visible: Tensor, caches: list[Cache] | None = None
    ) -> Tensor:
        """Logits (B, Q, V).

        Padding is never drawn, and has no probability in training either: else the two would disagree by as much as
        training gives it.

        Args:
            input_ids: Token ids, int64 (B, Q); with caches only what is new.
            position_ids: Positions, int64 (B, Q); with caches only what is new.
            visible: Which keys each query sees: bool, broadcast to (B, 1, Q, K).
            caches: One for each layer, empty before the first call, filled in place.
        """
        x = self.tokens(input_ids) + self.positions(position_ids)
        for index, block in enumerate(self.blocks):
            x = block(x, visible, None if caches is None else caches[index])
        logits: Tensor = self.head(self.norm(x))
        logits[..., PAD] = NEVER
        return logits

    def new_caches(self) -> list[Cache]:
        """Empty caches for one generation."""
        return [[] for _ in self.blocks]


def pack(input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take the padding out: all sequences of a micro-batch in one row, each of which sees only itself.

    Work then follows the tokens and not the rectangle, which is what makes a cap on tokens worth having.

    Args:
        input_ids: Token ids (B, width), padded on either side.
        attention_mask: Where they are valid, (B, width).

    Returns:
        The arguments of :meth:`Policy.forward` for one row of Q = K = number of tokens.
    """
    real = attention_mask.bool()
    sequence = torch.arange(len(real)).unsqueeze(1).expand_as(real)[real]
    position_ids = (real.cumsum(1) - 1)[real]
    visible = (sequence[:, None] == sequence).tril()
    return input_ids[real][None], position_ids[None], visible[None, None]
