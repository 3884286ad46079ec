"""Who may call what: restricted APIs and API keys, decided in one place for every port."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from conch.frontends.api_keys import INFER, MANAGE, METRICS, ApiKeys
from conch.frontends.http.message import HttpRequest
from conch.frontends.restrictions import Restrictions

# Whether a model is ready is health as far as restrictions go; with a key file it needs one.
MODEL_HEALTH = "model-health"
_RESTRICTED_AS = {MODEL_HEALTH: "health"}
# By category; what is not here is open.
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
    "metrics": METRICS,
}
_AUTHORIZATION = "authorization"

# Returns every value that a client has sent under a name in lower case.
Sent = Callable[[str], Sequence[bytes]]


class Denial(Enum):
    """Why a client may not call."""

    RESTRICTED = "the header of a restricted API is missing or wrong"
    NO_KEY = "no key, or one that is not known"
    SCOPE = "the key is not for that"
    REPEATED = "a header that must be single is there more than once"


class Denied(NamedTuple):
    """A call that is refused; `header` is the one that a restricted API asks for."""

    why: Denial
    message: str
    header: str = ""


class Access:
    """Decides for one protocol. `keys` are those of the server."""

    def __init__(self, restrictions: Restrictions | None = None, keys: ApiKeys | None = None) -> None:
        self._restrictions = restrictions or None
        self._keys = keys or None

    def __bool__(self) -> bool:
        return self._restrictions is not None or self._keys is not None

    @property
    def version(self) -> int:
        """Changes with the keys: what was decided before may be decided in another way now."""
        return 0 if self._keys is None else self._keys.version

    def denied(self, category: str, sent: Sent, *, openai: bool = False) -> Denied | None:
        """Return why a client may not call what is in a category, None if it may. `openai`: it is below /v1."""
        return self._without_key(category, sent, openai) or self._restricted(category, sent)

    def denied_http(self, category: str, request: HttpRequest, *, openai: bool = False) -> Denied | None:
        """Return why an HTTP client may not call what is in a category, None if it may."""
        if self._restrictions is None and self._keys is None:
            return None

        def sent(name: str) -> Sequence[bytes]:
            key = name.encode()
            if len(request.headers) == len(request.fields):
                value = request.headers.get(key)
                return () if value is None else (value,)
            return [value for field, value in request.fields if field.lower() == key]

        return self.denied(category, sent, openai=openai)

    def _restricted(self, category: str, sent: Sent) -> Denied | None:
        if self._restrictions is None:
            return None
        repeated = ""

        def single(name: str) -> bytes:
            nonlocal repeated
            values = sent(name)
            if len(values) > 1:
                repeated = name
            return values[0] if values else b""

        header = self._restrictions.missing(_RESTRICTED_AS.get(category, category), single)
        if repeated:
            return Denied(Denial.REPEATED, f"header '{repeated}' is sent more than once")
        if header is None:
            return None
        return Denied(Denial.RESTRICTED, f"This API is restricted, expecting header '{header}'", header)

    def _without_key(self, category: str, sent: Sent, openai: bool) -> Denied | None:
        keys = self._keys
        if keys is None:
            return None
        scope = _SCOPES.get(category)
        if scope is None or not (keys.scoped or openai or category == "inference"):
            return None
        values = sent(_AUTHORIZATION)
        if len(values) > 1:
            return Denied(Denial.REPEATED, f"header '{_AUTHORIZATION}' is sent more than once")
        key = keys.find(values[0]) if values else None
        if key is None:
            return Denied(Denial.NO_KEY, "Incorrect API key provided.")
        if scope not in key.scopes:
            return Denied(Denial.SCOPE, f"The API key '{key.name}' lacks the scope '{scope}'.")
        return None
