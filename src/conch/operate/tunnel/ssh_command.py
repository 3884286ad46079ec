"""What a tunnel forwards and how, the command line of ssh, and why ssh ended."""

import ipaddress
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from conch.base.command_line.flag_values import value_kind
from conch.base.command_line.flags import flag_field
from conch.base.command_line.option_types import count, port
from conch.base.files.tables import table_rows

_FORWARD = re.compile(
    r"(?:(?P<bind>\[[^\]\s]+\]|[^:\[\]\s]+):)?(?P<port>\d+):(?P<host>\[[^\]\s]+\]|[^:\[\]\s]+):(?P<host_port>\d+)"
)
_TARGET = re.compile(r"(?:[A-Za-z0-9_][\w.-]*@)?(?P<host>[A-Za-z0-9][\w.:%-]*)", re.ASCII)
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Forward:
    """A port that ssh listens on, and where its connections go on the other side.

    `reverse`: the port is on the remote side, and the destination on this one (`ssh -R`).
    """

    bind: str
    port: int
    host: str
    host_port: int
    reverse: bool = False

    @classmethod
    def parse(cls, text: str, *, reverse: bool = False) -> "Forward":
        """Read `[BIND:]PORT:HOST:PORT`; without BIND the port is bound to loopback. Raises ValueError."""
        match = _FORWARD.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not a valid forward: [BIND:]PORT:HOST:PORT, such as 9400:localhost:9400")
        ports = int(match["port"]), int(match["host_port"])
        if not all(1 <= port <= _MAX_PORT for port in ports):
            raise ValueError(f"'{text}' is not a valid forward: ports are 1 to {_MAX_PORT}")
        return cls(_bare(match["bind"] or "127.0.0.1"), ports[0], _bare(match["host"]), ports[1], reverse)

    @property
    def loopback(self) -> bool:
        """Whether only processes of the machine that listens can connect."""
        if self.bind == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.bind).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        parts = (_bracketed(self.bind), str(self.port), _bracketed(self.host), str(self.host_port))
        return ":".join(parts)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise ArgumentTypeError(f"'{text}' is not a valid number of seconds")
    return value


def _path_or_none(text: str) -> str:
    if text and not re.fullmatch(r"/[!-~]*", text):
        raise ArgumentTypeError(f"'{text}' is not a valid path: it begins with /")
    return text


