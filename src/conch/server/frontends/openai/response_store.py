"""Responses that are kept in memory for `previous_response_id` and for `/v1/responses/{id}`.

Each belongs to the key and tenant that made it; for others it does not exist. Ids are random.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from conch.protocols.access.api_keys import ApiKeys
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.fields import ObjectNotFound
from conch.protocols.openai.responses.form import ResponseForm
from conch.server.frontends.request_headers import Tenants

MAX_BYTES = 256 * 2**20
# Of one response with its conversation; a larger one is not kept.
MAX_RESPONSE_BYTES = 4 * 2**20
LIFETIME_S = 24 * 3600.0


def owner_of(keys: ApiKeys, tenants: Tenants, request: HttpRequest) -> str:
    """Return to whom responses of a request belong: its key and its tenant.

    The key counts, not its name: a line of a file of keys may be another client's tomorrow.
    """
    key = keys.find(request.headers.get(b"authorization", b"")) if keys else None
    return f"{'' if key is None else key.digest.hex()}\n{tenants.of_http(request)}"


@dataclass(slots=True)
class StoredResponse:
    """A response of `owner`: its input `items`, and the conversation as messages, both in JSON.

    While it is generated, `form` and `reply` are those of its answer; after that `document` is the answer, and the
    conversation has it too.
    """

    owner: str
    items: bytes
    conversation: bytes
    form: ResponseForm | None = None
    reply: HttpReply | None = None
    document: bytes = b""
    expires: float = 0.0

    @property
    def size(self) -> int:
        """About the bytes in memory."""
        return len(self.items) + len(self.conversation) + len(self.document) + 512

    def end(self, document: bytes, conversation: bytes) -> None:
        """Keep the answer."""
        self.form = self.reply = None
        self.document, self.conversation = document, conversation


class ResponseStore:
    """Keeps the last `limit` responses, none with 0. Of the owner that holds most, the oldest goes first."""

    def __init__(self, limit: int, *, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._max_bytes = max_bytes
        self._clock = clock
        self._responses: dict[str, StoredResponse] = {}  # by id, the oldest first
        self._held: Counter[str] = Counter()  # bytes by owner

    def add(self, response_id: str, response: StoredResponse) -> None:
        """Keep a response, unless it is too large."""
        response.expires = self._clock() + LIFETIME_S
        self._responses[response_id] = response
        self._held[response.owner] += response.size
        self._evict(response_id)

    def end(self, response_id: str, document: bytes, conversation: bytes) -> None:
        """Keep the answer of a response, unless it is too large or the response was removed meanwhile."""
        response = self._responses.get(response_id)
        if response is not None:
            self._held[response.owner] -= response.size
            response.end(document, conversation)
            self._held[response.owner] += response.size
            self._evict(response_id)

    def find(self, response_id: str, owner: str) -> StoredResponse:
        """Return a response of its owner. Raises NotFound."""
        self._expire()
        response = self._responses.get(response_id)
        if response is None or response.owner != owner:
            raise ObjectNotFound(f"Response with id '{response_id[:80]}' not found.")
        if response.form is not None and response.reply is not None and not response.reply.open:
            self.end(response_id, response.form.cancelled(), response.conversation)  # its client has disconnected
        return response

    def remove(self, response_id: str) -> None:
        """Remove a response."""
        response = self._responses.pop(response_id)
        self._held[response.owner] -= response.size
        if not self._held[response.owner]:
            del self._held[response.owner]

    def _expire(self) -> None:
        now = self._clock()
        while self._responses:
            oldest, response = next(iter(self._responses.items()))
            if response.expires > now:
                return
            self.remove(oldest)

    def _evict(self, response_id: str) -> None:
        """Keep the bounds after a change of a response."""
        self._expire()
        if response_id in self._responses and self._responses[response_id].size > MAX_RESPONSE_BYTES:
            self.remove(response_id)
        while len(self._responses) > self.limit or self._held.total() > self._max_bytes:
            owner = self._held.most_common(1)[0][0]
            self.remove(next(key for key, response in self._responses.items() if response.owner == owner))
