"""KServe v2 over gRPC."""

from typing import Any

from conch.measure.bench.targets.grpc_probe import NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED, GrpcFailure, GrpcProbe
from conch.measure.bench.targets.kserve_http import listed
from conch.measure.bench.targets.server_api import (
    KeyNeeded,
    ListedModel,
    ServerApi,
    ServerIdentity,
    check_loading,
    model_of_metadata,
)
from conch.measure.bench.targets.target import TargetModel

_LOCKED = (UNAUTHENTICATED, PERMISSION_DENIED)
_UNKNOWN_MODEL = (NOT_FOUND, 14)  # UNAVAILABLE: it is not ready
_UNIMPLEMENTED = 12


class KServeGrpc(ServerApi):
    """The service GRPCInferenceService."""

    def __init__(self, probe: GrpcProbe) -> None:
        self._probe = probe

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
        except GrpcFailure as failure:
            check_loading(failure.message)
            if failure.status in _UNKNOWN_MODEL:
                return None
            raise
        if metadata is None:
            return None
        try:
            found = self._call("ModelConfig", "ModelConfigRequest", "ModelConfigResponse", fields)
        except GrpcFailure:
            found = None
        return model_of_metadata(metadata, (found or {}).get("config"), version)

    def _call(self, method: str, request: str, response: str, fields: dict[str, str]) -> dict[str, Any] | None:
        """Return the response as a document, or None if the server does not have the method."""
        from google.protobuf.json_format import MessageToDict

        from conch.domain.triton_messages import service_pb2

        try:
            data = self._probe.call(method, getattr(service_pb2, request)(**fields).SerializeToString())
        except GrpcFailure as failure:
            if failure.status in _LOCKED:
                raise KeyNeeded(f"{method} needs a key ({failure.message}); give it with --api-key-file") from None
            if failure.status == _UNIMPLEMENTED:
                return None
            raise
        message = getattr(service_pb2, response).FromString(data)
        document: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
        return document
