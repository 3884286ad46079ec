"""Small encoders and cross-encoders as exporters write them: ONNX with BERT's layers, tokenizer and configuration."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

_TEXT = (
    "paris is the capital of france berlin germany a cat sat on mat dog what which city where who model server batch "
    "request tensor python runs fast slow text long short query document answer not in to and for"
)
WORDS = tuple(_TEXT.split())


def write_tokenizer(folder: Path, words: Sequence[str] = WORDS) -> Tokenizer:
    """Write tokenizer.json of BERT's form for these words and all single letters. Return the tokenizer."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    # As many checkpoints have it: what is left of the training.
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(16)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def write_encoder(
    folder: Path,
    *,
    labels: int = 0,
    hidden: int = 16,
    layers: int = 1,
    heads: int = 2,
    vocabulary: int = 200,
    positions: int = 64,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write model.onnx and config.json: an encoder with `last_hidden_state`, or with `labels` a classifier's logits."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(_network(labels, hidden, layers, heads, vocabulary, positions, seed), folder / "model.onnx")
    document = {
        "architectures": ["BertForSequenceClassification" if labels else "BertModel"],
        "model_type": "bert",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "pad_token_id": 0,
        "hidden_act": "gelu",
        **({"id2label": {str(number): f"LABEL_{number}" for number in range(labels)}} if labels else {}),
        **(config or {}),
    }
    (folder / "config.json").write_text(json.dumps(document))
    return folder


class _Graph:
    """Nodes and weights of a network, by the names of their results."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        result = name or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def constant(self, values: Any) -> str:
        """Add a constant, and return its name."""
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def random(self, *shape: int) -> str:
        """Add random weights that keep the size of activations, and return their name."""
        return self.constant(self._random.normal(scale=shape[0] ** -0.5, size=shape).astype(np.float32))

    def linear(self, rows: str, inner: int, outer: int) -> str:
        """Add a layer of all inputs to all outputs."""
        bias = self.constant(np.zeros(outer, np.float32))
        return self.add("Add", self.add("MatMul", rows, self.random(inner, outer)), bias)

    def norm(self, rows: str, size: int) -> str:
        """Add a layer normalization."""
        ones, zeros = self.constant(np.ones(size, np.float32)), self.constant(np.zeros(size, np.float32))
        return self.add("LayerNormalization", rows, ones, zeros, axis=-1, epsilon=1e-12)


def _network(
    labels: int, hidden: int, layers: int, heads: int, vocabulary: int, positions: int, seed: int
) -> onnx.ModelProto:
    graph = _Graph(seed)
    table = graph.constant(np.random.default_rng(seed).normal(size=(vocabulary, hidden)).astype(np.float32))
    place = graph.add("Gather", graph.add("Shape", "input_ids"), graph.constant(np.int64(1)))
    span = graph.add("Range", graph.constant(np.int64(0)), place, graph.constant(np.int64(1)))
    rows = graph.add("Gather", table, "input_ids")
    rows = graph.add("Add", rows, graph.add("Gather", graph.random(positions, hidden), span))
    rows = graph.norm(graph.add("Add", rows, graph.add("Gather", graph.random(2, hidden), "token_type_ids")), hidden)
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask = graph.add("Unsqueeze", mask, graph.constant(np.array([1, 2], np.int64)))
    mask = graph.add("Sub", graph.constant(np.float32(1)), mask)
    mask = graph.add("Mul", mask, graph.constant(np.float32(-1e9)))
    split = graph.constant(np.array([0, 0, heads, hidden // heads], np.int64))
    join = graph.constant(np.array([0, 0, hidden], np.int64))
    scale = graph.constant(np.float32((hidden // heads) ** -0.5))
    root, half, unit = (graph.constant(np.float32(value)) for value in (2**0.5, 0.5, 1))
    for _ in range(layers):
        query, key, value = (
            graph.add("Reshape", graph.linear(rows, hidden, hidden), split) for _ in ("query", "key", "value")
        )
        query = graph.add("Transpose", query, perm=[0, 2, 1, 3])
        key = graph.add("Transpose", key, perm=[0, 2, 3, 1])
        value = graph.add("Transpose", value, perm=[0, 2, 1, 3])
        weights = graph.add("Add", graph.add("Mul", graph.add("MatMul", query, key), scale), mask)
        mixed = graph.add("MatMul", graph.add("Softmax", weights, axis=-1), value)
        mixed = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), join)
        rows = graph.norm(graph.add("Add", rows, graph.linear(mixed, hidden, hidden)), hidden)
        inner = graph.linear(rows, hidden, 4 * hidden)
        gelu = graph.add("Add", graph.add("Erf", graph.add("Div", inner, root)), unit)
        gelu = graph.add("Mul", graph.add("Mul", inner, gelu), half)
        rows = graph.norm(graph.add("Add", rows, graph.linear(gelu, 4 * hidden, hidden)), hidden)
    if labels:
        first = graph.add("Gather", rows, graph.constant(np.int64(0)), axis=1)
        pooled = graph.add("Tanh", graph.linear(first, hidden, hidden))
        output, shape = graph.add("Identity", graph.linear(pooled, hidden, labels), name="logits"), ["batch", labels]
    else:
        output, shape = graph.add("Identity", rows, name="last_hidden_state"), ["batch", "tokens", hidden]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    made = helper.make_graph(
        graph.nodes,
        "bert",
        inputs,
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        initializer=graph.weights,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
