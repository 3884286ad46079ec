"""The names of `triton_python_backend_utils` that need no request: types, constants, conversions, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.backends.python.running import running

MODEL = """
    import asyncio
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def refused(call):
        try:
            call()
        except pb_utils.TritonModelException as error:
            return error.message()

    class TritonPythonModel:
        def execute(self, requests):
            value = {what}
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(value)], dtype=object))])]
"""


async def evaluated(directory: Path, what: str) -> Any:
    """Evaluate an expression inside of a model's `execute`."""
    async with running(directory, MODEL.replace("{what}", what)) as runner:
        response = await runner.infer()
    return json.loads(response.outputs[0].to_numpy()[0])


async def test_types(tmp_path: Path) -> None:
    names = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]
    kinds = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
    kinds += ["float16", "float32", "float64"]
    numbers = await evaluated(
        tmp_path,
        """{
            "of names": [np.dtype(pb_utils.triton_string_to_numpy("TYPE_" + n)).name for n in NAMES + ["STRING"]],
            "of numbers": [np.dtype(pb_utils.triton_to_numpy_type(n)).name for n in range(1, 14)],
            "numbers": [pb_utils.numpy_to_triton_type(np.dtype(k)) for k in KINDS],
            "more numbers": [pb_utils.numpy_to_triton_type(k) for k in (np.float32, bool, np.bytes_, object, "U3")],
            "none": [pb_utils.triton_to_numpy_type(14), pb_utils.numpy_to_triton_type(np.complex64)],
        }""".replace("NAMES", repr(names)).replace("KINDS", repr(kinds)),
    )
    assert numbers == {
        "of names": [*kinds, "object"],
        "of numbers": [*kinds, "object"],
        "numbers": list(range(1, 13)),
        "more numbers": [11, 1, 13, 13, 13],
        "none": [None, None],
    }


async def test_byte_tensors(tmp_path: Path) -> None:
    result = await evaluated(
        tmp_path,
        """{
            "packed": pb_utils.serialize_byte_tensor(np.array([["a", b"bc"]], dtype=object)).hex(),
            "fixed": pb_utils.serialize_byte_tensor(np.array([b"a"])).hex(),
            "empty": pb_utils.serialize_byte_tensor(np.array([], dtype=object)),
            "unpacked": [e.hex() for e in pb_utils.deserialize_bytes_tensor(b"\\x01\\0\\0\\0a\\0\\0\\0\\0")],
        }""",
    )
    assert result == {"packed": "0100000061020000006263", "fixed": "0100000061", "empty": None, "unpacked": ["61", ""]}


async def test_constants(tmp_path: Path) -> None:
    names = {
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": 1,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": 2,
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": 1,
        "TRITONSERVER_REQUEST_RELEASE_ALL": 1,
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": 2,
    }
    assert await evaluated(tmp_path, f"{{name: getattr(pb_utils, name) for name in {list(names)}}}") == names


async def test_what_cannot_be_made(tmp_path: Path) -> None:
    texts = await evaluated(
        tmp_path,
        """[refused(call) for call in (
            lambda: pb_utils.Tensor("", np.zeros(1)),
            lambda: pb_utils.Tensor("x", np.zeros(1, complex)),
            lambda: pb_utils.InferenceResponse([None]),
            lambda: pb_utils.InferenceResponse([], parameters={1: 2}),
            lambda: pb_utils.InferenceResponse([], parameters={"a": []}),
            lambda: pb_utils.InferenceRequest(model_name="x", inputs=[], requested_output_names=[], correlation_id=1.5),
        )]""",
    )
    assert texts == [
        "Tensor name cannot be an empty string.",
        "NumPy dtype is not supported. Tensor 'x' is complex128",
        "Output tensor for inference response should not be empty.",
        "Expect parameters keys to have type str, found type <class 'int'>",
        "Expect parameters values to have type bool/int/str, found type <class 'list'>",
        "Correlation ID must be integer or string",
    ]


async def test_values_of_numpy_travel_as_parameters(tmp_path: Path) -> None:
    code = """
        import json
        import numpy as np
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            def execute(self, requests):
                parameters = {"f": np.float64(0.5), "s": np.str_("x"), "b": True}
                response = pb_utils.InferenceResponse(parameters=parameters)
                assert json.loads(response.parameters()) == parameters
                assert not response.has_error() and response.error() is None and response.output_tensors() == []
                assert pb_utils.get_output_tensor_by_name(response, "x") is None
                return [response]
    """
    async with running(tmp_path, code) as runner:
        assert (await runner.infer()).parameters == {"f": 0.5, "s": "x", "b": True}


async def test_workers_of_a_model_can_use_the_module(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = """
        import subprocess
        import sys
        import triton_python_backend_utils as pb_utils
        WORKER = '''
        import sys
        sys.path[:] = sys.argv[1:]
        import triton_python_backend_utils as pb_utils
        pb_utils.Logger.log_warn("from a worker")
        try:
            pb_utils.get_model_dir()
        except pb_utils.TritonModelException as error:
            print(error)
        '''
        class TritonPythonModel:
            def execute(self, requests):
                import textwrap
                subprocess.run([sys.executable, "-c", textwrap.dedent(WORKER), *sys.path], check=True)
                return [pb_utils.InferenceResponse()]
    """
    caplog.set_level("INFO")
    async with running(tmp_path, code) as runner:
        await runner.infer()
    lines = [record.getMessage() for record in caplog.records]
    assert "<string>:5] from a worker" in lines
    assert "this works only in the process in which the server runs the model" in lines


async def test_a_model_may_fork(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = """
        import gc
        import multiprocessing
        import os
        import numpy as np
        import triton_python_backend_utils as pb_utils

        def work(number):
            pb_utils.Logger.log_warn("from a fork")
            gc.collect()
            return number * 2

        class TritonPythonModel:
            def execute(self, requests):
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    doubled = pool.map(work, range(4))
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(doubled))])]
    """
    async with running(tmp_path, code) as runner:
        for _ in range(2):
            response = await runner.infer()
            assert response.outputs[0].to_numpy().tolist() == [0, 2, 4, 6]
    assert sum("from a fork" in record.getMessage() for record in caplog.records) == 8
