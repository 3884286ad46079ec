"""Compute a model's `Shape` from Hugging Face's `config.json`.

The numbers of parameters are exact: the tests compare them with the published ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conch.base.errors import InvalidRequest

# Suffixes of the names of numbers, and names of numbers that must not be 0.
_COUNTS = (
    *(
        "hidden_size",
        "intermediate_size",
        "vocab_size",
        "_heads",
        "_layers",
        "_rank",
        "head_dim",
        "max_position_embeddings",
    ),
    *("num_experts", "_local_experts", "_routed_experts", "_shared_experts", "_replace", "_freq", "_sparse_step"),
    *("n_embd", "n_head", "n_layer", "n_positions", "n_inner"),
)
_NOT_NONE = {"hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_hidden_layers"} | {
    *("n_embd", "n_head", "n_layer", "n_positions", "kv_lora_rank", "qk_rope_head_dim"),
}
_MAX_COUNT, _MAX_LAYERS = 10**9, 10_000
_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}


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


def read_shape(config: Mapping[str, Any]) -> Shape:
    """Return the shape of a model. Raises InvalidRequest if the family is unknown, or a number is missing."""
    if isinstance(config.get("text_config"), dict):  # of a multi-modal model
        config = {**config, **config["text_config"]}
    family = str(config.get("model_type", ""))
    if family not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        raise InvalidRequest(
            f"config.json: model_type '{family}' is not supported by conch engine plan; supported: {known}"
        )
    try:
        _check_numbers(config)
        return _FAMILIES[family](config)
    except KeyError as error:
        raise InvalidRequest(f"config.json: {error} is missing, which model_type '{family}' needs") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InvalidRequest(f"config.json: invalid for model_type '{family}': {error}") from None


def _check_numbers(config: Mapping[str, Any]) -> None:
    """Raise ValueError for a number that is not an integer or out of range."""
    for name, value in config.items():
        if name.endswith(_COUNTS) and value is not None and (type(value) is not int or not 0 <= value <= _MAX_COUNT):
            raise ValueError(f"{name} is {value!r}")
    for name in _NOT_NONE & config.keys():
        if not config[name]:
            raise ValueError(f"{name} is {config[name]!r}")
    if max(config.get("num_hidden_layers", 0), config.get("n_layer", 0)) > _MAX_LAYERS:
        raise ValueError(f"it has more than {_MAX_LAYERS} layers")


def _llama_like(config: Mapping[str, Any]) -> Shape:
    """Return the shape of a Llama-like model: RMS norms, gated feed-forward layers, grouped-query attention."""
    family, hidden, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or hidden // heads
    layers = range(config["num_hidden_layers"])
    attention = ParameterCount(
        2 * hidden * heads * head + 2 * hidden * kv_heads * head, _attention_extras(config, head)
    )
    norms = hidden * (4 if family in ("gemma2", "gemma3", "gemma3_text") else 2)
    feeds = [_feed_forward(config, number) for number in layers]
    return _shape(
        config,
        layers=tuple(
            ParameterCount(attention.split + feed.split, attention.whole + feed.whole + norms) for feed in feeds
        ),
        kv_heads=kv_heads,
        kv_width=2 * kv_heads * head,
    )


def _attention_extras(config: Mapping[str, Any], head: int) -> int:
    """Return the number of parameters of biases and of heads' norms."""
    family, hidden, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    of_heads = (heads + 2 * kv_heads) * head
    if family in ("qwen2", "qwen2_moe"):
        return int(of_heads)
    biases = of_heads + hidden if config.get("attention_bias") else 0
    norms = 2 * head if family in ("qwen3", "qwen3_moe", "gemma3", "gemma3_text") else 0
    return int(biases + norms)


