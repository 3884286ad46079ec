"""A language model of random weights in one GGUF file: small enough to write and load in a moment."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

CONTEXT = 512
HIDDEN, LAYERS, HEADS, KV_HEADS, FEED_FORWARD = 64, 2, 2, 1, 128
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_LETTERS = " etaoinshrdlu"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_gguf(path: Path, *, seed: int = 3) -> Path:
    """Write a Qwen2-shaped model whose tokens are bytes, some pairs of letters, and three special ones."""
    tokens, merges = vocabulary()
    writer = GGUFWriter(path, "qwen2")
    writer.add_name("random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_file_type(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - len(SPECIAL)) + [3] * len(SPECIAL))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 3)
    writer.add_pad_token_id(len(tokens) - 3)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, array in _weights(len(tokens), np.random.default_rng(seed)):
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens as GPT-2 writes them: each byte is a printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + n) for n, byte in enumerate(others)}}
    letters = [characters[ord(letter)] for letter in _LETTERS]
    merges = [f"{first} {second}" for first in letters for second in letters]
    tokens = [characters[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in merges]
    return tokens + SPECIAL, merges


def _weights(vocabulary: int, random: np.random.Generator) -> list[tuple[str, Any]]:
    def normal(*shape: int) -> Any:
        return (random.standard_normal(shape) * 0.05).astype(np.float16)

    head = HIDDEN // HEADS
    sizes = {"q": HIDDEN, "k": KV_HEADS * head, "v": KV_HEADS * head}
    weights = [
        ("token_embd.weight", normal(vocabulary, HIDDEN)),
        ("output.weight", normal(vocabulary, HIDDEN)),
        ("output_norm.weight", np.ones(HIDDEN, np.float32)),
    ]
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        weights += [(f"{block}{name}_norm.weight", np.ones(HIDDEN, np.float32)) for name in ("attn", "ffn")]
        weights += [(f"{block}attn_{name}.weight", normal(size, HIDDEN)) for name, size in sizes.items()]
        weights += [(f"{block}attn_{name}.bias", np.zeros(size, np.float32)) for name, size in sizes.items()]
        weights += [
            (f"{block}attn_output.weight", normal(HIDDEN, HIDDEN)),
            (f"{block}ffn_gate.weight", normal(FEED_FORWARD, HIDDEN)),
            (f"{block}ffn_up.weight", normal(FEED_FORWARD, HIDDEN)),
            (f"{block}ffn_down.weight", normal(HIDDEN, FEED_FORWARD)),
        ]
    return weights
