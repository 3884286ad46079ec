# Compiled by mypyc in wheels.
"""A v2 request between the look-up of its model and its admission, decoded on the event loop or by a worker process."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from conch.base.errors import Cancelled, ConchError, QueueFull
from conch.domain.request import Admitted, InferRequest, Respond, Timeline, TokenMeter
from conch.domain.tensor import Buffer
from conch.protocols.http.errors import send_error
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.v2_json.request_id import peek_id
from conch.server.core.inference import Inference
from conch.server.core.served_model import ServedModel
from conch.server.frontends.offload.pool import OffloadPool, Outcome
from conch.server.frontends.request_headers import Tenants
from conch.server.observability.tracing.request_trace import Trace

_log: Final = logging.getLogger(__name__)
LENGTH_HEADER: Final = b"inference-header-content-length"


def check_room(
    inference: Inference, model: ServedModel, timeline: Timeline, request: HttpRequest, tenants: Tenants
) -> TokenMeter | None:
    """Refuse a request for which there is no room, before its body is decoded; count it towards the limits.

    Returns where its tokens count. Raises QueueFull, DeadlineMissed, LimitExceeded.
    """
    try:
        if inference.limiter is not None:
            return inference.admit(model, timeline, tenants.of_http(request))
        model.check_room(timeline)
    except QueueFull as error:
        raise error.of_request(peek_id(request.body, request.headers.get(LENGTH_HEADER))) from None
    return None


class InFlight:
    """One request in flight. `version` is the one in the path, None where it has none."""

    __slots__ = ("meter", "model", "pool", "reply", "request", "tenants", "timeline", "trace", "version")

    def __init__(
        self,
        request: HttpRequest,
        reply: HttpReply,
        model: ServedModel,
        version: int | None,
        timeline: Timeline,
        trace: Trace | None,
        meter: TokenMeter | None,
        pool: OffloadPool,
        tenants: Tenants,
    ) -> None:
        self.request = request
        self.reply = reply
        self.model = model
        self.version = version
        self.timeline = timeline
        self.trace = trace
        self.meter = meter
        self.pool = pool
        self.tenants = tenants

    def client(self) -> str:
        """Return the client in whose turn worker processes work for this request."""
        return self.tenants.client_of_http(self.request, self.reply.peer)

    def fail(self, error: ConchError) -> None:
        """Send an error."""
        send_error(self.reply, error)

    def decode(
        self,
        job: str,
        args: Mapping[str, Any],
        parts: Sequence[Buffer],
        admit: Callable[[Outcome], None],
        size: int,
    ) -> None:
        """Have a worker process decode the body, and call `admit` with the outcome. Raises Unavailable.

        `size` is that of the body in bytes, as far as it is known, when it is decompressed.
        Errors of the job and of `admit` are sent to the client.
        """
        done = partial(self._decoded, admit)
        self.reply.on_disconnect = self.pool.submit(job, args, parts, done, client=self.client(), size=size).cancel

    def admit(self, inference: Inference, request: InferRequest, respond: Respond) -> Admitted:
        """Pass the decoded request to the core; it is cancelled if the client disconnects. Raises ConchError."""
        if self.trace is not None:
            self.trace.read(request, self.model.version)
            respond = self.trace.relay(respond)
        request.meter = self.meter
        admitted = inference.infer(self.model, request, respond)
        if self.reply.open:
            self.reply.on_disconnect = admitted.cancel
        return admitted

    def _decoded(self, admit: Callable[[Outcome], None], outcome: Outcome | ConchError) -> None:
        try:
            if not self.reply.open:
                raise Cancelled("request was cancelled by the client")
            if isinstance(outcome, ConchError):
                raise outcome
            admit(outcome)
        except ConchError as error:
            if self.trace is not None:
                self.trace.refused(error)
            self.fail(error)
        except Exception:
            _log.exception('HTTP request "%r" failed unexpectedly', self.request)
            self.reply.fail()
