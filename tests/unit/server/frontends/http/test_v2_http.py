import gzip
import json
import struct
import zlib
from urllib.parse import quote

import pytest

from conch.base.errors import (
    BackendError,
    Cancelled,
    Code,
    ConchError,
    ConfigError,
    ModelLoadError,
    QueueFull,
    Unavailable,
)
from conch.clients.health import health
from conch.domain.scheduling.queue import QUEUE_IS_FULL
from conch.domain.tensor import Tensor, pack_bytes
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from tests.unit.server.frontends.http.conftest import client_of

INFER = "/v2/models/identity/infer"
NUMBERS = struct.pack("<16f", *range(16))


def identity(**fields) -> dict:
    return {
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": list(range(16))}],
        **fields,
    }


def binary_request(**output_parameters) -> tuple[bytes, dict[str, str]]:
    header = json.dumps(
        {
            "inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": output_parameters}],
        }
    ).encode()
    return header + NUMBERS, {"Inference-Header-Content-Length": str(len(header))}


def post(client, path: str, document, headers=None):
    """Post JSON; return status and the answer read as JSON."""
    status, body, response = client("POST", path, json.dumps(document).encode(), headers)
    assert response.headers["Content-Type"] == "application/json"
    return status, json.loads(body)


def get(client, path: str):
    status, body, _ = client("GET", path)
    return status, json.loads(body)


# Inference.


@pytest.mark.parametrize(("seconds", "header"), [(None, None), (0.01, "1"), (7.2, "8")])
def test_a_full_queue_refuses_with_retry_after_before_decoding(client, inference, seconds, header):
    inference.models["identity"].full = QueueFull(QUEUE_IS_FULL, retry_after_s=seconds)
    status, body, response = client("POST", INFER, b"[ no JSON")
    assert (status, json.loads(body)) == (503, {"error": QUEUE_IS_FULL})
    assert response.headers["Retry-After"] == header
    status, body, _ = client("POST", INFER, b'{"id": "me", no JSON')
    assert (status, json.loads(body)) == (503, {"error": "[request id: me] Exceeds maximum queue size"})
    assert inference.admitted == []


def test_json_in_json_out(client, inference):
    status, body, response = client("POST", INFER, json.dumps(identity(id="x")).encode())
    assert status == 200
    assert response.headers["Content-Type"] == "application/json"
    assert "Inference-Header-Content-Length" not in response.headers
    assert json.loads(body) == {
        "id": "x",
        "model_name": "identity",
        "model_version": "1",
        "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 16], "data": list(range(16))}],
    }
    request = inference.admitted[0].request
    assert (request.version, request.timeline.received > 0) == (None, True)


