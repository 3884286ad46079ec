"""Encode metadata, configurations, statistics, the repository index and errors as JSON.

Members have Triton's names and order.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.statistics.model_statistics import BatchStatistics, Duration, ModelStatistics, ResponseStatistics

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
