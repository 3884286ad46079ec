"""KServe v2 over gRPC, by calls to find out what a server is."""

from typing import Any

from conch.measure.bench.generator import Endpoint, PreparedRequest
from conch.measure.bench.targets.http_probe import TIMEOUT_S
from conch.measure.bench.targets.server_api import (
    KeyNeeded,
    ListedModel,
    ServerApi,
    ServerIdentity,
    check_loading,
    listed,
    model_of_metadata,
)
from conch.measure.bench.targets.single_request import connected, send_alone
from conch.measure.bench.targets.target import RequestFailure, TargetError, TargetModel

_SERVICE = "/inference.GRPCInferenceService/"
_UNIMPLEMENTED = 12
_LOCKED = (16, 7)  # UNAUTHENTICATED, PERMISSION_DENIED
_UNKNOWN_MODEL = (5, 14)  # NOT_FOUND; UNAVAILABLE: it is not ready


def method_path(method: str) -> str:
    """Return the path of a method of KServe's inference service."""
    return _SERVICE + method


def call(endpoint: Endpoint, method: str, message: bytes) -> bytes:
    """Call a method and return its response. Raises RequestFailure, TargetError."""
    return send_alone(endpoint, PreparedRequest(0, method_path(method).encode(), message)).body


def speaks_http2(endpoint: Endpoint) -> bool:
    """Whether the server begins an HTTP/2 connection."""
    from conch.protocols.http2 import frames

    try:
        with connected(endpoint, TIMEOUT_S) as wire:
            wire.send(frames.PREFACE + frames.settings_frame({}))
            head = wire.receive() or b""
    except (TargetError, OSError):
        return False
    return len(head) >= frames.HEAD_BYTES and head[3] == frames.SETTINGS and not head.startswith(b"HTTP/")


class KServeGrpc(ServerApi):
    """The service GRPCInferenceService."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def identity(self) -> ServerIdentity | None:
        document = self._call("ServerMetadata", "ServerMetadataRequest", "ServerMetadataResponse", {})
        return None if document is None else ServerIdentity(document.get("name", ""), document.get("version", ""))

    def models(self) -> list[ListedModel] | None:
        document = self._call("RepositoryIndex", "RepositoryIndexRequest", "RepositoryIndexResponse", {})
        return None if document is None else [listed(row) for row in document.get("models", ())]

    def model(self, name: str, version: str) -> TargetModel | None:
        fields = {"name": name, "version": version}
        try:
            metadata = self._call("ModelMetadata", "ModelMetadataRequest", "ModelMetadataResponse", fields)
        except RequestFailure as failure:
            check_loading(failure.message)
            if failure.status in _UNKNOWN_MODEL:
                return None
            raise
        if metadata is None:
            return None
        try:
            document = self._call("ModelConfig", "ModelConfigRequest", "ModelConfigResponse", fields)
        except RequestFailure:
            document = None
        return model_of_metadata(metadata, (document or {}).get("config"), version)

    def _call(self, method: str, request: str, response: str, fields: dict[str, str]) -> dict[str, Any] | None:
        """Return the response as a document, or None if the server does not have the method."""
        from google.protobuf.json_format import MessageToDict

        from conch.domain.triton_messages import service_pb2

        try:
            data = call(self._endpoint, method, getattr(service_pb2, request)(**fields).SerializeToString())
        except RequestFailure as failure:
            if failure.status in _LOCKED:
                raise KeyNeeded(f"{method} needs a key ({failure.message}); give it with --api-key-file") from None
            if failure.status == _UNIMPLEMENTED:
                return None
            raise
        message = getattr(service_pb2, response).FromString(data)
        document: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
        return document