def test_binary_in_binary_out(client):
    status, body, response = client("POST", INFER, *binary_request(binary_data=True))
    assert status == 200
    assert response.headers["Content-Type"] == "application/octet-stream"
    size = int(response.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(body[:size])["outputs"]
    assert output["parameters"] == {"binary_data_size": 64}
    assert body[size:] == NUMBERS


def test_binary_in_json_out(client):
    status, body, response = client("POST", INFER, *binary_request(binary_data=False))
    assert (status, response.headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["outputs"][0]["data"] == list(range(16))


def test_binary_by_default(client):
    status, body, response = client(
        "POST", INFER, json.dumps(identity(parameters={"binary_data_output": True})).encode()
    )
    assert status == 200
    assert body[int(response.headers["Inference-Header-Content-Length"]) :] == NUMBERS


@pytest.mark.parametrize("size", [40_000, 5_000_000])
def test_large_tensors(client, size):
    header = json.dumps(
        {
            "inputs": [
                {"name": "INPUT0", "datatype": "INT8", "shape": [size], "parameters": {"binary_data_size": size}}
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        }
    ).encode()
    data = bytes(range(250)) * (size // 250)
    status, body, response = client("POST", INFER, header + data, {"Inference-Header-Content-Length": str(len(header))})
    assert status == 200
    assert body[int(response.headers["Inference-Header-Content-Length"]) :] == data


@pytest.mark.parametrize("headers", [{"Inference-Header-Content-Length": "0"}])
def test_raw_body(client, headers):
    status, body, response = client("POST", "/v2/models/open/infer", b"123456", headers)
    size = int(response.headers["Inference-Header-Content-Length"])
    assert (status, body[size:]) == (200, b"123456")
    assert json.loads(body[:size])["outputs"][0]["shape"] == [3]


def test_an_empty_body_is_a_raw_request(client):
    status, body, _ = client("POST", "/v2/models/addsub/infer")
    assert status == 400
    assert b"Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'addsub'" in body


def test_a_version_in_the_path(client, inference):
    status, _ = post(client, "/v2/models/identity/versions/1/infer", identity())
    assert (status, inference.admitted[0].request.version) == (200, 1)


def test_the_query_is_ignored(client):
    assert post(client, INFER + "?verbose=1", identity())[0] == 200


def test_classification(client, inference):
    document = identity(outputs=[{"name": "OUTPUT0", "parameters": {"classification": 3}}])
    document["inputs"][0] |= {"shape": [2, 4], "data": [1, 2, 3, 0, 4, 3, 2, 1]}
    status, answer = post(client, INFER, document)
    assert status == 200
    assert answer["outputs"] == [
        {
            "name": "OUTPUT0",
            "datatype": "BYTES",
            "shape": [2, 3],
            "data": [
                *("3.000000:2:two", "2.000000:1:one", "1.000000:0:zero"),
                *("4.000000:0:zero", "3.000000:1:one", "2.000000:2:two"),
            ],
        }
    ]


def test_classification_of_strings_is_refused(client):
    """The real server dies of it."""
    document = {
        "inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "data": ["x"]}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}],
    }
    status, answer = post(client, "/v2/models/text/infer", document)
    assert status == 400
    assert "class result not available for output due to unsupported type 'BYTES'; " in answer["error"]
    assert get(client, "/v2")[0] == 200


def test_halves_are_sent_as_binary_only(client, inference):
    inference.outputs = [Tensor("OUTPUT0", "FP16", (1,), b"\0\0")]
    status, answer = post(client, INFER, identity())
    assert (status, answer["error"][:44]) == (400, "sending FP16 data via JSON is not supported.")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BackendError("broke"), 500),
        (BackendError("custom", Code.NOT_FOUND), 404),
        (BackendError("odd", Code.UNKNOWN), 400),
        (QueueFull("Exceeds maximum queue size"), 503),
        (Unavailable("later"), 503),
        (Cancelled("gone"), 400),
        (ConchError("there", Code.ALREADY_EXISTS), 400),
        (ConchError("half \ud800 a pair"), 500),
    ],
)
def test_what_the_core_answers_becomes_a_status(client, inference, error, status):
    inference.outputs = error
    assert post(client, INFER, identity())[0] == status


def test_a_model_that_answers_nothing(client, inference, loop_thread):
    inference.outputs = []
    assert post(client, INFER, identity()) == (200, {"model_name": "identity", "model_version": "1", "outputs": []})


def test_an_end_without_a_response_is_an_error(connect, server, inference, loop_thread):
    inference.hold = True
    peer = connect(server)
    body = json.dumps(identity()).encode()
    peer.send(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (INFER.encode(), len(body), body))
    admitted = wait_for_admission(inference, loop_thread)
    loop_thread.call(lambda: admitted.respond(None, True))
    status, _, answer = peer.receive()
    assert status == 500
    assert b"ended the request without a response" in answer


def test_a_client_that_leaves_cancels_its_request(connect, server, inference, loop_thread):
    inference.hold = True
    peer = connect(server)
    body = json.dumps(identity()).encode()
    peer.send(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (INFER.encode(), len(body), body))
    admitted = wait_for_admission(inference, loop_thread)
    assert not admitted.cancelled.is_set()
    peer.close()
    assert admitted.cancelled.wait(60)
    loop_thread.call(admitted.answer)  # too late, and no harm


def wait_for_admission(inference, loop_thread):
    assert inference.admission.acquire(timeout=60)
    return loop_thread.call(lambda: inference.admitted[-1])


# Compression.


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_requests(client, coding, compress):
    body, headers = binary_request(binary_data=True)
    status, answer, _ = client("POST", INFER, compress(body), headers | {"Content-Encoding": coding})
    assert status == 200
    assert answer.endswith(NUMBERS)


@pytest.mark.parametrize(
    ("accept", "coding", "decompress"),
    [
        ("gzip", "gzip", gzip.decompress),
        ("deflate, gzip;q=0.9", "deflate", zlib.decompress),
        ("identity", None, bytes),
        ("br", None, bytes),
    ],
)
def test_compressed_responses(client, accept, coding, decompress):
    body, headers = binary_request(binary_data=True)
    status, answer, response = client("POST", INFER, body, headers | {"Accept-Encoding": accept})
    assert (status, response.headers.get("Content-Encoding")) == (200, coding)
    size = int(response.headers["Inference-Header-Content-Length"])
    assert decompress(answer)[size:] == NUMBERS


@pytest.mark.parametrize("coding", ["br", "GZIP"])
def test_unknown_codings(client, coding):
    status, body, response = client("POST", INFER, b"x", {"Content-Encoding": coding})
    assert (status, response.headers["Accept-Encoding"]) == (501, "gzip, deflate")
    assert b"Unsupported compression type" in body


def test_damaged_and_overlong_compressed_requests(serve):
    with client_of(serve(http_max_input_size=10_000)) as client:
        status, body, _ = client("POST", INFER, b"no gzip", {"Content-Encoding": "gzip"})
        assert (status, b"not valid gzip data" in body) == (400, True)
        status, body, _ = client("POST", INFER, gzip.compress(bytes(20_000), mtime=0), {"Content-Encoding": "gzip"})
        assert (status, b"--http-max-input-size" in body) == (400, True)


# What goes wrong.


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/v2/models/nope/infer", 404, "Request for unknown model: 'nope' is not found"),
        ("/v2/models/identity/versions/9/infer", 404, "Request for unknown model: 'identity' version 9 is not found"),
        ("/v2/models/identity/versions/0/infer", 404, "Request for unknown model: 'identity' version 0 is not found"),
        ("/v2/models/identity/versions/abc/infer", 404, "Not Found"),
        ("/v2/models/identity/versions/-1/infer", 404, "Not Found"),
        ("/v2/models/identity/versions/" + quote("٣") + "/infer", 404, "Not Found"),
        (f"/v2/models/identity/versions/{2**63}/infer", 400, "failed to get model version from specified version"),
        (f"/v2/models/identity/versions/{'9' * 5000}/infer", 400, "version should be an integral value > 0"),
        ("/v2/models/decoupled/infer", 501, "HTTP end point doesn't support models with decoupled transaction policy"),
        ("/v2/models/identity/infer/", 404, "Not Found"),
        ("/v2/models//infer", 404, "Not Found"),
        ("/v2//models/identity/infer", 404, "Not Found"),
        ("/V2/models/identity/infer", 404, "Not Found"),
        ("/v2/models/" + quote("identity ") + "/infer", 404, "Request for unknown model: 'identity%20' is not found"),
        ("/v2/models/identity/nonsense", 404, "Not Found"),
        ("/v2/models", 404, "Not Found"),
        ("/v2/", 404, "Not Found"),
        ("/", 404, "Not Found"),
        ("/metrics", 404, "Not Found"),
    ],
)
def test_paths_that_lead_nowhere(client, path, status, message):
    answered, answer = post(client, path, {"not": "decoded"})
    assert answered == status
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (identity(id=5), "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ],
)
def test_malformed_documents_are_the_clients_mistake(client, document, message):
    status, answer = post(client, INFER, document)
    assert status == 400
    assert message in answer["error"]


