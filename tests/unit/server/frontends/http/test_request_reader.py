"""Requests from raw sockets: framing, limits, and memory for bodies."""

import time

import psutil
import pytest

from conch.protocols.connections.body_budget import BodyBudget
from conch.protocols.http.message import NO_HEADERS, HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from tests.unit.server.frontends.http.peers import CHUNKED, GET, echo, post, until


def test_chunked_upload(listen, connect):
    peer = connect(listen(echo))
    peer.send(b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    peer.send(b"5\r\nhello\r\n1\r\n \r\n5;ext=1\r\nworld\r\n0\r\nTrailer: t\r\n\r\n")
    assert peer.receive()[2] == b"POST /c hello world"
    peer.send(GET)
    assert peer.receive()[2] == b"GET /a "


def test_trailers_are_not_fields_of_the_next_request(listen, connect):
    def show(request: HttpRequest, reply: HttpReply) -> None:
        reply.send(200, NO_HEADERS, *(name + b";" for name in request.headers))

    peer = connect(listen(show))
    peer.send(CHUNKED + b"3\r\nabc\r\n0\r\nSecret: 1\r\nOther: 2\r\n\r\n" + GET)
    assert [peer.receive()[2] for _ in range(2)] == [b"host;transfer-encoding;", b"host;"]


def test_expect_continue(listen, connect):
    peer = connect(listen(echo))
    head, body = post(b"/e", b"later", b"Expect: 100-continue").split(b"\r\n\r\n")
    peer.send(head + b"\r\n\r\n")
    assert peer.receive()[0] == 100
    peer.send(body)
    assert peer.receive()[2] == b"POST /e later"


def test_old_clients_are_not_asked_to_continue(listen, connect):
    peer = connect(listen(echo))
    head, body = post(b"/e", b"later", b"Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0").split(b"\r\n\r\n")
    peer.send(head + b"\r\n\r\n" + body)
    status, _, answer = peer.receive()
    assert (status, answer) == (200, b"POST /e later")


@pytest.mark.parametrize(
    ("head", "status", "said"),
    [
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, b"gzip, chunked"),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400, b"gzip"),
        (b"GET /a HTTP/2.0\r\nHost: x\r\n\r\n", 505, b"HTTP/2.0"),
    ],
)
def test_codings_and_versions_that_are_not_implemented(listen, connect, head, status, said):
    peer = connect(listen(echo))
    peer.send(head)
    answered, headers, body = peer.receive()
    assert (answered, headers["connection"]) == (status, "close")
    assert said in body
    assert peer.rest() == b""


