"""The input and output of the load generator: where requests go, what one level of load is, and what comes back."""

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from conch.measure.bench.prepared_request import AnswerCheck, ScriptSource

if TYPE_CHECKING:  # a benchmark asks the server what it is before it imports numpy
    import ssl

    import numpy as np
    from numpy.typing import NDArray


class Transport(Enum):
    """What runs on a connection."""

    HTTP1 = "http"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class Tls:
    """How to verify a server and how to authenticate to it. Paths are of PEM files."""

    ca_file: str | None = None  # None: the system's certificates
    certificate_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None  # None: the host

    def context(self, protocols: list[str]) -> "ssl.SSLContext":
        """Return a context that verifies as asked and offers `protocols`. Raises OSError on unreadable files."""
        import ssl  # takes time to import

        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file is not None:
            context.load_cert_chain(self.certificate_file, self.key_file)
        context.set_alpn_protocols(protocols)
        return context


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go. `headers` (lower-case name, value) go with each; they may hold keys and are never logged."""

    host: str
    port: int
    transport: Transport
    tls: Tls | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def place(self) -> str:
        """`host:port`, for URLs, header fields and messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`users` virtual users, each of which sends its next request `think_s` seconds after its answer."""

    users: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests at given times in seconds from the start, ascending, whether or not those before are answered.

    Latency counts from these times, so that a stalled server or client is not hidden (coordinated omission).
    `requests` are indexes into the fixed requests of the source, of the same length; None: in turn.
    `in_flight` bounds requests in flight; those beyond wait in the client, their latency running.
    """

    times_s: "NDArray[np.float64]"
    in_flight: int = 16_384
    requests: "NDArray[np.int64] | None" = None


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One level of load on one endpoint."""

    endpoint: Endpoint
    source: ScriptSource
    pacing: ClosedLoop | OpenLoop
    timeout_s: float = 60.0  # of one request
    connect_timeout_s: float = 10.0
    connections: int | None = None  # None: as many as requests are in flight (HTTP), one in 100 of them (gRPC)
    requests: int | None = None  # stop after this number; None: until stopped
    seed: int = 0
    check: AnswerCheck | None = None  # of answers; None: any answer of status 200 is right
    has_tokens: bool = True  # whether answers are of a language model; else a stream has responses
    processes: int | None = None  # None: as many as the load needs, at most one for each core
