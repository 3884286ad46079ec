"""Arguments of the model's API: what Triton takes and refuses, as its own stub of 2.51 was seen to do."""

import json
import sys
from pathlib import Path

from tests.server.backends.python.running import running

PROBE = """
    import json
    import sys
    import numpy as np
    import triton_python_backend_utils as pb_utils

    A = np.array([1.0], np.float32)
    T = pb_utils.Tensor("a", A)

    def R(**options):
        usual = dict(model_name="m", inputs=[T], requested_output_names=["o"])
        return pb_utils.InferenceRequest(**{**usual, **options})

    def found(text):
        try:
            return eval(text)
        except Exception as error:
            return "{}: {}".format(type(error).__name__, str(error).splitlines()[0])

    class TritonPythonModel:
        def execute(self, requests):
            global SENDER, GAUGE
            SENDER = requests[0].get_response_sender()
            GAUGE = pb_utils.MetricFamily("gauge", "A gauge", pb_utils.MetricFamily.GAUGE)
            texts = json.loads(requests[0].request_id())
            answer = json.dumps([found(text) for text in texts], default=repr)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([answer], dtype=object))])]
"""
CONSTRUCTOR = "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:"
FUNCTION = "TypeError: {}(): incompatible function arguments. The following argument types are supported:"
MODEL = "TritonModelException: "
VALUES = MODEL + "Expect parameters values to have type bool/int/str, found type "
FAILED = "Failed to process the request for model 'model_0_0', message: "
METRIC = MODEL + "Error when creating "
REQUEST = "request with id '' and model name 'm' should not be empty."

