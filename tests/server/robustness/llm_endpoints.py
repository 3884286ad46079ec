"""The endpoints by which a prompt reaches a model that generates, each as a client that can also be rude to it."""

import http.client
import json
import queue
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import tritonclient.grpc as triton

from tests.processes import command_lines
from tests.server.robustness.slow_clients import connect, reset, until
from tests.support.server_process import ConchProcess

TIMEOUT_S = 30.0


def write_scripted(models: Path, name: str, script: dict[str, Any]) -> None:
    """Write a model that says what its script says."""
    (models / name / "1").mkdir(parents=True)
    (models / name / "config.pbtxt").write_text('backend: "scripted"\n')
    (models / name / "1" / "model.json").write_text(json.dumps(script))


@dataclass(frozen=True)
class Reply:
    """What a client received: the text, or an error and its status."""

    text: str = ""
    error: str = ""
    status: int = 0  # of HTTP
    retry_after: str = ""


@dataclass(frozen=True)
class Endpoint:
    """One way in. `body` makes the JSON of a prompt with sampling parameters, `read` takes an answer apart."""

    path: str
    body: Callable[..., dict[str, Any]]
    read: Callable[[bytes], tuple[str, str]]

    def request(self, model: str, prompt: str, **params: Any) -> bytes:
        """Return a request as it goes over the wire."""
        body = json.dumps(self.body(model, prompt, **params)).encode()
        head = f"POST {self.path.format(model=model)} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def ask(self, conch: ConchProcess, model: str, prompt: str, **params: Any) -> Reply:
        """Ask and read the answer to its end."""
        connection = http.client.HTTPConnection(conch.http, timeout=TIMEOUT_S)
        with closing(connection):
            body = json.dumps(self.body(model, prompt, **params))
            connection.request("POST", self.path.format(model=model), body)
            response = connection.getresponse()
            text, error = self.read(response.read())
            return Reply(text, error, response.status, response.headers.get("Retry-After", ""))

    def begin(self, conch: ConchProcess, model: str, prompt: str, **params: Any) -> "Caller":
        """Ask and leave the answer to come."""
        client = connect(conch.ports["http"])
        client.sendall(self.request(model, prompt, **params))
        return Caller(lambda: reset(client))


class Caller:
    """A client with a request; `leave` disconnects."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self.leave = leave


def _openai(model: str, prompt: str, **params: Any) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, **params}


def _triton(_model: str, prompt: str, **params: Any) -> dict[str, Any]:
    return {"text_input": prompt, "exclude_input_in_output": True, "sampling_parameters": json.dumps(params)}


def _read_one(body: bytes) -> tuple[str, str]:
    document = json.loads(body)
    error = document.get("error", "")
    if "choices" in document:
        return document["choices"][0]["text"], ""
    return document.get("text_output", ""), error["message"] if isinstance(error, dict) else error


def _read_events(body: bytes) -> tuple[str, str]:
    """Put a stream of events together. It ends once: with `[DONE]` in OpenAI's form, and an error is the last word."""
    if body.startswith(b"{"):
        return _read_one(body)
    events = [event.removeprefix("data: ") for event in body.decode().split("\n\n")[:-1]]
    if events[-1] == "[DONE]":
        events.pop()
    assert "[DONE]" not in events
    read = [_read_one(event.encode()) for event in events]
    assert not any(error for _, error in read[:-1])
    return "".join(text for text, _ in read), read[-1][1]


class GrpcDoor:
    """A stream over gRPC."""

    def ask(self, conch: ConchProcess, model: str, prompt: str, **params: Any) -> Reply:
        """Ask and read the answer to its end."""
        with GrpcCaller(conch) as caller:
            caller.send(model, prompt, **params)
            return caller.reply()

    def begin(self, conch: ConchProcess, model: str, prompt: str, **params: Any) -> Caller:
        """Ask and leave the answer to come."""
        caller = GrpcCaller(conch)
        caller.send(model, prompt, **params)
        return Caller(lambda: caller.close(cancel=True))


