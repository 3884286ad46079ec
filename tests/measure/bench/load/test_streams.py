"""Streamed answers: chunks with times, tokens, ends, errors, cancellation."""

import socket
import time
from itertools import pairwise

import numpy as np
import orjson
import pytest

from conch.measure.bench.generator import Answer, Cancel, ClosedLoop, ExpectedAnswer, PreparedRequest, ResponseKind
from conch.measure.bench.records import RequestOutcome
from tests.measure.bench.load.many_streams import many_streams
from tests.measure.bench.load.running import Ran, plan, run
from tests.measure.bench.load.servers import HEAD, Handler, answering, read_request, serving

OK = RequestOutcome.OK
WRONG = RequestOutcome.WRONG_ANSWER
FAILED = RequestOutcome.SERVER_ERROR
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else orjson.dumps(value)) + b"\n\n"


def delta(**fields: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def usage(**counts: object) -> bytes:
    return event({"choices": [], "usage": counts})


DONE = event(b"[DONE]")
CHAT = [
    delta(role="assistant", content=""),
    delta(reasoning_content="hmm"),
    delta(reasoning="yes"),
    delta(content="Hello"),
    delta(content="wörld"),
    delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}]),
    event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
    usage(
        prompt_tokens=7,
        prompt_tokens_details={"cached_tokens": 4},
        completion_tokens=9,
        completion_tokens_details={"reasoning_tokens": 2},
    ),
    DONE,
]


def streamed(kind: ResponseKind = ResponseKind.OPENAI_STREAM, **more: object) -> list[PreparedRequest]:
    return [PreparedRequest(0, HEAD, b"{}", kind, **more)]  # type: ignore[arg-type]


def read(*parts: bytes, kind: ResponseKind = ResponseKind.OPENAI_STREAM, requests: int = 2) -> Ran:
    with serving(answering(SSE_HEAD + chunked(*parts))) as port:
        return run(plan(port, streamed(kind), requests=requests))


def test_chunks_with_content_are_counted() -> None:
    ran = read(*CHAT)
    assert ran.outcomes == {OK: 2}
    assert ran.records["responses"].tolist() == [5, 5]
    assert ran.chunks["characters"].tolist() == [3, 3, 5, 5, 3] * 2
    assert sorted(ran.records["chunks_from"]) == [0, 5]
    for field, value in (
        ("input_tokens", 7),
        ("output_tokens", 9),
        ("reasoning_tokens", 2),
        ("cached_tokens", 4),
        ("status", 200),
    ):
        assert set(ran.records[field].tolist()) == {value}


def test_text_completions_have_text_in_place_of_deltas() -> None:
    ran = read(
        event({"choices": [{"text": "ab"}]}), event({"choices": [{"text": "c", "finish_reason": "length"}]}), DONE
    )
    assert ran.outcomes == {OK: 2}
    assert ran.chunks["characters"].tolist() == [2, 1] * 2
    assert set(ran.records["output_tokens"]) == {-1}


def test_tokens_of_chunks_are_differences_of_continuous_usage() -> None:
    parts = [
        event({"choices": [{"delta": {"content": "x"}}], "usage": {"completion_tokens": tokens}})
        for tokens in (1, 4, 6)
    ]
    ran = read(*parts, DONE, requests=1)
    assert ran.chunks["tokens"].tolist() == [1, 3, 2]


def test_tokens_of_chunks_without_text_are_those_of_the_next_one() -> None:
    parts = [
        event({"choices": [{"delta": {"content": text}}], "usage": {"completion_tokens": tokens}})
        for text, tokens in (("", 0), ("x", 1), ("", 2), ("é", 3))
    ]
    ran = read(*parts, usage(completion_tokens=3), DONE, requests=1)
    assert ran.chunks["tokens"].tolist() == [1, 2]
    assert ran.records["output_tokens"].tolist() == [3]


