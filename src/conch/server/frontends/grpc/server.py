"""The gRPC frontend: the service on an HTTP/2 listener, from opening the port to the last call."""

import os
from collections.abc import Mapping

from conch.protocols.connections.tls import ReloadedTls, TlsFiles
from conch.protocols.connections.traffic import Traffic
from conch.protocols.http2.limits import Http2Limits
from conch.protocols.http2.server import Http2Server
from conch.server.frontends.grpc.dispatch import Dispatcher, Opener
from conch.server.frontends.parts import Parts
from conch.server.frontends.v2_grpc.service import InferenceService, Method
from conch.server.options.server_options import ServerOptions


class GrpcFrontend(Http2Server[Opener]):
    """Serves `inference.GRPCInferenceService` and the health service. Life: `start` → `stop`."""

    def __init__(self, parts: Parts, methods: Mapping[str, Method] | None = None) -> None:
        """Create the listener. `methods` are the unary calls but ModelInfer, by default those of the service.

        Raises ConfigError for invalid files, patterns and restrictions.
        """
        options, traffic = parts.options, Traffic()
        limits = http2_limits(options)
        self._calls = Dispatcher(parts, methods or InferenceService(parts).methods(), limits.header_bytes, traffic)
        super().__init__(
            options.grpc_address,
            options.grpc_port,
            interpret=self._calls.interpret,
            accept=lambda opener, stream: opener(stream),
            limits=limits,
            tls=_tls(options),
            reuse_port=options.reuse_grpc_port,
            traffic=traffic,
        )

    async def start(self, *, listen: bool = True, attempts: int = 1) -> None:
        try:
            await super().start(listen=listen, attempts=attempts)
        except OSError as error:
            host = self._host or "0.0.0.0"  # noqa: S104 - what "" means
            address = f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(error.errno, f"gRPC cannot listen on {address}: {reason}") from None

    async def stop(self, grace_s: float) -> None:
        """Refuse further calls, give those that run `grace_s` seconds to finish, then cancel them."""
        self._calls.stop_streams()
        await super().stop(grace_s)


def http2_limits(options: ServerOptions) -> Http2Limits:
    """Return the limits of a connection."""
    return Http2Limits(
        keepalive_s=options.grpc_keepalive_time / 1000,
        keepalive_timeout_s=options.grpc_keepalive_timeout / 1000,
        keepalive_idle=options.grpc_keepalive_permit_without_calls,
        pings_without_data=options.grpc_http2_max_pings_without_data,
        ping_interval_s=options.grpc_http2_min_recv_ping_interval_without_data / 1000,
        ping_strikes=options.grpc_http2_max_ping_strikes,
        age_s=options.grpc_max_connection_age / 1000,
        age_grace_s=options.grpc_max_connection_age_grace / 1000,
    )


def _tls(options: ServerOptions) -> ReloadedTls | None:
    """Return the TLS of the port, None for plain text. Raises ConfigError for a file that is missing or wrong."""
    if not options.grpc_use_ssl:
        return None
    root = options.grpc_root_cert if options.grpc_use_ssl_mutual else ""
    return ReloadedTls(TlsFiles("--grpc", options.grpc_server_cert, options.grpc_server_key, root), "h2")
