"""The backend of a model, by platform, file name or files."""

import pytest

from conch.base.errors import ConfigError
from conch.domain.config.backend_fields import fill_backend_fields
from conch.domain.config.pbtxt import parse_pbtxt


def filled(text: str, files: dict[str, bool] | None = None, name: str = "m") -> tuple[str, str, str]:
    message = parse_pbtxt(text, "f")
    fill_backend_fields(message, name, files or {})
    return message.backend, message.platform, message.default_model_filename


FILE, DIRECTORY = False, True


@pytest.mark.parametrize(
    ("files", "backend", "platform"),
    [
        ({"model.onnx": FILE}, "onnxruntime", "onnxruntime_onnx"),
        ({"model.onnx": DIRECTORY}, "onnxruntime", "onnxruntime_onnx"),
        ({"model.py": FILE}, "python", ""),
        ({"model.py": FILE, "model.onnx": FILE}, "onnxruntime", "onnxruntime_onnx"),
        ({"model.plan": FILE, "model.onnx": FILE}, "tensorrt", "tensorrt_plan"),
        ({"model.savedmodel": DIRECTORY}, "tensorflow", "tensorflow_savedmodel"),
        ({"model.graphdef": FILE}, "tensorflow", "tensorflow_graphdef"),
        ({"model.xml": FILE, "model.bin": FILE}, "openvino", ""),
        ({"model.pt": FILE}, "pytorch", "pytorch_libtorch"),
        ({"model.pt2": FILE}, "pytorch", "torch_aoti"),
        ({"model.savedmodel": FILE, "model.py": FILE}, "python", ""),
    ],
)
def test_by_the_files(files: dict[str, bool], backend: str, platform: str) -> None:
    assert filled("", files)[:2] == (backend, platform)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('platform: "onnxruntime_onnx"', ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('backend: "onnxruntime"', ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('backend: "onnxruntime" default_model_filename: "x.onnx"', ("onnxruntime", "onnxruntime_onnx", "x.onnx")),
        ('default_model_filename: "model.py"', ("python", "", "model.py")),
        ('backend: "python"', ("python", "", "model.py")),
        ('backend: "python" platform: "tensorflow_graphdef"', ("python", "tensorflow_graphdef", "model.py")),
        (
            'backend: "tensorflow" platform: "tensorflow_graphdef"',
            ("tensorflow", "tensorflow_graphdef", "model.graphdef"),
        ),
        ('backend: "mine"', ("mine", "", "")),
        ('platform: "ensemble"', ("", "ensemble", "")),
    ],
)
def test_by_what_the_configuration_says(text: str, expected: tuple[str, str, str]) -> None:
    assert filled(text, {"model.pt": FILE}) == expected


def test_by_the_name_of_the_model() -> None:
    assert filled("", {"weights.bin": FILE}, name="a.mine") == ("mine", "", "model.mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Could not determine backend for model 'm' with no backend in model configuration."),
        ("", "in the version directory, which contains weights.bin."),
        ('default_model_filename: "net.bin"', "Could not determine backend for model 'm'"),
        ('platform: "keras"', "unexpected platform type 'keras' for m; known: tensorrt_plan,"),
        (
            'platform: "pytorch_libtorch" backend: "onnxruntime"',
            "unexpected 'platform' and 'backend' pair, got:pytorch_libtorch, onnxruntime",
        ),
    ],
)
def test_undetermined_backends(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        filled(text, {"weights.bin": FILE})
    assert said in raised.value.message


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (("qwen-Q4.gguf",), """For 'qwen-Q4.gguf', write backend: "openvino_genai" into config.pbtxt."""),
        (("openvino_model.xml",), """For 'openvino_model.xml', write backend: "openvino_genai" into config.pbtxt"""),
        (("a.safetensors", "config.json"), "conch repo add"),
        (("saved_model.pb", "variables"), 'write backend: "openvino" and default_model_filename'),
        (("model.keras",), "convert the model to ONNX (tf2onnx)"),
        (("model.pth",), "torch.jit.save"),
        (("model.pkl",), "skl2onnx"),
        (("resnet.onnx", "labels.txt"), "Rename 'resnet.onnx' to 'model.onnx'."),
        (("net.xml", "net.bin"), "Rename 'net.xml' to 'model.xml'."),
        (("modle.py",), "Rename 'modle.py' to 'model.py'."),  # codespell:ignore
        (("a.onnx", "b.onnx"), "which contains a.onnx, b.onnx."),
    ],
)
def test_files_of_other_formats_and_names_get_a_hint(names: tuple[str, ...], hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        filled("", dict.fromkeys(names, FILE))
    assert hint in raised.value.message
