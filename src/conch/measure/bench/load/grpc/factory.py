"""Connections of gRPC to an endpoint, and its requests in encoded form."""

from conch.measure.bench.generator import AnswerCheck, Endpoint, PreparedRequest
from conch.measure.bench.load.connection import EncodedRequest, LoadConnection, LoadOwner, Wire
from conch.measure.bench.load.connection_factory import ConnectionFactory
from conch.measure.bench.load.grpc.connection import GrpcConnection, grpc_fields
from conch.measure.bench.load.grpc.messages import encode_grpc


class GrpcConnectionFactory(ConnectionFactory):
    """What all connections of a process have in common. Each has at most `requests` in flight."""

    def __init__(
        self,
        endpoint: Endpoint,
        address: tuple[int, tuple[object, ...]],
        requests: int,
        check: AnswerCheck | None = None,
    ) -> None:
        super().__init__(endpoint, address, check)
        self._requests = requests
        self._grpc_fields = grpc_fields(endpoint)

    def encode(self, request: PreparedRequest, keep_body: bool) -> EncodedRequest:
        return EncodedRequest(request, encode_grpc(request), keep_body)

    def _connection(self, owner: LoadOwner, wire: Wire) -> LoadConnection:
        return GrpcConnection(owner, wire, self._requests, self._grpc_fields, self._answers)
