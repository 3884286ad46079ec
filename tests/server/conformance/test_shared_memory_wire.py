"""Shared memory as the wire has it: what the official clients do not send, with Triton's words for what is wrong.

Each row was compared with Triton 2.51. Where it answers 500 to a client's mistake, or takes what has no meaning, the
row says so.
"""

import http.client
import json
import os
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

FLOATS = np.arange(64, dtype=np.float32)
SYSTEM = "/v2/systemsharedmemory"
CUDA = "/v2/cudasharedmemory"


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("shared")
    write_identity(root / "models", "floats")
    with ConchProcess(root / "models", "--allow-client-shm=true", log=root / "conch.log") as server:
        yield server


@pytest.fixture(scope="module")
def forbidding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("forbidding")
    write_identity(root / "models", "floats")
    with ConchProcess(root / "models", log=root / "conch.log") as server:
        yield server


@pytest.fixture(scope="module")
def memory(conch: ConchProcess) -> Iterator[SharedMemory]:
    """An object of 256 bytes, registered as the region `r`."""
    memory = SharedMemory(create=True, size=256, name=f"conch-test-{os.getpid()}")
    memory.buf[:] = FLOATS.tobytes()
    status, _ = ask(conch, "POST", f"{SYSTEM}/region/r/register", {"key": f"/{memory.name}", "byte_size": 256})
    assert status == 200
    yield memory
    memory.close()
    memory.unlink()


def ask(server: ConchProcess, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Return status and body; `body` is JSON unless it is text already."""
    connection = http.client.HTTPConnection(server.http, timeout=30)
    connection.request(method, path, body if body is None or isinstance(body, str) else json.dumps(body))
    response = connection.getresponse()
    status, text = response.status, response.read().decode()
    connection.close()
    return status, str(json.loads(text)["error"]) if status != 200 else text


def call(server: ConchProcess, name: str, message: Any) -> tuple[str, Any]:
    """Return a call's status, and its answer or what is wrong."""
    with grpc.insecure_channel(server.grpc) as channel:
        try:
            return "OK", getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), name)(message, timeout=30)
        except grpc.RpcError as error:
            return error.code().name, error.details()


HANDLE = "A" * 86 + "=="


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("", "failed to parse the request JSON buffer"),  # 500
        ("{", "failed to parse the request JSON buffer"),  # 500
        ([], "Shared memory register request has no 'key' field"),
        ({"byte_size": 64}, "Shared memory register request has no 'key' field"),
        ({"key": "/k"}, "Shared memory register request has no 'byte_size' field"),
        ({"key": "/k", "byte_size": -1}, "attempt to access JSON non-unsigned-integer as unsigned-integer"),  # 500
        ({"key": "/k", "byte_size": "64"}, "attempt to access JSON non-unsigned-integer as unsigned-integer"),  # 500
        ({"key": "/k", "byte_size": 1.5}, "attempt to access JSON non-unsigned-integer as unsigned-integer"),  # 500
        ({"key": "/k", "byte_size": True}, "attempt to access JSON non-unsigned-integer as unsigned-integer"),  # 500
        ({"key": "/k", "byte_size": 4, "offset": -4}, "non-unsigned-integer as unsigned-integer; it is -4"),  # 500
        ({"key": 1, "byte_size": 4}, "attempt to access JSON non-string as string"),  # 500
        ({"key": "/conch-test-nonesuch", "byte_size": 4}, "Unable to open shared memory region"),
    ],
)
def test_registrations_that_are_wrong(conch: ConchProcess, body: Any, text: str) -> None:
    status, error = ask(conch, "POST", f"{SYSTEM}/region/x/register", body)
    assert (status, text in error) == (500 if "Unable to open" in text else 400, True), error


