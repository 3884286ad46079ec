"""The server as the parts of a connection see it."""

from collections.abc import Callable
from typing import Protocol

from conch.frontends.body_budget import BodyBudget
from conch.frontends.http.message import HttpLimits, HttpRefusal, HttpRequest
from conch.frontends.http.reply import HttpReply
from conch.frontends.loop_budget import ParseBudget
from conch.frontends.traffic import Traffic

Handler = Callable[[HttpRequest, HttpReply], None]


class ServerContext(Protocol):
    """Handler, limits, budgets and clock of a server."""

    handler: Handler
    body_limit: Callable[[HttpRequest], int] | None
    # Returns why a request is refused whatever its body is, None if it is not. Called with the head alone.
    refusal: Callable[[HttpRequest], HttpRefusal | None] | None
    budget: BodyBudget
    parse_budget: ParseBudget
    traffic: Traffic
    limits: HttpLimits
    now: float  # monotonic seconds, updated once a second
