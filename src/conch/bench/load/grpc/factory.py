"""Connections of gRPC to an endpoint, and its requests in encoded form."""

from conch.bench.load.connection import EncodedRequest, LoadConnection, LoadOwner
from conch.bench.load.connection_factory import ConnectionFactory
from conch.bench.load.grpc.connection import GrpcConnection, grpc_fields
from conch.bench.load.grpc.messages import encode_grpc
from conch.bench.load.wire import Wire
from conch.bench.load_plan import Endpoint
from conch.bench.prepared_request import AnswerCheck, PreparedRequest


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
        self._grpc_fields = grpc_fields(endpoint.host, endpoint.port, endpoint.headers)

    def encode(self, request: PreparedRequest, keep_body: bool) -> EncodedRequest:
        return EncodedRequest(request, encode_grpc(request), keep_body)

    def _connection(self, owner: LoadOwner, wire: Wire) -> LoadConnection:
        return GrpcConnection(owner, wire, self._requests, self._grpc_fields, self._answers)
