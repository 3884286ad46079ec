"""Ports for servers that cannot choose one themselves."""

import secrets
import socket


def free_port() -> int:
    """Return a port that is free now, outside of the range of outgoing connections."""
    while True:
        port = 10000 + secrets.randbelow(20000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
