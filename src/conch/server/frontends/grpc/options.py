"""`--grpc-…` options in the terms of the listener: limits of connections, TLS. Reads files, opens no port."""

import ssl

from conch.base.errors import ConfigError
from conch.protocols.http2.limits import Http2Limits
from conch.server.options.server_options import ServerOptions


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


def tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """Return the TLS context, None for plain text. Raises ConfigError for a file that is missing or wrong."""
    if not options.grpc_use_ssl:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    flags, paths = "--grpc-server-cert, --grpc-server-key", f"'{options.grpc_server_cert}', '{options.grpc_server_key}'"
    try:
        # An empty password for an encrypted key: an error instead of a prompt.
        context.load_cert_chain(options.grpc_server_cert, options.grpc_server_key, password="")
        if options.grpc_use_ssl_mutual:
            flags, paths = "--grpc-root-cert", f"'{options.grpc_root_cert}'"
            context.load_verify_locations(options.grpc_root_cert)
            context.verify_mode = ssl.CERT_REQUIRED
    except ssl.SSLError as error:
        raise ConfigError(f"{flags}: {paths} cannot be used: {error.reason or error}") from None
    except OSError as error:
        raise ConfigError(f"{flags}: cannot read {paths}: {error.strerror}") from None
    return context
