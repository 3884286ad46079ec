"""Metadata, configurations, statistics, parameters of loads, trace and log settings, in `GRPCInferenceService`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from google.protobuf import json_format

from conch.base.errors import InvalidRequest
from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.statistics.model_statistics import Duration, ModelStatistics
from conch.domain.triton_messages import model_config_pb2, service_pb2

# A message of service_pb2, whose classes protobuf creates at run time.
Message: TypeAlias = Any

_FILE_PREFIX = "file:"


def model_metadata(config: ModelConfig, versions: Iterable[int]) -> Message:
    """Return ModelMetadataResponse. Shapes of batching models begin with -1."""
    metadata = service_pb2.ModelMetadataResponse(
        name=config.name, versions=map(str, versions), platform=config.platform or config.backend
    )
    batch = (-1,) if config.max_batch_size > 0 else ()
    _add_tensors(metadata.inputs, config.inputs, batch)
    _add_tensors(metadata.outputs, config.outputs, batch)
    return metadata


def _add_tensors(target: Any, specs: Sequence[TensorSpec], batch: tuple[int, ...]) -> None:
    for spec in specs:
        target.add(name=spec.name, datatype=spec.datatype, shape=batch + spec.dims)


def model_config(config: ModelConfig) -> Message:
    """Return ModelConfigResponse with the complete configuration."""
    document = json_format.ParseDict(dict(config.document), model_config_pb2.ModelConfig())
    return service_pb2.ModelConfigResponse(config=document)


def model_statistics(models: Iterable[ModelStatistics]) -> Message:
    """Return ModelStatisticsResponse with one entry for each model version."""
    return service_pb2.ModelStatisticsResponse(model_stats=map(_statistics, models))


def _statistics(statistics: ModelStatistics) -> Message:
    message = service_pb2.ModelStatistics(
        name=statistics.model_name,
        version=str(statistics.version),
        last_inference=statistics.last_inference_ms,
        inference_count=statistics.inference_count,
        execution_count=statistics.execution_count,
    )
    _write_durations(statistics, message.inference_stats)
    for size, batch in sorted(statistics.batches.items()):
        _write_durations(batch, message.batch_stats.add(batch_size=size))
    for index, response in sorted(statistics.responses.items()):
        _write_durations(response, message.response_stats[str(index)])
    return message


def _write_durations(counted: object, target: Message) -> None:
    """Copy every duration field of a message from the attribute of that name."""
    for descriptor in target.DESCRIPTOR.fields:
        if descriptor.message_type is service_pb2.StatisticDuration.DESCRIPTOR:
            duration: Duration = getattr(counted, descriptor.name)
            getattr(target, descriptor.name).MergeFrom(
                service_pb2.StatisticDuration(count=duration.count, ns=duration.ns)
            )


def load_parameters(parameters: Mapping[str, Any]) -> tuple[str | None, dict[str, bytes]]:
    """Return a load request's configuration, JSON text or None, and its files, `<version>/<path>` → content.

    Raises InvalidRequest for unknown parameters and wrong types.
    """
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key == "config":
            _check_kind("load", key, value, "string_param")
            config = value.string_param
        elif key.startswith(_FILE_PREFIX):
            _check_kind("load", key, value, "bytes_param")
            files[key.removeprefix(_FILE_PREFIX)] = value.bytes_param
        else:
            raise InvalidRequest(f"unrecognized load parameter '{key}'.")
    return config, files


def unload_parameters(parameters: Mapping[str, Any]) -> bool:
    """Return whether to unload the steps of an ensemble with it. Raises as `load_parameters`."""
    unload_dependents = False
    for key, value in parameters.items():
        if key != "unload_dependents":
            raise InvalidRequest(f"unrecognized unload parameter '{key}'.")
        _check_kind("unload", key, value, "bool_param")
        unload_dependents = value.bool_param
    return unload_dependents


def _check_kind(what: str, key: str, value: Message, expected: str) -> None:
    kind = value.WhichOneof("parameter_choice")
    if kind != expected:
        named = f"load parameter '{key}'" if what == "load" else f"'{key}' parameter"
        raise InvalidRequest(f"invalid value type for {named}, expected {expected}. It is {kind or 'unset'}.")


_KINDS = {
    "log_file": ("string_param", "string"),
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def read_trace_changes(request: Any) -> dict[str, Sequence[str] | None]:
    """Return the settings to change by name, None for those to reset, which have no value."""
    return {name: list(setting.value) or None for name, setting in request.settings.items()}


def read_log_changes(request: Any) -> dict[str, str | bool | int]:
    """Return the settings to change by name; unknown names are ignored. Raises InvalidRequest."""
    changes: dict[str, str | bool | int] = {}
    for name, (member, kind) in _KINDS.items():
        if name in request.settings:
            setting = request.settings[name]
            if name == "log_file":
                changes[name] = ""  # refused for any value
                continue
            if setting.WhichOneof("parameter_choice") != member:
                raise InvalidRequest(f"expect {kind} for '{name}'")
            changes[name] = getattr(setting, member)
    return changes


def trace_settings(settings: Mapping[str, str | list[str]]) -> Any:
    """Encode trace settings."""
    response = service_pb2.TraceSettingResponse()
    for name, value in settings.items():
        response.settings[name].value.extend([value] if isinstance(value, str) else value)
    return response


def log_settings(settings: Mapping[str, str | bool | int]) -> Any:
    """Encode log settings."""
    response = service_pb2.LogSettingsResponse()
    for name, value in settings.items():
        setattr(response.settings[name], _KINDS[name][0], value)
    return response
