"""Encoders and cross-encoders: models of token ids whose version folder has the files of their checkpoint.

Such a model has the inputs `input_ids`, and often `attention_mask` and `token_type_ids`, and its version folder has
`tokenizer.json`. What it can do is read from `config.json` (architectures, labels), from the files of
sentence-transformers (pooling, normalization, prompts) and from its outputs:

    embed      vectors [batch, size], or of each token [batch, tokens, size], which are pooled
    score      one logit [batch, 1] for a pair of texts: a cross-encoder, for rerank and score
    classify   logits [batch, labels]
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from conch.base.errors import Unsupported
from conch.base.extras import install_command
from conch.domain.files.model_folder import read_json_object
from conch.domain.model_config import ModelConfig, TensorSpec


def read_tokenizer(path: Path) -> Any:
    """Return the `tokenizers.Tokenizer` of a file. Raises Unsupported for an invalid file or without the package."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise Unsupported(f"{path.name} needs the package tokenizers: {install_command('text')}") from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library's only type
        raise Unsupported(f"{path} is not a valid {path.name}: {error}") from None


TOKENIZER = "tokenizer.json"
# Files beside the model that this module reads, relative to the folder of the checkpoint.
POOLING = "1_Pooling/config.json"
FILES = (
    TOKENIZER,
    "config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "modules.json",
    POOLING,
)
_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"
_FLOATS = ("FP16", "FP32", "FP64")
_INTEGERS = ("INT32", "INT64")
_CLASSIFIER = "ForSequenceClassification"
# Their first positions hold no text.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet")
_DEFAULT_MAX_TOKENS = 512
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last_token",
}


# `model_type` of encoders; those of decoders generate.
_ENCODERS = (
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "gte", "longformer"),
    *("modernbert", "mpnet", "new", "nomic_bert", "roberta", "xlm-roberta", "xlm-roberta-xl"),
)


class Task(Enum):
    """What a model does for texts."""

    EMBED = "embed"
    SCORE = "score"
    CLASSIFY = "classify"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """How texts become tensors of a model, and its outputs answers.

    `pooling` is "" for an output that has one row for each text; `tokens` names an output of token vectors, "" for
    none. `activation` is what makes probabilities of logits: identity, sigmoid or softmax. `prompts` are the texts
    that the model was trained to see before queries and documents.
    """

    task: Task
    ids: TensorSpec
    mask: TensorSpec | None
    types: TensorSpec | None
    output: str
    tokens: str = ""
    size: int = -1
    labels: tuple[str, ...] = ()
    pooling: str = ""
    normalize: bool = False
    activation: str = "identity"
    max_tokens: int = _DEFAULT_MAX_TOKENS
    pad_id: int = 0
    prompts: Mapping[str, str] = field(default_factory=dict)

    @property
    def fixed_tokens(self) -> int:
        """The number of tokens to which every text is padded, 0 if the model takes any."""
        return max(self.ids.dims[-1], 0)


def is_encoder(folder: Path) -> bool:
    """Whether a checkpoint's config.json describes a model that does not generate."""
    document = read_json_object(folder / "config.json")
    names = document.get("architectures") or [""]
    return document.get("model_type") in _ENCODERS or str(names[0]).endswith(_CLASSIFIER)


def is_pooling(folder: Path) -> bool:
    """Whether the model.json in an engine's version folder is for a model that embeds, scores or classifies texts."""
    options = read_json_object(folder / "model.json")
    return options.get("task") == "embed" or options.get("runner") == "pooling"


def checkpoint_task(document: Mapping[str, Any]) -> tuple[Task, tuple[str, ...]]:
    """Return what a library makes of a checkpoint with this config.json, and the names of its classes."""
    names = document.get("architectures") or [""]
    if not str(names[0]).endswith(_CLASSIFIER):
        return Task.EMBED, ()
    # A head that vLLM makes of the language model's: one number from the probabilities of two tokens.
    tokens = document.get("classifier_from_token")
    labels = _labels(document, -1 if not isinstance(tokens, list) else 1 if len(tokens) == 2 else len(tokens))
    return (Task.SCORE if len(labels) == 1 else Task.CLASSIFY), labels


def text_model(config: ModelConfig, folder: Path) -> TextModel | None:
    """Return what a model with this configuration and version folder does for texts; None without a tokenizer.

    Raises Unsupported if its tensors or its kind of pooling do not fit.
    """
    if not (folder / TOKENIZER).is_file() or config.decoupled or config.sequence_batching is not None:
        return None
    inputs = {_plain(spec.name): spec for spec in config.inputs}
    if _IDS not in inputs:
        return None
    others = [name for name, spec in inputs.items() if name not in (_IDS, _MASK, _TYPES) and not spec.optional]
    rank = 1 if config.max_batch_size > 0 else 2
    if others or any(len(spec.dims) != rank or spec.datatype not in _INTEGERS for spec in inputs.values()):
        raise Unsupported(f"its inputs are not token ids, mask and types of [batch, tokens] ({', '.join(inputs)})")
    document = read_json_object(folder / "config.json")
    names = document.get("architectures") or [""]
    outputs = {spec.name: spec for spec in config.outputs if spec.datatype in _FLOATS}
    common: dict[str, Any] = {
        "ids": inputs[_IDS],
        "mask": inputs.get(_MASK),
        "types": inputs.get(_TYPES),
        "max_tokens": _max_tokens(document, folder),
        "pad_id": _integer(document.get("pad_token_id")),
    }
    if str(names[0]).endswith(_CLASSIFIER) or (not document and _plain_names(outputs) == ["logits"]):
        return _classifier(document, outputs, rank, common)
    return _embedder(config, folder, outputs, rank, common)


