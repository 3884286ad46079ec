"""Recognising the head of a request: exactly what was there before, or nothing."""

import pytest

from conch.protocols.http.message import HttpRequest
from conch.protocols.http.request_reader import HeadCache

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n"


def learned(head: bytes = HEAD, body: bytes = b"abcd", *fields: tuple[bytes, bytes]) -> HeadCache:
    memory = HeadCache()
    request = HttpRequest(b"POST", "/v2/models/m/infer", [(b"Host", b"h"), (b"Content-Length", b"4"), *fields])
    request.body = body
    memory.learn(head + body, request)
    return memory


def test_the_same_head_with_another_body() -> None:
    request = learned().recognise(HEAD + b"wxyz")
    assert request is not None
    assert (request.method, request.path, bytes(request.body)) == (b"POST", "/v2/models/m/infer", b"wxyz")
    assert request.headers[b"host"] == b"h"


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"wxy",  # the rest is still to come
        HEAD + b"wxyzPOST",  # another request follows
        HEAD.replace(b"Host: h", b"Host: g") + b"wxyz",
        HEAD.replace(b"POST", b"PUT ") + b"wxyz",
        b"",
    ],
)
def test_anything_else_is_parsed(data: bytes) -> None:
    assert learned().recognise(data) is None


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        (HEAD, [(b"Transfer-Encoding", b"chunked")]),
        (HEAD, [(b"Expect", b"100-continue")]),
        (HEAD, [(b"Connection", b"close")]),
        (b"\r\n" + HEAD, []),
        (HEAD.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * 5000 + b"\r\n\r\n"), []),
        (HEAD.replace(b"\r\n", b"\n"), []),
    ],
)
def test_unusual_requests_are_parsed_every_time(head: bytes, fields: list[tuple[bytes, bytes]]) -> None:
    assert learned(head, b"abcd", *fields).recognise(head + b"abcd") is None


def test_nothing_is_recognised_before_something_was_learned() -> None:
    assert HeadCache().recognise(HEAD + b"abcd") is None
