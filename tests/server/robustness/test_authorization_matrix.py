"""Every declared endpoint on every port, in many spellings, without a key and with each key of a real server.

An answer must be a refusal unless the key has the scope of the endpoint. New rows of the declaration are tested, too.
Requests go over raw sockets, because clients normalise what they send.
"""

import re
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grpc
import pytest
from tools.endpoints_page import PAGE, page

from conch.protocols.access.authorization import scope_of
from conch.server.frontends.endpoints import ENDPOINTS, GRPC_CALLS, ApiEndpoint
from tests.support.models import write_identity, write_scripted
from tests.support.server_process import ConchProcess

KEYS = {scope: f"key-of-{scope}" for scope in ("infer", "manage", "metrics", "debug")}
NO_KEY = ("", "wrong-key")
# Requests that succeed load and unload a model that no other request names.
EXPENDABLE = ("/load", "/unload")


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def is_refusal(self) -> bool:
        """Whether the answer is made without the endpoint: no key, no such path or method, or a malformed request."""
        texts = {
            404: (b'"Not Found"', b"Invalid URL"),
            400: (b"malformed HTTP", b"more than one", b"switch protocols"),
        }
        if self.status in (401, 403, 405) or (self.status == 404 and not self.body):  # as to HEAD
            return True
        return any(text in self.body for text in texts.get(self.status, ()))