class GrpcCaller:
    """The official client with one stream."""

    def __init__(self, conch: ConchProcess) -> None:
        self._client = triton.InferenceServerClient(conch.grpc)
        self.answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(lambda result, error: self.answers.put((result, error)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, cancel: bool = False) -> None:
        """End the stream, and the connection."""
        self._client.stop_stream(cancel_requests=cancel)
        self._client.close()

    def send(self, model: str, prompt: str, *, request_id: str = "", **params: Any) -> None:
        """Ask for a stream."""
        values = {"text_input": prompt, "stream": True, "sampling_parameters": json.dumps(params)}
        inputs = []
        for name, value in values.items():
            kind = "BOOL" if isinstance(value, bool) else "BYTES"
            array = np.array([value], bool if kind == "BOOL" else object)
            inputs.append(triton.InferInput(name, [1], kind))
            inputs[-1].set_data_from_numpy(array)
        self._client.async_stream_infer(model, inputs, request_id=request_id, enable_empty_final_response=True)

    def reply(self) -> Reply:
        """Read one answer to its end."""
        text = ""
        while True:
            result, error = self.answers.get(timeout=TIMEOUT_S)
            if error is not None:
                return Reply(text, str(error))
            response = result.get_response()
            if response.raw_output_contents:
                text += result.as_numpy("text_output")[0].decode()
            if response.parameters["triton_final_response"].bool_param:
                return Reply(text)


ENDPOINTS: dict[str, Endpoint | GrpcDoor] = {
    "openai": Endpoint("/v1/completions", _openai, _read_one),
    "openai stream": Endpoint("/v1/completions", lambda *a, **p: {**_openai(*a, **p), "stream": True}, _read_events),
    "generate": Endpoint("/v2/models/{model}/generate", _triton, _read_one),
    "generate_stream": Endpoint(
        "/v2/models/{model}/generate_stream", lambda *a, **p: {**_triton(*a, **p), "stream": True}, _read_events
    ),
    "grpc": GrpcDoor(),
}


def metric(conch: ConchProcess, name: str, model: str, **labels: str) -> float:
    """Return one number of a model, all its series with these labels together."""
    wanted = [f'="{model}"', *(f'{key}="{value}"' for key, value in labels.items())]
    lines = [line for line in conch.metrics().splitlines() if line.startswith(name + "{")]
    return sum(float(line.split()[-1]) for line in lines if all(part in line for part in wanted))


def busy(conch: ConchProcess, model: str) -> tuple[float, float, float, float]:
    """Return how many requests the engine runs and has waiting, its use of the cache, and the server's own waiting."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return (*(metric(conch, name, model) for name in names), metric(conch, "nv_inference_pending_request_count", model))  # type: ignore[return-value]


def running(conch: ConchProcess, model: str, number: int) -> None:
    """Wait until the engine runs `count` requests."""
    until(lambda: busy(conch, model)[0] == number, f"not {number} are running: {busy(conch, model)}")


def resting(conch: ConchProcess, model: str) -> None:
    """Wait until a model's engine has nothing to do and does nothing: it takes no step any more."""
    until(lambda: busy(conch, model) == (0, 0, 0, 0), f"still busy: {busy(conch, model)}")
    process = psutil.Process(engine(conch, model))

    def still() -> bool:
        before = process.num_ctx_switches().voluntary
        time.sleep(0.1)
        return process.num_ctx_switches().voluntary - before < 5

    until(still, "the engine still runs")


def engine(conch: ConchProcess, model: str) -> int:
    """Return the process of a model's engine: the one that was started with its name."""
    lines = {
        child.pid: line
        for child, line in command_lines(conch.process.pid)
        if any("engine_main.py" in part for part in line)
    }
    pids = [pid for pid, line in lines.items() if line[-1] == model]
    assert len(pids) == 1, lines
    return pids[0]


def stalled(conch: ConchProcess, request: bytes) -> socket.socket:
    """Send a request whose answer will not be read."""
    client = connect(conch.ports["http"], buffers=8192)
    client.sendall(request)
    return client
