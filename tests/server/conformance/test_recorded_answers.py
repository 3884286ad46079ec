"""Answers recorded from the real Triton 2.51, and what this server answers to the same requests.

Each line of `recorded/http.jsonl` and `recorded/grpc.jsonl` is a request with Triton's answer, of
`recorded/streams.jsonl` a ModelStreamInfer call. Where this server answers otherwise, `announced` is a row of the
section "Responses" of docs/compatibility.md, and `conch` the other answer: its status and how it begins. Elsewhere the
status is the same, an error begins with Triton's, and an answer is equal.
"""

import base64
import fcntl
import http.client
import json
import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.server.conformance.recorded_models import write_recorded_models
from tests.support.server_process import ConchProcess

HERE = Path(__file__).parent
OBJECTS = (Path("/dev/shm/conch-recorded"), Path("/dev/shm/conch-recorded2"))
PROTOCOLS = ("http", "grpc", "streams")
Row = dict[str, Any]


def rows(protocol: str) -> list[Row]:
    return [json.loads(line) for line in (HERE / "recorded" / f"{protocol}.jsonl").read_text().splitlines()]


def announced() -> set[str]:
    page = (HERE.parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    section = page.partition("\n## Responses\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \| different \| .+ \|$", section, re.MULTILINE))


@pytest.fixture(scope="module", params=[1, 2], ids="{} frontend processes".format)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("recorded")
    names = write_recorded_models(root / "models")
    flags = ["--model-control-mode=explicit", "--exit-on-error=false", "--strict-readiness=false"]
    flags += [
        "--allow-client-shm=true",
        f"--frontend-processes={request.param}",
        *(f"--load-model={name}" for name in names),
    ]
    with _objects(), ConchProcess(root / "models", *flags, log=root / "conch.log") as server:
        yield server


