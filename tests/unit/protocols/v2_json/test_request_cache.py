"""Requests from the cache equal those without a cache, for valid and invalid bodies."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import InvalidRequest
from conch.domain.request import InferRequest, Timeline
from conch.protocols.v2_json import request_cache
from conch.protocols.v2_json.inference import decode_request
from conch.protocols.v2_json.request_cache import JsonRequestCache


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
def test_a_cached_header_equals_a_decoded_one(more: dict[str, object]) -> None:
    cache = JsonRequestCache()
    head = header(3, 2, **more)
    for tail in (b"abcde", b"fghij"):
        request, options = cache.decode("m", 1, head + tail, len(head), Timeline())
        plain, plain_options = decode_request("m", 1, head + tail, len(head))
        assert fields(request) == fields(plain)
        assert (options.binary, options.binary_default) == (plain_options.binary, plain_options.binary_default)


def test_parameters_of_one_request_are_not_those_of_the_next() -> None:
    cache = JsonRequestCache()
    head = header(1, parameters={"mine": "x"})
    for _ in range(2):
        request, _ = cache.decode("m", None, head + b"a", len(head), Timeline())
        assert request.parameters == {"mine": "x"}
        request.parameters["forwarded"] = "y"


def test_a_body_of_another_size_is_still_refused() -> None:
    cache = JsonRequestCache()
    head = header(3)
    cache.decode("m", None, head + b"abc", len(head), Timeline())
    with pytest.raises(InvalidRequest, match="expecting 1 additional bytes"):
        cache.decode("m", None, head + b"ab", len(head), Timeline())
    with pytest.raises(InvalidRequest, match="unexpected additional input data"):
        cache.decode("m", None, head + b"abcd", len(head), Timeline())


def text(data: str, more: str = "") -> bytes:
    tensor = '{"name":"I","datatype":"INT32","shape":[2,2],"data": [' + data + "]" + more + "}"
    return ('{"id":"seven","inputs":[' + tensor + "]}").encode()


@pytest.mark.parametrize("data", ["1,2,3,4", " 5, 6 ,7,8 ", "[1,2],[3,4]", "[[1],[2]],[[3],[4]]"])
def test_values_in_json_are_those_of_each_request(data: str) -> None:
    cache = JsonRequestCache()
    for body in (text("0,0,0,0"), text(data), text("9,9,9,9")):
        request, _ = cache.decode("m", 1, body, None, Timeline())
        plain, _ = decode_request("m", 1, body, None)
        assert fields(request) == fields(plain)


@pytest.mark.parametrize(
    "data", ["1,2,3", "1,2,3,4,5", "1,2,3,4.0", '1,2,3,"4"', "1,2,3,NaN", "1,2,3,4],[5", "1,2,3,4]}],[{", "1,,2", ""]
)
def test_wrong_values_get_the_same_words(data: str) -> None:
    cache = JsonRequestCache()
    cache.decode("m", None, text("1,2,3,4"), None, Timeline())
    with pytest.raises(InvalidRequest) as remembered:
        cache.decode("m", None, text(data), None, Timeline())
    with pytest.raises(InvalidRequest) as plain:
        decode_request("m", None, text(data), None)
    assert remembered.value.message == plain.value.message


@pytest.mark.parametrize(
    "body",
    [
        text("1,2,3,4", ',"data":[5,6,7,8]'),  # the last one counts
        text("1,2,3,4", ',"d\\u0061ta":[5,6,7,8]'),
        b'{"inputs":[{"name":"I","datatype":"BYTES","shape":[1],"data":["a]b"]}]}',
        (
            b'{"inputs":[{"name":"I","datatype":"BOOL","shape":[1],"data":[true]},'
            b'{"name":"J","datatype":"BOOL","shape":[1],"data":[false]}]}'
        ),
    ],
)
def test_ambiguous_texts_are_not_cached(body: bytes) -> None:
    cache = JsonRequestCache()
    for _ in range(2):
        request, _ = cache.decode("m", None, body, None, Timeline())
        assert fields(request) == fields(decode_request("m", None, body, None)[0])
    assert not cache._entries


@given(st.lists(st.integers(-(2**40), 2**40), max_size=6), st.lists(st.integers(-9, 9), min_size=4, max_size=4))
def test_a_hit_equals_a_miss(values: list[int], first: list[int]) -> None:
    cache = JsonRequestCache()
    cache.decode("m", None, text(",".join(map(str, first))), None, Timeline())
    body = text(",".join(map(str, values)))
    outcomes: list[object] = []
    for decode in (cache.decode, decode_request):
        try:
            outcomes.append(fields(decode("m", None, body, None, Timeline())[0]))
        except InvalidRequest as error:
            outcomes.append(error.message)
    assert outcomes[0] == outcomes[1]


def test_the_cache_is_bounded() -> None:
    cache = JsonRequestCache()
    for i in range(1000):
        head = header(1, id=str(i))
        cache.decode("m", None, head + b"a", len(head), Timeline())
    assert len(cache._entries) <= request_cache._MAX_ENTRIES
    large = header(1, id="x" * 4000)
    cache.decode("m", None, large + b"a", len(large), Timeline())
    assert large not in cache._entries
