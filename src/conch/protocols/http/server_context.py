# Compiled by mypyc in wheels.
"""What all HTTP/1.1 connections of a server share."""

from collections.abc import Callable

from conch.protocols.connections.body_budget import BodyBudget
from conch.protocols.connections.loop_budget import ParseBudget
from conch.protocols.connections.traffic import SweepClock, Traffic
from conch.protocols.http.message import HttpLimits, HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply

Handler = Callable[[HttpRequest, HttpReply], None]


class ServerContext:
    """Handler, limits, budgets and clock of a server.

    `body_limit` returns the limit of a body that is incomplete or exceeds the default one. `refusal` returns why a
    request is refused whatever its body is, None if it is not; it is called with the head alone.
    """

    __slots__ = ("body_limit", "budget", "clock", "ending", "handler", "limits", "parse_budget", "refusal", "traffic")

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits,
        budget: BodyBudget,
        parse_budget: ParseBudget,
        traffic: Traffic,
        clock: SweepClock,
        *,
        body_limit: Callable[[HttpRequest], int] | None = None,
        refusal: Callable[[HttpRequest], HttpRefusal | None] | None = None,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.budget = budget
        self.parse_budget = parse_budget
        self.traffic = traffic
        self.clock = clock
        self.body_limit = body_limit
        self.refusal = refusal
        self.ending = False  # whether connections close after their next answer
