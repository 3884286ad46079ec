"""`inference.GRPCInferenceService` and `grpc.health.v1.Health`, without the wire: message bytes in, message bytes out.

`frontends/grpc` transports the bytes. ModelInfer and ModelStreamInfer are in `infer.py` and `infer_stream.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

import conch
from conch.base.errors import Code, ConchError, InvalidRequest, Unsupported
from conch.domain.tensor import Buffer
from conch.domain.triton_messages import service_pb2
from conch.protocols.regions import not_allowed
from conch.protocols.v2_json import documents
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.protocols.v2_proto import documents as proto_documents
from conch.protocols.v2_proto import health as health_proto
from conch.protocols.v2_proto.inference import parse_version, split_fields
from conch.protocols.v2_proto.large import check_texts
from conch.server.core.shared_memory.regions import SharedMemory
from conch.server.frontends.grpc.framing import MAX_MESSAGE_SIZE
from conch.server.frontends.parts import Parts
from conch.server.frontends.v2_http.management import check_model

# Of a request whose message has no fields.
_MAX_UNKNOWN_BYTES = 4096
# Models whose statistics are written in one turn of the event loop.
_SLICE_MODELS = 64

INFERENCE_SERVICE = "inference.GRPCInferenceService"
HEALTH_SERVICE = "grpc.health.v1.Health"

# Kinds of shared memory, by the beginning of the names of their methods.
_REGION_KINDS = {"System": "system", "Cuda": "cuda"}

# A protobuf message: the classes are created at run time and have no static types.
Message: TypeAlias = Any


class Method(NamedTuple):
    """One unary call."""

    request: type[Message]
    answer: Callable[[Message], Awaitable[Message]]
    large: bool = False  # whether messages above `MAX_INLINE_BYTES` are accepted

    @property
    def max_bytes(self) -> int:
        """The size of the largest message: requests without fields hold at most some that this server does not know."""
        if self.large:
            return MAX_MESSAGE_SIZE
        return MAX_INLINE_BYTES if self.request.DESCRIPTOR.fields else _MAX_UNKNOWN_BYTES

    async def __call__(self, data: Buffer) -> bytes:
        """Answer a serialized request. Raises ConchError."""
        if len(data) > MAX_INLINE_BYTES and not self.large:
            raise InvalidRequest(f"a message of {len(data)} bytes exceeds the maximum of {MAX_INLINE_BYTES} bytes")
        if len(data) > MAX_INLINE_BYTES:
            if split_fields(data) is None:  # which bounds the number of fields, too
                raise InvalidRequest(f"failed to parse the request as {self.request.DESCRIPTOR.full_name}")
            check_texts(data, self.request.DESCRIPTOR)
        try:
            request = self.request.FromString(data)
        except DecodeError as error:
            name = self.request.DESCRIPTOR.full_name
            raise InvalidRequest(f"failed to parse the request as {name}: {error}") from None
        return bytes((await self.answer(request)).SerializeToString())


class InferenceService:
    """The methods for health, metadata, statistics, settings, shared memory and model control."""

    def __init__(self, parts: Parts) -> None:
        self._inference = parts.inference
        self._control = parts.control
        self._observer = parts.observer
        self._log = parts.log
        self._memory = parts.shared_memory
        self._server_name = parts.options.id
        self._extensions = documents.extensions(shared_memory=parts.shared_memory is not None)

    def methods(self) -> dict[str, Method]:
        """Return the unary calls but ModelInfer, by their paths."""
        described = {
            "ServerLive": Method(service_pb2.ServerLiveRequest, self._server_live),
            "ServerReady": Method(service_pb2.ServerReadyRequest, self._server_ready),
            "ModelReady": Method(service_pb2.ModelReadyRequest, self._model_ready),
            "ServerMetadata": Method(service_pb2.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": Method(service_pb2.ModelMetadataRequest, self._model_metadata),
            "ModelConfig": Method(service_pb2.ModelConfigRequest, self._model_config),
            "ModelStatistics": Method(service_pb2.ModelStatisticsRequest, self._model_statistics),
            "RepositoryIndex": Method(service_pb2.RepositoryIndexRequest, self._repository_index),
            "RepositoryModelLoad": Method(service_pb2.RepositoryModelLoadRequest, self._load, large=True),
            "RepositoryModelUnload": Method(service_pb2.RepositoryModelUnloadRequest, self._unload),
            "TraceSetting": Method(service_pb2.TraceSettingRequest, self._trace_setting),
            "LogSettings": Method(service_pb2.LogSettingsRequest, self._log_settings),
        }
        regions = {"Status": self._region_status, "Register": self._register, "Unregister": self._unregister}
        for kind in _REGION_KINDS:
            for action, answer in regions.items():
                request = getattr(service_pb2, f"{kind}SharedMemory{action}Request")
                described[f"{kind}SharedMemory{action}"] = Method(request, answer)
        methods = {f"/{INFERENCE_SERVICE}/{name}": method for name, method in described.items()}
        health = Method(health_proto.HealthCheckRequest, self._health_check)
        return methods | {f"/{HEALTH_SERVICE}/Check": health}

    async def _server_live(self, _: Message) -> Message:
        return service_pb2.ServerLiveResponse(live=self._inference.live())

    async def _server_ready(self, _: Message) -> Message:
        return service_pb2.ServerReadyResponse(ready=self._inference.ready())

    async def _health_check(self, _: Message) -> Message:
        """Any service name gets the same answer, as with Triton."""
        return health_proto.HealthCheckResponse(
            status=health_proto.SERVING if self._inference.ready() else health_proto.NOT_SERVING
        )

    async def _model_ready(self, request: Message) -> Message:
        version = parse_version(request.version)
        ready = await self._inference.model_ready(request.name, version)
        return service_pb2.ModelReadyResponse(ready=ready)

    async def _server_metadata(self, _: Message) -> Message:
        return service_pb2.ServerMetadataResponse(
            name=self._server_name, version=conch.__version__, extensions=self._extensions
        )

    async def _model_metadata(self, request: Message) -> Message:
        version = parse_version(request.version)
        model = self._inference.model(request.name, version)
        versions = self._inference.versions(request.name) if version is None else [version]
        return proto_documents.model_metadata(model.config, versions)

    async def _model_config(self, request: Message) -> Message:
        model = self._inference.model(request.name, parse_version(request.version))
        return proto_documents.model_config(model.config)

    async def _model_statistics(self, request: Message) -> Message:
        models = self._inference.statistics(request.name, parse_version(request.version))
        answer = proto_documents.model_statistics(models[:_SLICE_MODELS])
        for start in range(_SLICE_MODELS, len(models), _SLICE_MODELS):
            await asyncio.sleep(0)  # serve other requests in between
            answer.MergeFrom(proto_documents.model_statistics(models[start : start + _SLICE_MODELS]))
        return answer

    async def _repository_index(self, request: Message) -> Message:
        _refuse_repository_name(request)
        index = service_pb2.RepositoryIndexResponse()
        for entry in self._control.index(request.ready):
            index.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
        return index

    async def _load(self, request: Message) -> Message:
        await asyncio.sleep(0)  # parsing took its time, and strings of megabytes are decoded now
        _refuse_repository_name(request)
        config, files = proto_documents.load_parameters(request.parameters)
        await self._control.load(request.model_name, config, files)
        return service_pb2.RepositoryModelLoadResponse()

    async def _unload(self, request: Message) -> Message:
        _refuse_repository_name(request)
        unload_dependents = proto_documents.unload_parameters(request.parameters)
        await self._control.unload(request.model_name, unload_dependents)
        return service_pb2.RepositoryModelUnloadResponse()

    async def _trace_setting(self, request: Message) -> Message:
        """Answer with the settings of a model, or of all, after applying the requested changes."""
        model = request.model_name
        if model:
            check_model(self._inference, model)
        if request.settings:
            self._observer.update(model, proto_documents.read_trace_changes(request))
        return proto_documents.trace_settings(self._observer.document(model))

    async def _log_settings(self, request: Message) -> Message:
        """Answer with the log's settings after applying the requested changes."""
        try:
            self._log.update(proto_documents.read_log_changes(request))
        except ConchError as error:
            if error.code is Code.UNAVAILABLE:  # which Triton says over HTTP only
                raise InvalidRequest(error.message.replace("--log_format", "log_format")) from None
            raise
        self._observer.follow_verbosity(self._log.log_verbose_level)
        return proto_documents.log_settings(self._log.document())

    async def _region_status(self, request: Message) -> Message:
        response = _response_of(request)
        for row in self._allowed(request).status(request.name, _region_kind(request)):
            for field, value in row.items():
                setattr(response.regions[row["name"]], field, value)
        return response

    async def _register(self, request: Message) -> Message:
        memory = self._allowed(request)
        if _region_kind(request) == "cuda":
            memory.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
        else:
            memory.register(request.name, request.key, request.offset, request.byte_size)
        return _response_of(request)

    async def _unregister(self, request: Message) -> Message:
        self._allowed(request).unregister(request.name, _region_kind(request))
        return _response_of(request)

    def _allowed(self, request: Message) -> SharedMemory:
        """Return the regions. Raises Unsupported where clients may not share memory."""
        if self._memory is None:
            raise not_allowed(request.DESCRIPTOR.name.removesuffix("Request"))
        return self._memory


def _region_kind(request: Message) -> str:
    return _REGION_KINDS[request.DESCRIPTOR.name.partition("SharedMemory")[0]]


def _response_of(request: Message) -> Message:
    """Return an empty response to a request."""
    return getattr(service_pb2, request.DESCRIPTOR.name.removesuffix("Request") + "Response")()


def _refuse_repository_name(request: Message) -> None:
    if request.repository_name:
        raise Unsupported("'repository_name' specification is not supported")