@pytest.mark.parametrize(
    ("handle", "device", "size", "text"),
    [
        (None, 0, 4, "Shared memory register request has no 'raw_handle' field"),
        ({"b64": HANDLE}, None, 4, "attempt to access non-existing object member 'device_id'"),
        ({"b64": HANDLE}, 0, None, "attempt to access non-existing object member 'byte_size'"),
        ({}, 0, 4, "attempt to access non-existing object member 'b64'"),
        ("AAAA", 0, 4, "attempt to access non-existing object member 'b64'"),
        ({"b64": "AAAA"}, 0, 4, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t: 3 bytes"),
        ({"b64": 1}, 0, 4, "attempt to access JSON non-string as string"),
        ({"b64": "A"}, 0, 4, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
        ({"b64": "A*A="}, 0, 4, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
        ({"b64": "zwölf"}, 0, 4, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
        ({"b64": HANDLE}, -1, 4, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"b64": HANDLE}, 0, "4", "attempt to access JSON non-unsigned-integer as unsigned-integer"),
    ],
)
def test_registrations_of_gpus_that_are_wrong(
    conch: ConchProcess, handle: Any, device: Any, size: Any, text: str
) -> None:
    fields = {"raw_handle": handle, "device_id": device, "byte_size": size}
    body = {key: value for key, value in fields.items() if value is not None}
    status, error = ask(conch, "POST", f"{CUDA}/region/x/register", body)
    assert (status, text in error) == (400, True), error


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", f"{SYSTEM}/region/x/register", 405, "Method Not Allowed"),
        ("POST", f"{SYSTEM}/status", 405, "Method Not Allowed"),
        ("GET", f"{CUDA}/unregister", 405, "Method Not Allowed"),
        ("GET", SYSTEM, 404, "Not Found"),
        ("POST", f"{SYSTEM}/region/x/other", 404, "Not Found"),
        ("GET", f"{SYSTEM}/region//status", 404, "Not Found"),
        ("POST", f"{SYSTEM}/region/a/b/register", 404, "Not Found"),
        ("GET", "/v2/othersharedmemory/status", 404, "Not Found"),
        ("GET", f"{SYSTEM}/region/x/status", 404, "Unable to find system shared memory region: 'x'"),
        ("GET", f"{CUDA}/region/x/status", 404, "Unable to find cuda shared memory region: 'x'"),
        ("GET", f"{CUDA}/region/r/status", 404, "'r' is registered as system shared memory, not CUDA shared memory"),
    ],
)
def test_paths(conch: ConchProcess, memory: SharedMemory, method: str, path: str, status: int, text: str) -> None:
    got, error = ask(conch, method, path, {} if method == "POST" else None)
    assert (got, text in error) == (status, True), error


def test_paths_without_a_name(conch: ConchProcess, memory: SharedMemory) -> None:
    row = {"name": "r", "key": f"/{memory.name}", "offset": 0, "byte_size": 256}
    assert ask(conch, "GET", f"{SYSTEM}/status") == (200, json.dumps([row], separators=(",", ":")))
    assert ask(conch, "GET", f"{CUDA}/status") == (200, "[]")
    assert ask(conch, "POST", f"{CUDA}/unregister") == (200, "")
    body = {"key": f"/{memory.name}", "byte_size": 4}
    text = "'region name' is necessary to register system shared memory region"
    assert ask(conch, "POST", f"{SYSTEM}/register", body) == (400, text)


def place(size: Any = 64, offset: Any = None, region: Any = "r") -> dict[str, Any]:
    """The parameters of a tensor in a region."""
    rest = {} if offset is None else {"shared_memory_offset": offset}
    return {"shared_memory_region": region, "shared_memory_byte_size": size} | rest


WRONG_INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"parameters": {"shared_memory_byte_size": 64}}, "But no field is set"),
    ({"parameters": place(), "data": [1.0]}, "But set 'data' 'shared_memory_region'"),
    ({"parameters": place() | {"binary_data_size": 64}}, "But set 'binary_data_size' 'shared_memory_region'"),
    # Triton ignores it.
    ({"parameters": {"shared_memory_byte_size": 64}, "data": [1.0]}, "can not be specified without"),
    ({"parameters": {"shared_memory_region": "r"}}, "'shared_memory_byte_size' must be specified along with"),
    ({"parameters": place("64")}, "Unable to parse 'shared_memory_byte_size'"),  # 500
    ({"parameters": place(-4)}, "Unable to parse 'shared_memory_byte_size'"),  # 500
    ({"parameters": place(64, -4)}, "Unable to parse 'shared_memory_offset'"),  # 500
    ({"parameters": place(region=1)}, "Unable to parse 'shared_memory_region'"),  # 500
    ({"parameters": place(64, 256)}, "Invalid offset for shared memory region: 'r'"),
    ({"parameters": place(64, 224)}, "Invalid offset + byte size for shared memory region: 'r'"),
    # Triton's sum of the two wraps around.
    ({"parameters": place(2**64 - 1, 8)}, "Invalid offset + byte size for shared memory region: 'r'"),
    ({"parameters": place(32)}, "input byte size mismatch for input 'INPUT0' for model 'floats'. Expected 64, got 32"),
    ({"parameters": place(), "shape": [2**31, 2**31, 2**31]}, "input byte size mismatch for input 'INPUT0'"),
]


