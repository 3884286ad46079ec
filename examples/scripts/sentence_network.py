"""The sentence encoder: a small transformer reads all of a text; the mean of what it sees is the vector."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

PADDING = 0


@dataclass(frozen=True)
class Shape:
    """How large the network is."""

    vocabulary: int
    hidden: int = 128
    layers: int = 1
    heads: int = 4
    feed_forward: int = 384


class Block(nn.Module):
    """Attention to the whole text, then a feed-forward; each reads a normed copy of the stream and adds to it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.hidden)
        self.query_key_value = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.attended = nn.Linear(shape.hidden, shape.hidden)
        self.before_feed_forward = nn.LayerNorm(shape.hidden)
        self.wide = nn.Linear(shape.hidden, shape.feed_forward)
        self.narrow = nn.Linear(shape.feed_forward, shape.hidden)

    def forward(self, stream: Tensor, bias: Tensor) -> Tensor:
        """[batch, tokens, hidden] → the same; `bias` [batch, 1, 1, tokens] keeps padding from being seen."""
        batch, tokens, hidden = stream.shape
        parts = self.query_key_value(self.before_attention(stream)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) * (hidden // self.heads) ** -0.5 + bias
        seen = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, tokens, hidden)
        stream = stream + self.attended(seen)
        return stream + self.narrow(functional.gelu(self.wide(self.before_feed_forward(stream))))


class SentenceEncoder(nn.Module):
    """Numbers of pieces in, vectors of length one out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.pieces = nn.Embedding(shape.vocabulary, shape.hidden, padding_idx=PADDING)
        # Only neighbouring pieces encode order, so texts may be longer than those of the training data.
        self.neighbours = nn.Conv1d(shape.hidden, shape.hidden, 3, padding=1, groups=shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        nn.init.normal_(self.pieces.weight[1:], std=0.5)
        for block in self.blocks:
            for layer in (block.attended, block.narrow):
                nn.init.normal_(layer.weight, std=0.02)

    def forward(self, numbers: Tensor) -> Tensor:
        """[batch, tokens] INT64, padded with `PADDING` → [batch, hidden] FP32."""
        real = (numbers != PADDING).to(self.pieces.weight.dtype)
        bias = (real[:, None, None, :] - 1.0) * 1e4
        pieces = self.pieces(numbers)
        stream = pieces + self.neighbours(pieces.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            stream = block(stream, bias)
        weights = real[:, :, None]
        mean = (self.norm(stream).float() * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return functional.normalize(mean, dim=-1)
