"""A small transformer that reads packed sequences: no byte sees another text's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.language.pipeline import LENGTH

__all__ = ["LanguageModel", "next_byte_loss"]

_BYTES = 256


class LanguageModel(nn.Module):
    """Logits for the next byte, of shape (batch, length, 256)."""

    def __init__(self, width: int = 96, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(_BYTES, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, _BYTES)

    def forward(self, tokens: Tensor, segment_ids: Tensor, positions: Tensor) -> Tensor:
        hidden = self.bytes(tokens.long()) + self.places(positions.long())
        same_text = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
        visible = same_text & torch.ones(same_text.shape[-2:], dtype=torch.bool).tril()
        for block in self.blocks:
            hidden = block(hidden, visible)
        logits: Tensor = self.out(self.norm(hidden))
        return logits


class Block(nn.Module):
    """Attention, then a layer for each position alone; both added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layer = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layer = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        split = self.queries_keys_values(self.before_attention(hidden)).view(batch, length, 3, self.heads, -1)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=visible)
        hidden = hidden + self.joined(seen.transpose(1, 2).reshape(batch, length, width))
        added: Tensor = self.layer(self.before_layer(hidden))
        return hidden + added


def next_byte_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The mean cross-entropy of each text's next bytes, in nats."""
    segments = batch["segment_ids"]
    logits = model(batch["tokens"], segments, batch["positions"])[:, :-1]
    counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return functional.cross_entropy(logits[counts], batch["tokens"][:, 1:][counts].long())
