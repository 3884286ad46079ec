"""What a connection needs of the server that accepted it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from conch.frontends.body_budget import BodyBudget
from conch.frontends.http.message import HttpLimits, HttpRefusal, HttpRequest
from conch.frontends.http.reply import HttpReply
from conch.frontends.loop_budget import ParseBudget

if TYPE_CHECKING:  # each knows the other
    from conch.frontends.http.connection import HttpConnection

Handler = Callable[[HttpRequest, HttpReply], None]


class HttpConnectionOwner(Protocol):
    """The server, as its connections see it."""

    handler: Handler
    body_limit: Callable[[HttpRequest], int] | None
    # Why a request whose head has come is refused whatever its body is; None if it is not.
    refusal: Callable[[HttpRequest], HttpRefusal | None] | None
    budget: BodyBudget
    slices: ParseBudget
    limits: HttpLimits
    now: float  # monotonic seconds, brought up to date once a second

    def opened(self, connection: "HttpConnection") -> bool:
        """Count a connection in; False if there are too many."""

    def closed(self, connection: "HttpConnection") -> None:
        """Count it out."""
