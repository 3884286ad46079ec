"""The chat model: a transformer of Qwen2's shape, small, its input and output embeddings one matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """How large the network is."""

    vocabulary: int
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 512
    context: int = 512
    rope_base: float = 10_000.0
    epsilon: float = 1e-6

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads


class Block(nn.Module):
    """Attention, then a gated feed-forward; each reads a normed copy of the stream and adds to it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.kv_heads * shape.head
        self.attn_norm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.attn_q = nn.Linear(shape.hidden, shape.hidden)
        self.attn_k = nn.Linear(shape.hidden, kv)
        self.attn_v = nn.Linear(shape.hidden, kv)
        self.attn_output = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.ffn_gate = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def forward(self, stream: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """[batch, tokens, hidden] → the same."""
        batch, tokens, _ = stream.shape
        normed = self.attn_norm(stream)
        q = self.attn_q(normed).view(batch, tokens, self.shape.heads, -1).transpose(1, 2)
        k = self.attn_k(normed).view(batch, tokens, self.shape.kv_heads, -1).transpose(1, 2)
        v = self.attn_v(normed).view(batch, tokens, self.shape.kv_heads, -1).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(
            rotate(q, rotation), rotate(k, rotation), v.to(q.dtype), is_causal=True, enable_gqa=True
        )
        stream = stream + self.attn_output(attended.transpose(1, 2).reshape(batch, tokens, -1))
        normed = self.ffn_norm(stream)
        return stream + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))


class ChatNetwork(nn.Module):
    """Tokens in, the last hidden states out; `logits` makes scores of those that are asked for."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.hidden, shape.epsilon)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02 if "embd" in name else shape.hidden**-0.5 / 2)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, tokens] INT64 → [batch, tokens, hidden]."""
        stream = self.token_embd(tokens)
        rotation = self._rotation(tokens.shape[1])
        for block in self.blk:
            stream = block(stream, rotation)
        return self.output_norm(stream)

    def logits(self, hidden: Tensor) -> Tensor:
        """[…, hidden] → […, vocabulary]."""
        return functional.linear(hidden, self.token_embd.weight)

    def _rotation(self, tokens: int) -> tuple[Tensor, Tensor]:
        half = self.shape.head // 2
        frequencies = self.shape.rope_base ** (-torch.arange(half) / half)
        angles = torch.arange(tokens)[:, None] * frequencies
        return angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries or keys [batch, heads, tokens, head] by their positions, first half against second."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = rotation
    return (x * cosine + torch.cat((-second, first), dim=-1) * sine).to(x.dtype)
