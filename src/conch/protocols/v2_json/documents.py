"""Metadata, configurations, statistics, the model repository, trace and log settings and errors, in JSON.

Members have Triton's names and order. A request without a body means the defaults.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from conch.base.errors import Code, ConchError, InvalidRequest
from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.statistics.model_statistics import BatchStatistics, Duration, ModelStatistics, ResponseStatistics
from conch.domain.tensor import Buffer
from conch.protocols.json_document import boolean, key_at_end, parameters_of, parse, shown, text

_SYSTEM_SHARED_MEMORY = "system_shared_memory"
# Extensions of the v2 protocol, with Triton's names and order.
_EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    _SYSTEM_SHARED_MEMORY,
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


# Members of statistics that are durations, in Triton's order.
_BATCH_TIMES = ("compute_input", "compute_infer", "compute_output")
_REQUEST_TIMES = ("success", "fail", "queue", *_BATCH_TIMES, "cache_hit", "cache_miss")
_RESPONSE_TIMES = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")


def error(message: str) -> bytes:
    """Encode an error; invalid Unicode in the message is escaped."""
    try:
        return orjson.dumps({"error": message})
    except orjson.JSONEncodeError:
        return orjson.dumps({"error": message.encode("utf-8", "backslashreplace").decode()})


def extensions(*, shared_memory: bool) -> list[str]:
    """Return the names of the extensions, with or without shared memory of clients."""
    return [name for name in _EXTENSIONS if shared_memory or name != _SYSTEM_SHARED_MEMORY]


def server_metadata(name: str, version: str, *, shared_memory: bool) -> bytes:
    """Encode the server's metadata."""
    return orjson.dumps({"name": name, "version": version, "extensions": extensions(shared_memory=shared_memory)})


def model_metadata(config: ModelConfig, versions: Iterable[int]) -> bytes:
    """Encode a model's metadata. Shapes of batching models begin with -1."""
    return orjson.dumps(
        {
            "name": config.name,
            "versions": [str(version) for version in versions],
            "platform": config.platform or config.backend,
            "inputs": [_tensor_metadata(spec, config.max_batch_size) for spec in config.inputs],
            "outputs": [_tensor_metadata(spec, config.max_batch_size) for spec in config.outputs],
        }
    )


def model_config(config: ModelConfig) -> bytes:
    """Encode the complete `ModelConfig` message with its proto field names."""
    return orjson.dumps(dict(config.document))


def model_statistics(models: Iterable[ModelStatistics]) -> bytes:
    """Encode the statistics of model versions."""
    return b"".join(statistics_pieces(models))


def statistics_pieces(models: Iterable[ModelStatistics]) -> Iterator[bytes]:
    """Encode the statistics of model versions, one per piece."""
    yield from _listed(b'{"model_stats":[', (orjson.dumps(_statistics(model)) for model in models), b"]}")


def index_pieces(rows: Iterable[tuple[str, str, str, str]]) -> Iterator[bytes]:
    """Encode the repository index from names, versions, states and reasons, one row per piece. Omits empty members."""
    members = ("name", "version", "state", "reason")
    written = (orjson.dumps({key: value for key, value in zip(members, row, strict=True) if value}) for row in rows)
    yield from _listed(b"[", written, b"]")


def _listed(start: bytes, elements: Iterable[bytes], end: bytes) -> Iterator[bytes]:
    separator = start
    for element in elements:
        yield separator + element
        separator = b","
    yield end if separator == b"," else start + end


def _tensor_metadata(spec: TensorSpec, max_batch_size: int) -> dict[str, Any]:
    shape = (-1, *spec.dims) if max_batch_size > 0 else spec.dims
    return {"name": spec.name, "datatype": spec.datatype, "shape": shape}


def _statistics(model: ModelStatistics) -> dict[str, Any]:
    return {
        "name": model.model_name,
        "version": str(model.version),
        "last_inference": model.last_inference_ms,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": _durations(model, _REQUEST_TIMES),
        "response_stats": {
            str(index): _durations(response, _RESPONSE_TIMES) for index, response in sorted(model.responses.items())
        },
        "batch_stats": [
            {"batch_size": size, **_durations(batch, _BATCH_TIMES)} for size, batch in sorted(model.batches.items())
        ],
        "memory_usage": [],
    }


def _durations(counted: ModelStatistics | BatchStatistics | ResponseStatistics, names: Sequence[str]) -> dict[str, Any]:
    durations: list[Duration] = [getattr(counted, name) for name in names]
    return {name: {"count": duration.count, "ns": duration.ns} for name, duration in zip(names, durations, strict=True)}