def test_a_whole_url_as_target(listen, connect):
    peer = connect(listen(echo))
    peer.send(b"GET http://host:1/path?q HTTP/1.1\r\nHost: x\r\n\r\n")
    assert peer.receive()[2] == b"GET /path "


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"nonsense\r\n\r\n", id="no request line"),
        pytest.param(b"GET /a HTTP/9.9\r\n\r\n", id="unknown version"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", id="TLS"),
        pytest.param(b"GET /a HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", id="no header"),
        pytest.param(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", id="no number"),
        pytest.param(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", id="negative"),
        pytest.param(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n", id="overflow"),
        pytest.param(
            b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", id="two lengths"
        ),
        pytest.param(
            b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            id="length and chunks",
        ),
        pytest.param(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="no chunk size"),
        pytest.param(b"CONNECT host:1 HTTP/1.1\r\nHost: x\r\n\r\n", id="CONNECT"),
    ],
)
def test_what_is_not_http_is_refused_and_closed(listen, connect, request_):
    peer = connect(listen(echo))
    peer.send(request_)
    status, headers, body = peer.receive()
    assert (status, headers["connection"], headers["content-type"]) == (400, "close", "application/json")
    assert body.startswith(b'{"error":"')
    assert peer.rest() == b""


def test_an_announced_body_beyond_the_limit_is_refused_before_it_is_sent(listen, connect):
    peer = connect(listen(echo, limits={"body_bytes": 1000}))
    peer.send(post(b"/p", b"x" * 1000))
    assert peer.receive()[0] == 200
    peer.send(b"POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
    status, _, body = peer.receive()
    assert status == 400
    assert (
        b"Request JSON size of 1001 bytes exceeds the maximum allowed value of 1000 bytes. Use --http-max-input-size"
        in body
    )
    assert peer.rest() == b""


def test_a_form_beyond_the_limit_is_not_called_json(listen, connect):
    peer = connect(listen(echo, limits={"body_bytes": 1000}))
    peer.send(b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data\r\nContent-Length: 1001\r\n\r\n")
    assert b"Request form size of 1001 bytes exceeds the maximum allowed value of 1000 bytes" in peer.receive()[2]


def test_a_client_that_sends_its_oversize_body_anyway_still_reads_the_refusal(listen, connect):
    peer = connect(listen(echo, limits={"body_bytes": 1000}))
    peer.send(post(b"/p", b"x" * 3_000_000))
    assert peer.receive()[0] == 400


def test_chunks_beyond_the_limit_are_refused(listen, connect):
    peer = connect(listen(echo, limits={"body_bytes": 1000}))
    peer.send(b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"64\r\n" + b"x" * 100 + b"\r\n")
    peer.send((b"64\r\n" + b"x" * 100 + b"\r\n") * 10)
    assert peer.receive()[0] == 400
    assert peer.rest() == b""


def test_a_handler_may_allow_more_to_some(listen, connect):
    server = listen(
        echo, limits={"body_bytes": 10}, body_limit=lambda request: 100 if b"large" in request.headers else 10
    )
    peer = connect(server)
    peer.send(post(b"/p", b"x" * 100, b"Large: yes"))
    assert peer.receive()[0] == 200
    peer.send(
        b"POST /c HTTP/1.1\r\nHost: x\r\nLarge: 1\r\nTransfer-Encoding: chunked\r\n\r\n32\r\n"
        + b"x" * 50
        + b"\r\n0\r\n\r\n"
    )
    assert peer.receive()[0] == 200
    peer.send(post(b"/p", b"x" * 101, b"Large: yes"))
    assert b"maximum of 100 bytes" in peer.receive()[2]


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", id="long target"),
        pytest.param(b"GET /a HTTP/1.1\r\nHost: x\r\nLong: " + b"a" * 70_000 + b"\r\n\r\n", id="long field"),
        pytest.param(b"GET /a HTTP/1.1\r\nHost: x\r\nEndless: " + b"a" * 700_000, id="endless field"),
        pytest.param(b"GET /a HTTP/1.1\r\nHost: x\r\nEndless: " + b"a" * 700_000, id="another field before it"),
        pytest.param(CHUNKED + b"0\r\nEndless: " + b"a" * 700_000, id="endless trailer"),
        pytest.param(CHUNKED + b"0\r\n" + b"Trailer: a\r\n" * 70_000, id="many trailers"),
        pytest.param(CHUNKED + b"1;" + b"e" * 700_000, id="endless extension of a chunk"),
        pytest.param(b"GET /a HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 129 + b"\r\n", id="many fields"),
    ],
)
def test_heads_beyond_the_limits_are_refused(listen, connect, head):
    peer = connect(listen(echo))
    peer.send(head)
    assert peer.receive()[0] == 431


def test_the_size_of_a_head_is_the_same_whatever_was_read_along_with_it(listen, connect):
    server = listen(echo, limits={"head_bytes": 1000})
    fits, exceeds = (b"GET /a HTTP/1.1\r\nHost: x\r\nLong: " + b"a" * size + b"\r\n\r\n" for size in (980, 1100))
    for parts in ((fits + exceeds,), (fits, exceeds), (fits[:-1], fits[-1:] + exceeds)):
        peer = connect(server)
        for part in parts:
            peer.send(part)
        assert [peer.receive()[0] for _ in range(2)] == [200, 431]


@pytest.mark.parametrize("body", [b"", b"small", b"x" * 200_000])
def test_an_upgrade_is_declined_by_answering(listen, connect, body):
    """What `curl --http2` sends; the parser would take the body for another protocol's data."""
    peer = connect(listen(echo))
    peer.send(post(b"/u", body, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: x"))
    assert peer.receive()[2] == b"POST /u " + body
    peer.send(GET)
    assert peer.receive()[2] == b"GET /a "


def test_nothing_may_follow_a_request_to_switch_protocols(listen, connect):
    peer = connect(listen(echo))
    peer.send((b"GET /u HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n") * 3000)
    assert peer.receive()[2] == b"GET /u "
    assert peer.receive()[0] == 400
    assert peer.rest() == b""


def test_a_large_body_that_is_only_announced_takes_no_memory(listen, connect):
    server = listen(echo, body_limit=lambda _: 2**62, budget=BodyBudget(2**62))
    process = psutil.Process()
    before = process.memory_info().rss
    for _ in range(5):
        peer = connect(server)
        peer.send(b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\nabc" % 2**30)
        other = connect(server)
        other.send(GET)
        assert other.receive()[2] == b"GET /a "
    assert process.memory_info().rss - before < 2**28
    peer = connect(server)
    peer.send(b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\nabc" % 2**61)
    assert peer.receive()[0] == 503
    assert peer.rest() == b""


@pytest.mark.parametrize(
    ("head", "said"),
    [
        pytest.param(b"GET /a HTTP/1.1\r\n\r\n", b"must have a Host", id="no host"),
        pytest.param(b"GET /a HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n", b"more than one Host", id="two hosts"),
        pytest.param(
            b"GET /a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
            b"more than one Authorization",
            id="two keys",
        ),
        pytest.param(b"GET /a HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", b"more than one Host", id="HTTP/1.0"),
        pytest.param(
            b"GET /a HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: 1\r\n"
            b"Inference-Header-Content-Length: 2\r\n\r\n",
            b"more than one Inference-Header-Content-Length",
            id="two lengths of the JSON",
        ),
        *(
            pytest.param(b"GET /a HTTP/1.1\r\nHost: %s\r\n\r\n" % host, b"not a name or address", id=host.decode())
            for host in (b"x y", b"x/a", b"user@x", b"x:80:80", b"x:http", b"[::1", b"::1", b"x,y z", b"x?y", b"x#y")
        ),
    ],
)
def test_heads_that_two_readers_may_understand_in_two_ways(listen, connect, head, said):
    peer = connect(listen(echo))
    peer.send(head + GET)
    status, headers, body = peer.receive()
    assert (status, headers["connection"]) == (400, "close")
    assert said in body
    assert peer.rest() == b""


@pytest.mark.parametrize(
    "host", [b"", b":80", b"x", b"a_b-c.d:80", b"127.0.0.1:80", b"[::1]:80", b"[fe80::1%25eth0]", b"x%41", b"X.:"]
)
def test_hosts_that_are_names_or_addresses(listen, connect, host):
    peer = connect(listen(echo))
    peer.send(b"GET /a HTTP/1.1\r\nHost: %s\r\n\r\n" % host)
    assert peer.receive()[0] == 200


def test_http_1_0_needs_no_host(listen, connect):
    peer = connect(listen(echo))
    peer.send(b"GET /a HTTP/1.0\r\n\r\n")
    assert peer.receive()[0] == 200


@pytest.mark.parametrize("fields", [b"Content-Length: 1000\r\n", b"Transfer-Encoding: chunked\r\n"])
@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_a_head_that_is_reason_to_refuse_is_answered_before_the_body(listen, connect, fields, expect):
    handled = []

    def handler(request, reply):
        handled.append(request)
        echo(request, reply)

    server = listen(handler, refusal=lambda request: HttpRefusal(404, "no") if request.path == "/c" else None)
    peer = connect(server)
    peer.send(GET + b"POST /c HTTP/1.1\r\nHost: x\r\n" + fields + expect + b"\r\n")
    assert peer.receive()[0] == 200
    status, headers, _ = peer.receive()
    assert (status, headers["connection"]) == (404, "close")
    assert peer.rest() == b""
    assert len(handled) == 1


def test_a_body_in_too_many_chunks(listen, connect):
    peer = connect(listen(echo))
    peer.send(CHUNKED + b"1\r\nx\r\n" * 65_536 + b"0\r\n\r\n")
    assert len(peer.receive()[2]) == len("POST /c ") + 65_536
    peer.send(CHUNKED + b"1\r\nx\r\n" * 65_600)
    status, _, body = peer.receive()
    assert (status, b"65536 chunks" in body) == (400, True)


def test_a_body_beyond_the_memory_for_all_bodies(listen, connect):
    peer = connect(listen(echo, budget=BodyBudget(100_000)))
    peer.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n")
    status, _, body = peer.receive()
    assert (status, b"--request-memory-limit" in body) == (400, True)


@pytest.mark.parametrize("begun", [b"Content-Length: 90000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n15f90\r\n"])
def test_bodies_of_all_connections_share_one_memory(listen, connect, loop_thread, begun):
    budget = BodyBudget(100_000)
    server = listen(echo, budget=budget)
    first = connect(server)
    first.send(b"POST /a HTTP/1.1\r\nHost: x\r\n" + begun + b"x" * 80_000)
    until(lambda: loop_thread.call(lambda: budget.used_bytes) == 80_000)
    second = connect(server)
    second.send(post(b"/b", b"y" * 50_000))
    status, headers, _ = second.receive()
    assert (status, headers["retry-after"]) == (503, "1")
    assert budget.refused == 1
    first.close()
    until(lambda: loop_thread.call(lambda: budget.used_bytes) == 0)
    third = connect(server)
    third.send(post(b"/b", b"y" * 50_000))
    assert third.receive()[0] == 200
    until(lambda: loop_thread.call(lambda: budget.used_bytes) == 0)


def test_an_upload_without_progress_makes_room_for_others(listen, connect, loop_thread, monkeypatch):
    monkeypatch.setattr("conch.protocols.connections.body_budget._WINDOW_S", 0.01)
    budget = BodyBudget(100_000)
    server = listen(echo, budget=budget)
    slow = connect(server)
    slow.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + b"x" * 80_000)
    until(lambda: loop_thread.call(lambda: budget.used_bytes) == 80_000)
    until(lambda: all(upload.stalled(time.monotonic()) for upload in loop_thread.call(lambda: list(budget._uploads))))
    other = connect(server)
    other.send(post(b"/b", b"y" * 50_000))
    assert other.receive()[0] == 200
    status, headers, _ = slow.receive()
    assert (status, headers["retry-after"]) == (503, "1")
    assert (budget.evicted, budget.refused) == (1, 0)
