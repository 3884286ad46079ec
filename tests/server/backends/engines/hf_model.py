"""Models of random weights as Hugging Face has them, and a LoRA adapter, written with numpy alone.

A language model, which may have a classifier's head, the same with an encoder of images (Idefics3), and BERT with or
without a head.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.server.backends.engines.gguf_model import (
    CONTEXT,
    FEED_FORWARD,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    SPECIAL,
    TEMPLATE,
    vocabulary,
)
from tests.support.encoders import write_tokenizer

# Of a model with images: tokens of an image and around it, pixels of the square that it becomes, and of a patch.
IMAGE_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
_IMAGE_SIZE, _PATCH, _SCALE = 32, 8, 2
# With one token before the image, one that says that it is whole, and one after it.
TOKENS_PER_IMAGE = (_IMAGE_SIZE // _PATCH // _SCALE) ** 2 + 3
# Idefics3's own: a content that is a text is left out.
IMAGE_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}<image>{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_HEAD = HIDDEN // HEADS
_RANK = 8
# Parts of a layer → (outputs, inputs).
_PROJECTIONS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * _HEAD, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * _HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
    "mlp.up_proj": (FEED_FORWARD, HIDDEN),
    "mlp.down_proj": (HIDDEN, FEED_FORWARD),
}


def write_hf(directory: Path, *, seed: int = 3, labels: Sequence[str] = ()) -> Path:
    """Write the model that `gguf_model` writes in one file: configuration, tokenizer, weights.

    With `labels` it classifies texts and does not generate.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokens, merges = vocabulary()
    first = len(tokens) - len(SPECIAL)
    config, weights = _config(len(tokens)), _weights(len(tokens), np.random.default_rng(seed))
    if labels:
        config |= {"architectures": ["Qwen2ForSequenceClassification"], "id2label": dict(enumerate(labels))}
        config |= {"label2id": {label: number for number, label in enumerate(labels)}}
        del weights["lm_head.weight"]
        weights["score.weight"] = _normal(np.random.default_rng(seed), len(labels), HIDDEN, scale=1)
    _write(directory / "config.json", config)
    _write(directory / "generation_config.json", {"bos_token_id": first, "eos_token_id": len(tokens) - 1})
    _write(directory / "tokenizer.json", _tokenizer(tokens, merges))
    special = {"eos_token": SPECIAL[-1], "bos_token": SPECIAL[0], "pad_token": SPECIAL[0]}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "chat_template": TEMPLATE}
    _write(directory / "tokenizer_config.json", {**kind, **special})
    _write_safetensors(directory / "model.safetensors", weights)
    return directory


def write_idefics(directory: Path) -> Path:
    """Write the language model with an encoder of images, whose file of the processor has the template."""
    write_hf(directory)
    words, merges = vocabulary()
    tokens = [*words, *IMAGE_TOKENS]
    text = _config(len(tokens)) | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    vision = {
        "model_type": "idefics3_vision",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "image_size": _IMAGE_SIZE,
        "patch_size": _PATCH,
    }
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "text_config": text,
        "vision_config": vision,
        "scale_factor": _SCALE,
        "image_token_id": len(words),
        "pad_token_id": text["bos_token_id"],
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    _write(directory / "config.json", config)
    _write(directory / "tokenizer.json", _tokenizer(tokens, merges, [*SPECIAL, *IMAGE_TOKENS]))
    kind = json.loads((directory / "tokenizer_config.json").read_text())
    del kind["chat_template"]
    _write(directory / "tokenizer_config.json", kind)
    _write(directory / "chat_template.json", {"chat_template": IMAGE_TEMPLATE})
    longest = {"longest_edge": _IMAGE_SIZE}
    processor = {"processor_class": "Idefics3Processor", "image_seq_len": TOKENS_PER_IMAGE - 3}
    _write(directory / "processor_config.json", processor)
    cut = {"image_processor_type": "Idefics3ImageProcessor", "size": longest, "max_image_size": longest}
    _write(directory / "preprocessor_config.json", {**cut, "do_image_splitting": False})
    random = np.random.default_rng(7)
    weights = {
        name.replace("model.", "model.text_model.", 1): array
        for name, array in _weights(len(tokens), random).items()
        if not name.endswith(".bias")
    }
    _write_safetensors(directory / "model.safetensors", weights | _vision_weights(random))
    return directory


