"""The bodies of calls: small ones are read on the event loop, large ones by a worker process."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from conch.base.errors import ConchError
from conch.domain.request import Timeline
from conch.domain.tensor import Buffer
from conch.protocols.http.deadlines import DEADLINE, set_deadlines
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.fields import ReadCall
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.server.frontends.exchange_log import log_http
from conch.server.frontends.offload.pool import Outcome
from conch.server.frontends.openai.errors import refusal_of, send_refusal
from conch.server.frontends.parts import Parts

_C = TypeVar("_C", bound=ReadCall)
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDialect(Generic[_C]):
    """How an API reads calls, and writes errors.

    `read` reads a small body, `join` what a worker process has made of a large one by `job`. `refusal` writes the error
    of a call that has not been answered yet.
    """

    job: str
    read: Callable[[Buffer], _C]
    join: Callable[[Outcome], _C]
    refusal: Callable[[ConchError], HttpRefusal] = refusal_of


class CallReader(Generic[_C]):
    """Handler of a path: reads a call and begins it."""

    def __init__(
        self,
        parts: Parts,
        dialect: CallDialect[_C],
        begin: Callable[[HttpRequest, HttpReply, _C, Timeline], None],
    ) -> None:
        self._observer = parts.observer
        self._recorder = parts.recorder
        self._tenants = parts.tenants
        self._ignored_fields = parts.ignored_fields
        self._pool = parts.codecs
        self._dialect = dialect
        self._begin = begin

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one call, now or when the model has."""
        dialect, timeline = self._dialect, Timeline()
        log_http(self._recorder, request, reply, timeline, "openai")
        try:
            if DEADLINE in request.headers:
                set_deadlines(timeline, request.headers[DEADLINE])
            if len(request.body) <= MAX_INLINE_BYTES:
                self._open(request, reply, timeline, dialect.read, request.body)
                return
            opened = partial(self._open, request, reply, timeline, dialect.join)
            done = partial(continue_call, reply, opened, refusal=dialect.refusal)
            client = self._tenants.client_of_http(request, reply.peer)
            reply.on_disconnect = self._pool.submit(dialect.job, {}, [request.body], done, client=client).cancel
        except ConchError as error:
            send_refusal(reply, dialect.refusal(error))

    def _open(
        self, request: HttpRequest, reply: HttpReply, timeline: Timeline, read: Callable[[Any], _C], source: object
    ) -> None:
        try:
            call = read(source)
            self._ignored_fields.report(request.path, reply, call)
        except ConchError as error:
            self._observer.unread_http(request, error)
            raise
        self._begin(request, reply, call, timeline)


def continue_call(
    reply: HttpReply,
    then: Callable[[_T], None],
    result: _T | ConchError,
    *,
    refusal: Callable[[ConchError], HttpRefusal] = refusal_of,
) -> None:
    """Continue a call that waited for a worker process, unless the client has disconnected."""
    try:
        if isinstance(result, ConchError):
            raise result
        if reply.open:
            reply.on_disconnect = None
            then(result)
    except ConchError as error:
        send_refusal(reply, refusal(error))
    except Exception:
        _log.exception("a request of the OpenAI API failed unexpectedly")
        send_refusal(reply, refusal(ConchError("internal error")))
