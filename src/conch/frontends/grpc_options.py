"""`--grpc-…` options in grpcio's terms: channel arguments, credentials, compression. Reads files, opens no port."""

from pathlib import Path

import grpc

from conch.errors import ConfigError
from conch.options import ServerOptions

# The largest message that gRPC can express, as in Triton: tensors are large, and the limit of 4 MiB is no protection.
MAX_MESSAGE_SIZE = 2**31 - 1

# What Triton's levels come to: gRPC takes the first algorithm that the client accepts for "low" and its stronger ones
# for the others; of the two in common use, gzip and deflate, Python can ask for either but for no level.
_COMPRESSION = {
    "none": grpc.Compression.NoCompression,
    "low": grpc.Compression.Gzip,
    "medium": grpc.Compression.Deflate,
    "high": grpc.Compression.Deflate,
}


def channel_arguments(options: ServerOptions) -> list[tuple[str, int]]:
    """Return the channel arguments of a server."""
    arguments = [
        # Without this two servers share a port unnoticed and each gets a part of the calls.
        ("grpc.so_reuseport", int(options.reuse_grpc_port)),
        ("grpc.max_receive_message_length", MAX_MESSAGE_SIZE),
        ("grpc.max_send_message_length", MAX_MESSAGE_SIZE),
        ("grpc.keepalive_time_ms", options.grpc_keepalive_time),
        ("grpc.keepalive_timeout_ms", options.grpc_keepalive_timeout),
        ("grpc.keepalive_permit_without_calls", int(options.grpc_keepalive_permit_without_calls)),
        ("grpc.http2.max_pings_without_data", options.grpc_http2_max_pings_without_data),
        ("grpc.http2.min_ping_interval_without_data_ms", options.grpc_http2_min_recv_ping_interval_without_data),
        ("grpc.http2.max_ping_strikes", options.grpc_http2_max_ping_strikes),
    ]
    if options.grpc_max_connection_age:
        arguments.append(("grpc.max_connection_age_ms", options.grpc_max_connection_age))
    if options.grpc_max_connection_age_grace:
        arguments.append(("grpc.max_connection_age_grace_ms", options.grpc_max_connection_age_grace))
    return arguments


def response_compression(options: ServerOptions) -> grpc.Compression:
    """Return how inference responses are compressed, if the client accepts it."""
    return _COMPRESSION[options.grpc_infer_response_compression_level]


def server_credentials(options: ServerOptions) -> grpc.ServerCredentials | None:
    """Return the credentials for TLS, None for plain text. Raises ConfigError if a file cannot be read."""
    if not options.grpc_use_ssl:
        return None
    certificate = _read("--grpc-server-cert", options.grpc_server_cert)
    key = _read("--grpc-server-key", options.grpc_server_key)
    if options.grpc_use_ssl_mutual:
        root = _read("--grpc-root-cert", options.grpc_root_cert)
        return grpc.ssl_server_credentials([(key, certificate)], root, require_client_auth=True)
    return grpc.ssl_server_credentials([(key, certificate)])


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read '{path}': {error.strerror}") from None
