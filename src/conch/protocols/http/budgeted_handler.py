# Compiled by mypyc in wheels.
"""The bound on requests in one turn of the event loop, applied to the handler of an HTTP listener."""

from functools import partial

from conch.protocols.connections.loop_budget import LoopBudget
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.sender import handle
from conch.protocols.http.server_context import Handler


class BudgetedHandler:
    """Calls another handler, at once or, when this turn of the event loop is used up, in a later one."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._loop_budget = LoopBudget()

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        if self._loop_budget.acquire():
            self._handler(request, reply)
        else:
            self._loop_budget.postpone(partial(self._handle_later, request, reply))

    def _handle_later(self, request: HttpRequest, reply: HttpReply) -> None:
        if reply.open:
            handle(self._handler, request, reply)