def test_malformed_json(client):
    status, body, response = client("POST", INFER, b'{"inputs": [}')
    assert (status, response.headers["Content-Type"]) == (400, "application/json")
    assert json.loads(body)["error"].startswith("failed to parse the request JSON buffer: ")


@pytest.mark.parametrize(
    ("length", "status", "message"),
    [
        ("10000", 400, "inference header size should be in range (0, "),
        ("abc", 400, "Unable to parse Inference-Header-Content-Length"),
        ("20", 400, "failed to parse the request JSON buffer"),
    ],
)
def test_header_lengths_that_do_not_fit(client, length, status, message):
    body, _ = binary_request()
    answered, answer, _ = client("POST", INFER, body, {"Inference-Header-Content-Length": length})
    assert answered == status
    assert message in json.loads(answer)["error"]


def test_shared_memory_in_a_request(client):
    document = {
        "inputs": [
            {
                "name": "INPUT0",
                "datatype": "FP32",
                "shape": [1],
                "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4},
            },
        ]
    }
    status, answer = post(client, INFER, document)
    assert (status, "--allow-client-shm=true" in answer["error"]) == (501, True)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", INFER),
        ("PUT", INFER),
        ("OPTIONS", INFER),
        ("DELETE", "/v2"),
        ("POST", "/v2"),
        ("POST", "/v2/health/live"),
        ("POST", "/v2/models/identity"),
        ("GET", "/v2/repository/index"),
        ("GET", "/v2/repository/models/identity/load"),
    ],
)
def test_wrong_methods(client, method, path):
    status, body, response = client(method, path)
    assert (status, response.headers["Content-Type"]) == (405, "application/json")
    assert json.loads(body) == {"error": "Method Not Allowed"}


