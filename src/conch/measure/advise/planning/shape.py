"""The shape of a language model: numbers of parameters, divided and replicated among GPUs, and the KV cache."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of one layer."""

    split: int  # of matrices, which are divided by tensor parallelism, and quantized
    whole: int = 0  # of norms, biases and routers, which are replicated on every GPU

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        return self.split + self.whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Numbers from a model's `config.json`."""

    family: str  # `model_type`
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int  # maximum tokens
    layers: tuple[ParameterCount, ...]
    embedding: int  # parameters, of tokens and learned positions
    output: int  # parameters of the output matrix, 0 if it is tied to the embedding
    last: int  # parameters of the last norms
    kv_width: int  # cached numbers of one token in one layer, of all heads
    kv_shared: bool = False  # whether every GPU caches all of them: a latent vector of all heads (MLA)
    widths: tuple[int, ...] = ()  # of feed-forward layers: TP must divide each
    widest: int = 0  # the maximum of `widths`
    dtype_bytes: int = 2

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(layer.parameters for layer in self.layers) + self.embedding + self.output + self.last

    def kv_bytes_per_token(self, element_bytes: float = 2) -> float:
        """Return the bytes that all layers cache of one token, on all GPUs together."""
        return len(self.layers) * self.kv_width * element_bytes

    def kv_width_per_gpu(self, tensor: int) -> float:
        """Return the cached numbers of one token in one layer on one of `tensor` GPUs: of at least one head."""
        if self.kv_shared:
            return self.kv_width
        return self.kv_width / self.kv_heads * max(self.kv_heads / tensor, 1)
