"""`generate` and `generate_stream`: Triton's flat JSON form, of models of every kind."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.support.server_process import ConchProcess


def post(conch: ConchProcess, path: str, body: Any, **headers: str) -> tuple[int, str, str]:
    """Return status, content type and body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{conch.http}/v2/models/{path}", data, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def events(text: str) -> list[Any]:
    frames = text.split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def test_keys_become_tensors_parameters_and_the_id(conch: ConchProcess) -> None:
    body = {"INPUT0": [1, 2, 3, 4], "parameters": {"INPUT1": [1, 1, 1, 1], "anything": "goes"}, "id": "seven"}
    status, kind, text = post(conch, "addsub/generate", body)
    assert (status, kind) == (200, "application/json")
    assert json.loads(text) == {
        "OUTPUT0": [2, 3, 4, 5],
        "OUTPUT1": [0, 1, 2, 3],
        "id": "seven",
        "model_name": "addsub",
        "model_version": "1",
    }
    assert list(json.loads(text)) == sorted(json.loads(text))


def test_the_free_dimension_takes_what_is_there(conch: ConchProcess) -> None:
    body = {"INPUT0": list(range(8)), "INPUT1": [0] * 8}
    assert json.loads(post(conch, "addsub/generate", body)[2])["OUTPUT0"] == list(range(8))
    status, _, text = post(conch, "addsub/generate", {"INPUT0": [1, 2, 3], "INPUT1": [0] * 4})
    assert status == 400
    assert json.loads(text) == {"error": "The schema can not convert input 'INPUT0' to tensor with proper shape"}


def test_a_single_element_is_not_a_list(conch: ConchProcess) -> None:
    assert json.loads(post(conch, "faulty/generate", {"INPUT0": "hello"})[2])["OUTPUT0"] == "hello"


def test_responses_come_as_events(conch: ConchProcess) -> None:
    status, kind, text = post(conch, "repeat/generate_stream", {"INPUT0": 3})
    assert (status, kind) == (200, "text/event-stream; charset=utf-8")
    assert [event["OUTPUT0"] for event in events(text)] == [0, 1, 2]
    assert events(post(conch, "repeat/generate_stream", {"INPUT0": 0})[2]) == []
    # A model with one response has a stream of one.
    assert [event["OUTPUT0"] for event in events(post(conch, "faulty/generate_stream", {"INPUT0": "a"})[2])] == ["a"]


@pytest.mark.parametrize("count", [0, 2])
def test_generate_wants_exactly_one_response(conch: ConchProcess, count: int) -> None:
    status, _, text = post(conch, "repeat/generate", {"INPUT0": count})
    assert status == 400
    assert json.loads(text)["error"].startswith("generate expects model to produce exactly 1 response")
    assert json.loads(post(conch, "repeat/generate", {"INPUT0": 1})[2])["OUTPUT0"] == 0


def test_errors(conch: ConchProcess) -> None:
    assert post(conch, "nobody/generate", {})[0] == 404
    assert post(conch, "faulty/generate", b"")[0] == 400
    assert post(conch, "faulty/generate", b"[1]")[0] == 400
    assert post(conch, "faulty/generate", {"INPUT0": "a", "odd": [1]})[0] == 400
    status, _, text = post(conch, "faulty/generate", b"x", **{"Content-Encoding": "gzip"})
    assert status == 400
    assert json.loads(text) == {"error": "Unsupported content-encoding, only 'identity' is supported."}
    status, _, text = post(conch, "faulty/generate", {"INPUT0": "error"})
    # The status of a model's error is 400 whatever the error is.
    assert (status, json.loads(text)["error"]) == (400, "custom err")
    status, kind, text = post(conch, "faulty/generate_stream", {"INPUT0": "error"})
    assert (status, kind) == (400, "text/event-stream; charset=utf-8")
    assert events(text) == [{"error": "custom err"}]


