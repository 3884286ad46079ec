# Compiled by mypyc in wheels.
"""Routes requests to endpoints by path and method, and refuses those of clients that may not call an endpoint.

Paths are compared as sent, like Triton's: no unquoting, no trailing slash, case matters, the query is ignored. Only
names outside of ASCII are unquoted, since clients cannot send them otherwise.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from logging import getLogger
from typing import Final, NamedTuple
from urllib.parse import unquote

from conch.base.errors import ConchError, InvalidRequest
from conch.protocols.access.authorization import Access, scope_of
from conch.protocols.http.cors import Cors, is_preflight
from conch.protocols.http.errors import ErrorForm, send_refusal
from conch.protocols.http.message import HttpRefusal, HttpRequest, header
from conch.protocols.http.reply import Explain, HttpReply

_log: Final = getLogger(__name__)

_MAX_VERSION: Final = 2**63 - 1
_VERSION_DIGITS: Final = 19
_MAX_SHOWN_DIGITS: Final = 40
_MAX_CACHED: Final = 1024
_FORWARDED: Final = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
_MAX_CACHED_PATH: Final = 512
_WHY: Final = b"x-conch-why"
_EVENTS: Final = "/v2/debug/events"


class Route(NamedTuple):
    """An endpoint: a path or pattern of paths, and the methods that it answers to.

    In `path`, `{name}` is one segment, and what stands in brackets is optional. `answer` is called with the request
    and the reply; if the path has a name, also with the last name, and if the pattern has `{version}` with that, None
    where the path has none. `limit` is the maximum size of a body in bytes, or returns it. `local` is the flag that
    lets clients on other machines call, "" if only keys do, and None where they may.
    """

    methods: tuple[bytes, ...]
    path: str
    category: str
    form: ErrorForm
    answer: Callable[..., None]
    limit: int | Callable[[HttpRequest], int]
    local: str | None = None


class UnknownPaths(NamedTuple):
    """How requests for unknown paths that begin with `prefix` are refused; `category` must be allowed first."""

    prefix: str
    form: ErrorForm
    category: str


class _Match(NamedTuple):
    """A path that exists: its endpoints by method, and what it names."""

    routes: dict[bytes, Route]
    name: str | None = None
    version: str | None = None  # digits; None where the pattern has none
    prefix: str = ""  # of an alias


class _Pattern(NamedTuple):
    segments: tuple[str, ...]
    routes: dict[bytes, Route]
    versioned: bool


class Router:
    """Handler of a port. Called with each request; answers now or later, with exactly one reply."""

    def __init__(
        self,
        routes: Iterable[Route],
        fallbacks: Sequence[UnknownPaths],
        access: Access | None = None,
        unread: Callable[[HttpRequest, HttpRefusal], None] | None = None,
        alias: tuple[str, str] | None = None,
        cors: Cors | None = None,
        explain: Explain | None = None,
    ) -> None:
        """`unread` is called with each request for inference that `access` refuses.

        Paths below `alias[0] + alias[1]` are those below `alias[1]`. `cors` opens all endpoints but local ones to pages
        of other sites. `explain` explains the answers of clients that ask for it and may read `/v2/debug/events`.
        """
        self._explain = explain
        self._alias = alias
        self._cors = cors
        self._fallbacks = tuple(fallbacks)
        self._access = access or None
        self._unread = unread
        self._exact: dict[str, _Match] = {}
        self._patterns: dict[int, list[_Pattern]] = {}  # by the number of segments
        for route in routes:
            for path in _expand(route.path):
                self._add(path, route)
        self._matches = dict(self._exact)

    def _add(self, path: str, route: Route) -> None:
        if "{" not in path:
            routes = self._exact.setdefault(path, _Match({})).routes
        else:
            segments = tuple(path.split("/"))
            patterns = self._patterns.setdefault(len(segments), [])
            known = [pattern for pattern in patterns if pattern.segments == segments]
            if not known:
                known = [_Pattern(segments, {}, "{version}" in route.path)]
                patterns.append(known[0])
            routes = known[0].routes
        for method in route.methods:
            routes[method] = route

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        match = self._matches.get(request.path) or self._find(request.path)
        if match is None:
            send_refusal(reply, self._unknown(request))
            return
        route = match.routes.get(request.method)
        cors = self._opened(request, match)
        if cors is not None:
            if is_preflight(request):
                reply.send(204, cors.permission(request))
                return
            reply.headers += cors.lines(request)
        refusal = self._refusal(request, match, route)
        if (
            refusal is None
            and route is not None
            and route.local is not None
            and not is_local_client(request.headers, reply.peer)
        ):
            refusal = route.form.refused(request, 403, _not_local(request.path, route))
        if refusal is not None or route is None:
            if refusal is not None:
                send_refusal(reply, refusal)
            return
        if route.category != "inference":  # inference requests are in the request log
            _log.debug("HTTP request: %s %s", request.method.decode(), request.path)
        elif self._explain is not None and _WHY in request.headers and self._may_debug(request, reply):
            reply.explain = self._explain
        if match.prefix:  # handlers see the declared path
            request.path = request.path[len(match.prefix) :]
        try:
            if match.version is not None:
                route.answer(request, reply, match.name, _version(match.version))
            elif match.name is not None:
                route.answer(request, reply, match.name)
            else:
                route.answer(request, reply)
        except ConchError as error:
            route.form.send(request, reply, error)

    def _may_debug(self, request: HttpRequest, reply: HttpReply) -> bool:
        """Whether a client may read the event log."""
        match = self._matches.get(_EVENTS)
        route = None if match is None else match.routes.get(b"GET")
        if route is None or self._denied(request, route.category, route.form) is not None:
            return False
        return route.local is None or is_local_client(request.headers, reply.peer)

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if that depends on the body."""
        match = self._matches.get(request.path) or self._find(request.path)
        if match is None:
            return self._unknown(request)
        cors = self._opened(request, match)
        if cors is not None and is_preflight(request):
            return None
        refusal = self._refusal(request, match, match.routes.get(request.method))
        if refusal is None or cors is None:
            return refusal
        headers, body = refusal.content()
        return HttpRefusal(refusal.status, refusal.message, headers + cors.lines(request), body)

    def _opened(self, request: HttpRequest, match: _Match) -> Cors | None:
        """Return what opens a path to the page of another site that asks for it; None if nothing does."""
        cors = self._cors
        if cors is None or not cors.allows(request) or any(route.local is not None for route in match.routes.values()):
            return None
        return cors

    def served(self, path: str) -> list[Route]:
        """Return the endpoints of a path."""
        match = self._matches.get(path) or self._find(path)
        return [] if match is None else list(match.routes.values())

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large the body of this request may be, in bytes."""
        match = self._matches.get(request.path) or self._find(request.path)
        route = None if match is None else match.routes.get(request.method)
        if route is None:
            return 0
        return route.limit if isinstance(route.limit, int) else route.limit(request)

    def _refusal(self, request: HttpRequest, match: _Match, route: Route | None) -> HttpRefusal | None:
        """Return why this client may not call this endpoint with this method, None if it may."""
        known = route or next(iter(match.routes.values()))
        refusal = self._denied(request, known.category, known.form)
        if refusal is not None:
            if known.category == "inference" and self._unread is not None:
                self._unread(request, refusal)
            return refusal
        if route is None:
            return _with_methods(known.form.wrong_method(request), match.routes)
        if isinstance(route.limit, int) and len(request.body) > route.limit:
            text = f"request body of {len(request.body)} bytes exceeds the maximum of {route.limit} bytes here"
            return route.form.refused(request, 400, text)
        return None

    def _denied(self, request: HttpRequest, category: str, form: ErrorForm) -> HttpRefusal | None:
        access = self._access
        if access is None:
            return None
        conflict = form.use_key(request) if form.use_key is not None else ""
        if conflict:
            return form.refused(request, 401, conflict)
        denied = access.denied_http(category, request, openai=form.openai)
        return None if denied is None else form.denied(request, denied)

    def _unknown(self, request: HttpRequest) -> HttpRefusal:
        for paths in self._fallbacks:
            if request.path.startswith(paths.prefix):
                refusal = self._denied(request, paths.category, paths.form) if paths.category else None
                return refusal or paths.form.not_found(request)
        return HttpRefusal(404, "Not Found")

    def _find(self, path: str) -> _Match | None:
        """Match a path with names or below the alias; None if it does not exist."""
        if self._alias is not None and path.startswith(self._alias[0] + self._alias[1]):
            plain = path[len(self._alias[0]) :]
            target = self._matches.get(plain) or self._find(plain)
            return None if target is None else target._replace(prefix=self._alias[0])
        sent = path.split("/")
        for pattern in self._patterns.get(len(sent), ()):
            name: str | None = None
            version = "" if pattern.versioned else None
            for expected, segment in zip(pattern.segments, sent, strict=True):
                if not expected.startswith("{"):
                    if segment != expected:
                        break
                elif not segment:
                    break
                elif expected == "{version}":
                    if not (segment.isascii() and segment.isdecimal()):
                        break
                    version = segment
                else:
                    name = _unquoted(segment)
            else:
                match = _Match(pattern.routes, name, version)
                if len(path) <= _MAX_CACHED_PATH:
                    if len(self._matches) - len(self._exact) >= _MAX_CACHED:
                        self._matches = dict(self._exact)
                    self._matches[path] = match
                return match
        return None


def _unquoted(segment: str) -> str:
    if "%" not in segment:
        return segment
    try:
        name = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        return segment
    return segment if name.isascii() or "/" in name or not name.isprintable() else name


def _with_methods(refusal: HttpRefusal, methods: Iterable[bytes]) -> HttpRefusal:
    headers, body = refusal.content()
    return HttpRefusal(refusal.status, refusal.message, headers + header(b"Allow", b", ".join(methods)), body)


def is_local_client(headers: Mapping[bytes, bytes], peer: str) -> bool:
    """Whether a client is on this machine, not behind a proxy on it, and not the page of another site in a browser.

    A name of another machine in `Host`, or a page of one in `Origin`, is how a site reaches the server by the browser
    of a user here. `Host` may be any address: a browser sends there what a page asks of that address itself.
    """
    if any(name in headers for name in _FORWARDED):
        return False
    address = _address(peer.partition("%")[0])
    if peer and (address is None or not _is_loopback(address)):
        return False  # a Unix socket has no peer
    host, origin = _host(headers.get(b"host", b"")), headers.get(b"origin")
    if not _is_localhost(host) and _address(host) is None:
        return False
    if origin is None:
        return True
    page = _host(origin.partition(b"://")[2])
    address = _address(page)
    return _is_localhost(page) or (address is not None and _is_loopback(address))


def _host(authority: bytes) -> str:
    """Return the host of an authority, without its port."""
    host = authority.decode("latin-1").lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


def _is_localhost(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost")


def _is_loopback(address: IPv4Address | IPv6Address) -> bool:
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _not_local(path: str, route: Route) -> str:
    ways = ["protect it with --api-key-file or --http-restricted-api"] if scope_of(route.category) else []
    ways += [f"open it with {route.local}"] if route.local else []
    return f"{path} is for clients on this machine; {', or '.join(ways)}"


def _expand(path: str) -> list[str]:
    """Return the paths of a pattern, without and with its optional part."""
    before, bracket, rest = path.partition("[")
    if not bracket:
        return [path]
    optional, _, after = rest.partition("]")
    return [before + after, before + optional + after]


def _version(digits: str) -> int | None:
    if not digits:
        return None
    # Converting takes time quadratic in the number of digits, so those are looked at first.
    if len(digits) > _VERSION_DIGITS or int(digits) > _MAX_VERSION:
        shown = digits if len(digits) <= _MAX_SHOWN_DIGITS else f"{digits[:_MAX_SHOWN_DIGITS]}…"
        raise InvalidRequest(
            f"failed to get model version from specified version string '{shown}' (details: stol), "
            "version should be an integral value > 0"
        )
    return int(digits)
