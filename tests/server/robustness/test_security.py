"""Names that climb paths, files that would land elsewhere, endpoints behind a key, requests of absurd proportions."""

import base64
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.server.robustness.slow_clients import MIB, connect, endured, infer_request, read_all, write_models
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

SECRET = "sesame"
CATEGORIES = {
    "health": ["GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models/echo/ready"],
    "metadata": ["GET /v2", "GET /v2/models/echo", "GET /v2/models/echo/versions/1"],
    "inference": [
        "POST /v2/models/echo/infer",
        "POST /v2/models/echo/versions/1/infer",
        "POST /v2/models/echo/generate",
    ],
    "shared-memory": ["GET /v2/systemsharedmemory/status", "POST /v2/cudasharedmemory/region/x/register"],
    "model-config": ["GET /v2/models/echo/config", "GET /v2/models/echo/versions/1/config"],
    "model-repository": [
        "POST /v2/repository/index",
        "POST /v2/repository/models/echo/load",
        "POST /v2/repository/models/echo/unload",
    ],
    "statistics": ["GET /v2/models/stats", "GET /v2/models/echo/stats"],
    "trace": ["GET /v2/trace/setting", "POST /v2/models/echo/trace/setting"],
    "logging": ["GET /v2/logging", "POST /v2/logging"],
}
METHODS = {
    "health": ["ServerLive", "ServerReady", "ModelReady"],
    "metadata": ["ServerMetadata", "ModelMetadata"],
    "inference": ["ModelInfer"],
    "shared-memory": ["SystemSharedMemoryStatus", "CudaSharedMemoryRegister"],
    "model-config": ["ModelConfig"],
    "model-repository": ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"],
    "statistics": ["ModelStatistics"],
    "trace": ["TraceSetting"],
    "logging": ["LogSettings"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository, and beside it what must not be reached."""
    root = tmp_path_factory.mktemp("security")
    write_models(root / "models")
    write_identity(root, "outside", "FP32", -1)
    return root


@pytest.fixture(scope="module")
def explicit(place: Path) -> Iterator[ConchProcess]:
    """A server that loads what clients ask for."""
    flags = ["--model-control-mode=explicit", "--load-model=echo"]
    with ConchProcess(place / "models", *flags, log=place / "explicit.log") as server:
        yield server


@pytest.fixture(scope="module")
def restricted(place: Path) -> Iterator[ConchProcess]:
    """A server all of whose endpoints want a key."""
    flags = []
    for category in CATEGORIES:
        flags += [f"--http-restricted-api={category}:Key-{category}={SECRET}"]
        flags += [f"--grpc-restricted-protocol={category}:key-{category}={SECRET}"]
    # Readiness is not disclosed without a key.
    with ConchProcess(place / "models", *flags, log=place / "restricted.log", wait="") as server:
        yield server


def ask(conch: ConchProcess, line: str, body: bytes = b"", *fields: str) -> tuple[int, Any]:
    """Send a request as it is written, which no client library would do."""
    method, _, path = line.partition(" ")
    head = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}", *fields]
    with connect(conch.ports["http"]) as client:
        client.sendall("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
        answer = read_all(client)
    headers, _, content = answer.partition(b"\r\n\r\n")
    text = json.loads(content) if b"application/json" in headers and content else content
    return int(answer[9:12]), text


def call(conch: ConchProcess, method: str, message: Any, metadata: dict[str, str] | None = None) -> grpc.StatusCode:
    """Return how a call goes."""
    with grpc.insecure_channel(conch.grpc) as channel:
        invoke = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)
        try:
            invoke(message, timeout=60, metadata=tuple((metadata or {}).items()))
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def listing(place: Path) -> list[str]:
    """Return every file there is, but for logs; and what the server has put into the folder for temporary files."""
    kept = [path for path in place.rglob("*") if path.suffix != ".log"]
    return sorted(map(str, [*kept, *Path(tempfile.gettempdir()).glob("conch-model-*/model-*")]))


LOAD_FAILURES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def ready(conch: ConchProcess) -> list[str]:
    _, index = ask(conch, "POST /v2/repository/index", b'{"ready":true}')
    return [model["name"] for model in index]


# ---- names


NAMES = [
    "..",
    ".",
    "../outside",
    "echo/../../outside",
    "../../../../../../../../etc",
    "/etc",
    "..\\outside",
    "outside\0",
    "\0",
    "%2e%2e%2foutside",
    "..%00",
    "．．/outside",
    "‥",
    "a" * 3000,
    "~root",
    "$HOME",
    "echo\n",
    "file:///etc",
    "s3://bucket/model",
    "CON",
    "-rf",
    "{}",
    "echo;ls",
]
ACTIONS = ["", "/config", "/stats", "/ready", "/infer", "/versions/1", "/versions/1/infer", "/versions/.."]


@pytest.mark.parametrize("name", NAMES, ids=[ascii(name[:30]) for name in NAMES])
def test_names_that_lead_elsewhere_over_http(explicit: ConchProcess, place: Path, name: str) -> None:
    before, models = listing(place), ready(explicit)
    body = infer_request("echo", [1.0]).partition(b"\r\n\r\n")[2]
    # As it is where a target may hold it, and with each byte encoded that may not stand there, or none at all.
    spellings = {
        quote(name, safe="/.%\\~$:;{}-"),
        quote(name, safe=""),
        "".join(f"%{octet:02x}" for octet in name.encode()),
    }
    for spelling in spellings:
        for action in ACTIONS:
            for method in ("GET", "POST"):
                status, _ = ask(explicit, f"{method} /v2/models/{spelling}{action}", body if method == "POST" else b"")
                assert status in (400, 404, 405, 431), (status, spelling, action)
        for action in ("load", "unload"):
            status, answer = ask(explicit, f"POST /v2/repository/models/{spelling}/{action}")
            # As with Triton a load that fails is the server's fault, and unloading what is not there nobody's.
            shown = spelling if name.isascii() or "/" in name else name  # see Router
            failed = status == 500 and answer["error"].startswith(f"failed to load '{shown}', failed to poll")
            unloaded = status == 200 and action == "unload"
            assert status in (400, 404, 431) or failed or unloaded, (status, spelling, answer)
    assert (listing(place), ready(explicit)) == (before, models)


@pytest.mark.parametrize("name", NAMES, ids=[ascii(name[:30]) for name in NAMES])
def test_names_that_lead_elsewhere_over_grpc(explicit: ConchProcess, place: Path, name: str) -> None:
    before, models = listing(place), ready(explicit)
    pb = service_pb2
    for method, message in (
        ("ModelMetadata", pb.ModelMetadataRequest(name=name)),
        ("ModelConfig", pb.ModelConfigRequest(name=name, version="1")),
        ("ModelStatistics", pb.ModelStatisticsRequest(name=name)),
        ("ModelInfer", pb.ModelInferRequest(model_name=name)),
    ):
        code = call(explicit, method, message)
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), method
    # A load that fails is INTERNAL, as with Triton.
    assert call(explicit, "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name=name)) in LOAD_FAILURES
    call(explicit, "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=name))
    assert call(explicit, "ModelReady", pb.ModelReadyRequest(name=name)) is grpc.StatusCode.OK  # which says: not ready
    assert (listing(place), ready(explicit)) == (before, models)


# ---- files that a load brings along


CONFIG = {"backend": "identity", "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}]}
CONFIG["output"] = [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}]
PATHS = [
    "../x",
    "../../x",
    "1/../../x",
    "..",
    "",
    ".",
    "/",
    "/tmp/conch-model-x",
    "1/\0",
    "1/" + "a" * 300,
    "a/" * 5000 + "x",
]


@pytest.mark.parametrize("path", PATHS, ids=[ascii(path[:30]) for path in PATHS])
def test_files_stay_inside_the_models_folder(explicit: ConchProcess, place: Path, path: str) -> None:
    before, models = listing(place), ready(explicit)
    parameters = {"config": json.dumps(CONFIG), f"file:{path}": base64.b64encode(b"x").decode()}
    body = json.dumps({"parameters": parameters}).encode()
    status, answer = ask(explicit, "POST /v2/repository/models/brought/load", body)
    assert (status, "brought" in answer["error"]) == (500, True), answer
    message = service_pb2.RepositoryModelLoadRequest(model_name="brought")
    message.parameters["config"].string_param = json.dumps(CONFIG)
    message.parameters[f"file:{path}"].bytes_param = b"x"
    assert call(explicit, "RepositoryModelLoad", message) is grpc.StatusCode.INTERNAL
    assert (listing(place), ready(explicit)) == (before, models)


@pytest.mark.parametrize("field", ["default_model_filename", "label_filename"])
@pytest.mark.parametrize("path", ["../../outside/config.pbtxt", "/etc/passwd", "1/../../../outside/config.pbtxt"])
def test_a_configuration_does_not_name_files_elsewhere(explicit: ConchProcess, field: str, path: str) -> None:
    config: dict[str, Any] = json.loads(json.dumps(CONFIG))
    if field == "label_filename":
        config["output"][0][field] = path
    else:
        config[field] = path
    body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
    status, answer = ask(explicit, "POST /v2/repository/models/echo/load", body)
    expected = 500 if field == "default_model_filename" else 400
    assert (status, path in answer["error"]) == (expected, True), answer


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_file_of_options_that_never_ends_blocks_nothing(explicit: ConchProcess, place: Path, kind: str) -> None:
    model = place / "models" / "endless"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "scripted"')
    options = model / "1" / "model.json"
    try:
        if kind == "pipe":
            os.mkfifo(options)
        else:
            options.symlink_to("/dev/zero")
        assert ask(explicit, "POST /v2/repository/models/endless/load")[0] in (200, 400)
        assert ask(explicit, "GET /v2/health/live")[0] == 200
        assert ask(explicit, "POST /v2/repository/models/endless/unload")[0] == 200
    finally:
        rmtree(model)


# ---- keys


@pytest.mark.parametrize("category", CATEGORIES)
def test_endpoints_behind_a_key_over_http(restricted: ConchProcess, category: str) -> None:
    others = [f"Key-{other}: {SECRET}" for other in CATEGORIES if other != category]
    key = f"Key-{category}"
    for line in CATEGORIES[category]:
        wrong = ([], others, [f"{key}: x"], [f"{key}: {SECRET} x"], [f"{key}:"], [f"X-{key}: {SECRET}"])
        method, _, path = line.partition(" ")
        for fields in wrong:
            # In all the ways to write a target, and to say what method is meant.
            for target in (path, f"{path}?{key}={SECRET}", f"http://x{path}"):
                status, answer = ask(restricted, f"{method} {target}", b"", *fields, "X-HTTP-Method-Override: GET")
                assert (status, answer["error"]) == (403, f"This API is restricted, expecting header '{key}'")
        status, _ = ask(restricted, line, b"", f"{key.upper()}: {SECRET}")
        assert status != 403


@pytest.mark.parametrize("category", METHODS)
def test_endpoints_behind_a_key_over_grpc(restricted: ConchProcess, category: str) -> None:
    prefix = "triton-grpc-protocol-key-"
    key = prefix + category
    others = {prefix + other: SECRET for other in METHODS if other != category}
    for method in METHODS[category]:
        message = getattr(service_pb2, f"{method}Request")()
        for metadata in ({}, others, {key: "x"}, {key: SECRET + " x"}, {f"key-{category}": SECRET}):
            assert call(restricted, method, message, metadata) is grpc.StatusCode.UNAVAILABLE
        # What comes of it then is another matter: loading is switched off here, for one.
        code = call(restricted, method, message, {key: SECRET})
        assert (code is grpc.StatusCode.UNAVAILABLE) == (method in ("RepositoryModelLoad", "RepositoryModelUnload"))


# ---- proportions


def entry(**fields: object) -> dict[str, object]:
    return {"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1.0], **fields}


LARGE: dict[str, dict[str, Any]] = {
    "inputs": {"inputs": [entry()] * 20_000},
    "inputs of many names": {"inputs": [entry(name=str(i)) for i in range(20_000)]},
    "parameters": {"inputs": [entry()], "parameters": {str(i): None for i in range(50_000)}},
    "outputs": {"inputs": [entry()], "outputs": [{"name": "a" * 10}] * 50_000},
    "name": {"inputs": [entry(name="a" * 2_000_000)]},
    "shape": {"inputs": [entry(shape=[2**62] * 100_000)]},
    "elements": {"inputs": [entry(shape=[2**62])]},
    "datatype": {"inputs": [entry(datatype="F" * 1_000_000)]},
    "nesting of data": {"inputs": [entry(data=json.loads("[" * 900 + "]" * 900))]},
}


@pytest.mark.parametrize("what", LARGE)
def test_absurd_proportions_over_http(explicit: ConchProcess, what: str) -> None:
    with endured(explicit, 200 * MIB) as others:
        status, answer = ask(explicit, "POST /v2/models/echo/infer", json.dumps(LARGE[what]).encode())
        assert (status, bool(answer["error"])) == (400, True)
        assert len(answer["error"]) < 3_000_000
        others.served()


def test_a_long_id_comes_back(explicit: ConchProcess) -> None:
    document = {"id": "i" * 1_000_000, "inputs": [entry()]}
    status, answer = ask(explicit, "POST /v2/models/echo/infer", json.dumps(document).encode())
    assert (status, len(answer["id"])) == (200, 1_000_000)


def absurd_messages() -> dict[str, Any]:
    def message(**fields: Any) -> Any:
        request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(4)])
        request.inputs.add(**{"name": "INPUT0", "datatype": "FP32", "shape": [1], **fields})
        return request

    many, outputs, parameters = message(), message(), message()
    for i in range(20_000):
        many.inputs.add(name=str(i), datatype="FP32", shape=[1])
        many.raw_input_contents.append(bytes(4))
        outputs.outputs.add(name=str(i))
        parameters.parameters[f"triton_{i}"].int64_param = 1
    return {
        "inputs": many,
        "outputs": outputs,
        "parameters": parameters,
        "name": message(name="a" * 2_000_000),
        "shape": message(shape=[2**62] * 100_000),
        "elements": message(shape=[2**62]),
        "datatype": message(datatype="F" * 1_000_000),
    }


@pytest.mark.parametrize("what", absurd_messages())
def test_absurd_proportions_over_grpc(explicit: ConchProcess, what: str) -> None:
    with endured(explicit, 200 * MIB) as others:
        assert call(explicit, "ModelInfer", absurd_messages()[what]) is grpc.StatusCode.INVALID_ARGUMENT
        others.served()