@pytest.mark.parametrize(("entry", "text"), WRONG_INPUTS)
def test_inputs_over_http(conch: ConchProcess, memory: SharedMemory, entry: dict[str, Any], text: str) -> None:
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [16]} | entry]}
    status, error = ask(conch, "POST", "/v2/models/floats/infer", body)
    assert (status, text in error) == (400, True), error


SHARED_INPUT = {"name": "INPUT0", "datatype": "FP32", "shape": [16], "parameters": place()}
BOTH = "Output can't set both 'shared_memory_region' and "


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        (place(region="zz"), 404, "Unable to find shared memory region: 'zz'"),
        (place() | {"binary_data": True}, 400, BOTH + "'binary_data'"),
        (place() | {"classification": 2}, 400, BOTH + "'classification'"),
        (place() | {"classification": 0}, 400, BOTH + "'classification'"),
        (place("x"), 400, "Unable to parse 'shared_memory_byte_size'"),  # 500
        (place(64, -1), 400, "Unable to parse 'shared_memory_offset'"),  # 500
        (place(64, 224), 400, "Invalid offset + byte size for shared memory region: 'r'"),
        ({"shared_memory_region": "r"}, 400, "'shared_memory_byte_size' must be specified along with"),
        ({"shared_memory_byte_size": 64}, 400, "can not be specified without 'shared_memory_region'"),  # ignored
        (place(10), 500, "for output 'OUTPUT0' (10 bytes) should be at least 64 bytes to hold the results"),
    ],
)
def test_outputs_over_http(
    conch: ConchProcess, memory: SharedMemory, parameters: dict[str, Any], status: int, text: str
) -> None:
    body = {"inputs": [SHARED_INPUT], "outputs": [{"name": "OUTPUT0", "parameters": parameters}]}
    got, error = ask(conch, "POST", "/v2/models/floats/infer", body)
    assert (got, text in error) == (status, True), error


def test_what_else_may_be_said_of_an_output_over_http(conch: ConchProcess, memory: SharedMemory) -> None:
    for more, parameters in (({"binary_data": False}, {}), ({}, {"binary_data_output": True})):
        body = {
            "inputs": [SHARED_INPUT],
            "outputs": [{"name": "OUTPUT0", "parameters": place(64, 128) | more}],
            "parameters": parameters,
        }
        status, text = ask(conch, "POST", "/v2/models/floats/infer", body)
        assert status == 200
        assert json.loads(text)["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [16]}]


def message(inputs: dict[str, Any], outputs: dict[str, Any] | None = None, **tensor: Any) -> Any:
    """A ModelInferRequest; parameters of its input and output."""
    request = service_pb2.ModelInferRequest(model_name="floats")
    entry = request.inputs.add(name="INPUT0", datatype="FP32", shape=tensor.pop("shape", [16]))
    described = [(entry, inputs)]
    if outputs is not None:
        described.append((request.outputs.add(name="OUTPUT0"), outputs))
    for region, parameters in described:
        for key, value in parameters.items():
            kind = {str: "string_param", bool: "bool_param", float: "double_param"}.get(type(value), "int64_param")
            setattr(
                region.parameters[key], kind if value.__class__ is not int or value < 2**63 else "uint64_param", value
            )
    for field, value in tensor.items():
        if field == "contents":
            entry.contents.fp32_contents.extend(value)
        else:
            request.raw_input_contents.extend(value)
    return request


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (message(place(region="zz")), "NOT_FOUND", "Unable to find shared memory region: 'zz'"),
        (message({"shared_memory_region": "r"}), "", "'shared_memory_byte_size' must be specified along with"),
        (message({"shared_memory_byte_size": 64}), "", "can not be specified without 'shared_memory_region'"),
        (message({"shared_memory_offset": 64}), "", "can not be specified without 'shared_memory_region'"),
        (message(place("64")), "", "'shared_memory_byte_size' parameter for tensor 'INPUT0', expected int64_param."),
        (message(place(2**63)), "", "'shared_memory_byte_size' parameter for tensor 'INPUT0', expected int64_param."),
        (message(place(64, "x")), "", "'shared_memory_offset' parameter for tensor 'INPUT0', expected int64_param."),
        (message(place(region=3)), "", "'shared_memory_region' parameter for tensor 'INPUT0', expected string_param."),
        (message(place(64, -4)), "", "Invalid offset for shared memory region: 'r'"),
        (message(place(-4)), "", "Invalid offset + byte size for shared memory region: 'r'"),
        (message(place(32)), "", "input byte size mismatch for input 'INPUT0' for model 'floats'. Expected 64, got 32"),
        (message(place(), contents=[1.0] * 16), "", "unexpected 'content' provided when using shared memory for input"),
        (message(place(), place(region="zz")), "NOT_FOUND", "Unable to find shared memory region: 'zz'"),
        (message(place(), place(64, 224)), "", "Invalid offset + byte size for shared memory region: 'r'"),
        (message(place(), place(64, -1)), "", "Invalid offset for shared memory region: 'r'"),
        (
            message(place(), place() | {"classification": 2}),
            "",
            "output can't set both 'shared_memory_region' and 'classification'",
        ),
        (message(place(), {"shared_memory_byte_size": 4}), "", "parameter for tensor 'OUTPUT0'"),
        (message(place(), place(10)), "INTERNAL", "(10 bytes) should be at least 64 bytes to hold the results"),
    ],
)
def test_what_is_wrong_over_grpc(
    conch: ConchProcess, memory: SharedMemory, request_: Any, status: str, text: str
) -> None:
    got, error = call(conch, "ModelInfer", request_)
    assert (got, text in error) == (status or "INVALID_ARGUMENT", True), error