class Sender:
    """A keep-alive connection to a port, which is opened again after the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __call__(self, method: str, target: str, *headers: str, body: bytes = b"") -> Answer:
        head = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{self._port}", *headers]
        if body or method in ("POST", "PUT"):
            head.append(f"Content-Length: {len(body)}")
        data = "\r\n".join([*head, "", ""]).encode("utf-8", "surrogateescape") + body
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=60)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(data)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._more()
        lines, _, rest = received.partition(b"\r\n\r\n")
        lines = lines.lower()
        status = int(lines[9:12])
        size = re.search(rb"content-length: (\d+)", lines)
        if method == "HEAD":
            self.close()  # whose answer may have a length without a body
        elif size is not None:
            while len(rest) < int(size[1]):
                rest += self._more()
        elif b"transfer-encoding: chunked" in lines:
            while not rest.endswith(b"0\r\n\r\n"):
                rest += self._more()
        if b"connection: close" in lines:
            self.close()
        return Answer(status, rest)

    def _more(self) -> bytes:
        assert self._socket is not None
        data = self._socket.recv(1 << 20)
        assert data, "closed without an answer"
        return data


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("matrix")
    for name in ("m", "expendable"):
        write_identity(root / "models", name, "FP32", 1)
    write_scripted(root / "models", "llm", {"reply": "hello"})
    (root / "keys").write_text("".join(f"{scope} {scope} {key}\n" for scope, key in KEYS.items()))
    (root / "keys").chmod(0o600)
    flags = (
        f"--api-key-file={root / 'keys'}",
        "--model-control-mode=explicit",
        "--load-model=m",
        "--allow-client-shm=true",
        "--openai-port=0",
        "--ollama-api=true",
        *("--allow-sagemaker=true", "--sagemaker-port=0", "--allow-vertex-ai=true", "--vertex-ai-port=0"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIP_PREDICT_ROUTE", "/predict")
        patch.setenv("AIP_HEALTH_ROUTE", "/health")
        running = ConchProcess(root / "models", *flags, log=root / "log")
        with running:
            yield running


@pytest.fixture(scope="module")
def senders(server: ConchProcess) -> Iterator[dict[str, Sender]]:
    (openai,) = re.findall(r"Started OpenAI Service at \S*:(\d+)", server.text)
    ports = {"http": server.ports["http"], "metrics": server.ports["metrics"], "openai": int(openai)}
    opened = {port: Sender(number) for port, number in ports.items()}
    yield opened
    for sender in opened.values():
        sender.close()


def paths_of(endpoint: ApiEndpoint) -> list[str]:
    """Return paths of an endpoint, with and without the optional part."""
    model = "expendable" if endpoint.path.endswith(EXPENDABLE) else "m"
    path = endpoint.path.replace("{model}", model).replace("{version}", "1")
    path = re.sub(r"\{\w+\}", "name", path)
    return sorted({re.sub(r"\[.*?\]", "", path), path.replace("[", "").replace("]", "")})


CASES = [
    (method, path, endpoint)
    for endpoint in ENDPOINTS
    for method in endpoint.methods.split()
    for path in paths_of(endpoint)
]

# Other ports may have another endpoint at the same path.
SERVED = {(method, path, port) for method, path, endpoint in CASES for port in endpoint.ports}
OPEN = {(path, port) for _, path, endpoint in CASES for port in endpoint.ports if scope_of(endpoint.category) is None}

# Spellings that a proxy, a framework or a normalising server could take for the same path.
SPELLINGS: dict[str, Callable[[str], str]] = {
    "upper case": str.upper,
    "title case": lambda path: path.title(),
    "double slash": lambda path: "/" + path,
    "double slashes inside": lambda path: path.replace("/", "//"),
    "double last slash": lambda path: "//".join(path.rsplit("/", 1)),
    "dot segment": lambda path: "/." + path,
    "dot segment inside": lambda path: "/./".join(path.rsplit("/", 1)),
    "parent segment": lambda path: "/x/.." + path,
    "parent of another path": lambda path: "/v2/health/live/../../.." + path,
    "parent of the API": lambda path: "/v1/.." + path,
    "parent of a model": lambda path: "/v2/models/m/../../.." + path,
    "encoded parent": lambda path: "/v1/%2e%2e" + path,
    "encoded parent and slash": lambda path: "/v2/health/live%2f..%2f..%2f.." + path,
    "trailing slash": lambda path: path + "/",
    "trailing dot": lambda path: path + "/.",
    "path parameter": lambda path: path + ";x=1",
    "NUL": lambda path: path + "%00",
    "blank": lambda path: path + "%20",
    "line break": lambda path: path + "%0d%0a",
    "suffix": lambda path: path + ".json",
    "encoded letters": lambda path: (
        "/" + "".join(f"%{ord(letter):02x}" if letter != "/" else "/" for letter in path[1:])
    ),
    "encoded letter": lambda path: path[:-1] + f"%{ord(path[-1]):02X}",
    "encoded twice": lambda path: path[:-1] + f"%25{ord(path[-1]):02X}",
    "encoded slashes": lambda path: "/" + path[1:].replace("/", "%2f"),
    "slashes encoded twice": lambda path: "/" + path[1:].replace("/", "%252F"),
    "overlong slash": lambda path: "/" + path[1:].replace("/", "%c0%af"),
    "backslashes": lambda path: "/" + path[1:].replace("/", "\\"),
    "full-width letters": lambda path: "/" + "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in path[1:]),
    "without slash": lambda path: path[1:] or "*",
    "KServe's prefix": lambda path: "/openai" + path,
    "KServe's API": lambda path: "/openai/v1" + path,
    "API": lambda path: "/v1" + path,
    "absolute form twice": lambda path: "http://h/http://h" + path,
}
# Forms of the same target.
FORMS: dict[str, Callable[[str], str]] = {
    "as declared": str,
    "query": lambda path: path + "?api_key=key-of-infer&x=/v2/health/live",
    "empty query": lambda path: path + "?",
    "absolute form": lambda path: "http://127.0.0.1" + path,
    "absolute form of another host": lambda path: "http://user:key-of-infer@example.com:1" + path,
    "absolute form in upper case": lambda path: "HTTP://H" + path + "?x",
}


def bearer(key: str) -> list[str]:
    return [f"Authorization: Bearer {key}"] if key else []


def send(sender: Sender, method: str, target: str, *headers: str) -> Answer:
    return sender(method, target, *headers, body=b"{}" if method in ("POST", "PUT") else b"")


@pytest.mark.parametrize("form", FORMS)
def test_a_key_needs_the_scope(senders: dict[str, Sender], form: str) -> None:
    for method, path, endpoint in CASES:
        scope = scope_of(endpoint.category)
        for port, sender in senders.items():
            target = FORMS[form](path)
            for key in (*NO_KEY, *KEYS.values()):
                answer = send(sender, method, target, *bearer(key))
                what = f"{method} {target} on {port} with {key or 'no key'}: {answer}"
                if port not in endpoint.ports:
                    assert answer.is_refusal or (method, path, port) in SERVED, what
                elif scope is None or KEYS[scope] == key:
                    assert not answer.is_refusal, what
                else:
                    assert answer.status == (401 if key in NO_KEY else 403), what


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_avoids_the_scope(senders: dict[str, Sender], spelling: str) -> None:
    declared = {path for _, path, _ in CASES}
    for method, path, endpoint in CASES:
        scope = scope_of(endpoint.category)
        target = SPELLINGS[spelling](path)
        if scope is None or target in declared:
            continue
        for port, sender in senders.items():
            for key in (*NO_KEY, *KEYS.values()):
                if key != KEYS[scope]:
                    answer = send(sender, method, target, *bearer(key))
                    assert answer.is_refusal, f"{method} {target} on {port} with {key or 'no key'}: {answer}"


# Where a key with the right scope is not looked for.
MISPLACED: dict[str, Callable[[str], list[str]]] = {
    "other scheme": lambda key: ["Authorization: Basic " + b64encode(f":{key}".encode()).decode()],
    "no scheme": lambda key: [f"Authorization: {key}"],
    "twice": lambda key: [f"Authorization: Bearer {key}"] * 2,
    "after a wrong one": lambda key: ["Authorization: Bearer x", f"Authorization: Bearer {key}"],
    "two in one": lambda key: [f"Authorization: Bearer {key}, Bearer {key}"],
    "wrong case": lambda key: [f"Authorization: Bearer {key.upper()}"],
    "beginning": lambda key: [f"Authorization: Bearer {key[:-1]}"],
    "proxy": lambda key: [f"Proxy-Authorization: Bearer {key}"],
    "cookie": lambda key: [f"Cookie: authorization=Bearer {key}"],
    "other header": lambda key: [f"X-Authorization: Bearer {key}", f"Api-Key: {key}", f"Authorization_: Bearer {key}"],
    "underscore": lambda key: [f"Forwarded: for=127.0.0.1;key={key}", "X-Forwarded-For: 127.0.0.1", "X-Real-IP: ::1"],
    "rewritten": lambda key: ["X-Original-URL: /v2/health/live", "X-Rewrite-URL: /v2/health/live"],
}


@pytest.mark.parametrize("place", MISPLACED)
def test_a_key_elsewhere_does_not_count(senders: dict[str, Sender], place: str) -> None:
    for method, path, endpoint in CASES:
        scope = scope_of(endpoint.category)
        for port in endpoint.ports if scope else ():
            answer = send(senders[port], method, path, *MISPLACED[place](KEYS[str(scope)]))
            what = f"{method} {path} on {port}: {answer}"
            assert answer.is_refusal, what
            assert answer.status in (400, 401), what


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "post", "QUERY"]
)
def test_no_other_method_avoids_the_scope(senders: dict[str, Sender], method: str) -> None:
    for path in {path for _, path, endpoint in CASES if scope_of(endpoint.category)}:
        for port, sender in senders.items():
            for override in ([], ["X-HTTP-Method-Override: GET"], ["X-HTTP-Method: POST"]):
                answer = send(sender, method, path, *override)
                assert answer.is_refusal or (path, port) in OPEN, f"{method} {path} on {port}, {override}: {answer}"


def test_http2_is_refused_on_the_http_ports(senders: dict[str, Sender]) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    for sender in senders.values():
        assert sender("PRI", "*").status in (400, 404, 405)
        sender.close()
    for method, path, endpoint in CASES:
        if scope_of(endpoint.category):
            for port in endpoint.ports:
                answer = send(senders[port], method, path, *upgrade)
                assert answer.status == 401, f"{method} {path} on {port}: {answer}"


# Paths of hosting platforms, and the scope of each.
PLATFORMS = {
    "Sagemaker": [
        ("GET", "/ping", None),
        ("POST", "/invocations", "infer"),
        ("POST", "/models/name/invoke", "infer"),
        ("GET", "/models", "manage"),
        ("POST", "/models", "manage"),
        ("GET", "/models/name", "manage"),
        ("DELETE", "/models/name", "manage"),
    ],
    "Vertex AI": [("GET", "/health", None), ("POST", "/predict", "infer")],
}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_ports_of_platforms_need_the_scope(server: ConchProcess, platform: str) -> None:
    (port,) = re.findall(rf"Started {platform} HTTPService at \S*:(\d+)", server.text)
    sender = Sender(int(port))
    for method, path, scope in PLATFORMS[platform]:
        for key in (*NO_KEY, *KEYS.values()):
            for form, spell in (FORMS | SPELLINGS).items():
                answer = send(sender, method, spell(path), *bearer(key))
                what = f"{method} {spell(path)} with {key or 'no key'}: {answer}"
                if scope is None or key == KEYS[scope]:
                    assert form not in FORMS or answer.status not in (401, 403, 405), what
                elif form in FORMS:
                    assert answer.status == (401 if key in NO_KEY else 403), what
                elif key != KEYS["manage"]:  # as with Triton, what follows /models is a name even without a slash
                    assert answer.is_refusal or answer in (Answer(400, b""), Answer(404, b"")), what
    sender.close()


def test_redirects_of_vertex_ai_need_the_scope_of_their_target(server: ConchProcess) -> None:
    (port,) = re.findall(r"Started Vertex AI HTTPService at \S*:(\d+)", server.text)
    sender = Sender(int(port))
    for path in {path for _, path, endpoint in CASES if scope_of(endpoint.category)}:
        scopes = {scope_of(endpoint.category) for _, other, endpoint in CASES if other == path}
        for spelled in (path, *(spell(path) for spell in SPELLINGS.values())):
            redirect = f"X-Vertex-Ai-Triton-Redirect: {spelled.removeprefix('/')}"
            for scope, key in {None: "", **KEYS}.items():
                if scope not in scopes and spelled.isascii():
                    answer = send(sender, "POST", "/predict", redirect, *bearer(key))
                    what = f"{redirect} with {key or 'no key'}: {answer}"
                    assert answer.is_refusal or answer == Answer(400, b""), what
    sender.close()


GRPC_SPELLINGS: dict[str, Callable[[str], str]] = {
    "as declared": str,
    "lower case": str.lower,
    "double slash": lambda path: "/" + path,
    "double slash inside": lambda path: "//".join(path.rsplit("/", 1)),
    "dot segment": lambda path: "/./".join(path.rsplit("/", 1)),
    "parent": lambda path: "/grpc.health.v1.Health/.." + path,
    "trailing slash": lambda path: path + "/",
    "encoded": lambda path: path[:-1] + f"%{ord(path[-1]):02x}",
    "query": lambda path: path + "?x=1",
    "other package": lambda path: path.replace("/inference.", "/"),
}


@pytest.mark.parametrize("spelling", GRPC_SPELLINGS)
def test_calls_need_the_scope(server: ConchProcess, spelling: str) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        for path, category in GRPC_CALLS.items():
            scope = scope_of(category)
            target = GRPC_SPELLINGS[spelling](path)
            for key in (*NO_KEY, *KEYS.values()):
                metadata = (("authorization", f"Bearer {key}"),) if key else ()
                try:
                    if path.endswith("Watch"):  # which does not end
                        watch = channel.unary_stream(target)(b"", timeout=60, metadata=metadata)
                        next(watch)
                        watch.cancel()
                    elif path.endswith(("ModelStreamInfer", "ServerReflectionInfo")):
                        list(channel.stream_stream(target)(iter([b""]), timeout=60, metadata=metadata))
                    else:
                        channel.unary_unary(target)(b"", timeout=60, metadata=metadata)
                    code = grpc.StatusCode.OK
                except grpc.RpcError as error:
                    code = error.code()
                what = f"{target} with {key or 'no key'}: {code}"
                if target != path:
                    assert code is grpc.StatusCode.UNIMPLEMENTED, what
                elif scope is None or KEYS[scope] == key:
                    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
                    assert code not in (*refusals, grpc.StatusCode.UNIMPLEMENTED), what
                elif key in NO_KEY:
                    assert code is grpc.StatusCode.UNAUTHENTICATED, what
                else:
                    assert code is grpc.StatusCode.PERMISSION_DENIED, what


def test_paths_of_http_do_not_exist_on_the_grpc_port(server: ConchProcess) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        for path in {path for _, path, endpoint in CASES if scope_of(endpoint.category)}:
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(path)(b"", timeout=60)
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED, path


def test_the_pages_are_those_of_the_declaration() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.endpoints_page"
    access = (PAGE.parents[1] / "access.md").read_text(encoding="utf-8")
    scopes = {scope_of(endpoint.category) for endpoint in ENDPOINTS} | {scope_of(name) for name in GRPC_CALLS.values()}
    assert set(re.findall(r"^\| `(\w+)` \|", access, re.MULTILINE)) == scopes - {None}
