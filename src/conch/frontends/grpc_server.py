"""The gRPC frontend: grpcio's asynchronous server on the event loop, from opening its port to the last call."""

import errno
import os
import socket

import grpc
import grpc.aio

from conch.core.inference import Inference
from conch.core.lifecycle import ModelControl
from conch.frontends.grpc_calls import Calls
from conch.frontends.grpc_options import channel_arguments, server_credentials
from conch.frontends.restrictions import Restrictions
from conch.frontends.v2_grpc import InferenceService
from conch.frontends.v2_grpc_infer import ForwardedHeaders, InferEndpoint
from conch.options import ServerOptions


class GrpcFrontend:
    """Serves `inference.GRPCInferenceService` and the health service. Life: `start` → `stop`."""

    def __init__(self, inference: Inference, control: ModelControl, options: ServerOptions) -> None:
        self._options = options
        self._service = InferenceService(inference, control, options.id)
        self._inference = inference
        self._calls: Calls | None = None
        self._server: grpc.aio.Server | None = None
        self.port = options.grpc_port

    async def start(self) -> None:
        """Listen; afterwards `port` is the port that is listened on.

        Raises OSError if the address cannot be had, ConfigError for files, patterns and restrictions that are wrong.
        """
        options = self._options
        calls = Calls(
            self._service.methods(),
            InferEndpoint(self._inference, ForwardedHeaders(options.grpc_header_forward_pattern)),
            Restrictions(
                options.grpc_restricted_protocol, flag="--grpc-restricted-protocol", prefix="triton-grpc-protocol-"
            ),
        )
        credentials = server_credentials(options)
        server = grpc.aio.server(handlers=(calls,), options=channel_arguments(options))
        address = _join(options.grpc_address, options.grpc_port)
        try:
            if credentials is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, credentials)
        except RuntimeError:
            raise _cannot_listen(options.grpc_address, options.grpc_port) from None
        await server.start()
        self._calls = calls
        self._server = server

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, give those that run `grace_s` seconds to finish, then cancel them."""
        if self._server is not None and self._calls is not None:
            self._calls.stop_streams()
            await self._server.stop(grace_s)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host or '0.0.0.0'}:{port}"  # noqa: S104 - what "" means


def _cannot_listen(host: str, port: int) -> OSError:
    """Make the error that grpcio keeps to itself, by trying once more what it tried."""
    reason = errno.EADDRNOTAVAIL
    try:
        family, kind, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError as error:
        reason = error.errno or reason
    return OSError(reason, f"gRPC cannot listen on {_join(host, port)}: {os.strerror(reason)}")