@pytest.mark.parametrize("depth", [300, 1020])
def test_what_is_nested_deeply_is_refused(conch: ConchProcess, depth: int) -> None:
    for key, value in (("INPUT0", b'{"a":'), ("parameters", b'{"parameters":')):
        body = b'{"%s":%s1%s}' % (key.encode(), value * depth, b"}" * depth)
        status, _, text = post(conch, "faulty/generate", body)
        assert status == 400
        assert "non-string as string" in text or "Converting keyword: 'parameters': parameter" in text


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"INPUT0":1}', "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        (b'{"INPUT0":null}', "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        (b'{"INPUT0":{"a":1}}', "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        (b'{"INPUT0":["a",1]}', "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        (b'{"INPUT0":["a","b"]}', "The schema can not convert input 'INPUT0' to tensor with proper shape"),
        (b'{"INPUT0":"a","id":5}', "Unable to parse 'id': attempt to access JSON non-string as string"),
        (b'{"INPUT0":"a","parameters":5}', "Expected JSON object for keyword: 'parameters': attempt to access JSON"),
        (b'{"INPUT0":"a","parameters":{"x":[1]}}', "Converting keyword: 'parameters': parameter 'x' has invalid type."),
        (b'{"INPUT0":"a","x":null}', "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."),
        (b'{"INPUT0":"a","INPUT0":"b"}', "[request id: <id_unknown>] input 'INPUT0' already exists in request"),
        (b'{"INPUT0":"a","\\u0049NPUT0":"b"}', "[request id: <id_unknown>] input 'INPUT0' already exists in request"),
        (
            b'{"id":"me","INPUT0":"a","parameters":{"INPUT0":"b"}}',
            "Converting keyword: 'parameters': [request id: me] input 'INPUT0' already exists in request",
        ),
        (b'{"INPUT0":"a","x":1,"x":1}', "key 'x' is given twice"),
        (b'{"INPUT0":"a","parameters":{"x":1,"x":2}}', "key 'x' is given twice"),
        (
            b"{}",
            "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'faulty'. Got input(s) [], but",
        ),
        (b"[]", "attempt to get members for non-object"),
        (b"", "failed to parse the request JSON buffer: The document is empty. at 0"),
    ],
)
@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
def test_values_of_a_wrong_type_and_repeated_keys(conch: ConchProcess, endpoint: str, body: bytes, error: str) -> None:
    status, kind, text = post(conch, f"faulty/{endpoint}", body)
    assert (status, kind) == (400, "application/json")
    assert json.loads(text)["error"].startswith(error)


@pytest.mark.parametrize(
    "body",
    [
        b'{"INPUT0":"\\"INPUT0\\":\\"INPUT0\\"","x":"INPUT0"}',
        b'{"INPUT0":[["nested"]],"parameters":{}}',
        b'{"x":1,"INPUT0":"a","parameters":{"x":1}}',
    ],
)
def test_what_only_looks_like_a_repeated_key(conch: ConchProcess, body: bytes) -> None:
    assert post(conch, "faulty/generate", body)[0] == 200


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("1", "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (1.0, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (True, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (2**63, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (2**31, "Unable to parse 'data': element 0 of input 'INPUT0' is 2147483648, which does not fit INT32"),
        ([[1, 2], [3, 4]], "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ],
)
def test_numbers_are_checked_as_in_infer(conch: ConchProcess, value: Any, error: str) -> None:
    status, _, text = post(conch, "identity_int32/generate", {"INPUT0": value})
    assert status == 400
    assert json.loads(text)["error"].startswith(error)
    assert json.loads(post(conch, "identity_int32/generate", {"INPUT0": [[1], 2]})[2])["OUTPUT0"] == [1, 2]


def test_half_precision_and_numbers_beyond_json(conch: ConchProcess) -> None:
    status, _, text = post(conch, "identity_fp16/generate", {"INPUT0": 1.5})
    assert (status, json.loads(text)["error"].startswith("receiving FP16 data via JSON is not supported.")) == (
        400,
        True,
    )
    _, _, text = post(conch, "identity_fp32/generate", b'{"INPUT0":[NaN,Infinity]}')
    assert text == '{"OUTPUT0":[NaN,Infinity],"model_name":"identity_fp32","model_version":"1"}'
    assert '"OUTPUT0":-Infinity,' in post(conch, "identity_fp32/generate_stream", {"INPUT0": -1e39})[2]
