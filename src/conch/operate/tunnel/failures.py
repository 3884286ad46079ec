"""Why ssh ended, from its messages: a reason for the metric, a remedy for the operator, and when to retry. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Retry(Enum):
    """When to start ssh again."""

    BACKOFF = "after the back-off"
    SLOWLY = "after the maximum back-off"  # a server may block addresses with many failed logins
    AFTER_CHANGE = "when a key file changes"  # a refusal that only an operator can resolve


@dataclass(frozen=True, slots=True)
class TunnelFailure:
    """A reason why a tunnel is down. `{host}`, `{port}`, `{known_hosts}`, `{identity}` in a remedy are filled in."""

    reason: str
    message: str
    remedy: str = ""
    retry: Retry = Retry.BACKOFF


HOST_KEY_CHANGED = TunnelFailure(
    "host_key_changed",
    "the host key of {host} has changed: another machine may answer at this address",
    "compare the new fingerprint with the administrator of the host; only if it is right, remove the old key with "
    "ssh-keygen -R '{entry}' -f {known_hosts} and add the new one",
    Retry.AFTER_CHANGE,
)
HOST_KEY_UNKNOWN = TunnelFailure(
    "host_key_unknown",
    "the host key of {host} is not known",
    "run ssh-keyscan -p {port} {host}, compare the fingerprint with the administrator of the host, and append the "
    "line to {known_hosts}",
    Retry.AFTER_CHANGE,
)
KEY_PERMISSIONS = TunnelFailure(
    "key_permissions", "the identity file is readable by others", "chmod 600 {identity}", Retry.AFTER_CHANGE
)
AUTHENTICATION = TunnelFailure(
    "authentication",
    "{host} refused the login",
    "add the public key to authorized_keys of the user on the host, or choose another key with --identity",
    Retry.SLOWLY,
)
PORT_TAKEN = TunnelFailure(
    "port_taken", "the local port of a forward is in use", "stop the other program, or choose another port"
)
REMOTE_PORT = TunnelFailure(
    "remote_port",
    "{host} cannot listen on the port of a reverse forward",
    "choose another port, or check AllowTcpForwarding and GatewayPorts of its sshd; a port of a broken connection is "
    "free again once sshd notices (ClientAliveInterval)",
)
KEEPALIVE = TunnelFailure("keepalive", "{host} did not answer the keepalive")
UNREACHABLE = TunnelFailure("unreachable", "{host} is not reachable at port {port}")
CLOSED = TunnelFailure("closed", "{host} closed the connection")
CONFIGURATION = TunnelFailure(
    "configuration", "ssh rejects its options", "check --ssh-config, and the version of ssh", Retry.SLOWLY
)
EXITED = TunnelFailure("exited", "ssh exited")
# Of probes; ssh runs.
PROBE_TIMEOUT = TunnelFailure("probe_timeout", "no answer through the tunnel")
EXPORTER = TunnelFailure("exporter", "the tunnel works, but the exporter behind it does not answer")

ALL_FAILURES = (
    HOST_KEY_CHANGED,
    HOST_KEY_UNKNOWN,
    KEY_PERMISSIONS,
    AUTHENTICATION,
    PORT_TAKEN,
    REMOTE_PORT,
    KEEPALIVE,
    UNREACHABLE,
    CLOSED,
    CONFIGURATION,
    EXITED,
    PROBE_TIMEOUT,
    EXPORTER,
)

# Messages of OpenSSH, the most specific first: a changed key ends in "Host key verification failed" as well.
_MESSAGES = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY", HOST_KEY_CHANGED),
    (r"key is known for|Host key verification failed", HOST_KEY_UNKNOWN),
    (r"UNPROTECTED PRIVATE KEY FILE|bad permissions", KEY_PERMISSIONS),
    (r"Permission denied|Too many authentication failures", AUTHENTICATION),
    (r"remote port forwarding failed", REMOTE_PORT),
    (r"Address already in use|cannot listen to port|Could not request local forwarding", PORT_TAKEN),
    (r"^Timeout, server", KEEPALIVE),
    (r"Bad configuration option|unknown option|terminating, \d+ bad|keyword .* extra arguments", CONFIGURATION),
    (r"Connection refused|No route to host|timed out|Could not resolve|[Nn]etwork is unreachable", UNREACHABLE),
    (r"Host is down|banner exchange", UNREACHABLE),
    (r"[Cc]onnection .*(closed|reset)|Broken pipe|closed by remote host|Software caused", CLOSED),
)


def failure_of(messages: Sequence[str]) -> tuple[TunnelFailure, str]:
    """Return why ssh ended, from the lines that it wrote to stderr, and the line that shows it ("" for none)."""
    for pattern, failure in _MESSAGES:
        for line in messages:
            if re.search(pattern, line):
                return failure, line
    return EXITED, messages[-1] if messages else ""
