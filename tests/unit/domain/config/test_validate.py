"""Validation rules of a configuration, with valid and invalid values."""

import pytest

from conch.base.errors import ConfigError
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.config.validate import validate_configuration, validate_tensors

TENSORS = 'input { name: "a" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "b" data_type: TYPE_FP32 dims: [ 4 ] }'

WARMUP = 'model_warmup { name: "w" batch_size: 1 inputs { key: "a" value { %s } } }'
METRICS = 'model_metrics { metric_control { metric_identifier { family: "%s" } histogram_options { %s } } }'


def check(text: str) -> None:
    message = parse_pbtxt(f'name: "m" {text}', "f")
    validate_configuration(message)
    validate_tensors(message)


def tensor(text: str, *, batching: bool = True) -> str:
    return f'max_batch_size: {8 if batching else 0} input {{ name: "a" data_type: TYPE_FP32 {text} }}'


def batching(text: str) -> str:
    return f"max_batch_size: 8 dynamic_batching {{ {text} }}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        TENSORS,
        "max_batch_size: 8",
        tensor("dims: [ -1, 1, 3 ]"),
        tensor("dims: [ 3, 4, 5 ] format: FORMAT_NCHW"),
        tensor("dims: [ 1 ] reshape { }"),
        tensor("dims: [ 2, 6 ] reshape { shape: [ 3, 4 ] }"),
        tensor("dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }"),
        tensor("dims: [ 4 ] is_shape_tensor: true") + ' platform: "tensorrt_plan"',
        batching(""),
        batching("preferred_batch_size: [ 1, 8 ]"),
        batching("priority_levels: 2 default_priority_level: 2 priority_queue_policy { key: 1 value {} }"),
        batching("preserve_ordering: true priority_levels: 1 default_priority_level: 1"),
        batching("preserve_ordering: true default_queue_policy { timeout_action: DELAY }"),
        batching("preserve_ordering: true default_queue_policy { default_timeout_microseconds: 5 }"),
        batching("default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }"),
        "dynamic_batching { }",
        "instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU gpus: 0 }",
        WARMUP % "data_type: TYPE_FP32 dims: 3 zero_data: true",
        'model_warmup { name: "skipped" inputs { key: "a" value { dims: 3 } } }',
        METRICS % ("conch_batch_size", "buckets: [ 1, 3 ]"),
        'default_model_filename: "model.onnx"',
    ],
)
def test_valid_configurations(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value for m, it is -1"),
        (
            'platform: "ensemble" backend: "x"',
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
        ),
        ('default_model_filename: "../other/1/model.py"', "leads out of its folder"),
        ('default_model_filename: ".."', "leads out of its folder"),
        ('default_model_filename: "/models/model.onnx"', "leads out of its folder"),
        # inputs and outputs
        ("input { data_type: TYPE_FP32 dims: 1 }", "model input must specify 'name' for m: input[0]"),
        ('output { name: "b" dims: 1 }', "model output 'b' must specify 'data_type' for m: output[0]"),
        ('input { name: "a" data_type: TYPE_FP32 }', "model input 'a' must specify 'dims' for m: input[0]"),
        (
            tensor("dims: [ 3, 0 ]"),
            "integer >= 1, or -1 to indicate a variable-size dimension for m: input[0].dims[1] is 0",
        ),
        (tensor("dims: [ -2 ]"), "input[0].dims[0] is -2"),
        (tensor("dims: [ 3, 4 ] format: FORMAT_NHWC"), "model input NHWC/NCHW require 3 dims for m: input[0] has 2"),
        (
            tensor("dims: [ 3 ] is_shape_tensor: true"),
            "shape tensors are only supported for TensorRT platform for m: input[0].is_shape_tensor",
        ),
        (
            tensor("dims: [ 3 ] is_non_linear_format_io: true"),
            "Non-linear IO format is only supported for the TensorRT platform",
        ),
        (TENSORS + 'input { name: "a" data_type: TYPE_INT8 dims: 1 }', "input 'a' of m is declared more than once"),
        # reshape
        (
            tensor("dims: [ 1 ] reshape { }", batching=False),
            "cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
        ),
        (
            tensor("dims: [ 2 ] reshape { }"),
            "model input 'a' has different size for dims and reshape for m: input[0].dims is [2], reshape.shape is []",
        ),
        (tensor("dims: [ 6 ] reshape { shape: [ 2, 2 ] }"), "has different size for dims and reshape"),
        (
            tensor("dims: [ 6 ] reshape { shape: [ 0, 6 ] }"),
            "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for m: input[0].",
        ),
        (tensor("dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, 6, -1 ] }"), "has different size for dims and reshape"),
        (
            tensor("dims: [ -1, -1 ] reshape { shape: [ -1 ] }"),
            "has different number of variable-size dimensions for dims and reshape",
        ),
        (tensor("dims: [ 4 ] reshape { shape: [ -1 ] }"), "has different size for dims and reshape"),
        (tensor("dims: [ -1 ] reshape { shape: [ 1 ] }"), "has different size for dims and reshape"),
        # response cache
        (
            "response_cache { enable: true } sequence_batching { }",
            "Response Cache does not currently support model m with sequence batching scheduler. Please disable",
        ),
        (
            "response_cache { enable: true } model_transaction_policy { decoupled: true }",
            "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable",
        ),
        # dynamic batching
        (
            batching("preferred_batch_size: [ 4, 0 ]"),
            "dynamic batching preferred size must be positive for m: dynamic_batching.preferred_batch_size[1] is 0",
        ),
        (
            batching("preferred_batch_size: [ 9 ]"),
            "must be <= max batch size for m: dynamic_batching.preferred_batch_size[0] is 9, max_batch_size is 8",
        ),
        ("dynamic_batching { preferred_batch_size: 1 }", "max_batch_size is 0"),
        (
            batching("priority_levels: 2"),
            "default priority level must be in range [1, 2] for m: dynamic_batching.default_priority_level is 0",
        ),
        (batching("priority_levels: 2 default_priority_level: 3"), "default_priority_level is 3"),
        (
            batching("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value {} }"),
            "must have priority level in range [1, 2] for m: dynamic_batching.priority_queue_policy has the key 3",
        ),
        (
            batching("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 0 value {} }"),
            "has the key 0",
        ),
        (
            batching("preserve_ordering: true priority_levels: 2 default_priority_level: 1"),
            "Only one priority level is allowed when 'preserve_ordering' is true for m: dynamic_batching.priority",
        ),
        (
            batching(
                "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }"
            ),
            "DELAY as timeout action when 'preserve_ordering' is true for m: dynamic_batching.default_queue_policy",
        ),
        (
            batching(
                "preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
                "priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 5 } }"
            ),
            "dynamic_batching.priority_queue_policy[1]",
        ),
        # instance groups
        (
            'instance_group { name: "g" kind: KIND_CPU gpus: [ 0, 1 ] }',
            "instance group g of model m has kind KIND_CPU but specifies one or more GPUs: [0, 1]",
        ),
        (
            'instance_group { name: "g" kind: KIND_MODEL gpus: 0 }',
            "instance group g of model m has kind KIND_MODEL but specifies one or more GPUs",
        ),
        (
            'instance_group { name: "g" kind: KIND_CPU profile: "1" }',
            "profile field which is only supported for TensorRT models",
        ),
        # warm-up and metrics
        (
            WARMUP % "dims: 1 zero_data: true",
            "model_warmup 'w' of m: input 'a' must specify 'data_type'",
        ),
        (
            WARMUP % "data_type: TYPE_FP32 dims: 1",
            "input 'a' must specify zero_data, random_data or input_data_file",
        ),
        (
            WARMUP % "data_type: TYPE_FP32 dims: -1 zero_data: true",
            "dims of input 'a' must be integers >= 1, they are [-1]",
        ),
        (
            "model_metrics { metric_control { } }",
            "metric control must specify 'metric_identifier' for m: model_metrics.metric_control[0]",
        ),
        (
            "model_metrics { metric_control { metric_identifier { } } }",
            "metric identifier must specify non-empty 'family'",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } } }',
            "metric control must specify 'histogram_options'",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { } } }',
            "histogram options must specify non-empty 'buckets'",
        ),
        (
            METRICS % ("nv_inference_count", "buckets: 1"),
            "family 'nv_inference_count' has no buckets to configure for m: model_metrics.metric_control[0]; those",
        ),
        (METRICS % ("conch_batch_size", "buckets: [ 2, 1 ]"), "must be finite, positive and ascending"),
        (METRICS % ("conch_batch_size", "buckets: 0"), "must be finite, positive and ascending"),
        (METRICS % ("conch_batch_size", "buckets: nan"), "must be finite, positive and ascending"),
        (METRICS % ("conch_batch_size", f"buckets: {list(range(1, 102))}"), "the limit is 100"),
    ],
)
def test_invalid_configurations_are_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check(text)
    assert said in raised.value.message
