"""`conch health`: ask a server on this machine whether it is ready. Imports little, as containers run it often."""

import os
import socket
import sys
from collections.abc import Sequence

_HEALTHY, _UNHEALTHY, _USAGE_ERROR = 0, 1, 2
_DEFAULT_PORT = "8000"
_TIMEOUT_S = 3
_MAX_INDEX_BYTES = 4 * 2**20
_MAX_NAMES = 5
_WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound
_ARGUMENTS = "it takes --live, --metadata and --port PORT; the variable CONCH_HTTP_ADDRESS is the server's address"
_HELP = """usage: conch health [--live] [--metadata] [--port PORT]

Print whether a server on this machine is ready: GET /v2/health/ready. The exit
status is 0 if it is, otherwise 1.

  --live       whether it is live instead: /v2/health/live. A live server may
               still be loading models, or draining.
  --metadata   then ask for the server's metadata too: GET /v2.
  --port PORT  its HTTP port; CONCH_HTTP_PORT or 8000 if not given.
               CONCH_HTTP_ADDRESS is its address. With CONCH_HTTP_USE_SSL=true
               it is asked over TLS; its certificate is not verified.
"""


def health(arguments: Sequence[str]) -> int:
    """Print the state of the server; return the exit status."""
    words = list(arguments)
    if "--help" in words or "-h" in words:
        from conch.base.command_line.command_table import examples_text

        print(_HELP, end=examples_text("health"))
        return _HEALTHY
    state = "live" if "--live" in words else "ready"
    paths = {state: f"/v2/health/{state}"}
    if "--metadata" in words:
        paths["answering metadata requests"] = "/v2"
    words = [word for word in words if word not in ("--live", "--metadata")]
    port = os.environ.get("CONCH_HTTP_PORT", _DEFAULT_PORT)
    if words[:1] == ["--port"] and len(words) > 1:
        words = [f"--port={words[1]}", *words[2:]]
    if words and words[0].startswith("--port="):
        port = words.pop(0).partition("=")[2]
    if words:
        return _complain(f"unknown argument {words[0]}; {_ARGUMENTS}")
    if not (port.isdecimal() and 0 < int(port) < 1 << 16):
        return _complain(f"port {port!r}: must be 1 to 65535")
    address = os.environ.get("CONCH_HTTP_ADDRESS", "")
    asked = (_ask(_WILDCARDS.get(address, address), int(port), *question) for question in paths.items())
    return next((status for status in asked if status), _HEALTHY)


def _ask(address: str, port: int, state: str, path: str) -> int:
    try:
        with _connected(address, port) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            reply = connection.makefile("rb").readline().split()
    except OSError as error:
        return _report(_UNHEALTHY, f"not {state}: {address}:{port}: {error}")
    if reply[1:2] == [b"200"]:
        return _report(_HEALTHY, state)
    why = _models_not_ready(address, port) if state == "ready" else ""
    status = b" ".join(reply[1:]).decode(errors="replace")
    return _report(_UNHEALTHY, f"not {state}: {address}:{port}: status {status}{why}")


def _connected(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), _TIMEOUT_S)
    if os.environ.get("CONCH_HTTP_USE_SSL", "").lower() not in ("1", "true"):
        return connection
    import ssl

    context = ssl._create_unverified_context()  # noqa: S323 - as the kubelet; nothing secret is sent
    try:
        return context.wrap_socket(connection)
    except BaseException:
        connection.close()
        raise


def _models_not_ready(address: str, port: int) -> str:
    """Return which models are loading or have failed; "" if the server does not say so, as to a client without key."""
    import json  # only where a server is not ready

    head = "POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    try:
        with _connected(address, port) as connection:
            connection.sendall(head.encode())
            answer = connection.makefile("rb").read(_MAX_INDEX_BYTES)
        rows = json.loads(answer.partition(b"\r\n\r\n")[2])
        states = [(str(row["name"]), row.get("state"), row.get("reason")) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    loading = {name for name, state, _ in states if state == "LOADING"}
    failed = {name for name, state, reason in states if state == "UNAVAILABLE" and reason not in ("", "unloaded", None)}
    return _named("loading", loading) + _named("failed", failed)


def _named(what: str, names: set[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMES} others" if len(names) > _MAX_NAMES else ""
    return f"; {what}: {', '.join(map(ascii, sorted(names)[:_MAX_NAMES]))}{more}"


def _report(status: int, text: str) -> int:
    print(text)
    return status


def _complain(problem: str) -> int:
    print(f"conch health: {problem}", file=sys.stderr)
    return _USAGE_ERROR
