"""Triton's flags without a counterpart in this server, each with the reason.

They tune mechanisms which this server does not have, and are accepted with a notice.
"""

from conch.base.command_line.flag_values import BOOLEAN, BYTES, COUNT, PATH, TEXT, ValueKind, integer
from conch.base.command_line.flags import Flag, Standing

_CACHE = "Response cache"
_MEMORY = "Memory and devices"
_CLOUD = "Cloud endpoints"


def _ignored(name: str, group: str, kind: ValueKind, default: object, reason: str, repeatable: bool = False) -> Flag:
    text = f"Has no effect: {reason}."
    return Flag(name, group, text, kind, default, repeatable, standing=Standing.IGNORED, reason=reason)


_ONE_LOOP = "one event loop serves all connections"
_NO_POOL = "messages are not pooled"
_NO_GPU_POOL = "the frameworks manage device memory"

TRITON_ONLY_FLAGS: tuple[Flag, ...] = (
    _ignored("http-thread-count", "HTTP", integer("threads", 1), 8, _ONE_LOOP),
    _ignored("grpc-infer-thread-count", "gRPC", integer("threads", 1), 2, _ONE_LOOP),
    _ignored("grpc-infer-allocation-pool-size", "gRPC", COUNT, 8, _NO_POOL),
    _ignored("grpc-max-response-pool-size", "gRPC", COUNT, 2**31 - 1, _NO_POOL),
    _ignored("cache-directory", _CACHE, PATH, "/opt/tritonserver/caches", "the cache is part of the server"),
    _ignored("pinned-memory-pool-byte-size", _MEMORY, BYTES, 268435456, _NO_GPU_POOL),
    _ignored("cuda-memory-pool-byte-size", _MEMORY, TEXT, "", _NO_GPU_POOL, repeatable=True),
    _ignored("cuda-virtual-address-size", _MEMORY, TEXT, "", _NO_GPU_POOL, repeatable=True),
    _ignored("enable-peer-access", _MEMORY, BOOLEAN, True, _NO_GPU_POOL),
    _ignored("buffer-manager-thread-count", _MEMORY, COUNT, 0, "batches are assembled where they are executed"),
    _ignored("backend-directory", "Backends", PATH, "/opt/tritonserver/backends", "backends are Python packages"),
    _ignored(
        "repoagent-directory", "Backends", PATH, "/opt/tritonserver/repoagents", "repository agents are Python packages"
    ),
    _ignored("sagemaker-thread-count", _CLOUD, integer("threads", 1), 8, _ONE_LOOP),
    _ignored("vertex-ai-thread-count", _CLOUD, integer("threads", 1), 8, _ONE_LOOP),
)
