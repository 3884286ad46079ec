"""A language model of random weights, written for both engines from the same arrays: a GGUF file and a checkpoint.

Qwen2's architecture with 27 M parameters. Tokens are bytes and joined small letters; capital letters are never joined,
so that a prompt of them has as many tokens as characters. Tokens that are not text by themselves (parts of characters,
control characters, special ones) have weights of zero in the output layer: a greedy choice never takes them, and each
token of an answer is text that can be sent at once.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

CONTEXT = 1024

_HIDDEN, _LAYERS, _HEADS, _KV_HEADS, _FEED_FORWARD = 512, 7, 8, 2, 1408
_HEAD = _HIDDEN // _HEADS
_EPSILON, _ROPE = 1e-6, 10_000.0
_SPREAD = 0.02
_SEED = 5

_FIRST = "etaoinshrdlcumwfgypbvkjxqz"
_THIRDS = 9
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

Weights = Iterator[tuple[str, str, NDArray[np.float16]]]


def write_gguf(path: Path) -> None:
    """Write the model as one GGUF file, for OpenVINO GenAI."""
    tokens, merges = vocabulary()
    writer = GGUFWriter(path, "qwen2")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(_EPSILON)
    writer.add_rope_freq_base(_ROPE)
    writer.add_file_type(1)  # mostly F16
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - len(_SPECIAL)) + [3] * len(_SPECIAL))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 3)
    writer.add_pad_token_id(len(tokens) - 3)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    for name, _, array in weights():
        # Vectors are F32 in every GGUF file.
        writer.add_tensor(name, array if array.ndim > 1 else array.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_checkpoint(directory: Path) -> None:
    """Write the model as a folder of Hugging Face's layout, for vLLM."""
    tokens, merges = vocabulary()
    directory.mkdir(parents=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "intermediate_size": _FEED_FORWARD,
        "vocab_size": len(tokens),
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": _EPSILON,
        "rope_theta": _ROPE,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",  # what both engines compute in where the processor can
        "hidden_act": "silu",
        "bos_token_id": len(tokens) - 3,
        "eos_token_id": len(tokens) - 1,
    }
    special = [
        {"id": len(tokens) - 3 + place, "content": token, "special": True, "single_word": False}
        | {"lstrip": False, "rstrip": False, "normalized": False}
        for place, token in enumerate(_SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens[: -len(_SPECIAL)])},
            "merges": [merge.split(" ") for merge in merges],
        },
    }
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": _SPECIAL[0], "eos_token": _SPECIAL[2]}
    documents = {"config": config, "tokenizer": tokenizer, "tokenizer_config": names}
    for name, document in documents.items():
        (directory / f"{name}.json").write_text(json.dumps(document))
    _write_safetensors(directory / "model.safetensors")


def weights() -> Weights:
    """Yield every array of the model with its name in GGUF files and in checkpoints. The same each time."""
    random = np.random.default_rng(_SEED)
    tokens, _ = vocabulary()

    def normal(*shape: int) -> NDArray[np.float16]:
        return (random.standard_normal(shape, np.float32) * np.float32(_SPREAD)).astype(np.float16)

    output = normal(len(tokens), _HIDDEN)
    output[[number for number, token in enumerate(tokens) if not _is_text(token)]] = 0
    yield "token_embd.weight", "model.embed_tokens.weight", normal(len(tokens), _HIDDEN)
    yield "output.weight", "lm_head.weight", output
    yield "output_norm.weight", "model.norm.weight", np.ones(_HIDDEN, np.float16)
    narrow = _KV_HEADS * _HEAD
    for layer in range(_LAYERS):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        yield f"{ours}attn_norm.weight", f"{theirs}input_layernorm.weight", np.ones(_HIDDEN, np.float16)
        yield f"{ours}ffn_norm.weight", f"{theirs}post_attention_layernorm.weight", np.ones(_HIDDEN, np.float16)
        for letter, size in (("q", _HIDDEN), ("k", narrow), ("v", narrow)):
            attention = f"{theirs}self_attn.{letter}_proj"
            yield f"{ours}attn_{letter}.weight", f"{attention}.weight", normal(size, _HIDDEN)
            yield f"{ours}attn_{letter}.bias", f"{attention}.bias", np.zeros(size, np.float16)
        yield f"{ours}attn_output.weight", f"{theirs}self_attn.o_proj.weight", normal(_HIDDEN, _HIDDEN)
        yield f"{ours}ffn_gate.weight", f"{theirs}mlp.gate_proj.weight", normal(_FEED_FORWARD, _HIDDEN)
        yield f"{ours}ffn_up.weight", f"{theirs}mlp.up_proj.weight", normal(_FEED_FORWARD, _HIDDEN)
        yield f"{ours}ffn_down.weight", f"{theirs}mlp.down_proj.weight", normal(_HIDDEN, _FEED_FORWARD)


@cache
def vocabulary() -> tuple[list[str], list[str]]:
    """Return tokens and merges as GPT-2 writes them, each byte a printable character. The special tokens are last."""
    characters = _byte_characters()
    letters = [*_FIRST, characters[ord(" ")]]
    pairs = [(first, second) for first in letters for second in _FIRST]
    triples = [(first + second, third) for first, second in pairs for third in _FIRST[:_THIRDS]]
    merges = [f"{left} {right}" for left, right in (*pairs, *triples)]
    tokens = [characters[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in merges]
    return [*tokens, *_SPECIAL], merges


def _byte_characters() -> list[str]:
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _is_text(token: str) -> bool:
    """Whether a token is text by itself: printable ASCII, where a blank is written as its byte's character."""
    return token not in _SPECIAL and token.replace(_byte_characters()[ord(" ")], " ").isascii()


def _write_safetensors(path: Path) -> None:
    """Write the weights: length of the head, head in JSON, then the arrays one after the other."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    arrays = []
    position = 0
    for _, name, array in weights():
        head[name] = {"dtype": "F16", "shape": array.shape, "data_offsets": [position, position + array.nbytes]}
        arrays.append(array)
        position += array.nbytes
    encoded = json.dumps(head).encode()
    with path.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in arrays:
            stream.write(array.tobytes())
