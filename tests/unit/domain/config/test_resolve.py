"""Defaults, and resolved configurations."""

from collections.abc import Sequence
from typing import Any

import pytest

from conch.base.errors import ConfigError
from conch.domain.config.document import from_document, to_document
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.config.resolve import ResolvedConfig, resolve
from conch.domain.model_config import (
    DynamicBatching,
    EnsembleStep,
    InstanceGroup,
    InstanceKind,
    QueuePolicy,
    TensorSpec,
    TimeoutAction,
    VersionPolicy,
    VersionPolicyKind,
    Warmup,
    WarmupTensor,
)
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource


class PairsBackend(Backend):
    name = "pairs"
    default_model_filename = "model.pairs"
    default_cpu_instance_count = 2

    async def complete(self, source: ModelSource) -> dict[str, Any]:
        raise NotImplementedError

    def instance(self, plan: InstancePlan) -> Instance:
        raise NotImplementedError


def finished(text: str, gpus: Sequence[int] = ()) -> ResolvedConfig:
    message = parse_pbtxt(f'name: "m" backend: "pairs" {text}', "f")
    return resolve(to_document(message), backend=PairsBackend(), gpus=gpus)


def groups(text: str, gpus: Sequence[int] = ()) -> tuple[InstanceGroup, ...]:
    return finished(text, gpus).config.instance_groups


def test_defaults_show_in_the_document() -> None:
    document = finished("max_batch_size: 8 dynamic_batching { }").config.document
    assert document["version_policy"] == {"latest": {"num_versions": 1}}
    assert document["dynamic_batching"]["preferred_batch_size"] == [8]
    assert document["optimization"]["input_pinned_memory"] == {"enable": True}
    assert document["optimization"]["output_pinned_memory"] == {"enable": True}
    assert document["default_model_filename"] == "model.pairs"
    assert document["instance_group"] == [
        {
            "name": "m",
            "kind": "KIND_CPU",
            "count": 2,
            "gpus": [],
            "secondary_devices": [],
            "profile": [],
            "passive": False,
            "host_policy": "",
        }
    ]


def test_given_values_are_kept() -> None:
    text = (
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 } version_policy { all { } } "
        'optimization { input_pinned_memory { enable: false } } default_model_filename: "x"'
    )
    document = finished(text).config.document
    assert document["version_policy"] == {"all": {}}
    assert document["dynamic_batching"]["preferred_batch_size"] == [4]
    assert document["optimization"]["input_pinned_memory"] == {"enable": False}
    assert document["default_model_filename"] == "x"


def test_dynamic_batching_without_batching_has_no_preferred_size() -> None:
    assert finished("dynamic_batching { }").config.dynamic_batching == DynamicBatching()


def test_resolving_twice_changes_nothing() -> None:
    once = finished("max_batch_size: 8 dynamic_batching { } instance_group { kind: KIND_GPU count: 3 }").config
    assert resolve(once.document, backend=PairsBackend()) == ResolvedConfig(once, ())


def test_an_ensemble_gets_no_instances_and_no_optimization() -> None:
    message = parse_pbtxt(
        'name: "e" platform: "ensemble" input { name: "i" data_type: TYPE_FP32 dims: 1 } '
        'output { name: "o" data_type: TYPE_FP32 dims: 1 } '
        'ensemble_scheduling { step { model_name: "a" model_version: 3 '
        'input_map { key: "x" value: "i" } output_map { key: "y" value: "o" } } }',
        "f",
    )
    config = resolve(to_document(message), backend=None).config
    assert config.is_ensemble
    assert config.instance_groups == ()
    assert "optimization" not in config.document
    assert config.ensemble_steps == (EnsembleStep("a", 3, {"x": "i"}, {"y": "o"}),)


# Instance groups


def test_without_groups_there_is_one_named_after_the_model() -> None:
    assert groups("") == (InstanceGroup("m", InstanceKind.CPU, 2),)
    assert groups("", gpus=[0, 1]) == (InstanceGroup("m", InstanceKind.GPU, 1, (0, 1)),)


def test_groups_are_named_by_their_number_and_counted_by_their_kind() -> None:
    text = (
        'instance_group { kind: KIND_CPU } instance_group { name: "x" kind: KIND_MODEL } '
        "instance_group { kind: KIND_CPU count: 5 } instance_group { kind: KIND_CPU count: -1 passive: true }"
    )
    assert groups(text) == (
        InstanceGroup("m_0", InstanceKind.CPU, 2),
        InstanceGroup("x", InstanceKind.MODEL, 1),
        InstanceGroup("m_2", InstanceKind.CPU, 5),
        InstanceGroup("m_3", InstanceKind.CPU, 2, passive=True),
    )


def test_auto_goes_where_its_devices_are() -> None:
    assert groups("instance_group { gpus: [ 1 ] }", gpus=[0, 1]) == (InstanceGroup("m_0", InstanceKind.GPU, 1, (1,)),)
    on_cpu = finished("instance_group { gpus: [ 1, 2 ] }", gpus=[0, 1])
    assert on_cpu.config.instance_groups == (InstanceGroup("m_0", InstanceKind.CPU, 2),)
    notice = "instance group 'm_0' of model 'm' runs on the CPU: GPU 2 is not available"
    assert on_cpu.notices == (("kind_gpu_on_cpu", notice),)


