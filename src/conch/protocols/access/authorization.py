"""Access control for every port: restricted APIs and API keys."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from conch.protocols.access.api_keys import DEBUG, INFER, MANAGE, METRICS, ApiKeys
from conch.protocols.access.restrictions import Restrictions
from conch.protocols.http.message import HttpRequest

# Whether a model is ready belongs to `health` in restrictions, but needs a key where there is a key file.
MODEL_HEALTH = "model-health"
_RESTRICTED_AS = {MODEL_HEALTH: "health"}
# By category. Other categories need no key.
_SCOPES = {
    MODEL_HEALTH: INFER,
    "metadata": INFER,
    "inference": INFER,
    "model-config": INFER,
    "statistics": INFER,
    "shared-memory": MANAGE,
    "model-repository": MANAGE,
    "trace": MANAGE,
    "logging": MANAGE,
    "limits": MANAGE,
    "metrics": METRICS,
    "debug": DEBUG,
}
_AUTHORIZATION = "authorization"
# In the words of OpenAI's API.
WRONG_KEY = "Incorrect API key provided."
MISSING_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY)."
)

_KEY_ELSEWHERE = (
    "The API key is in the header x-api-key, which only Anthropic's API, /v1/messages, reads. "
    "Send it as Authorization: Bearer YOUR_KEY."
)

# Returns all values of a request header; names are in lower case.
HeaderValues = Callable[[str], Sequence[bytes]]


def scope_of(category: str) -> str | None:
    """Return the scope of API keys that a category needs, None if it needs no key."""
    return _SCOPES.get(category)


class Denial(Enum):
    """Why a client may not call."""

    RESTRICTED = "the header of a restricted API is missing or wrong"
    NO_KEY = "no key, or an unknown one"
    SCOPE = "the key lacks the scope"
    REPEATED = "a header that must be single is repeated"


class Denied(NamedTuple):
    """A refused call; `header` is the one that a restricted API requires."""

    why: Denial
    message: str
    header: str = ""


class Access:
    """The restrictions of one protocol, and the API keys of the server."""

    def __init__(self, restrictions: Restrictions | None = None, keys: ApiKeys | None = None) -> None:
        self._restrictions = restrictions or None
        self._keys = keys or None

    def __bool__(self) -> bool:
        return self._restrictions is not None or self._keys is not None

    @property
    def version(self) -> int:
        """Changes when keys are reloaded, which invalidates earlier decisions."""
        return 0 if self._keys is None else self._keys.version

    def protects(self, category: str) -> bool:
        """Whether clients need a key or a restricted header for a category."""
        if self._keys is not None and self._keys.scoped and category in _SCOPES:
            return True
        return self.restricts(category)

    def restricts(self, category: str) -> bool:
        """Whether clients need a restricted header for a category."""
        return self._restrictions is not None and self._restrictions.restricts(category)

    def scope_needed(self, category: str, *, openai: bool = False) -> str | None:
        """Return the scope that a key must have for a category, None where no key is needed."""
        keys = self._keys
        needed = keys is not None and (keys.scoped or openai or category == "inference")
        return scope_of(category) if needed else None

    def denied(self, category: str, values_of: HeaderValues, *, openai: bool = False) -> Denied | None:
        """Return why a client may not call a category, None if it may. `openai`: the path belongs to the OpenAI API."""
        return self._key_denied(category, values_of, openai) or self._restriction_denied(category, values_of)

    def denied_http(self, category: str, request: HttpRequest, *, openai: bool = False) -> Denied | None:
        """Return why an HTTP client may not call a category, None if it may."""
        if self._restrictions is None and self._keys is None:
            return None

        def values_of(name: str) -> Sequence[bytes]:
            key = name.encode()
            if len(request.headers) == len(request.fields):
                value = request.headers.get(key)
                return () if value is None else (value,)
            return [value for field, value in request.fields if field.lower() == key]

        return self.denied(category, values_of, openai=openai)

    def _restriction_denied(self, category: str, values_of: HeaderValues) -> Denied | None:
        if self._restrictions is None:
            return None
        repeated = ""

        def single(name: str) -> bytes:
            nonlocal repeated
            values = values_of(name)
            if len(values) > 1:
                repeated = name
            return values[0] if values else b""

        header = self._restrictions.missing_header(_RESTRICTED_AS.get(category, category), single)
        if repeated:
            return Denied(Denial.REPEATED, f"header '{repeated}' is sent more than once")
        if header is None:
            return None
        return Denied(Denial.RESTRICTED, f"This API is restricted, expecting header '{header}'", header)

    def _key_denied(self, category: str, values_of: HeaderValues, openai: bool) -> Denied | None:
        keys = self._keys
        if keys is None:
            return None
        scope = self.scope_needed(category, openai=openai)
        if scope is None:
            return None
        values = values_of(_AUTHORIZATION)
        if len(values) > 1:
            return Denied(Denial.REPEATED, f"header '{_AUTHORIZATION}' is sent more than once")
        key = keys.find(values[0]) if values else None
        if key is None:
            scheme, _, sent = (values[0] if values else b"").partition(b" ")
            provided = scheme.lower() == b"bearer" and sent.strip()
            missing = MISSING_KEY if values or not values_of("x-api-key") else _KEY_ELSEWHERE
            return Denied(Denial.NO_KEY, WRONG_KEY if provided else missing)
        if scope not in key.scopes:
            return Denied(Denial.SCOPE, f"The API key '{key.name}' lacks the scope '{scope}'.")
        return None
