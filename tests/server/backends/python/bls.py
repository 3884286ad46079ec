"""A repository for the tests of calls between models: some to be called, and some that run the code they are sent."""

import json
import queue
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.support.models import tensor, write_config, write_ensemble, write_identity

NUMBERS = f"input {tensor('IN', 'FP32', -1)} output {tensor('OUT', 'FP32', -1)} output {tensor('TWICE', 'FP32', -1)} "
CODE = f"input {tensor('CODE', 'STRING', 1)} output {tensor('RESULT', 'STRING', 1)} "

_HEAD = """
import asyncio, ctypes, gc, json, os, threading, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import triton_python_backend_utils as pb_utils


def new(model, *values, outputs=("OUT",), **options):
    tensor = pb_utils.Tensor("IN", np.array(values, np.float32))
    return pb_utils.InferenceRequest(
        model_name=model, inputs=[tensor], requested_output_names=list(outputs), **options
    )


def run(model, code, **options):
    tensor = pb_utils.Tensor("CODE", np.array([code.encode()], dtype=object))
    response = pb_utils.InferenceRequest(
        model_name=model, inputs=[tensor], requested_output_names=["RESULT"], **options
    ).exec()
    return shown(response) if response.has_error() else json.loads(response.output_tensors()[0].as_numpy()[0])


def shown(response):
    if response.has_error():
        return [response.error().message(), response.error().code()]
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}


def until(path):
    while not os.path.exists(path):
        time.sleep(0.005)


def answered(result):
    text = json.dumps(result, default=repr).encode()
    return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([text], dtype=object))])


def code_of(request):
    return pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()

"""

_RUNS_CODE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            names = dict(globals(), request=request)
            try:
                exec(code_of(request), names)
                responses.append(answered(names.get("result")))
            except Exception as error:
                responses.append(answered([type(error).__name__, str(error)]))
        return responses
"""

_AWAITS_CODE = """
class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        names = dict(globals(), request=request)
        code = code_of(request)
        exec("async def main():\\n" + "".join("    " + line + "\\n" for line in code.splitlines()), names)
        return answered(await names["main"]())
"""

_ADD = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if values[0] == -1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative", pb_utils.TritonError.NOT_FOUND))
        if values[0] == -2:
            raise ValueError("boom")
        if values[0] == -3:
            os.abort()
        tensors = [pb_utils.Tensor("OUT", values + 1), pb_utils.Tensor("TWICE", values * 2)]
        return pb_utils.InferenceResponse(tensors)
"""

# IN: how many responses; a second value: whether the flag comes with the last one.
_STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender, number = request.get_response_sender(), int(values[0])
            for index in range(number):
                if request.is_cancelled():
                    break
                flags = int(len(values) > 1 and index == number - 1)
                tensor = pb_utils.Tensor("OUT", np.array([index], np.float32))
                sender.send(pb_utils.InferenceResponse([tensor]), flags)
            if len(values) == 1:
                sender.send(flags=1)
"""

# IN: how many responses of 4 MiB; a second value: how many the reader may be behind. The reader adds a byte to the file
# "read" for each. Writes to a file that it was stopped early.
_FLOOD = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            number, ahead = (*request.inputs()[0].as_numpy().astype(int), 10**9)[:2]
            for index in range(number):
                while index - self.read() >= ahead and not request.is_cancelled():
                    time.sleep(0.005)
                if request.is_cancelled():
                    open(os.path.join(self.folder, "stopped"), "w").close()
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(2**20, np.float32))]))
            sender.send(flags=1)

    def read(self):
        path = os.path.join(self.folder, "read")
        return os.path.getsize(path) if os.path.exists(path) else 0
"""

# Works on one request until it is cancelled, and notes in files when it has begun and ended.
_ENDLESS = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        open(os.path.join(self.folder, "begun"), "w").close()
        while not requests[0].is_cancelled():
            time.sleep(0.005)
        open(os.path.join(self.folder, "cancelled"), "w").close()
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""

# What the request said of itself.
_TELLS = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            answered([
                request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
                json.loads(request.parameters()), sorted(request.requested_output_names()),
            ])
            for request in requests
        ]
"""


_BOUNDED = """
dynamic_batching {
  default_queue_policy { max_queue_size: 1 allow_timeout_override: true default_timeout_microseconds: 60000000 }
}
"""


def write_model(root: Path, name: str, config: str, code: str) -> None:
    folder = write_config(root, name, f'backend: "python" {config}')
    (folder / "1" / "model.py").write_text(_HEAD + code)


def write_repository(root: Path) -> None:
    write_model(root, "add", NUMBERS, _ADD)
    write_model(root, "stream", NUMBERS + "model_transaction_policy { decoupled: true }", _STREAM)
    write_model(root, "flood", NUMBERS + "model_transaction_policy { decoupled: true }", _FLOOD)
    write_model(root, "endless", NUMBERS, _ENDLESS)
    write_model(root, "tells", f"input {tensor('IN', 'FP32', -1)} output {tensor('RESULT', 'STRING', 1)}", _TELLS)
    for name, count in (("probe", 2), ("lone", 1), ("other", 1), ("pair", 2), ("crashing", 1)):
        write_model(root, name, f"{CODE} instance_group {{ count: {count} kind: KIND_CPU }}", _RUNS_CODE)
    write_model(root, "awaiting", CODE, _AWAITS_CODE)
    write_model(root, "bounded", CODE + _BOUNDED, _RUNS_CODE)
    write_identity(root, "large", "FP32", -1)
    write_ensemble(
        root,
        "twice",
        f"input {tensor('IN', 'FP32', -1)}",
        f"output {tensor('OUT', 'FP32', -1)}",
        ("add", {"IN": "IN"}, {"OUT": "middle"}),
        ("add", {"IN": "middle"}, {"OUT": "OUT"}),
    )
    write_ensemble(
        root,
        "around",
        f"input {tensor('CODE', 'STRING', 1)}",
        f"output {tensor('RESULT', 'STRING', 1)}",
        ("other", {"CODE": "CODE"}, {"RESULT": "RESULT"}),
    )


def question(module: Any, code: str) -> list[Any]:
    asked = module.InferInput("CODE", [1], "BYTES")
    asked.set_data_from_numpy(np.array([dedent(code).strip().encode()], dtype=object))
    return [asked]


def result(answer: Any) -> Any:
    return json.loads(answer.as_numpy("RESULT")[0])


def ask_http(address: str, code: str, model: str = "probe") -> Any:
    """Have a model run code and return what that has assigned to `result`."""
    with httpclient.InferenceServerClient(address, network_timeout=60) as client:
        return result(client.infer(model, question(httpclient, code)))


def ask_grpc(address: str, code: str, model: str = "probe") -> Any:
    with grpcclient.InferenceServerClient(address) as client:
        return result(client.infer(model, question(grpcclient, code), client_timeout=60))


def ask_stream(address: str, code: str, model: str = "probe") -> Any:
    answers: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(model, question(grpcclient, code))
        answer, error = answers.get(timeout=60)
        client.stop_stream()
    assert error is None, error
    return result(answer)
