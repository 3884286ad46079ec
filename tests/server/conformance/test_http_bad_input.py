"""What a mistaken request gets over HTTP: a status that says whose mistake it was, and words that say which.

Rows are those of Triton's behaviour as recorded from the real server. Where it answers 500 to malformed JSON, Conch
answers 400. After each of them the server answers a right request.
"""

import gzip
import http.client
import json
from typing import Any

import pytest

from tests.support.server_process import ConchProcess

RIGHT: dict[str, Any] = {
    "inputs": [
        {"name": name, "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]} for name in ("INPUT0", "INPUT1")
    ]
}


def post(
    conch: ConchProcess, body: bytes | dict[str, Any], model: str = "addsub/infer", **headers: str
) -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", conch.ports["http"], timeout=60)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", f"/v2/models/{model}", content, fields)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, json.loads(answer) if answer else None, response.headers


def changed(*path: object, to: object) -> dict[str, Any]:
    """The right request with one value replaced; None removes it."""
    body = json.loads(json.dumps(RIGHT))
    target = body
    for key in path[:-1]:
        target = target[key]
    if to is None:
        del target[path[-1]]
    else:
        target[path[-1]] = to
    return body  # type: ignore[no-any-return]


def with_more(**fields: object) -> dict[str, Any]:
    return {**RIGHT, **fields}


BINARY = {"inputs": [{"name": "INPUT0", "shape": [16], "datatype": "FP32", "parameters": {"binary_data_size": 64}}]}


def binary(header: dict[str, Any], tail: bytes) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(header).encode()
    return head + tail, {"Inference-Header-Content-Length": str(len(head))}