_SSH, _RETRIES = "ssh", "detection of failures, and retries"
_FILE, _SECONDS = value_kind("FILE", Path), value_kind("S", _seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelSettings:
    """One tunnel: one ssh process with all of its forwards, and its flags. Durations are in seconds."""

    target: str  # [user@]host
    forwards: tuple[Forward, ...]
    name: str  # value of the label `target`
    ssh_port: int = flag_field(22, _SSH, "port of sshd (default: 22)", value_kind("PORT", port))
    identity: Path | None = flag_field(None, _SSH, "private key (default: those of ssh and its agent)", _FILE)
    known_hosts: Path | None = flag_field(None, _SSH, "the only file of trusted host keys", _FILE)
    ssh_config: Path | None = flag_field(None, _SSH, "configuration of ssh instead of the user's", _FILE)
    ssh: str = flag_field("ssh", _SSH, "name or path of ssh (default: ssh)", value_kind("PROGRAM"))
    keepalive_s: int = flag_field(5, _RETRIES, "default: 5", value_kind("S", count), name="keepalive-secs")
    keepalive_count: int = flag_field(
        3, _RETRIES, "keepalives without an answer (default: 3)", value_kind("N", count), name="keepalive-count"
    )
    connect_timeout_s: int = flag_field(
        10, _RETRIES, "default: 10", value_kind("S", count), name="connect-timeout-secs"
    )
    min_backoff_s: float = flag_field(1.0, _RETRIES, "default: 1", _SECONDS, name="min-backoff-secs")
    max_backoff_s: float = flag_field(30.0, _RETRIES, "default: 30", _SECONDS, name="max-backoff-secs")
    stable_s: float = flag_field(
        60.0,
        _RETRIES,
        "duration of a connection after which the back-off begins again with the minimum (default: 60)",
        _SECONDS,
        name="stable-secs",
    )
    probe_path: str = flag_field(
        "/metrics",
        _RETRIES,
        "GET through each forward; an empty path disables probes (default: /metrics)",
        value_kind("PATH", _path_or_none),
    )
    probe_interval_s: float = flag_field(5.0, _RETRIES, "default: 5", _SECONDS, name="probe-interval-secs")

    @property
    def host(self) -> str:
        """The host without the user."""
        return self.target.rpartition("@")[2]

    @property
    def probe_timeout_s(self) -> float:
        """The time after which a probe without an answer is lost: that of the keepalive."""
        return float(self.keepalive_s * self.keepalive_count)

    @property
    def max_outage_s(self) -> float:
        """The maximum time between the end of an outage of the network and forwards that work again, without jitter.

        A connection that the outage broke is detected by the keepalive. An attempt that began during it times out.
        Then the back-off passes.
        """
        return self.keepalive_s * (self.keepalive_count + 1) + self.connect_timeout_s + self.max_backoff_s

    @property
    def key_files(self) -> tuple[Path, ...]:
        """The files whose change may repair a refused host key or identity."""
        known_hosts = self.known_hosts or Path("~/.ssh/known_hosts").expanduser()
        return (known_hosts, *(() if self.identity is None else (self.identity,)))


def parse_target(text: str) -> str:
    """Return `[user@]host` if it is valid. Raises ValueError; a text that ssh would read as an option is not valid."""
    if _TARGET.fullmatch(text) is None:
        shown = re.sub(r":[^@]*@", ":***@", text)  # a password is not repeated
        raise ValueError(f"'{shown}' is not a valid target: [USER@]HOST; the port is --ssh-port")
    return text


def ssh_command(settings: TunnelSettings, *, probe_sockets: Sequence[Path | None] = ()) -> list[str]:
    """Return the command line of ssh.

    Options on the command line have precedence over those of configuration files. `probe_sockets` has for each forward
    a Unix socket that is forwarded to the port on the remote side, so that a probe goes there and back; None for none.
    """
    options = {
        "BatchMode": "yes",
        "ClearAllForwardings": "no",
        "ConnectTimeout": str(settings.connect_timeout_s),
        "ConnectionAttempts": "1",
        "ControlMaster": "no",
        "ControlPath": "none",
        "ExitOnForwardFailure": "yes",
        "ForkAfterAuthentication": "no",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        "RequestTTY": "no",
        "ServerAliveCountMax": str(settings.keepalive_count),
        "ServerAliveInterval": str(settings.keepalive_s),
        "StreamLocalBindUnlink": "yes",
        "StrictHostKeyChecking": "yes",
        "TCPKeepAlive": "yes",
        "UpdateHostKeys": "no",
    }
    if settings.known_hosts is not None:
        options |= {"UserKnownHostsFile": _path(settings.known_hosts), "GlobalKnownHostsFile": "/dev/null"}
    if settings.identity is not None:
        options |= {"IdentityFile": _path(settings.identity), "IdentitiesOnly": "yes"}
    command = [settings.ssh, "-v", "-N", "-T", "-p", str(settings.ssh_port)]
    if settings.ssh_config is not None:
        command += ["-F", str(settings.ssh_config)]
    for name, value in options.items():
        command += ["-o", f"{name}={value}"]
    for forward in settings.forwards:
        command += ["-R" if forward.reverse else "-L", str(forward)]
    for forward, socket in zip(settings.forwards, probe_sockets, strict=False):
        if socket is not None:
            command += ["-L", f"{socket}:{_bracketed(remote_address(forward))}:{forward.port}"]
    return [*command, "--", settings.target]


def remote_address(forward: Forward) -> str:
    """Return the address at which the side that listens reaches the forward's port."""
    return {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(forward.bind, forward.bind)  # noqa: S104


def _path(path: Path) -> str:
    """Return a path as ssh reads it: quoted, and `%` begins a placeholder."""
    return '"' + str(path).replace("%", "%%") + '"'


def _bare(host: str) -> str:
    return host[1:-1] if host.startswith("[") else host


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class Retry(Enum):
    """When to start ssh again."""

    BACKOFF = "after the back-off"
    SLOWLY = "after the maximum back-off"  # a server may block addresses with many failed logins
    AFTER_CHANGE = "when a key file changes"  # a refusal that only an operator can resolve


@dataclass(frozen=True, slots=True)
class TunnelFailure:
    """A reason why a tunnel is down, of the table `failures.csv`. `pattern` finds it in OpenSSH's messages.

    `{host}`, `{port}`, `{entry}`, `{known_hosts}` and `{identity}` in message and remedy are filled in.
    """

    reason: str
    message: str
    remedy: str
    retry: Retry
    pattern: str


def _read() -> Iterator[TunnelFailure]:
    for row in table_rows(__file__, "failures.csv"):
        retry = Retry[row["retry"].replace(" ", "_").upper()]
        yield TunnelFailure(row["reason"], row["message"], row["remedy"], retry, row["pattern"])


# Of ssh's messages, the most specific first: a changed key ends in "Host key verification failed" as well. Those
# without a pattern come last: ssh exited, or runs and a probe of the tunnel or of the exporter behind it failed.
ALL_FAILURES = tuple(_read())
*_OF_SSH, EXITED, PROBE_TIMEOUT, EXPORTER = ALL_FAILURES


def failure_of(messages: Sequence[str]) -> tuple[TunnelFailure, str]:
    """Return why ssh ended, from the lines that it wrote to stderr, and the line that shows it ("" for none)."""
    for failure in _OF_SSH:
        for line in messages:
            if re.search(failure.pattern, line):
                return failure, line
    return EXITED, messages[-1] if messages else ""
