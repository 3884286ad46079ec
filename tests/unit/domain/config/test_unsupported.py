"""Unsupported settings: refused, or accepted with a notice."""

import pytest

from conch.base.errors import ConfigError
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.config.unsupported import refuse_namespaces, refuse_unsupported, unsupported_notices

FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('backend: "tensorrt" input { name: "a" is_shape_tensor: true }', "is_shape_tensor ('a')"),
        ('backend: "tensorrt" output { name: "a" is_non_linear_format_io: true }', "is_non_linear_format_io ('a')"),
    ],
)
def test_refused_by_name(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as raised:
        refuse_unsupported(parse_pbtxt(f'name: "m" {text}', "f"))
    assert raised.value.message == f"{what} of model 'm' is not supported by this version of Conch"


def test_the_namespace_of_a_step_needs_namespaces() -> None:
    message = parse_pbtxt('name: "m" ensemble_scheduling { step { model_name: "b" model_namespace: "n" } }', "f")
    refuse_unsupported(message)
    with pytest.raises(ConfigError, match="model_namespace of the step 'b' of model 'm' needs --model-namespacing"):
        refuse_namespaces(message)


@pytest.mark.parametrize(
    "text", ["", "response_cache { enable: false }", "model_repository_agents { }", "dynamic_batching { }"]
)
def test_nothing_to_refuse(text: str) -> None:
    message = parse_pbtxt(f'name: "m" backend: "onnxruntime" {text}', "f")
    refuse_unsupported(message)
    assert unsupported_notices(message) == ()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("instance_group { } instance_group { secondary_devices { } }", "instance_group[1].secondary_devices"),
        ("instance_group { secondary_devices { } }", "instance_group[0].secondary_devices"),
        ("optimization { priority: PRIORITY_MAX }", "optimization.priority"),
        ("optimization { eager_batching: true }", "optimization.eager_batching"),
        ("optimization { gather_kernel_buffer_threshold: 1 }", "optimization.gather_kernel_buffer_threshold"),
        ("optimization { cuda { graphs: true } }", "optimization.cuda"),
        ("optimization { graph { level: 1 } }", "optimization.graph"),
        ("optimization { input_pinned_memory { enable: false } }", "optimization.input_pinned_memory"),
        (
            'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
            "optimization.execution_accelerators",
        ),
        ('model_operations { op_library_filename: "x.so" }', "model_operations"),
        ("batch_input { kind: BATCH_ELEMENT_COUNT }", "batch_input"),
        ("batch_output { }", "batch_output"),
        ('model_warmup { name: "w" }', "model_warmup 'w'"),
        ('runtime: "libtriton_python.so"', "runtime"),
        (
            f"model_metrics {{ metric_control {{ metric_identifier {{ family: '{FIRST_RESPONSE}' }} }} }}",
            "model_metrics.metric_control[0]",
        ),
    ],
)
def test_accepted_with_a_notice(text: str, what: str) -> None:
    message = parse_pbtxt(f'name: "m" backend: "python" {text}', "f")
    refuse_unsupported(message)
    (notice,) = unsupported_notices(message)
    assert notice.startswith(f"{what} of model 'm' has no effect: ")


def test_the_onnxruntime_backend_has_accelerators_and_operations() -> None:
    text = 'optimization { execution_accelerators { gpu_execution_accelerator { name: "cuda" } } }'
    message = parse_pbtxt(f'backend: "onnxruntime" {text} model_operations {{ op_library_filename: "x" }}', "f")
    assert unsupported_notices(message) == ()


@pytest.mark.parametrize("name", ["REPORT_CUSTOM_METRICS", "ENABLE_VLLM_HEALTH_CHECK", "FORCE_CPU_ONLY_INPUT_TENSORS"])
def test_parameters_of_tritons_vllm_backend_without_effect(name: str) -> None:
    def notices(value: str) -> tuple[str, ...]:
        parameter = f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'
        return unsupported_notices(parse_pbtxt(f'name: "m" backend: "vllm" {parameter}', "f"))

    assert notices("yes") == ()
    (notice,) = notices("no")
    assert notice.startswith(f"parameter {name} of model 'm' has no effect: ")
