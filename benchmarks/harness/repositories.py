"""Model repositories put together for one work: a folder with just the models that it needs, for each peer."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from benchmarks.harness.machine import CHECKOUT

MODELS = CHECKOUT / "benchmarks" / "repository"
EXAMPLES = CHECKOUT / "examples" / "models"
ONNX_SESSION = MODELS / "onnx_session" / "1" / "model.py"

Models = Mapping[str, Path]
"""Name under which a model is served → directory with its files."""


def own(**models: str) -> Models:
    """Return models of this package, given as `served_name="directory"`."""
    return {name: MODELS / directory for name, directory in models.items()}


def example(name: str) -> Models:
    """Return the example model `name`."""
    return {name: EXAMPLES / name}


def example_ensemble(name: str) -> Models:
    """Return the example ensemble `name` with all its stages. Raises FileNotFoundError when it is not there."""
    config = _read_config(EXAMPLES / name)
    stages = {step.model_name for step in config.ensemble_scheduling.step}
    return {stage: EXAMPLES / stage for stage in [name, *sorted(stages)]}


def compose(models: Models, directory: Path, *, only_python: bool) -> None:
    """Copy `models` into `directory`, which must not exist.

    With `only_python` an ONNX model gets the Python backend and a model.py that runs the same file through onnxruntime,
    for a Triton that has no other backend.
    """
    for name, source in models.items():
        target = directory / name
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        (target / "1").mkdir(exist_ok=True)  # an ensemble has nothing in it, and git keeps no empty folders
        if only_python and (target / "1" / "model.onnx").exists():
            _serve_onnx_from_python(target)


def _serve_onnx_from_python(model: Path) -> None:
    config = _read_config(model)
    config.ClearField("platform")
    config.backend = "python"
    config.ClearField("default_model_filename")
    config.ClearField("parameters")
    for group in config.instance_group:  # Triton refuses KIND_GPU where there is none; Conch logs it and continues
        group.kind = model_config_pb2.ModelInstanceGroup.KIND_CPU
    (model / "config.pbtxt").write_text(text_format.MessageToString(config))
    shutil.copy(ONNX_SESSION, model / "1")


def _read_config(model: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