def test_answers_of_only_reasoning_or_a_tool_call_have_a_first_token() -> None:
    call = {"index": 0, "id": "x", "type": "function", "function": {"name": "weather", "arguments": ""}}
    for first in ({"reasoning_content": "Let me see"}, {"reasoning": "Let me see"}, {"tool_calls": [call]}):
        parts = [delta(role="assistant", content=None), delta(**first), DONE]
        sent: list[int] = []
        with serving(slowly(*parts, sent_ns=sent)) as port:
            ran = run(plan(port, streamed(), requests=1))
        (row,) = ran.records
        assert row["responses"] == 1
        assert row["first_ns"] == ran.chunks["received_ns"][0]
        assert row["first_ns"] >= sent[1]  # not the chunk of the role
        assert row["output_tokens"] == -1


@pytest.mark.parametrize("separator", [b"\n", b"\r\n"])
def test_bytes_may_come_in_any_pieces(separator: bytes) -> None:
    answer = SSE_HEAD + chunked(*(part.replace(b"\n", separator) for part in (b": comment\n\n", *CHAT)))

    def handle(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while read_request(peer):
            for byte in answer:
                peer.send(bytes((byte,)))

    with serving(handle) as port:
        ran = run(plan(port, streamed(), requests=1))
    assert ran.outcomes == {OK: 1}
    assert ran.chunks["characters"].tolist() == [3, 3, 5, 5, 3]


def slowly(*parts: bytes, sent_ns: list[int], pause_s: float = 0.05) -> Handler:
    """Return a handler that pauses before each part and adds the time just before it sends it to `sent_ns`."""

    def handle(peer: socket.socket) -> None:
        while read_request(peer):
            peer.sendall(SSE_HEAD)
            for part in parts:
                time.sleep(pause_s)
                sent_ns.append(time.monotonic_ns())
                peer.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            peer.sendall(b"0\r\n\r\n")

    return handle


def test_chunks_have_the_times_of_their_arrival() -> None:
    sent: list[int] = []
    with serving(slowly(*CHAT[:1], *CHAT[3:5], DONE, sent_ns=sent)) as port:
        ran = run(plan(port, streamed(), requests=1))
    (row,) = ran.records
    first, second = ran.chunks["received_ns"]
    assert row["first_ns"] == first
    assert row["sent_ns"] < sent[1] <= first  # the first event has no content
    assert sent[2] <= second
    assert sent[3] <= row["done_ns"]


def test_chunks_have_their_times_before_the_answer_ends() -> None:
    closed: list[int] = []

    def handle(peer: socket.socket) -> None:
        while read_request(peer):
            peer.sendall(SSE_HEAD + b"%x\r\n%s\r\n" % (len(CHAT[3]), CHAT[3]))
            peer.recv(1)  # until the client, which has recorded the chunk, closes the connection
            closed.append(time.monotonic_ns())

    with serving(handle) as port:
        ran = run(plan(port, streamed(cancel=Cancel.AFTER_RESPONSES, cancel_after=1), requests=1))
    assert ran.chunks["received_ns"][0] <= closed[0]


@pytest.mark.parametrize(
    ("parts", "outcome", "message"),
    [
        ([CHAT[3]], WRONG, "the stream ended without [DONE]"),
        ([b"data: {nonsense\n\n", DONE], WRONG, "an event is not valid JSON: b'{nonsense'"),
        ([b"data: 5\n\n", DONE], WRONG, "an event is not a JSON object: b'5'"),
        ([CHAT[3], event({"error": {"message": "no memory"}})], FAILED, "error in the stream: no memory"),
        ([event({"error": "bad"}), DONE], FAILED, "error in the stream: bad"),
        ([event({"choices": [None, {"delta": 5}, {"delta": {"content": 5, "tool_calls": [1]}}]}), DONE], OK, None),
        ([event({"choices": 3, "usage": 3}), DONE], WRONG, "the stream has no choices"),
        ([event({"choices": [], "usage": {}}), DONE], WRONG, "the stream has no choices"),
        ([event({"choices": [{"delta": {}, "finish_reason": "stop"}]})], WRONG, "the stream ended without [DONE]"),
        ([event({"object": "error", "message": "no memory"}), DONE], FAILED, "error in the stream: no memory"),
    ],
)  # fmt: skip
def test_streams_that_are_wrong(parts: list[bytes], outcome: RequestOutcome, message: str | None) -> None:
    ran = read(*parts)
    assert ran.outcomes == {outcome: 2}
    assert set(ran.errors) == ({message} if message else set())


def test_an_error_in_place_of_a_stream_has_its_message() -> None:
    body = b'{"error": {"message": "no such model"}}'
    with serving(answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))) as port:
        ran = run(plan(port, streamed(), requests=1))
    assert ran.outcomes == {RequestOutcome.CLIENT_ERROR: 1}
    assert "no such model" in ran.errors[0]