def test_head_is_a_wrong_method(client):
    status, body, _ = client("HEAD", "/v2/health/live")
    assert (status, body) == (405, b"")


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("GET", "/v2/systemsharedmemory/status", "shared memory"),
        ("GET", "/v2/cudasharedmemory/region/r/status", "shared memory"),
        ("POST", "/v2/systemsharedmemory/region/r/register", "shared memory"),
        ("POST", "/v2/systemsharedmemory/unregister", "shared memory"),
        ("POST", "/v2/repository/other/models/identity/load", "'repository_name' specification is not supported"),
    ],
)
def test_what_is_not_there_is_refused_by_name(client, method, path, what):
    status, body, response = client(method, path, b"{}" if method == "POST" else None)
    assert (status, response.headers["Content-Type"]) == (501, "application/json")
    assert what in json.loads(body)["error"]


def test_json_is_bounded_and_binary_data_are_not(serve):
    with client_of(serve(http_max_input_size=1000)) as client:
        status, body, _ = client("POST", INFER, b"x" * 1001)
        assert (status, b"--http-max-input-size" in body) == (400, True)
    with client_of(serve(http_max_input_size=100)) as client:
        header = b'{"inputs":[{"name":"I","datatype":"INT8","shape":[999],"parameters":{"binary_data_size":999}}]}'
        status, _, _ = client("POST", INFER, header + bytes(999), {"Inference-Header-Content-Length": str(len(header))})
        assert status == 200
        padded = b" " * 100 + header
        status, body, _ = client(
            "POST", INFER, padded + bytes(999), {"Inference-Header-Content-Length": str(len(padded))}
        )
        assert (status, b"--http-max-input-size" in body) == (400, True)


# Headers as parameters, restricted endpoints.


def test_forwarded_headers_are_parameters(serve, inference):
    with client_of(serve(http_header_forward_pattern="X-.*|Trace")) as client:
        status, _ = post(client, INFER, identity(), {"X-User": "ada", "My-Trace-Id": "7", "Other": "no"})
        assert status == 200
        assert inference.admitted[0].request.parameters == {"X-User": "ada", "My-Trace-Id": "7"}


def test_the_model_of_a_request_is_looked_up_once(client, inference):
    assert post(client, INFER, identity())[0] == 200
    assert inference.looked_up == ["identity"]


def test_the_model_of_a_request_that_a_worker_decodes_is_looked_up_again(client, inference):
    """The model may have been replaced in the meantime."""
    padding = {"parameters": {"padding": " " * MAX_INLINE_BYTES}}
    assert post(client, INFER, identity(**padding))[0] == 200
    assert inference.looked_up == ["identity", "identity"]


def test_credentials_are_never_forwarded(serve, inference):
    with client_of(serve(http_header_forward_pattern=".*", http_restricted_api=["trace:Admin-Key=sesame"])) as client:
        secret = {"Authorization": "Bearer sesame", "Admin-Key": "sesame", "COOKIE": "sesame"}
        assert post(client, INFER, identity(), {**secret, "X-User": "ada"})[0] == 200
    parameters = inference.admitted[0].request.parameters
    assert parameters["X-User"] == "ada"
    assert not any("sesame" in str(value) for value in parameters.values())


@pytest.mark.parametrize("name", ["triton_x", "priority"])
def test_reserved_headers_are_not_forwarded(serve, name):
    with client_of(serve(http_header_forward_pattern="triton|prio")) as client:
        status, answer = post(client, INFER, identity(), {name: "1"})
        assert (status, name in answer["error"]) == (400, True)


def test_a_pattern_that_is_none(serve):
    with pytest.raises(ConfigError, match="--http-header-forward-pattern"):
        serve(http_header_forward_pattern="(")


def test_restricted_endpoints(serve):
    with client_of(serve(http_restricted_api=["inference,model-config:Admin-Key=secret"])) as client:
        for headers in ({}, {"Admin-Key": "wrong"}):
            status, answer = post(client, INFER, identity(), headers)
            assert status == 403
            assert answer["error"] == "This API is restricted, expecting header 'Admin-Key'"
        assert post(client, INFER, identity(), {"admin-key": "secret"})[0] == 200
        assert get(client, "/v2/models/identity/config")[0] == 403
        assert get(client, "/v2/models/identity")[0] == 200