def _feed_forward(config: Mapping[str, Any], number: int) -> ParameterCount:
    """Return the parameters of a layer's feed-forward part, or of its experts and router."""
    hidden = config["hidden_size"]
    experts = _experts(config)
    if not experts or not _has_experts(config, number):
        width = config["intermediate_size"]
        return ParameterCount(3 * hidden * width, 2 * width + hidden if config.get("mlp_bias") else 0)
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    split, whole = experts * 3 * hidden * width, hidden * experts
    if config.get("shared_expert_intermediate_size"):  # Qwen2: one with a gate
        split += 3 * hidden * config["shared_expert_intermediate_size"]
        whole += hidden
    if config.get("n_shared_experts"):  # DeepSeek
        split += 3 * hidden * width * config["n_shared_experts"]
    if config.get("topk_method") == "noaux_tc":
        whole += experts  # a correction of each expert's score
    return ParameterCount(split, whole)


def _experts(config: Mapping[str, Any]) -> int:
    return int(config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or 0)


def _has_experts(config: Mapping[str, Any], number: int) -> bool:
    if "first_k_dense_replace" in config:
        return bool(number >= config["first_k_dense_replace"] and number % config.get("moe_layer_freq", 1) == 0)
    if number in config.get("mlp_only_layers", ()):
        return False
    return bool((number + 1) % config.get("decoder_sparse_step", 1) == 0)


def _deepseek(config: Mapping[str, Any]) -> Shape:
    """Return the shape of DeepSeek V2 or V3: experts, and multi-head latent attention, which caches a latent vector."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    latent, rope, plain = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    query = config.get("q_lora_rank") or 0
    queries = query * (hidden + heads * (plain + rope)) if query else hidden * heads * (plain + rope)
    keys = hidden * (latent + rope) + latent * heads * (plain + config["v_head_dim"])
    attention = ParameterCount(queries + keys + heads * config["v_head_dim"] * hidden, query + latent + 2 * hidden)
    feeds = [_feed_forward(config, number) for number in range(config["num_hidden_layers"])]
    return _shape(
        config,
        layers=tuple(ParameterCount(attention.split + feed.split, attention.whole + feed.whole) for feed in feeds),
        kv_heads=heads,
        kv_width=latent + rope,
        kv_shared=True,
    )


def _gpt2(config: Mapping[str, Any]) -> Shape:
    """Return the shape of GPT-2: learned positions, biases, a feed-forward layer of four times the width."""
    hidden = config["n_embd"]
    width = config.get("n_inner") or 4 * hidden
    layer = ParameterCount(4 * hidden * hidden + 2 * hidden * width, 4 * hidden + 4 * hidden + width + hidden)
    named = {
        "hidden_size": hidden,
        "num_attention_heads": config["n_head"],
        "max_position_embeddings": config["n_positions"],
        "intermediate_size": width,
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
    }
    return _shape(
        {**config, **named},
        layers=(layer,) * config["n_layer"],
        kv_heads=config["n_head"],
        kv_width=2 * hidden,
        embedding=(config["vocab_size"] + config["n_positions"]) * hidden,
        last=2 * hidden,
    )


def _shape(
    config: Mapping[str, Any],
    *,
    layers: tuple[ParameterCount, ...],
    kv_heads: int,
    kv_width: int,
    kv_shared: bool = False,
    embedding: int = 0,
    last: int = 0,
) -> Shape:
    if not kv_width:
        raise ValueError("the width of its heads is 0")
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    # Omitted in Gemma's releases, where true is the default.
    tied = config.get("tie_word_embeddings", config["model_type"].startswith("gemma"))
    dense = config["intermediate_size"]
    widths = {dense, config.get("moe_intermediate_size") or dense} if _experts(config) else {dense}
    return Shape(
        family=config["model_type"],
        hidden=hidden,
        heads=config["num_attention_heads"],
        kv_heads=kv_heads,
        vocabulary=vocabulary,
        context=int(config.get("max_position_embeddings") or 0),
        layers=layers,
        embedding=embedding or vocabulary * hidden,
        output=0 if tied else vocabulary * hidden,
        last=last or hidden,
        kv_width=kv_width,
        kv_shared=kv_shared,
        widths=tuple(sorted(widths)),
        widest=max(widths),
        dtype_bytes=_DTYPES.get(str(config.get("torch_dtype") or config.get("dtype") or "bfloat16"), 2),
    )


_FAMILIES: dict[str, Callable[[Mapping[str, Any]], Shape]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), _llama_like),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "phi3"), _llama_like),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _deepseek),
    "gpt2": _gpt2,
}