def test_generate_stream_counts_responses() -> None:
    parts = [event({"model_name": "m", "model_version": "1", "text_output": text}) for text in ("one", "", "three")]
    ran = read(*parts, kind=ResponseKind.GENERATE_STREAM)
    assert ran.outcomes == {OK: 2}
    assert ran.records["responses"].tolist() == [3, 3]
    assert ran.chunks["characters"].tolist() == [3, 0, 5] * 2
    assert read(kind=ResponseKind.GENERATE_STREAM).outcomes == {WRONG: 2}


def test_usage_of_an_answer_that_is_not_streamed() -> None:
    body = orjson.dumps(
        {"choices": [{"message": {"content": "Hi"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    )
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with serving(answering(answer)) as port:
        ran = run(plan(port, streamed(ResponseKind.OPENAI_UNARY), requests=2))
    assert ran.outcomes == {OK: 2}
    assert ran.records["output_tokens"].tolist() == [1, 1]
    with serving(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")) as port:
        ran = run(plan(port, streamed(ResponseKind.OPENAI_UNARY), requests=1))
    assert ran.outcomes == {WRONG: 1}


def endless(peer: socket.socket) -> None:
    while read_request(peer):
        peer.sendall(SSE_HEAD)
        while True:
            peer.sendall(b"%x\r\n%s\r\n" % (len(CHAT[3]), CHAT[3]))
            time.sleep(0.01)


def test_a_stream_that_never_ends_is_a_timeout() -> None:
    with serving(endless) as port:
        ran = run(plan(port, streamed(), ClosedLoop(4), timeout_s=2, requests=4))
    assert ran.outcomes == {RequestOutcome.TIMEOUT: 4}
    assert ran.records["responses"].min() >= 2
    assert (ran.records["chunks_from"] >= 0).all()


def test_streams_are_cancelled_after_a_number_of_chunks() -> None:
    with serving(endless) as port:
        ran = run(plan(port, streamed(cancel=Cancel.AFTER_RESPONSES, cancel_after=3), ClosedLoop(2), requests=6))
    assert ran.outcomes == {RequestOutcome.CANCELLED: 6}
    assert set(ran.records["responses"]) == {3}
    assert len(ran.chunks) == 18


class Says(ExpectedAnswer):
    def difference(self, answer: Answer) -> str:
        return "" if answer.text == "Hellowörld" else f"expected Hellowörld, got {answer.text}"


def test_the_joined_text_is_compared() -> None:
    for parts, outcome in ((CHAT, OK), ([CHAT[3], DONE], WRONG)):
        with serving(answering(SSE_HEAD + chunked(*parts))) as port:
            ran = run(plan(port, streamed(expected=Says()), requests=1))
        assert ran.outcomes == {outcome: 1}


@pytest.mark.slow
def test_two_thousand_streams_at_once() -> None:
    with many_streams() as port:
        ran = run(plan(port, streamed(), ClosedLoop(2_000), requests=4_000, timeout_s=60))
    assert ran.outcomes == {OK: 4_000}
    assert set(ran.records["responses"]) == {10}
    assert len(ran.chunks) == 40_000
    rows = ran.records
    most = max(((rows["sent_ns"] <= at) & (rows["done_ns"] > at)).sum() for at in rows["sent_ns"][::100])
    assert most > 1_500
    for row in rows[::97]:
        times = ran.chunks["received_ns"][row["chunks_from"] :][:10]
        assert row["sent_ns"] < times[0] == row["first_ns"]
        assert all(a <= b for a, b in pairwise(times.tolist()))
        assert times[-1] <= row["done_ns"]
    assert np.isfinite(ran.health.loop_lag_max_s)