# Questions about the server and its models.


def test_server_metadata(serve):
    with client_of(serve(id="mine")) as client:
        status, document = get(client, "/v2")
        assert (status, document["name"]) == (200, "mine")
        assert "binary_tensor_data" in document["extensions"]
        assert "system_shared_memory" not in document["extensions"]


def test_the_health_check_of_containers_reads_metadata_too(server, inference):
    assert health(["--metadata", f"--port={server.port}"]) == 0
    inference.is_ready = False
    assert health(["--metadata", f"--port={server.port}"]) == 1
    assert health(["--live", "--metadata", f"--port={server.port}"]) == 0


def test_health(client, inference):
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/identity/ready"):
        assert client("GET", path)[:2] == (200, b"")
    inference.is_ready = False
    assert client("GET", "/v2/health/ready")[:2] == (400, b"")
    for path in ("/v2/models/nope/ready", "/v2/models/identity/versions/2/ready"):
        status, body, _ = client("GET", path)
        assert (status, json.loads(body)) == (400, {"error": "Model version not ready"})


def test_model_metadata(client):
    for path in ("/v2/models/identity", "/v2/models/identity/versions/1"):
        status, document = get(client, path)
        assert (status, document["versions"]) == (200, ["1"])
    assert get(client, "/v2/models/nope")[0] == 404


def test_model_config(client):
    status, document = get(client, "/v2/models/identity/config")
    assert (status, document["max_batch_size"]) == (200, 8)
    assert get(client, "/v2/models/nope/config")[0] == 404


def test_statistics(client):
    status, document = get(client, "/v2/models/stats")
    assert (status, len(document["model_stats"])) == (200, 6)
    for path in ("/v2/models/identity/stats", "/v2/models/identity/versions/1/stats"):
        assert [entry["name"] for entry in get(client, path)[1]["model_stats"]] == ["identity"]
    assert get(client, "/v2/models/nope/stats") == (400, {"error": "requested model 'nope' is not available"})


# Model control.


def test_repository_index(client):
    for path in ("/v2/repository/index", "/v2/repository/any/index"):
        status, body, _ = client("POST", path)
        assert (status, len(json.loads(body))) == (200, 2)
    status, body, _ = client("POST", "/v2/repository/index", b'{"ready": true}')
    assert json.loads(body) == [{"name": "identity", "version": "1", "state": "READY"}]
    assert client("POST", "/v2/repository/index", b'{"ready": 1}')[0] == 400


def test_load_and_unload(client, control):
    assert client("POST", "/v2/repository/models/m/load")[:2] == (200, b"")
    body = b'{"parameters": {"config": "{}", "file:1/model.py": "cHk="}}'
    assert client("POST", "/v2/repository/models/m/load", body)[0] == 200
    assert client("POST", "/v2/repository/models/m/unload", b'{"parameters": {"unload_dependents": true}}')[0] == 200
    assert control.loaded == [("m", None, {}), ("m", "{}", {"1/model.py": b"py"})]
    assert control.unloaded == [("m", True)]


@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        (ModelLoadError("load failed for model 'm': no such file", Code.INVALID_ARG), 400, "no such file"),
        (Unavailable("explicit model load / unload is not allowed"), 503, "not allowed"),
        (ZeroDivisionError("secret"), 500, "internal error"),
    ],
)
def test_loads_that_fail(client, control, failure, status, message):
    control.failure = failure
    answered, body, _ = client("POST", "/v2/repository/models/m/load")
    assert answered == status
    assert message in json.loads(body)["error"]
    assert b"secret" not in body


def test_a_load_with_a_bad_body(client, control):
    assert client("POST", "/v2/repository/models/m/load", b"{")[0] == 400
    assert control.loaded == []


# More than one client.


def test_the_mistake_of_one_client_is_not_the_loss_of_another(server, inference):
    inference.outputs = [Tensor("OUTPUT0", "BYTES", (1,), pack_bytes(["fine"]))]
    with client_of(server) as good, client_of(server) as bad:
        for body in (b"{", b"[" * 100_000, b'{"inputs":[1]}', bytes(1000)):
            assert bad("POST", INFER, body)[0] == 400
            assert post(good, INFER, identity())[0] == 200
