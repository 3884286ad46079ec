"""Local servers of chat services that accept a message only if signature, format and size are as documented.

Written from the services' documentation, not from the sender's code: HMAC is that of RFC 2104, by hand.
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

TOKEN = "tok-5f1c0a9e77d24b6b"
SECRET = "SEC-0123456789abcdef-secret"
TIMEOUT_S = 60
_HOUR_S = 3600


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """RFC 2104."""
    key = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + message).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()


class Received(NamedTuple):
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, strict_parsing=True).items()}

    def json(self) -> Any:
        assert self.headers["content-type"].startswith("application/json"), self.headers
        return json.loads(self.body.decode("utf-8"))


class Wrong(Exception):
    """What the service would answer: status and body."""

    def __init__(self, status: int, body: object) -> None:
        super().__init__(body)
        self.status, self.body = status, body


Check = Callable[[Received], object]  # returns the body of the reply; raises Wrong


def dingtalk(request: Received) -> object:
    query = request.query
    if urlsplit(request.path).path != "/robot/send" or query.get("access_token") != TOKEN:
        raise Wrong(200, {"errcode": 300001, "errmsg": "token is not exist"})
    timestamp = query.get("timestamp", "")
    expected = base64.b64encode(hmac_sha256(SECRET.encode(), f"{timestamp}\n{SECRET}".encode())).decode()
    fresh = timestamp.isdecimal() and abs(int(timestamp) / 1000 - time.time()) < _HOUR_S
    if not fresh or query.get("sign") != expected or set(query) != {"access_token", "timestamp", "sign"}:
        raise Wrong(200, {"errcode": 310000, "errmsg": "sign not match, more: [https://ding-doc.dingtalk.com]"})
    if len(request.body) > 20_000:
        raise Wrong(200, {"errcode": 460101, "errmsg": "message too long, exceed 20000 bytes"})
    document = request.json()
    if set(document) != {"msgtype", "markdown"} or document["msgtype"] != "markdown":
        raise Wrong(200, {"errcode": 400001, "errmsg": "unsupported message type"})
    if set(document["markdown"]) != {"title", "text"} or not all(document["markdown"].values()):
        raise Wrong(200, {"errcode": 40035, "errmsg": "invalid parameter"})
    return {"errcode": 0, "errmsg": "ok"}


def feishu(request: Received) -> object:
    document = request.json()
    if urlsplit(request.path).path != f"/open-apis/bot/v2/hook/{TOKEN}":
        raise Wrong(200, {"code": 19001, "msg": "param invalid: incoming webhook access token invalid", "data": {}})
    timestamp = document.pop("timestamp", "")
    expected = base64.b64encode(hmac_sha256(f"{timestamp}\n{SECRET}".encode(), b"")).decode()
    fresh = isinstance(timestamp, str) and timestamp.isdecimal() and abs(int(timestamp) - time.time()) < _HOUR_S
    if not fresh or document.pop("sign", "") != expected:
        text = "sign match fail or timestamp is not within one hour from current time"
        raise Wrong(200, {"code": 19021, "msg": text, "data": {}})
    card = document.get("card", {})
    title = card.get("header", {}).get("title", {})
    tags = [element.get("tag") for element in card.get("elements", [])]
    contents = [element["content"] for element in card.get("elements", []) if element.get("tag") == "markdown"]
    ok = (
        set(document) == {"msg_type", "card"}
        and document["msg_type"] == "interactive"
        and title.get("tag") == "plain_text"
        and title.get("content")
        and card["header"]["template"] in {"red", "green"}
        and contents
        and all(contents)
        and set(tags) <= {"markdown", "hr"}
        and not any("<at " in content for content in contents)
        and len(request.body) <= 20 * 1024
    )
    if not ok:
        raise Wrong(400, {"code": 9499, "msg": "Bad Request", "data": {}})
    return {"StatusCode": 0, "StatusMessage": "success", "code": 0, "data": {}, "msg": "success"}


def wecom(request: Received) -> object:
    if urlsplit(request.path).path != "/cgi-bin/webhook/send" or request.query != {"key": TOKEN}:
        raise Wrong(200, {"errcode": 93000, "errmsg": "invalid webhook url, hint: [1755605200]"})
    document = request.json()
    if set(document) != {"msgtype", "markdown"} or document["msgtype"] != "markdown":
        raise Wrong(200, {"errcode": 40008, "errmsg": "invalid message type"})
    content = document["markdown"]["content"]
    if not content:
        raise Wrong(200, {"errcode": 44004, "errmsg": "empty content"})
    if len(content.encode()) > 4096:
        raise Wrong(200, {"errcode": 40058, "errmsg": "markdown.content exceed max length 4096. invalid Parameter"})
    return {"errcode": 0, "errmsg": "ok"}


def slack(request: Received) -> object:
    if urlsplit(request.path).path != f"/services/T000/B000/{TOKEN}":
        raise Wrong(404, "no_service")
    document = request.json()
    if set(document) - {"text", "blocks"} or not document.get("text"):
        raise Wrong(400, "no_text")
    header, *sections = document["blocks"]
    ok = (
        1 <= len(sections) < 50
        and header["type"] == "header"
        and header["text"]["type"] == "plain_text"
        and 1 <= len(header["text"]["text"]) <= 150
        and all(section["type"] == "section" and section["text"]["type"] == "mrkdwn" for section in sections)
        and all(1 <= len(section["text"]["text"]) <= 3000 for section in sections)
    )
    if not ok:
        raise Wrong(400, "invalid_blocks")
    return "ok"


def generic(request: Received) -> object:
    request.json()
    return {}


CHECKS: dict[str, Check] = {"dingtalk": dingtalk, "feishu": feishu, "wecom": wecom, "slack": slack, "generic": generic}
PATHS = {
    "dingtalk": f"/robot/send?access_token={TOKEN}",
    "feishu": f"/open-apis/bot/v2/hook/{TOKEN}",
    "wecom": f"/cgi-bin/webhook/send?key={TOKEN}",
    "slack": f"/services/T000/B000/{TOKEN}",
    "generic": f"/hooks/{TOKEN}",
}


class ChatServer:
    """A server of one service. A context manager. `override`, if set, answers instead of the checks."""

    def __init__(self, kind: str, port: int = 0) -> None:
        self.kind = kind
        self.accepted: list[Received] = []
        self.refused: list[object] = []
        self.override: Check | None = None
        self._changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, reply, extra = outer.answer(Received(self.path, headers, body))
                data = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
                self.send_response(status)
                for name, value in extra.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}{PATHS[kind]}"

    def answer(self, request: Received) -> tuple[int, object, dict[str, str]]:
        with self._changed:
            try:
                reply = (self.override or CHECKS[self.kind])(request)
            except Wrong as wrong:
                self.refused.append(wrong.body)
                headers = {"Retry-After": "1"} if wrong.status == 429 else {}
                self._changed.notify_all()
                return wrong.status, wrong.body, headers
            self.accepted.append(request)
            self._changed.notify_all()
            return 200, reply, {}

    def wait(self, condition: Callable[[Self], bool]) -> None:
        """Wait until a condition of this server holds."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), TIMEOUT_S), (self.accepted, self.refused)

    def __enter__(self) -> Self:
        threading.Thread(target=lambda: self._server.serve_forever(0.05), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