def test_gpu_without_gpus_runs_on_the_cpu_with_a_notice() -> None:
    result = finished("instance_group { kind: KIND_GPU count: 1 gpus: 0 }")
    assert result.config.instance_groups == (InstanceGroup("m_0", InstanceKind.CPU, 1),)
    notice = "instance group 'm_0' of model 'm' has KIND_GPU, but no GPUs are available: it runs on the CPU"
    assert result.notices == (("kind_gpu_on_cpu", notice),)


def test_dynamic_batching_of_one_is_reported_unless_it_has_priorities() -> None:
    (notice,) = finished("max_batch_size: 1 dynamic_batching { }").notices
    assert notice == ("batch_of_one", "dynamic_batching of model 'm' has no effect: max_batch_size is 1")
    priorities = "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"
    assert finished(f"max_batch_size: 1 {priorities}").notices == ()
    assert finished("max_batch_size: 2 dynamic_batching { }").notices == ()


def test_gpu_uses_all_devices_by_default() -> None:
    assert groups("instance_group { kind: KIND_GPU }", gpus=[0, 3])[0].gpus == (0, 3)
    assert groups("instance_group { kind: KIND_GPU gpus: 3 }", gpus=[0, 3])[0].gpus == (3,)


def test_a_missing_gpu_is_named() -> None:
    said = r"instance group m_0 of model m specifies invalid or unsupported gpu id 7\. GPUs of this machine are: 0, 3"
    with pytest.raises(ConfigError, match=said):
        groups("instance_group { kind: KIND_GPU gpus: [ 3, 7 ] }", gpus=[0, 3])


# Rules hold for what a backend has completed, too


def test_a_completed_document_is_checked() -> None:
    document = finished("").config.document | {"input": [{"name": "a", "data_type": "TYPE_FP32", "dims": [0]}]}
    with pytest.raises(ConfigError, match="dimension must be integer >= 1"):
        resolve(document, backend=PairsBackend())
    with pytest.raises(ConfigError, match="configuration of model 'm': unknown field 'inputs'"):
        resolve(document | {"inputs": []}, backend=PairsBackend())


def test_notices_of_settings_without_effect() -> None:
    ((reason, notice),) = finished("instance_group { secondary_devices { } }").notices
    assert reason == "setting_ignored"
    assert "secondary_devices" in notice


# The value


def test_every_part_of_the_value() -> None:
    config = finished(
        """
        platform: "p" max_batch_size: 16
        input { name: "a" data_type: TYPE_STRING dims: [ -1 ] optional: true }
        input { name: "b" data_type: TYPE_BF16 dims: [ 1 ] reshape { } }
        output { name: "c" data_type: TYPE_FP32 dims: [ 2, 3 ] label_filename: "labels.txt" reshape { shape: [ 6 ] } }
        version_policy { specific { versions: [ 3, 1 ] } }
        dynamic_batching {
          preferred_batch_size: [ 4, 8 ]
          max_queue_delay_microseconds: 100
          priority_levels: 2
          default_priority_level: 2
          default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 max_queue_size: 9 }
          priority_queue_policy { key: 1 value { allow_timeout_override: true } }
        }
        model_transaction_policy { decoupled: true }
        parameters { key: "k" value { string_value: "v" } }
        metric_tags { key: "team" value: "red" }
        model_warmup {
          name: "w" batch_size: 2
          inputs { key: "a" value { data_type: TYPE_STRING dims: 1 random_data: true } }
          inputs { key: "b" value { data_type: TYPE_BF16 dims: 1 input_data_file: "b.bin" } }
        }
        """
    ).config
    assert (config.platform, config.max_batch_size, config.decoupled) == ("p", 16, True)
    assert config.inputs == (
        TensorSpec("a", "BYTES", (-1,), optional=True),
        TensorSpec("b", "BF16", (1,), reshape=()),
    )
    assert config.outputs == (TensorSpec("c", "FP32", (2, 3), reshape=(6,), label_filename="labels.txt"),)
    assert config.version_policy == VersionPolicy(VersionPolicyKind.SPECIFIC, versions=(3, 1))
    assert config.dynamic_batching == DynamicBatching(
        preferred_batch_sizes=(4, 8),
        max_queue_delay_us=100,
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(TimeoutAction.DELAY, default_timeout_us=5, max_queue_size=9),
        priority_queue_policies={1: QueuePolicy(allow_timeout_override=True)},
    )
    assert config.parameters == {"k": "v"}
    assert config.metric_tags == {"team": "red"}
    assert config.warmups == (
        Warmup(
            "w",
            2,
            1,
            (WarmupTensor("a", "BYTES", (1,), random=True), WarmupTensor("b", "BF16", (1,), filename="b.bin")),
        ),
    )
    assert from_document(config.document, "f").name == "m"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'input { name: "a" data_type: 99 dims: 1 }',
            "99 is not a value of DataType; allowed: TYPE_INVALID, TYPE_BOOL",
        ),
        ("instance_group { kind: 7 count: 1 }", "7 is not a value of Kind; allowed: KIND_AUTO"),
    ],
)
def test_unknown_enum_numbers(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        finished(text)
