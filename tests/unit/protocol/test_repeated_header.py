"""Remembered headers: the same requests as without remembering, for right bodies and for wrong ones."""

import json

import pytest

from conch.errors import InvalidRequest
from conch.protocol.repeated_header import RepeatedHeaders
from conch.protocol.v2_json import decode_request
from conch.request import InferRequest, Timeline


def header(*sizes: int, **more: object) -> bytes:
    inputs = [
        {"name": f"I{i}", "datatype": "UINT8", "shape": [size], "parameters": {"binary_data_size": size}}
        for i, size in enumerate(sizes)
    ]
    return json.dumps({"inputs": inputs, **more}).encode()


def fields(request: InferRequest) -> dict[str, object]:
    values = {name: getattr(request, name) for name in InferRequest.__slots__ if name not in ("inputs", "timeline")}
    values["inputs"] = [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs]
    return values


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"id": "seven", "outputs": [{"name": "O", "parameters": {"binary_data": True}}]},
        {"parameters": {"sequence_id": 3, "sequence_start": True, "priority": 2, "timeout": 5, "mine": "x"}},
    ],
)
def test_a_remembered_header_gives_what_a_read_one_gives(more: dict[str, object]) -> None:
    decoder = RepeatedHeaders()
    head = header(3, 2, **more)
    for tail in (b"abcde", b"fghij"):
        request, options = decoder.decode("m", 1, head + tail, len(head), Timeline())
        plain, plain_options = decode_request("m", 1, head + tail, len(head))
        assert fields(request) == fields(plain)
        assert (options.binary, options.binary_default) == (plain_options.binary, plain_options.binary_default)


def test_parameters_of_one_request_are_not_those_of_the_next() -> None:
    decoder = RepeatedHeaders()
    head = header(1, parameters={"mine": "x"})
    for _ in range(2):
        request, _ = decoder.decode("m", None, head + b"a", len(head), Timeline())
        assert request.parameters == {"mine": "x"}
        request.parameters["forwarded"] = "y"


def test_a_body_of_another_size_is_still_refused() -> None:
    decoder = RepeatedHeaders()
    head = header(3)
    decoder.decode("m", None, head + b"abc", len(head), Timeline())
    with pytest.raises(InvalidRequest, match="expecting 1 additional bytes"):
        decoder.decode("m", None, head + b"ab", len(head), Timeline())
    with pytest.raises(InvalidRequest, match="unexpected additional input data"):
        decoder.decode("m", None, head + b"abcd", len(head), Timeline())


def test_data_in_the_json_is_read_every_time() -> None:
    decoder = RepeatedHeaders()
    body = b'{"inputs":[{"name":"I","datatype":"UINT8","shape":[1],"data":[7]}]}'
    for _ in range(2):
        request, _ = decoder.decode("m", None, body, len(body), Timeline())
        assert bytes(request.inputs[0].data) == b"\x07"


def test_what_is_remembered_is_bounded() -> None:
    decoder = RepeatedHeaders()
    for i in range(1000):
        head = header(1, id=str(i))
        decoder.decode("m", None, head + b"a", len(head), Timeline())
    assert len(decoder._forms) <= 256
    large = header(1, id="x" * 4000)
    decoder.decode("m", None, large + b"a", len(large), Timeline())
    assert large not in decoder._forms