@contextmanager
def _objects() -> Iterator[None]:
    """Make the shared memory that the requests name, for one run at a time: the wheel's tests run these, too."""
    folder = os.open(OBJECTS[0].parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        for path in OBJECTS:
            path.write_bytes(bytes(1024))
        yield
    finally:
        for path in OBJECTS:
            path.unlink(missing_ok=True)
        os.close(folder)


def ask(server: ConchProcess, row: Row) -> tuple[int, str, str]:
    """Return status, content type and body, as characters of Latin-1."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=60)
    body = row.get("body", "").encode("latin-1")
    connection.putrequest(row["method"], row["path"], skip_accept_encoding=True)
    if body or row["method"] not in ("GET", "OPTIONS"):
        connection.putheader("Content-Length", str(len(body)))
    for name, value in row.get("headers", {}).items():
        connection.putheader(name, value)
    connection.endheaders(body or None)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.headers["Content-Encoding"] in ("gzip", "deflate"):
        answer = zlib.decompress(answer, zlib.MAX_WBITS | 32)
    text = answer.decode("latin-1")
    return response.status, response.headers["Content-Type"] or "", text


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def error_of(text: str) -> str | None:
    document = parsed(text)
    return document["error"] if isinstance(document, dict) and isinstance(document.get("error"), str) else None


def is_as_recorded(row: Row, status: int, text: str) -> bool:
    if row.get("announced") == "json-400":
        return status == 400 and (error_of(text) or "").startswith(row["error"])
    if "announced" in row:
        other_status, begin = row["conch"]
        return status == other_status and (error_of(text) or text).startswith(begin)
    if "error" in row:
        return status == row["status"] and (error_of(text) or "").startswith(row["error"])
    return status == row["status"] and parsed(text) == parsed(row.get("answer", ""))


def test_answers_over_http(recorded: ConchProcess) -> None:
    wrong = []
    for row in rows("http"):
        status, kind, text = ask(recorded, row)
        # Triton's errors are text/plain here and there.
        typed = error_of(text) is None or kind == "application/json"
        if not typed or not is_as_recorded(row, status, text):
            wrong.append((row["case"], row["status"], row.get("error", row.get("answer")), status, kind, text[:300]))
    assert wrong == []


def test_answers_over_grpc(recorded: ConchProcess) -> None:
    wrong = []
    with grpc.insecure_channel(recorded.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for row in rows("grpc"):
            kind = row["method"].replace("ModelInfer", "ModelInferRequest") + "Request"
            message = getattr(service_pb2, kind.replace("RequestRequest", "Request"))()
            message.ParseFromString(base64.b64decode(row["request"]))
            try:
                answer = getattr(stub, row["method"])(message, timeout=60)
                code, got = "OK", MessageToDict(answer, preserving_proto_field_name=True)
            except grpc.RpcError as error:
                code, got = error.code().name, error.details()
            if "announced" in row:
                other, begin = row["conch"]
                right = code == other and (code == "OK" or got.startswith(begin))
            elif "error" in row:
                right = code == row["code"] and isinstance(got, str) and got.startswith(row["error"])
            else:
                right = (code, got) == ("OK", row["answer"])
            # The core looks the model up, after a frontend process has decoded the request.
            other_mistake = row["case"] == "infer 2w unk+param" and "--frontend-processes=2" in recorded.flags
            if not right and not other_mistake:
                wrong.append((row["case"], row["code"], row.get("error", row.get("answer")), code, got))
    assert wrong == []


def is_message_as_recorded(recorded_message: Row, message: Row) -> bool:
    before, now = recorded_message.get("error_message", ""), message.get("error_message", "")
    same_error = bool(before) == bool(now) and now.startswith(before)
    return same_error and recorded_message.get("infer_response") == message.get("infer_response")


def test_streams(recorded: ConchProcess) -> None:
    wrong = []
    with grpc.insecure_channel(recorded.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for row in rows("streams"):
            requests = [service_pb2.ModelInferRequest.FromString(base64.b64decode(text)) for text in row["requests"]]
            messages: list[Row] = []
            code, details = "OK", ""
            try:
                answers = stub.ModelStreamInfer(iter(requests), timeout=60, metadata=row["metadata"])
                messages.extend(MessageToDict(answer, preserving_proto_field_name=True) for answer in answers)
            except grpc.RpcError as error:
                code, details = error.code().name, error.details()
            right = code == row.get("conch", row["code"])
            if "announced" not in row:
                right &= details.startswith(row["details"]) and len(messages) == len(row["messages"])
                right &= all(map(is_message_as_recorded, row["messages"], messages))
            if not right:
                wrong.append((row["case"], row["code"], row["messages"], code, details, messages))
    assert wrong == []


# ---- deviations that a recorded answer cannot show: one check for each row of the page


def _errors_are_json(server: ConchProcess) -> None:
    for path in ("/v2/models/nope/infer", "/v2/nowhere", "/v2/health/live"):
        status, kind, text = ask(server, {"method": "POST", "path": path, "body": "{}"})
        assert (status in (404, 405), kind, bool(error_of(text))) == (True, "application/json", True), path


def _timeouts_fire_when_they_expire(server: ConchProcess) -> None:
    """The second request is refused while the first still runs."""
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]})
    row = {"method": "POST", "path": "/v2/models/queued/infer", "body": body}
    ended: list[tuple[int, str]] = []

    def send() -> None:
        status, _, text = ask(server, row)
        ended.append((status, error_of(text) or ""))

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(ended) < 2:
        time.sleep(0.01)
    (server.log.parent / "models" / "queued" / "go").touch()
    for thread in threads:
        thread.join()
    refused = [(503, "Request timeout expired")] * 2
    assert [(status, text[:23]) for status, text in ended] == [*refused, (200, "")]


def _refusals_name_the_request_if_its_id_is_near_the_beginning(server: ConchProcess) -> None:
    """In Triton all of these name it."""
    inputs = [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]
    large = [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2000], "data": [1] * 2000}]

    def asked(endpoint: str, **body: object) -> tuple[int, str | None]:
        row = {"method": "POST", "path": f"/v2/models/full/{endpoint}", "body": json.dumps(body)}
        status, _, text = ask(server, row)
        return status, error_of(text)

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(asked, "infer", inputs=inputs)]
        while 'nv_inference_pending_request_count{model="full",version="1"} 1' not in server.metrics():
            if len(waiting) < 2:
                waiting.append(pool.submit(asked, "infer", inputs=inputs))
            time.sleep(0.01)
        full = "[request id: {}] Exceeds maximum queue size"
        assert asked("infer", inputs=inputs) == (503, full.format("<id_unknown>"))
        assert asked("infer", inputs=inputs, id="me") == (503, full.format("me"))
        assert asked("infer", id="me", inputs=large) == (503, full.format("me"))
        assert asked("generate", INPUT0=1, id="me") == (503, full.format("me"))
        # A core refuses what its frontend processes have parsed.
        known = "me" if "--frontend-processes=2" in server.flags else "<id_unknown>"
        assert asked("infer", inputs=large, id="me") == (503, full.format(known))
        (server.log.parent / "models" / "full" / "go").touch()
        assert [answer.result()[0] for answer in waiting] == [200, 200]


def _length_and_chunks_are_refused(server: ConchProcess) -> None:
    head = "POST /v2/models/addsub/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=60) as client:
        client.sendall(head.encode() + b"2\r\n{}\r\n0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def _text(model: str, word: str, **output: object) -> Row:
    body: Row = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [word]}]}
    if output:
        body["outputs"] = [{"name": "OUTPUT0", "parameters": output}]
    return {"method": "POST", "path": f"/v2/models/{model}/infer", "body": json.dumps(body)}


def _no_response_is_an_error(server: ConchProcess) -> None:
    assert ask(server, _text("faulty", "none"))[0] == 500


def _strings_have_no_classes(server: ConchProcess) -> None:
    status, _, text = ask(server, _text("id_string", "x", classification=1))
    assert status == 400
    assert (error_of(text) or "").startswith("class result not available for output due to unsupported type 'BYTES'")
    assert ask(server, _text("id_string", "x"))[0] == 200


def _nothing_has_no_classes(server: ConchProcess) -> None:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [0], "data": []}
    body = {"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 3}}]}
    status, _, text = ask(server, {"method": "POST", "path": "/v2/models/id_fp32/infer", "body": json.dumps(body)})
    assert (status, parsed(text)["outputs"]) == (
        200,
        [{"name": "OUTPUT0", "datatype": "BYTES", "shape": [0], "data": []}],
    )


CHECKS: dict[str, Callable[[ConchProcess], None]] = {
    "error-content-type": _errors_are_json,
    "ids-of-refused": _refusals_name_the_request_if_its_id_is_near_the_beginning,
    "queue-timeouts": _timeouts_fire_when_they_expire,
    "length-and-chunked": _length_and_chunks_are_refused,
    "no-response": _no_response_is_an_error,
    "classes-of-strings": _strings_have_no_classes,
    "classes-of-nothing": _nothing_has_no_classes,
}


@pytest.mark.parametrize("name", CHECKS)
def test_an_announced_difference(recorded: ConchProcess, name: str) -> None:
    CHECKS[name](recorded)


def test_every_announced_difference_is_checked_and_every_difference_announced() -> None:
    seen = {row["announced"] for protocol in PROTOCOLS for row in rows(protocol) if "announced" in row}
    assert seen | set(CHECKS) == announced()