def test_contents_that_are_not_requested_are_ignored_each_time(conch: ConchProcess, memory: SharedMemory) -> None:
    """As with Triton. A message that repeats is cut where the first was, which must not take these for the input."""
    request = message(place(), raw_input_contents=[bytes(64)])
    for _ in range(3):
        status, answer = call(conch, "ModelInfer", request)
        assert status == "OK"
        assert answer.raw_output_contents == [FLOATS[:16].tobytes()]


# ---- a server that does not allow it


@pytest.mark.parametrize("action", ["status", "register", "unregister"])
@pytest.mark.parametrize("kind", [SYSTEM, CUDA])
def test_every_endpoint_names_the_flag(forbidding: ConchProcess, kind: str, action: str) -> None:
    for path in (f"{kind}/{action}", f"{kind}/region/r/{action}"):
        status, error = ask(forbidding, "GET" if action == "status" else "POST", path)
        assert status == 501
        assert "--allow-client-shm=true" in error


@pytest.mark.parametrize("action", ["Status", "Register", "Unregister"])
@pytest.mark.parametrize("kind", ["System", "Cuda"])
def test_every_call_names_the_flag(forbidding: ConchProcess, kind: str, action: str) -> None:
    name = f"{kind}SharedMemory{action}"
    status, error = call(forbidding, name, getattr(service_pb2, f"{name}Request")())
    assert status == "UNIMPLEMENTED"
    assert name in error
    assert "--allow-client-shm=true" in error


def test_tensors_in_regions_name_the_flag(forbidding: ConchProcess) -> None:
    plain = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]}
    for body in (
        {"inputs": [SHARED_INPUT]},
        {"inputs": [plain], "outputs": [{"name": "OUTPUT0", "parameters": place()}]},
    ):
        status, error = ask(forbidding, "POST", "/v2/models/floats/infer", body)
        assert status == 501
        assert "--allow-client-shm=true" in error
    travels = {"shape": [1], "contents": [1.0]}
    for request in (message(place()), message({}, place(), **travels)):
        status, error = call(forbidding, "ModelInfer", request)
        assert status == "UNIMPLEMENTED"
        assert "--allow-client-shm=true" in error
    assert "system_shared_memory" not in json.loads(ask(forbidding, "GET", "/v2")[1])["extensions"]
    assert (
        "system_shared_memory"
        not in call(forbidding, "ServerMetadata", service_pb2.ServerMetadataRequest())[1].extensions
    )
