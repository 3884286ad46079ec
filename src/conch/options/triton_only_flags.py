"""Triton's flags that the server does not act upon, each with the reason.

A command line written for Triton must either mean the same here or say where it does not. So a flag that only tunes
machinery which this server does not have is accepted with a notice, and a flag that would change what clients get is
refused by name, unless its value asks for what happens anyway.
"""

from conch.options.flag_values import BOOLEAN, BYTES, COUNT, PATH, PORT, TEXT, ValueKind, integer
from conch.options.flags import Flag, Standing

_CACHE = "Response cache"
_MEMORY = "Memory and devices"
_CLOUD = "Cloud endpoints"


def _ignored(name: str, group: str, kind: ValueKind, default: object, reason: str, repeatable: bool = False) -> Flag:
    text = f"Has no effect: {reason}."
    return Flag(name, group, text, kind, default, repeatable, standing=Standing.IGNORED, reason=reason)


def _refused(name: str, group: str, kind: ValueKind, default: object, reason: str, repeatable: bool = False) -> Flag:
    return Flag(
        name,
        group,
        f"Not supported: {reason}.",
        kind,
        default,
        repeatable,
        standing=Standing.REFUSED,
        reason=reason,
        harmless=lambda value: value == default,
    )


_ONE_LOOP = "one event loop serves all connections"
_NO_POOL = "messages are not pooled"
_NO_CLOUD = "this endpoint is not there yet"
_NO_GPU_POOL = "the frameworks manage device memory themselves"

FOREIGN_FLAGS: tuple[Flag, ...] = (
    _ignored("http-thread-count", "HTTP", integer("threads", 1), 8, _ONE_LOOP),
    _ignored("grpc-infer-thread-count", "gRPC", integer("threads", 1), 2, _ONE_LOOP),
    _ignored("grpc-infer-allocation-pool-size", "gRPC", COUNT, 8, _NO_POOL),
    _ignored("grpc-max-response-pool-size", "gRPC", COUNT, 2**31 - 1, _NO_POOL),
    _ignored("allow-gpu-metrics", "Metrics", BOOLEAN, True, "metrics of the GPU are not there yet"),
    _ignored("cache-directory", _CACHE, PATH, "/opt/tritonserver/caches", "the cache is part of the server"),
    _ignored("pinned-memory-pool-byte-size", _MEMORY, BYTES, 268435456, _NO_GPU_POOL),
    _ignored("cuda-memory-pool-byte-size", _MEMORY, TEXT, "", _NO_GPU_POOL, repeatable=True),
    _ignored("cuda-virtual-address-size", _MEMORY, TEXT, "", _NO_GPU_POOL, repeatable=True),
    _ignored("enable-peer-access", _MEMORY, BOOLEAN, True, _NO_GPU_POOL),
    _ignored("buffer-manager-thread-count", _MEMORY, COUNT, 0, "batches are joined where they are executed"),
    _ignored("host-policy", _MEMORY, TEXT, "", "instances run where the operating system puts them", repeatable=True),
    _refused("model-load-gpu-limit", _MEMORY, TEXT, "", "loads are not refused by free device memory", repeatable=True),
    _ignored("backend-directory", "Backends", PATH, "/opt/tritonserver/backends", "backends are Python packages"),
    _ignored("repoagent-directory", "Backends", PATH, "/opt/tritonserver/repoagents", "there are no repository agents"),
    _refused("allow-sagemaker", _CLOUD, BOOLEAN, False, _NO_CLOUD),
    _ignored("sagemaker-port", _CLOUD, PORT, 8080, _NO_CLOUD),
    _ignored("sagemaker-thread-count", _CLOUD, COUNT, 8, _NO_CLOUD),
    _ignored("sagemaker-safe-port-range", _CLOUD, TEXT, "", _NO_CLOUD),
    _refused("allow-vertex-ai", _CLOUD, BOOLEAN, False, _NO_CLOUD),
    _ignored("vertex-ai-port", _CLOUD, PORT, 8080, _NO_CLOUD),
    _ignored("vertex-ai-thread-count", _CLOUD, COUNT, 8, _NO_CLOUD),
    _ignored("vertex-ai-default-model", _CLOUD, TEXT, "", _NO_CLOUD),
)
