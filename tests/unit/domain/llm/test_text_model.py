"""What a model of token ids does for texts, by the files of its checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest

from conch.base.errors import Unsupported
from conch.domain.llm.text_model import Task, TextModel, checkpoint_task, is_encoder, text_model
from conch.domain.model_config import ModelConfig, TensorSpec

IDS, MASK, TYPES = (TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask", "token_type_ids"))
HIDDEN = TensorSpec("last_hidden_state", "FP32", (-1, 8))
POOLED = TensorSpec("sentence_embedding", "FP32", (8,))
SCORE, CLASSES = TensorSpec("logits", "FP32", (1,)), TensorSpec("logits", "FP32", (3,))
CLASSIFIER = {"architectures": ["BertForSequenceClassification"]}


def model_of(folder: Path, *outputs: TensorSpec, inputs: Any = (IDS, MASK, TYPES), batch: int = 4, **files: Any) -> Any:
    """Return what a model with these files does; names of files are without .json."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, document in {"tokenizer": {}, **files}.items():
        path = folder / "1_Pooling" / "config.json" if name == "pooling" else folder / f"{name}.json"
        path.write_text(json.dumps(document))
    parameters = {"pooling_type": "max"} if batch == 5 else {}
    return text_model(ModelConfig("m", "onnxruntime", "", batch, inputs, outputs, parameters=parameters), folder)


def test_cross_encoders_and_classifiers_are_known_by_their_labels(tmp_path: Path) -> None:
    single = model_of(tmp_path, SCORE, config=CLASSIFIER)
    assert (single.task, single.activation, single.output) == (Task.SCORE, "sigmoid", "logits")
    raw = {**CLASSIFIER, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    assert model_of(tmp_path, SCORE, config=raw).activation == "identity"
    three = model_of(tmp_path, CLASSES, config={**CLASSIFIER, "id2label": {"2": "c", "0": "a", "1": "b"}})
    assert (three.task, three.labels, three.activation) == (Task.CLASSIFY, ("a", "b", "c"), "softmax")
    several = {**CLASSIFIER, "problem_type": "multi_label_classification"}
    assert model_of(tmp_path, CLASSES, config=several).activation == "sigmoid"
    assert model_of(tmp_path, CLASSES, config=several).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert model_of(tmp_path, TensorSpec("logits", "FP32", (-1,)), config=CLASSIFIER).size == 2
    (tmp_path / "config.json").unlink()
    assert model_of(tmp_path, SCORE).task is Task.SCORE


@pytest.mark.parametrize(
    ("config", "task", "labels"),
    [
        ({}, Task.EMBED, ()),
        ({"architectures": ["Qwen2Model"]}, Task.EMBED, ()),
        (CLASSIFIER, Task.CLASSIFY, ("LABEL_0", "LABEL_1")),
        ({**CLASSIFIER, "id2label": {"0": "yes"}}, Task.SCORE, ("yes",)),
        ({**CLASSIFIER, "num_labels": 1}, Task.SCORE, ("LABEL_0",)),
        ({**CLASSIFIER, "classifier_from_token": ["no", "yes"]}, Task.SCORE, ("LABEL_0",)),
        ({**CLASSIFIER, "classifier_from_token": ["a", "b", "c"]}, Task.CLASSIFY, ("LABEL_0", "LABEL_1", "LABEL_2")),
    ],
)
def test_what_a_library_makes_of_a_checkpoint(config: Any, task: Task, labels: tuple[str, ...]) -> None:
    assert checkpoint_task(config) == (task, labels)


def test_encoders_are_pooled_as_sentence_transformers_say(tmp_path: Path) -> None:
    plain = model_of(tmp_path, HIDDEN)
    assert (plain.task, plain.output, plain.pooling, plain.normalize) == (Task.EMBED, HIDDEN.name, "mean", True)
    assert model_of(tmp_path, HIDDEN, pooling={"pooling_mode_cls_token": True}).pooling == "cls"
    assert model_of(tmp_path, HIDDEN, batch=5).pooling == "max"
    assert not model_of(tmp_path, HIDDEN, modules=[{"type": "sentence_transformers.models.Pooling"}]).normalize
    both = model_of(tmp_path, HIDDEN, POOLED)
    assert (both.output, both.pooling, both.tokens, both.size) == (POOLED.name, "", HIDDEN.name, 8)
    prompts = model_of(tmp_path, HIDDEN, config_sentence_transformers={"prompts": {"query": "q: "}}).prompts
    assert prompts == {"query": "q: "}
    with pytest.raises(Unsupported, match="its pooling 'pooling_mode_weightedmean_tokens' is not one of cls, mean"):
        model_of(tmp_path, HIDDEN, pooling={"pooling_mode_weightedmean_tokens": True})


@pytest.mark.parametrize(
    ("files", "tokens"),
    [
        ({}, 512),
        ({"config": {"max_position_embeddings": 64}}, 64),
        ({"config": {"max_position_embeddings": 514, "model_type": "xlm-roberta", "pad_token_id": 1}}, 512),
        ({"tokenizer_config": {"model_max_length": 1e30}, "config": {"max_position_embeddings": 8192}}, 8192),
        ({"tokenizer_config": {"model_max_length": 256}, "sentence_bert_config": {"max_seq_length": 128}}, 128),
        ({"config": {"max_position_embeddings": "many"}, "tokenizer_config": [1]}, 512),
    ],
)
def test_the_longest_text_is_the_least_that_any_file_says(tmp_path: Path, files: Any, tokens: int) -> None:
    assert model_of(tmp_path, HIDDEN, **files).max_tokens == tokens


def test_other_models_serve_tensors_only(tmp_path: Path) -> None:
    assert text_model(ModelConfig("m", "onnxruntime", "", 4, (IDS,), (HIDDEN,)), tmp_path) is None
    image = TensorSpec("pixel_values", "FP32", (3, 224, 224))
    assert model_of(tmp_path, HIDDEN, inputs=(image,)) is None
    with pytest.raises(Unsupported, match="its inputs are not token ids, mask and types"):
        model_of(tmp_path, HIDDEN, inputs=(IDS, image))
    with pytest.raises(Unsupported, match="no output 'logits'"):
        model_of(tmp_path, HIDDEN, config=CLASSIFIER)
    with pytest.raises(Unsupported, match="no output 'sentence_embedding'"):
        model_of(tmp_path, TensorSpec("OUT", "INT64", (1,)), config={})
    fixed = model_of(tmp_path, HIDDEN, inputs=(TensorSpec("input_ids", "INT32", (16,)),))
    assert isinstance(fixed, TextModel)
    assert (fixed.fixed_tokens, fixed.mask) == (16, None)


def test_encoders_do_not_generate(tmp_path: Path) -> None:
    for document, is_one in (
        ({"model_type": "bert"}, True),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, True),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, False),
        ({}, False),
    ):
        (tmp_path / "config.json").write_text(json.dumps(document))
        assert is_encoder(tmp_path) == is_one
