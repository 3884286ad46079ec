"""The gRPC frontend: the service on an HTTP/2 listener, from opening the port to the last call."""

import os

from conch.base.logs import LogSettings
from conch.protocols.access.api_keys import ApiKeys
from conch.protocols.access.authorization import Access
from conch.protocols.access.restrictions import grpc_restrictions, secret_headers
from conch.protocols.connections.body_budget import DEFAULT_LIMIT_BYTES, BodyBudget
from conch.protocols.connections.traffic import Traffic
from conch.protocols.http2.server import Http2Server
from conch.protocols.regions import NO_REGIONS
from conch.protocols.v2_proto.parameters import is_reserved
from conch.server.core.inference import Inference
from conch.server.core.loading.model_manager import ModelManager
from conch.server.core.shared_memory.regions import SharedMemory
from conch.server.frontends.forwarded_headers import ForwardedHeaders
from conch.server.frontends.grpc.dispatch import Dispatcher, Opener
from conch.server.frontends.grpc.options import http2_limits, tls_context
from conch.server.frontends.offload.pool import OffloadPool
from conch.server.frontends.tenants import Tenants
from conch.server.frontends.v2_grpc.infer import GrpcInferEndpoint
from conch.server.frontends.v2_grpc.service import InferenceService
from conch.server.observability.tracing.observer import Observer
from conch.server.options.server_options import ServerOptions


class GrpcFrontend:
    """Serves `inference.GRPCInferenceService` and the health service. Life: `start` → `stop`."""

    def __init__(
        self,
        inference: Inference,
        control: ModelManager,
        options: ServerOptions,
        shared_memory: SharedMemory | None = None,
        observer: Observer | None = None,
        log: LogSettings | None = None,
        budget: BodyBudget | None = None,
        pool: OffloadPool | None = None,
        keys: ApiKeys | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        self._keys = keys
        self._tenants = tenants
        self._budget = budget or BodyBudget(DEFAULT_LIMIT_BYTES)
        self._options = options
        self._pool = pool
        self._observer = observer or Observer()
        self._service = InferenceService(inference, control, options.id, shared_memory, self._observer, log)
        self._regions = shared_memory or NO_REGIONS
        self._inference = inference
        self._calls: Dispatcher | None = None
        self._server: Http2Server[Opener] | None = None
        self.traffic = Traffic()
        self.port = options.grpc_port

    async def start(self, *, listen: bool = True) -> None:
        """Bind the port, and accept connections now or at `listen`; afterwards `port` is the port.

        Raises OSError if the address is not available, ConfigError for invalid files, patterns and restrictions.
        """
        options = self._options
        limits = http2_limits(options)
        calls = Dispatcher(
            self._service.methods(),
            GrpcInferEndpoint(
                self._inference,
                ForwardedHeaders(
                    options.grpc_header_forward_pattern,
                    is_reserved,
                    flag="--grpc-header-forward-pattern",
                    secret=secret_headers(options.http_restricted_api, options.grpc_restricted_protocol),
                ),
                self._regions,
                self._observer,
                self._pool,
                self._budget,
                self._tenants,
            ),
            Access(
                grpc_restrictions(options.grpc_restricted_protocol),
                self._keys,
            ),
            compression=options.grpc_infer_response_compression_level,
            header_limit=limits.header_bytes,
            budget=self._budget,
            traffic=self.traffic,
        )
        server: Http2Server[Opener] = Http2Server(
            options.grpc_address,
            options.grpc_port,
            interpret=calls.interpret,
            accept=lambda opener, stream: opener(stream),
            limits=limits,
            tls=tls_context(options),
            reuse_port=options.reuse_grpc_port,
            traffic=self.traffic,
        )
        try:
            await server.start(listen=listen)
        except OSError as error:
            raise _cannot_listen(options.grpc_address, options.grpc_port, error) from None
        self.port = server.port
        self._calls = calls
        self._server = server

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return 0 if self._server is None else self._server.connections

    async def listen(self) -> None:
        """Accept connections; before, the system refuses them."""
        if self._server is not None:
            await self._server.listen()

    def stop_accepting(self) -> None:
        """Stop accepting connections; open ones are not affected."""
        if self._server is not None:
            self._server.stop_accepting()

    def retire_connections(self) -> None:
        """Ask the clients of open connections to open others; calls on the present ones are still answered."""
        if self._server is not None:
            self._server.retire_connections()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, give those that run `grace_s` seconds to finish, then cancel them."""
        if self._server is not None and self._calls is not None:
            self._calls.stop_streams()
            await self._server.stop(grace_s)


def _cannot_listen(host: str, port: int, error: OSError) -> OSError:
    address = f"[{host}]:{port}" if ":" in host else f"{host or '0.0.0.0'}:{port}"  # noqa: S104 - what "" means
    reason = os.strerror(error.errno) if error.errno else str(error)
    return OSError(error.errno, f"gRPC cannot listen on {address}: {reason}")
