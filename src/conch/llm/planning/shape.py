"""The shape of a language model: numbers of parameters by what becomes of them on several GPUs, and its KV cache."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of one layer, or of what is before or behind the layers."""

    split: int  # of matrices, which tensor parallelism divides and quantization makes smaller
    whole: int = 0  # of norms, biases and routers, which every GPU has

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.split + self.whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What `config.json` says of a model, in numbers."""

    family: str  # `model_type`
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int  # tokens that the model was made for
    layers: tuple[ParameterCount, ...]
    embedding: int  # of tokens, and of positions where they are learned
    output: int  # of the matrix from the last layer to the vocabulary, 0 where it is the embedding
    last: int  # of what else is behind the layers
    kv_width: int  # numbers that one layer keeps of one token, all heads together
    kv_shared: bool = False  # whether every GPU keeps all of them: a latent vector that all heads read (MLA)
    widths: tuple[int, ...] = ()  # of feed-forward layers: each must be divisible
    widest: int = 0  # the numbers that a token takes up at most within a layer
    dtype_bytes: int = 2

    @property
    def parameters(self) -> int:
        """How many parameters the model has."""
        return sum(layer.parameters for layer in self.layers) + self.embedding + self.output + self.last

    def kv_bytes_per_token(self, element_bytes: float = 2) -> float:
        """Return how much all layers keep of one token, on all GPUs together."""
        return len(self.layers) * self.kv_width * element_bytes

    def kv_width_per_gpu(self, tensor: int) -> float:
        """Return how many numbers of a token one of `tensor` GPUs keeps for one layer: of a head at least."""
        if self.kv_shared:
            return self.kv_width
        return self.kv_width / self.kv_heads * max(self.kv_heads / tensor, 1)