TABLE = {
    "sys.argv": [""],
    "pb_utils.Tensor(b'a', A).name()": "a",
    "pb_utils.Tensor('', A)": MODEL + "Tensor name cannot be an empty string.",
    "pb_utils.Tensor('', None)": CONSTRUCTOR,
    "pb_utils.Tensor(None, A)": CONSTRUCTOR,
    "pb_utils.Tensor(1, A)": CONSTRUCTOR,
    "pb_utils.Tensor('a', [1.0])": CONSTRUCTOR,
    "pb_utils.Tensor('a', None)": CONSTRUCTOR,
    "pb_utils.Tensor('a', np.float32(3))": CONSTRUCTOR,
    "pb_utils.Tensor.from_dlpack(b'a', A).name()": "a",
    "len(pb_utils.InferenceResponse((T,)).output_tensors())": 1,
    "pb_utils.InferenceResponse(None)": CONSTRUCTOR,
    "pb_utils.InferenceResponse([1])": CONSTRUCTOR,
    "pb_utils.InferenceResponse([None])": MODEL + "Output tensor for inference response should not be empty.",
    "pb_utils.InferenceResponse(T)": CONSTRUCTOR,
    "pb_utils.InferenceResponse('x')": CONSTRUCTOR,
    "pb_utils.InferenceResponse([], 'text')": CONSTRUCTOR,
    "pb_utils.InferenceResponse([], ValueError('x'))": CONSTRUCTOR,
    "pb_utils.InferenceResponse([], None).has_error()": False,
    "pb_utils.InferenceRequest()": CONSTRUCTOR,
    "pb_utils.InferenceRequest(model_name='m', inputs=[T])": CONSTRUCTOR,
    "pb_utils.InferenceRequest(model_name='m', requested_output_names=[])": CONSTRUCTOR,
    "pb_utils.InferenceRequest(inputs=[T], requested_output_names=[])": CONSTRUCTOR,
    "type(R(model_name=b'm')).__name__": "InferenceRequest",
    "type(R(model_name='')).__name__": "InferenceRequest",
    "R(model_name=None)": CONSTRUCTOR,
    "len(R(inputs=[]).inputs())": 0,
    "len(R(inputs=(T,)).inputs())": 1,
    "R(inputs=None)": CONSTRUCTOR,
    "R(inputs=T)": CONSTRUCTOR,
    "R(inputs=[1])": CONSTRUCTOR,
    "R(inputs=[None])": MODEL + "Input tensor for " + REQUEST,
    "R(requested_output_names='o')": CONSTRUCTOR,
    "R(requested_output_names=None)": CONSTRUCTOR,
    "R(requested_output_names=[1])": CONSTRUCTOR,
    "list(R(requested_output_names=[b'o']).requested_output_names())": ["o"],
    "R(requested_output_names=[''])": MODEL + "Requested output name for " + REQUEST,
    "R(model_version='1')": CONSTRUCTOR,
    "R(model_version=1.5)": CONSTRUCTOR,
    "R(model_version=2**63)": CONSTRUCTOR,
    "R(request_id=5)": CONSTRUCTOR,
    "R(request_id=b'x').request_id()": "x",
    "R(correlation_id=1.5)": MODEL + "Correlation ID must be integer or string",
    "R(correlation_id=None)": CONSTRUCTOR,
    "R(correlation_id='s').correlation_id()": "s",
    "R(flags=-1)": CONSTRUCTOR,
    "R(flags='1')": CONSTRUCTOR,
    "R(flags=2**32)": CONSTRUCTOR,
    "R(timeout=-1)": CONSTRUCTOR,
    "R(timeout=1.5)": CONSTRUCTOR,
    "R(timeout=2**64)": CONSTRUCTOR,
    "R(preferred_memory=1)": CONSTRUCTOR,
    "R(trace=5)": CONSTRUCTOR,
    "R(parameters={1: 1})": MODEL + "Expect parameters keys to have type str, found type <class 'int'>",
    "R(parameters={'a': [1]})": MODEL + "Expect parameters values to have type bool/int/str, found type <class 'list'>",
    "R(parameters={'a': b'x'})": MODEL
    + "Expect parameters values to have type bool/int/str, found type <class 'bytes'>",
    "R(parameters='x').parameters()": MODEL + "Expect parameters to be a dict, got <class 'str'>",
    "R(parameters={'a': 1, 'c': True, 'é': 'ü'}).parameters()": '{"a":1,"c":true,"é":"ü"}',
    "R(requested_output_names=['o', 'o']).requested_output_names() == {'o'}": True,
    "type(R(requested_output_names=['o']).requested_output_names()).__name__": "set",
    "[R().inputs().append(T), len(R().inputs())]": [None, 1],
    "R().set_flags(-1)": FUNCTION.format("set_flags"),
    "R().set_flags('x')": FUNCTION.format("set_flags"),
    "R().set_release_flags(2**32)": FUNCTION.format("set_release_flags"),
    "R().exec(decoupled='x')": FUNCTION.format("exec"),
    "R().exec(decoupled=None)": FUNCTION.format("exec"),
    "R().async_exec(decoupled='x')": FUNCTION.format("async_exec"),
    "pb_utils.InferenceResponse({})": CONSTRUCTOR,
    "SENDER.send('x')": FUNCTION.format("send"),
    "SENDER.send(pb_utils.TritonError('x'))": FUNCTION.format("send"),
    "SENDER.send(pb_utils.InferenceResponse([]), flags=-1)": FUNCTION.format("send"),
    "SENDER.send(pb_utils.InferenceResponse([]), flags=None)": FUNCTION.format("send"),
    "pb_utils.TritonError(None)": CONSTRUCTOR,
    "pb_utils.TritonError(ValueError('x'))": CONSTRUCTOR,
    "pb_utils.TritonError('x', 5)": CONSTRUCTOR,
    "pb_utils.TritonError('x', code='NOT_FOUND')": CONSTRUCTOR,
    "pb_utils.TritonError(b'x').message()": "x",
    "[pb_utils.TritonError('x').code(), pb_utils.TritonError('x').code().name]": [1, "INTERNAL"],
    "pb_utils.PreferredMemory(None)": CONSTRUCTOR,
    "pb_utils.PreferredMemory(0)": CONSTRUCTOR,
    "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 'x')": CONSTRUCTOR,
    "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, preferred_device_id=1).device_id": 1,
    "[int(pb_utils.TRITONSERVER_MEMORY_GPU), int(pb_utils.TRITONSERVER_MEMORY_CPU)]": [0, 1],
    "type(T.__dlpack__(None)).__name__": "PyCapsule",
    "type(T.__dlpack__(stream=1)).__name__": "PyCapsule",
    "pb_utils.load_model('m', None)": FUNCTION.format("load_model"),
    "pb_utils.load_model('m', '', 5)": MODEL
    + "failed to load model 'm', files should be a dictionary of file paths and file contents",
    "pb_utils.unload_model('m', 'x')": FUNCTION.format("unload_model"),
    "pb_utils.is_model_ready('m', 1)": FUNCTION.format("is_model_ready"),
    "pb_utils.MetricFamily('a b', 'd', pb_utils.MetricFamily.GAUGE)": METRIC
    + "MetricFamily: "
    + FAILED
    + "Invalid metric name 'a b'",
    "GAUGE.Metric({'a b': 'c'})": METRIC + "Metric: " + FAILED + "Invalid label name 'a b'",
    "GAUGE.Metric({'a': 5})": METRIC
    + "Metric: "
    + FAILED
    + "attempt to access JSON non-string as string: label 'a' is 5",
    "GAUGE.Metric().observe(1)": MODEL
    + "Failed to observe metric value: "
    + FAILED
    + "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe",
    "GAUGE.Metric().increment(10**400)": FUNCTION.format("increment"),
    "pb_utils.Logger.LogLevel.ERROR == pb_utils.Logger.ERROR": True,
    "pb_utils.Logger.log('x')": None,
    "pb_utils.Logger.log(b'x', pb_utils.Logger.WARNING)": None,
    "pb_utils.Logger.log('x', 1)": FUNCTION.format("log"),
    "pb_utils.Logger.log(5)": FUNCTION.format("log"),
    "pb_utils.Logger.log_info(None)": FUNCTION.format("log_info"),
    "pb_utils.Logger.log_warn(5)": FUNCTION.format("log_warn"),
    "pb_utils.Logger.log_error(['x'])": FUNCTION.format("log_error"),
    "pb_utils.Logger.log_verbose(1.5)": FUNCTION.format("log_verbose"),
    "[int(pb_utils.Logger.INFO), int(pb_utils.Logger.ERROR)]": [0, 2],
}


async def test_arguments_are_taken_and_refused_as_by_triton(tmp_path: Path) -> None:
    async with running(tmp_path, PROBE) as runner:
        response = await runner.infer(id=json.dumps(list(TABLE)))
    outcomes = json.loads(response.outputs[0].to_numpy()[0])
    assert dict(zip(TABLE, outcomes, strict=True)) == TABLE
    assert sys.argv != [""]
