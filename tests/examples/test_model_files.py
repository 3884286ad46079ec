"""preprocess/1/model.py and postprocess/1/model.py as the python backend's child process would run them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format, text_format
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from conch.server.backends import child

from .drawing import black_with_box, encode

Load = Callable[[str], Any]


@pytest.fixture
def pb_utils(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Conch's own triton_python_backend_utils."""
    monkeypatch.syspath_prepend(str(Path(child.__file__).parent))
    return importlib.import_module("triton_python_backend_utils")


@pytest.fixture
def load(models: Path, pb_utils: ModuleType) -> Load:
    """Loads and initializes a model of the example repository by name."""

    def initialized(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(f"{name}_model", models / name / "1" / "model.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        config = text_format.Parse((models / name / "config.pbtxt").read_text(), ModelConfig())
        model = module.TritonPythonModel()
        model_config = json.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True))
        model.initialize({"model_config": model_config, "model_repository": str(models / name)})
        return model

    return initialized


def request_for(pb_utils: ModuleType, name: str, **inputs: NDArray[Any]) -> Any:
    tensors = [pb_utils.Tensor(input_name, values) for input_name, values in inputs.items()]
    return pb_utils.InferenceRequest(model_name=name, inputs=tensors, requested_output_names=[])


def files(*contents: bytes) -> NDArray[np.object_]:
    return np.array(contents, dtype=np.object_).reshape(-1, 1)


def outputs(response: Any) -> dict[str, NDArray[Any]]:
    assert not response.has_error(), response.error().message()
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def test_bad_image_fails_only_its_own_request(load: Load, pb_utils: ModuleType) -> None:
    good = encode(black_with_box(50, 40, (5, 5, 20, 20)))
    contents = (files(good), files(good, b"no image"), files(good, good, good))
    requests = [request_for(pb_utils, "preprocess", RAW_IMAGE=raw) for raw in contents]
    first, second, third = load("preprocess").execute(requests)
    assert outputs(first)["IMAGE"].shape == (1, 3, 640, 640)
    assert second.error().code() == pb_utils.TritonError.INVALID_ARG
    assert second.error().message().startswith("RAW_IMAGE[1]: 8 bytes starting with 6e 6f 20 69 are not an image")
    assert outputs(third)["ORIGINAL_SHAPE"].tolist() == [[40, 50]] * 3


def test_size_limit_is_that_of_the_config(load: Load, pb_utils: ModuleType) -> None:
    model = load("preprocess")
    sizes = (4000, 4001)
    requests = [
        request_for(pb_utils, "preprocess", RAW_IMAGE=files(encode(np.zeros((2, width, 3), dtype=np.uint8))))
        for width in sizes
    ]
    taken, refused = model.execute(requests)
    assert outputs(taken)["ORIGINAL_SHAPE"].tolist() == [[2, 4000]]
    assert refused.error().message() == "RAW_IMAGE[0]: image is 4001x2 pixels, a side may have at most 4000"


def test_images_of_different_sizes_keep_their_own_results(load: Load, pb_utils: ModuleType) -> None:
    """Three images in two requests: the same row of the detector means another place in each of them."""
    sizes = ((640, 640), (1280, 1280), (320, 640))
    raw = [encode(np.zeros((height, width, 3), dtype=np.uint8)) for width, height in sizes]
    prepared = [
        outputs(response)
        for response in load("preprocess").execute(
            [request_for(pb_utils, "preprocess", RAW_IMAGE=part) for part in (files(raw[0]), files(*raw[1:]))]
        )
    ]
    requests = []
    for part in prepared:
        rows = np.zeros((len(part["IMAGE"]), 25200, 85), dtype=np.float32)
        rows[:, 77, :6] = (320, 320, 100, 60, 1, 0.75)
        geometry = {name: part[name] for name in ("LETTERBOX", "ORIGINAL_SHAPE")}
        requests.append(request_for(pb_utils, "postprocess", DETECTIONS=rows, **geometry))
    results = [outputs(response)["DETECTION_RESULTS"] for response in load("postprocess").execute(requests)]
    assert [result.shape for result in results] == [(1, 1), (2, 1)]
    documents = [json.loads(result) for part in results for result in part.reshape(-1)]
    assert [[defect["bbox"] for defect in defects] for defects in documents] == [
        [[270.0, 290.0, 370.0, 350.0]],
        [[540.0, 580.0, 740.0, 700.0]],
        [[110.0, 290.0, 210.0, 350.0]],
    ]
    assert {(d["class_id"], d["class_name"], d["confidence"]) for (d,) in documents} == {(0, "scratch", 0.75)}