_TEXTS = ("trace_rate", "trace_count", "log_frequency")
_SWITCHES = ("log_info", "log_warning", "log_error")
_MAX_LEVEL = 2**31 - 1


def read_trace_changes(body: Buffer) -> dict[str, Sequence[str] | None]:
    """Return the settings to change by name, None for those to reset. Raises ConchError."""
    changes: dict[str, Sequence[str] | None] = {}
    for name, value in _members(body).items():
        if name == "trace_file":
            changes[name] = None  # refused for any value
        elif name == "trace_level":
            changes[name] = None if value is None else _levels(value)
        elif name in _TEXTS:
            changes[name] = None if value is None else [_text(value, name)]
    return changes


def read_log_changes(body: Buffer) -> dict[str, str | bool | int]:
    """Return the settings to change by name. Raises ConchError."""
    changes: dict[str, str | bool | int] = {}
    for name, value in _members(body).items():
        if value is None:
            continue  # as if missing
        if name == "log_file":
            changes[name] = ""  # refused for any value
        elif name == "log_format":
            changes[name] = _text(value, name)
        elif name in _SWITCHES:
            if type(value) is not bool:
                raise _wrong_type("boolean", name)
            changes[name] = value
        elif name == "log_verbose_level":
            if type(value) is not int or not 0 <= value <= _MAX_LEVEL:
                raise _wrong_type("unsigned-integer", name)
            changes[name] = value
    return changes


def settings_document(settings: Mapping[str, Any]) -> bytes:
    """Encode settings."""
    return orjson.dumps(settings)


def _members(body: Buffer) -> dict[str, Any]:
    if not body:
        raise ConchError("failed to parse the request JSON buffer: The document is empty. at 0", Code.INTERNAL)
    try:
        document = parse(body)
    except InvalidRequest as error:
        raise ConchError(error.message, Code.INTERNAL) from None
    return document if type(document) is dict else {}


def _levels(value: Any) -> list[str]:
    if type(value) is not list:
        raise _wrong_type("array", "trace_level")
    return [_text(level, "trace_level") for level in value]


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise _wrong_type("string", name)
    return value


def _wrong_type(kind: str, name: str) -> ConchError:
    return ConchError(f"attempt to access JSON non-{kind} as {kind} ('{name}')", Code.INTERNAL)


_FILE_PREFIX = "file:"
_Value = TypeVar("_Value")


def read_index(body: Buffer) -> bool:
    """Return whether to list ready models only. Raises InvalidRequest."""
    return _checked(boolean, _object(body).get("ready", False), "ready")


def read_load(body: Buffer) -> tuple[str | None, dict[str, bytes]]:
    """Return the configuration for a load, as JSON text, and the files, "<version>/<path>" → content.

    Raises InvalidRequest for unknown parameters, wrong types, and content that is not base64.
    """
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in _parameters(body).items():
        if key == "config":
            config = _checked(text, value, key)
        elif key.startswith(_FILE_PREFIX):
            files[key.removeprefix(_FILE_PREFIX)] = _decoded(key, _checked(text, value, key))
        else:
            raise InvalidRequest(f"unrecognized load parameter {shown(key)}: there are 'config' and 'file:<path>'")
    return config, files


def read_unload(body: Buffer) -> bool:
    """Return whether to unload the steps of an ensemble with it. Raises InvalidRequest."""
    unload_dependents = False
    for key, value in _parameters(body).items():
        if key != "unload_dependents":
            raise InvalidRequest(f"unrecognized unload parameter {shown(key)}: there is 'unload_dependents'")
        unload_dependents = _checked(boolean, value, key)
    return unload_dependents


def _checked(read: Callable[[Any, str], _Value], value: Any, key: str) -> _Value:
    try:
        return read(value, key)
    except InvalidRequest as error:
        raise key_at_end(error, key) from None


def _parameters(body: Buffer) -> dict[str, Any]:
    document = _object(body)
    try:
        return parameters_of(document)
    except InvalidRequest as error:
        raise key_at_end(error, "parameters") from None


def _object(body: Buffer) -> dict[str, Any]:
    document = parse(body) if body else {}
    if type(document) is not dict:
        raise InvalidRequest(f"the request body is a JSON object, not {shown(document)}")
    return document


def _decoded(key: str, content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"content of {shown(key)} is not valid base64: {error}") from None