def _vision_weights(random: np.random.Generator) -> dict[str, Any]:
    weights: dict[str, Any] = {
        "model.connector.modality_projection.proj.weight": _normal(random, HIDDEN, HIDDEN * _SCALE**2)
    }
    tower = "model.vision_model."

    def linear(name: str, outputs: int, *inputs: int, scale: float) -> None:
        weights[f"{tower}{name}.weight"] = _normal(random, outputs, *inputs, scale=scale)
        weights[f"{tower}{name}.bias"] = np.zeros(outputs, np.float32)

    def norm(name: str) -> None:
        weights[f"{tower}{name}.weight"] = np.ones(HIDDEN, np.float32)
        weights[f"{tower}{name}.bias"] = np.zeros(HIDDEN, np.float32)

    linear("embeddings.patch_embedding", HIDDEN, 3, _PATCH, _PATCH, scale=0.2)
    weights[f"{tower}embeddings.position_embedding.weight"] = _normal(random, (_IMAGE_SIZE // _PATCH) ** 2, HIDDEN)
    for layer in range(LAYERS):
        block = f"encoder.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"{block}self_attn.{name}", HIDDEN, HIDDEN, scale=HIDDEN**-0.5)
        linear(f"{block}mlp.fc1", FEED_FORWARD, HIDDEN, scale=HIDDEN**-0.5)
        linear(f"{block}mlp.fc2", HIDDEN, FEED_FORWARD, scale=FEED_FORWARD**-0.5)
        norm(f"{block}layer_norm1")
        norm(f"{block}layer_norm2")
    norm("post_layernorm")
    return weights


def write_bert(directory: Path, *, labels: int = 0) -> Path:
    """Write an encoder, or with `labels` a cross-encoder or classifier, of `CONTEXT` tokens."""
    tokenizer = write_tokenizer(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    tokens = tokenizer.get_vocab_size()
    kind = {"tokenizer_class": "BertTokenizer", "model_max_length": CONTEXT}
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    _write(directory / "tokenizer_config.json", {**kind, **special})
    (directory / "vocab.txt").write_text("\n".join(sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)))
    config = {
        "architectures": ["BertForSequenceClassification" if labels else "BertModel"],
        "model_type": "bert",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "vocab_size": tokens,
        "max_position_embeddings": CONTEXT,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "pad_token_id": 0,
        "dtype": "float32",
    }
    if labels:
        config |= {"id2label": {number: f"LABEL_{number}" for number in range(labels)}}
        config |= {"label2id": {f"LABEL_{number}": number for number in range(labels)}}
    _write(directory / "config.json", config)
    _write_safetensors(directory / "model.safetensors", _bert_weights(tokens, labels))
    return directory


def _bert_weights(tokens: int, labels: int) -> dict[str, Any]:
    random, prefix = np.random.default_rng(5), "bert." if labels else ""
    weights: dict[str, Any] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        weights[f"{name}.weight"] = _normal(random, outputs, inputs, scale=inputs**-0.5)
        weights[f"{name}.bias"] = np.zeros(outputs, np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.ones(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32)

    for name, size in (("word", tokens), ("position", CONTEXT), ("token_type", 2)):
        weights[f"{prefix}embeddings.{name}_embeddings.weight"] = _normal(random, size, HIDDEN, scale=1)
    norm(f"{prefix}embeddings.LayerNorm")
    for layer in range(LAYERS):
        block = f"{prefix}encoder.layer.{layer}."
        for name in ("query", "key", "value"):
            linear(f"{block}attention.self.{name}", HIDDEN, HIDDEN)
        linear(f"{block}attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{block}attention.output.LayerNorm")
        linear(f"{block}intermediate.dense", FEED_FORWARD, HIDDEN)
        linear(f"{block}output.dense", HIDDEN, FEED_FORWARD)
        norm(f"{block}output.LayerNorm")
    linear(f"{prefix}pooler.dense", HIDDEN, HIDDEN)
    if labels:
        linear("classifier", labels, HIDDEN)
    return weights


def write_adapter(directory: Path, *, seed: int, rank: int = _RANK) -> Path:
    """Write an adapter that changes what the model says beyond recognition."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(LAYERS):
        for name in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj"):
            outputs, inputs = _PROJECTIONS[name]
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            weights[f"{prefix}.lora_A.weight"] = random.standard_normal((rank, inputs)).astype(np.float32)
            weights[f"{prefix}.lora_B.weight"] = random.standard_normal((outputs, rank)).astype(np.float32)
    _write_safetensors(directory / "adapter_model.safetensors", weights)
    targets = ["q_proj", "v_proj", "o_proj"]
    kind = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "base_model_name_or_path": "random"}
    _write(directory / "adapter_config.json", {**kind, "r": rank, "lora_alpha": 16, "target_modules": targets})
    return directory


def _config(tokens: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": FEED_FORWARD,
        "vocab_size": tokens,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "bos_token_id": tokens - len(SPECIAL),
        "eos_token_id": tokens - 1,
    }


def _tokenizer(tokens: list[str], merges: list[str], special: Sequence[str] = SPECIAL) -> dict[str, Any]:
    """Byte pairs as `tokenizers` has them; what a letter is, is left to the bytes."""
    plain = len(tokens) - len(special)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": plain + number, "content": token, "special": True, **flags} for number, token in enumerate(special)
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens[:plain])},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def _weights(tokens: int, random: np.random.Generator) -> dict[str, Any]:
    weights = {
        "model.embed_tokens.weight": _normal(random, tokens, HIDDEN),
        "lm_head.weight": _normal(random, tokens, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        block = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{block}{name}.weight"] = np.ones(HIDDEN, np.float32)
        for name, shape in _PROJECTIONS.items():
            weights[f"{block}{name}.weight"] = _normal(random, *shape)
        for name in ("q_proj", "k_proj", "v_proj"):
            outputs, _ = _PROJECTIONS[f"self_attn.{name}"]
            weights[f"{block}self_attn.{name}.bias"] = np.zeros(outputs, np.float32)
    return weights


def _normal(random: np.random.Generator, *shape: int, scale: float = 0.05) -> Any:
    return (random.standard_normal(shape) * scale).astype(np.float32)


def _write_safetensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Length of the header, header, then the FP32 arrays in its order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values()))


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document))
