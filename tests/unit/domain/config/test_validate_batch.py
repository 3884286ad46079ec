"""Validation rules and values of `batch_input` and `batch_output`."""

import pytest

from conch.base.errors import ConfigError
from conch.domain.config.from_proto import to_model_config
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.config.validate import validate_tensors
from conch.domain.model_config import BatchInput, BatchInputKind, BatchOutput
from conch.domain.triton_messages import ModelConfig as ConfigMessage

MODEL = """
name: "m" backend: "onnxruntime" max_batch_size: 4
input { name: "a" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
input { name: "b" data_type: TYPE_FP32 dims: 1 }
output { name: "x" data_type: TYPE_FP32 dims: -1 }
"""
COUNT = 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_INT32 source_input: "a" }'
SCATTER = 'batch_output { target_name: "x" source_input: "a" }'


def parse(text: str) -> ConfigMessage:
    return parse_pbtxt(MODEL + text, "f")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            COUNT.replace('source_input: "a"', ""),
            "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0",
        ),
        (COUNT.replace('"a"', '["a", "b"]'), "expects 1 source input, got 2 for m: batch_input[0]"),
        (COUNT.replace('"a"', '"c"'), "unknown source input name 'c' for m: batch_input[0]; known: a, b"),
        (COUNT.replace("INT32", "INT64"), "batch input data type must be TYPE_INT32 or TYPE_FP32"),
        (COUNT.replace('target_name: "n"', ""), "batch input must specify 'target_name'"),
        (COUNT.replace('"n"', '"b"'), "batch input 'b' is created by the server"),
        (COUNT + COUNT, "for m: batch_input[1]"),
        (SCATTER.replace('"a"', '"c"'), "unknown source input name 'c' for m: batch_output[0]"),
        (
            SCATTER.replace('source_input: "a"', ""),
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source",
        ),
        (SCATTER.replace('"x"', '"y"'), "unknown target output name 'y' for m: batch_output[0]; known: x"),
        (SCATTER + SCATTER, "target output name 'x' can only be specified once for m: batch_output[1]"),
    ],
)
def test_rules(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_tensors(parse(text))
    assert complaint in raised.value.message


@pytest.mark.parametrize("kind", BatchInputKind)
def test_every_kind_is_read(kind: BatchInputKind) -> None:
    message = parse(COUNT.replace("BATCH_ELEMENT_COUNT", f"BATCH_{kind.value}") + SCATTER)
    validate_tensors(message)
    config = to_model_config(message)
    assert config.batch_inputs == (BatchInput(kind, ("n",), "INT32", "a"),)
    assert config.batch_outputs == (BatchOutput(("x",), "a"),)
    assert config.ragged_inputs == {"a"}