JSON_ROWS = [
    ("malformed", b'{"inputs":[', 400, "failed to parse the request JSON buffer"),
    ("empty", b"", 400, "Raw request must only have 1 input"),
    ("array", b"[]", 400, "inputs"),
    ("null", b"null", 400, "inputs"),
    ("no inputs", {}, 400, "Unable to parse 'inputs'"),
    ("inputs object", {"inputs": {}}, 400, "Unable to parse 'inputs'"),
    ("inputs empty", {"inputs": []}, 400, "expected number of inputs between 2 and 3 but got 0 inputs"),
    ("input missing", {"inputs": RIGHT["inputs"][:1]}, 400, "missing required input(s) ['INPUT1']"),
    ("unknown input", changed("inputs", 0, "name", to="ZZZ"), 400, "unexpected inference input 'ZZZ'"),
    ("duplicate", changed("inputs", 1, "name", to="INPUT0"), 400, "input 'INPUT0' already exists in request"),
    ("datatype", changed("inputs", 0, "datatype", to="FP32"), 400, "data-type is 'FP32', but model 'addsub' expects"),
    ("no such datatype", changed("inputs", 0, "datatype", to="int32"), 400, "invalid datatype for input INPUT0"),
    ("no datatype", changed("inputs", 0, "datatype", to=None), 400, "Unable to parse 'datatype'"),
    ("no name", changed("inputs", 0, "name", to=None), 400, "Unable to parse 'name'"),
    ("no shape", changed("inputs", 0, "shape", to=None), 400, "Unable to parse 'shape'"),
    ("no data", changed("inputs", 0, "data", to=None), 400, "But no field is set"),
    ("shape", changed("inputs", 0, "shape", to=[1, 3]), 400, ""),
    ("batch", changed("inputs", 0, "shape", to=[2, 2]), 400, "batch size does not match"),
    ("negative dim", changed("inputs", 0, "shape", to=[-1, 4]), 400, "Unable to parse 'shape'"),
    ("float dim", changed("inputs", 0, "shape", to=[1.5, 4]), 400, "Unable to parse 'shape'"),
    ("huge dims", changed("inputs", 0, "shape", to=[2**40, 2**40]), 400, ""),
    ("few elements", changed("inputs", 0, "data", to=[1, 2, 3]), 400, "Unable to parse 'data'"),
    ("string in ints", changed("inputs", 0, "data", to=[1, 2, 3, "4"]), 400, "Unable to parse 'data'"),
    ("float in ints", changed("inputs", 0, "data", to=[1, 2, 3, 4.0]), 400, "Unable to parse 'data'"),
    ("bool in ints", changed("inputs", 0, "data", to=[1, 2, 3, True]), 400, "Unable to parse 'data'"),
    ("too large an int", changed("inputs", 0, "data", to=[1, 2, 3, 2**33]), 400, ""),
    ("data scalar", changed("inputs", 0, "data", to=5), 400, "Unable to parse 'data'"),
    ("unknown output", with_more(outputs=[{"name": "NOPE"}]), 400, "unexpected inference output 'NOPE'"),
    ("outputs object", with_more(outputs={}), 400, "Unable to parse 'outputs'"),
    ("output without name", with_more(outputs=[{}]), 400, "Unable to parse 'name'"),
    ("id", with_more(id=5), 400, "Unable to parse 'id'"),
    ("parameters", with_more(parameters=5), 400, "param"),
    ("null parameter", with_more(parameters={"a": None}), 400, "parameter 'a' has invalid type"),
    ("reserved", with_more(parameters={"triton_x": 1}), 400, "parameter keys starting with 'triton_' are reserved"),
    ("sequence id", with_more(parameters={"sequence_id": 1.5}), 400, "Unable to parse 'sequence_id'"),
    ("sequence start", with_more(parameters={"sequence_start": 1}), 400, "Unable to parse 'sequence_start'"),
    ("priority", with_more(parameters={"priority": -1}), 400, "Unable to parse 'priority'"),
    ("timeout", with_more(parameters={"timeout": "x"}), 400, "Unable to parse 'timeout'"),
    (
        "binary_data",
        with_more(outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": 1}}]),
        400,
        "Unable to parse 'binary_data'",
    ),
    (
        "classification",
        with_more(outputs=[{"name": "OUTPUT0", "parameters": {"classification": -1}}]),
        400,
        "'classification'",
    ),
    ("trailing", json.dumps(RIGHT).encode() + b"xx", 400, "failed to parse the request JSON buffer"),
    ("deep", b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}", 400, ""),
]


@pytest.mark.parametrize(("body", "status", "words"), [pytest.param(*row[1:], id=row[0]) for row in JSON_ROWS])
def test_a_mistake_in_the_json(conch: ConchProcess, body: bytes | dict[str, Any], status: int, words: str) -> None:
    got, answer, headers = post(conch, body)
    assert got == status
    assert words in answer["error"]
    assert headers["Content-Type"] == "application/json"
    assert post(conch, RIGHT)[0] == 200


def test_batch_above_the_maximum(conch: ConchProcess) -> None:
    tensors = [{**tensor, "shape": [5, 4], "data": [0] * 20} for tensor in RIGHT["inputs"]]
    status, answer, _ = post(conch, {"inputs": tensors})
    assert (status, "inference request batch-size must be <= 4 for 'addsub'" in answer["error"]) == (400, True)


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        ("nope/infer", 404, "Request for unknown model: 'nope' is not found"),
        ("addsub/versions/9/infer", 404, "Request for unknown model: 'addsub' version 9 is not found"),
        ("addsub/versions/0/infer", 404, "Request for unknown model: 'addsub' version 0 is not found"),
        ("broken/infer", 404, "Request for unknown model: 'broken' has no available versions"),
        ("addsub/versions/abc/infer", 404, "Not Found"),
        (
            "addsub/versions/99999999999999999999/infer",
            400,
            "failed to get model version from specified version string",
        ),
        ("addsub/infer/", 404, "Not Found"),
        ("repeat/infer", 501, "HTTP end point doesn't support models with decoupled transaction policy"),
    ],
)
def test_a_model_that_cannot_be_asked(conch: ConchProcess, model: str, status: int, words: str) -> None:
    got, answer, _ = post(conch, RIGHT, model)
    assert (got, words in answer["error"]) == (status, True), answer


@pytest.mark.parametrize(
    ("header", "tail", "words"),
    [
        (BINARY, bytes(60), "unexpected size for input 'INPUT0', expecting 4 additional bytes"),
        (BINARY, bytes(68), "unexpected additional input data for model 'identity_fp32'"),
        (
            {"inputs": [{**BINARY["inputs"][0], "parameters": {"binary_data_size": 60}}]},
            bytes(60),
            "input byte size mismatch for input 'INPUT0' for model 'identity_fp32'. Expected 64, got 60",
        ),
        (
            {"inputs": [{**BINARY["inputs"][0], "parameters": {"binary_data_size": "64"}}]},
            bytes(64),
            "Unable to parse 'binary_data_size'",
        ),
        (
            {"inputs": [{**BINARY["inputs"][0], "data": [0.0] * 16}]},
            bytes(64),
            "But set 'data' 'binary_data_size'",
        ),
    ],
)
def test_binary_data_that_does_not_fit(conch: ConchProcess, header: dict[str, Any], tail: bytes, words: str) -> None:
    body, headers = binary(header, tail)
    status, answer, _ = post(conch, body, "identity_fp32/infer", **headers)
    assert (status, words in answer["error"]) == (400, True), answer