def _classifier(
    document: Mapping[str, Any], outputs: Mapping[str, TensorSpec], rank: int, common: dict[str, Any]
) -> TextModel:
    logits = next((spec for spec in outputs.values() if _plain(spec.name) == "logits"), None)
    if logits is None and len(outputs) == 1:
        logits = next(iter(outputs.values()))
    if logits is None or len(logits.dims) != rank:
        raise Unsupported("it has no output 'logits' of [batch, labels]")
    labels = _labels(document, logits.dims[-1])
    number = len(labels)
    if number == 1:
        trained = document.get("sentence_transformers") or {}
        named = trained.get("activation_fn") or document.get("sbert_ce_default_activation_function") or ""
        activation = "identity" if "Identity" in str(named) else "sigmoid"
        return TextModel(task=Task.SCORE, output=logits.name, size=1, activation=activation, **common)
    activation = {"multi_label_classification": "sigmoid", "regression": "identity"}.get(
        str(document.get("problem_type")), "softmax"
    )
    task = Task.CLASSIFY
    return TextModel(task=task, output=logits.name, size=number, labels=labels, activation=activation, **common)


def _labels(document: Mapping[str, Any], number: int = -1) -> tuple[str, ...]:
    """Return the names of classes; there are `number`, -1 for as many as config.json says."""
    by_id = document.get("id2label")
    labels = [str(by_id[key]) for key in sorted(by_id, key=_integer)] if isinstance(by_id, dict) else []
    if number <= 0:
        # Checkpoints leave out two labels, which are the default.
        number = len(labels) or _integer(document.get("num_labels")) or 2
    return tuple(labels) if len(labels) == number else tuple(f"LABEL_{index}" for index in range(number))


def _embedder(
    config: ModelConfig, folder: Path, outputs: Mapping[str, TensorSpec], rank: int, common: dict[str, Any]
) -> TextModel:
    pooled = [spec for spec in outputs.values() if len(spec.dims) == rank]
    tokens = [spec for spec in outputs.values() if len(spec.dims) == rank + 1]
    modules = [entry.get("type", "") for entry in _modules(folder)]
    normalize = config.parameters.get("normalize", "").lower()
    options: dict[str, Any] = {
        "normalize": normalize == "true" if normalize else not modules or any("Normalize" in kind for kind in modules),
        "prompts": _prompts(folder),
        "tokens": tokens[0].name if tokens else "",
    }
    named = [spec for spec in pooled if _plain(spec.name) == "sentence_embedding"] or (pooled if not tokens else [])
    if len(named) == 1:
        (vector,) = named
        return TextModel(task=Task.EMBED, output=vector.name, size=vector.dims[-1], **options, **common)
    token = next((spec for spec in tokens if _plain(spec.name) in ("last_hidden_state", "token_embeddings")), None)
    token = token or (tokens[0] if len(tokens) == 1 else None)
    if token is None:
        raise Unsupported("it has no output 'sentence_embedding', 'last_hidden_state' or 'token_embeddings'")
    options["pooling"] = config.parameters.get("pooling_type", "").lower() or _pooling(folder)
    if options["pooling"] not in _POOLINGS.values():
        raise Unsupported(f"its pooling '{options['pooling']}' is not one of {', '.join(_POOLINGS.values())}")
    return TextModel(task=Task.EMBED, output=token.name, size=token.dims[-1], **options, **common)


def _pooling(folder: Path) -> str:
    document = read_json_object(folder / POOLING)
    chosen = [name for name in document if name.startswith("pooling_mode_") and document[name] is True]
    if not chosen:
        return "mean"
    return _POOLINGS.get(chosen[0], chosen[0]) if len(chosen) == 1 else "+".join(chosen)


def _prompts(folder: Path) -> dict[str, str]:
    prompts = read_json_object(folder / "config_sentence_transformers.json").get("prompts")
    return {str(name): str(text) for name, text in prompts.items()} if isinstance(prompts, dict) else {}


def _modules(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of modules.json, which is an array."""
    import orjson

    path = folder / "modules.json"
    try:
        entries = orjson.loads(path.read_bytes()) if path.is_file() else []
    except (OSError, ValueError):
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _max_tokens(document: Mapping[str, Any], folder: Path) -> int:
    """Return how many tokens a text may have, special ones included."""
    positions = _integer(document.get("max_position_embeddings"))
    if positions and document.get("model_type") in _OFFSET_POSITIONS:
        positions -= _integer(document.get("pad_token_id"), 1) + 1
    length = _integer(read_json_object(folder / "tokenizer_config.json").get("model_max_length"))
    trained = _integer(read_json_object(folder / "sentence_bert_config.json").get("max_seq_length"))
    # 1e30 in a tokenizer means unlimited.
    limits = [limit for limit in (positions, length, trained) if 0 < limit < 1_000_000]
    return min(limits, default=_DEFAULT_MAX_TOKENS)


def _integer(value: Any, default: int = 0) -> int:
    try:
        return default if value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        return default


def _plain(name: str) -> str:
    """Return the name of a tensor without the index that TorchScript's tensors and TensorFlow's have."""
    return name.partition("__")[0].partition(":")[0]


def _plain_names(outputs: Mapping[str, TensorSpec]) -> list[str]:
    return [_plain(name) for name in outputs]
