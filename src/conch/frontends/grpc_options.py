"""`--grpc-…` options in grpcio's terms: channel arguments, credentials, compression. Reads files, opens no port."""

import ssl
from pathlib import Path

import grpc

from conch.errors import ConfigError
from conch.options import ServerOptions

# The largest message that gRPC can express, as in Triton: tensors are large, and the limit of 4 MiB is no protection.
MAX_MESSAGE_SIZE = 2**31 - 1

# Values of the C enumeration `grpc_compression_level`; gRPC chooses among the algorithms that the client accepts.
_COMPRESSION_LEVELS = {"none": 0, "low": 1, "medium": 2, "high": 3}


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
        ("grpc.default_compression_level", _COMPRESSION_LEVELS[options.grpc_infer_response_compression_level]),
    ]
    if options.grpc_max_connection_age:
        arguments.append(("grpc.max_connection_age_ms", options.grpc_max_connection_age))
    if options.grpc_max_connection_age_grace:
        arguments.append(("grpc.max_connection_age_grace_ms", options.grpc_max_connection_age_grace))
    return arguments


def server_credentials(options: ServerOptions) -> grpc.ServerCredentials | None:
    """Return the credentials for TLS, None for plain text. Raises ConfigError for a file that is missing or wrong."""
    if not options.grpc_use_ssl:
        return None
    _check_files(options)
    certificate = Path(options.grpc_server_cert).read_bytes()
    key = Path(options.grpc_server_key).read_bytes()
    if options.grpc_use_ssl_mutual:
        root = Path(options.grpc_root_cert).read_bytes()
        return grpc.ssl_server_credentials([(key, certificate)], root, require_client_auth=True)
    return grpc.ssl_server_credentials([(key, certificate)])


def _check_files(options: ServerOptions) -> None:
    """Look at the files with OpenSSL: grpcio finds faults only as it opens the port, and keeps them to itself."""
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    flags, paths = "--grpc-server-cert, --grpc-server-key", f"'{options.grpc_server_cert}', '{options.grpc_server_key}'"
    try:
        probe.load_cert_chain(options.grpc_server_cert, options.grpc_server_key)
        if options.grpc_use_ssl_mutual:
            flags, paths = "--grpc-root-cert", f"'{options.grpc_root_cert}'"
            probe.load_verify_locations(options.grpc_root_cert)
    except ssl.SSLError as error:
        raise ConfigError(f"{flags}: {paths} cannot be used: {error.reason or error}") from None
    except OSError as error:
        raise ConfigError(f"{flags}: cannot read {paths}: {error.strerror}") from None