@pytest.mark.parametrize("length", ["100000", "-1", "99999999999", "abc", "3"])
def test_header_lengths_that_cannot_be(conch: ConchProcess, length: str) -> None:
    body, _ = binary(BINARY, bytes(64))
    status, answer, _ = post(conch, body, "identity_fp32/infer", Inference_Header_Content_Length=length)
    assert status == 400
    assert answer["error"]


def test_binary_data_without_the_header(conch: ConchProcess) -> None:
    body, _ = binary(BINARY, bytes(64))
    assert post(conch, body, "identity_fp32/infer")[0] == 400


@pytest.mark.parametrize("datatype", ["fp16", "bf16"])
def test_half_precision_has_no_json(conch: ConchProcess, datatype: str) -> None:
    tensor = {"name": "INPUT0", "shape": [1], "datatype": datatype.upper(), "data": [1.0]}
    status, answer, _ = post(conch, {"inputs": [tensor]}, f"identity_{datatype}/infer")
    assert status == 400
    assert f"receiving {datatype.upper()} data via JSON is not supported" in answer["error"]


@pytest.mark.parametrize("encoding", ["br", "GZIP"])
def test_unknown_compression(conch: ConchProcess, encoding: str) -> None:
    status, answer, headers = post(conch, RIGHT, Content_Encoding=encoding)
    assert (status, answer["error"].startswith("Unsupported compression type")) == (501, True)
    assert "gzip" in headers["Accept-Encoding"]


def test_corrupt_and_truncated_gzip(conch: ConchProcess) -> None:
    packed = gzip.compress(json.dumps(RIGHT).encode())
    for body in (b"not gzip at all", packed[:-10], packed[:5]):
        assert post(conch, body, Content_Encoding="gzip")[0] == 400


def test_a_bomb_is_not_unpacked(conch: ConchProcess) -> None:
    status, answer, _ = post(conch, gzip.compress(bytes(100 * 1024 * 1024)), Content_Encoding="gzip")
    assert status in (400, 413)
    assert "http-max-input-size" in answer["error"]


def test_a_model_that_raises_is_quoted(conch: ConchProcess) -> None:
    status, answer, _ = post(conch, text("raise"), "faulty/infer")
    assert status == 500
    assert answer["error"].startswith("Failed to process the request(s) for model")
    assert "message: RuntimeError: boom\n\nAt:\n" in answer["error"]
    assert "execute" in answer["error"]


def test_a_models_own_error_has_its_own_status(conch: ConchProcess) -> None:
    status, answer, _ = post(conch, text("error"), "faulty/infer")
    assert (status, answer["error"]) == (404, "custom err")


def test_none_instead_of_a_response_is_an_error_and_not_a_hang(conch: ConchProcess) -> None:
    status, answer, _ = post(conch, text("none"), "faulty/infer")
    assert status == 500
    assert answer["error"]


def test_undeclared_outputs_are_dropped(conch: ConchProcess) -> None:
    status, answer, _ = post(conch, text("undeclared"), "faulty/infer")
    assert (status, answer["outputs"]) == (200, [])


def test_an_error_in_an_ensemble_names_the_step(conch: ConchProcess) -> None:
    body = {"inputs": [{"name": "IN", "shape": [1], "datatype": "BYTES", "data": ["error"]}]}
    status, answer, _ = post(conch, body, "chain/infer")
    assert (status, answer["error"]) == (404, "in ensemble 'chain', custom err (step 'faulty')")


def test_classification_of_bytes_is_refused(conch: ConchProcess) -> None:
    body = {**text("x"), "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}]}
    status, answer, _ = post(conch, body, "identity_bytes/infer")
    assert status == 400
    assert "OUTPUT0" in answer["error"]


@pytest.mark.parametrize("path", ["systemsharedmemory/status", "cudasharedmemory/status"])
def test_shared_memory_is_refused_where_it_is_not_allowed(conch: ConchProcess, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", conch.ports["http"], timeout=60)
    connection.request("GET", f"/v2/{path}")
    response = connection.getresponse()
    assert response.status == 501
    assert "--allow-client-shm=true" in json.loads(response.read())["error"]
    connection.close()


def test_wrong_methods_and_paths(conch: ConchProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", conch.ports["http"], timeout=60)
    for method, path, status in (
        ("GET", "/v2/models/addsub/infer", 405),
        ("OPTIONS", "/v2", 405),
        ("POST", "/v2/health/live", 405),
        ("GET", "/v2/", 404),
        ("GET", "/V2", 404),
        ("GET", "/", 404),
        ("GET", "/v2//health/live", 404),
    ):
        connection.request(method, path)
        response = connection.getresponse()
        response.read()
        assert response.status == status, (method, path)
    connection.close()


def text(value: str) -> dict[str, Any]:
    return {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "BYTES", "data": [value]}]}
