"""`conch.TestClient`: declared functions and classes, called as a server calls them."""

import asyncio
import base64
import io
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, TypedDict

import numpy as np
import PIL.Image
import pytest
from numpy.typing import NDArray

import conch
from conch.base.errors import BackendError, Code, InvalidRequest, NotFound
from conch.server.backends.child.conch_child.python.app.endpoints import DeclarationError, endpoints_of


@conch.model
def square(x: np.ndarray) -> np.ndarray:
    return x * x


class Stats(TypedDict):
    mean: float
    order: NDArray[np.int64]


@dataclass
class Options:
    top: int
    reverse: bool = False


class Pair(NamedTuple):
    first: str
    second: dict


@conch.model
def stats(x: NDArray[np.float64], options: Options) -> Stats:
    order = np.argsort(x)[: options.top]
    return {"mean": float(x.mean()), "order": order[::-1] if options.reverse else order}


@conch.model
def pair(text: str, data: bytes = b"none") -> Pair:
    return Pair(text + data.decode(), {"length": len(text), "bytes": np.int64(len(data))})


@conch.model
def transposed(
    x: Annotated[np.ndarray, conch.Tensor("FP32", [-1, -1])],
) -> Annotated[np.ndarray, conch.Tensor("FP32", [-1, -1])]:
    return x.T


@conch.model(batch=True)
def roots(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.sqrt(x)


@conch.model
def size(image: conch.Image, other: PIL.Image.Image | None = None) -> list[int]:
    return [*image.shape, *(other.size if other else ())]


@conch.model
def swapped(a: int, b: bool) -> tuple[bool, int]:
    return b, a


def png(width: int, height: int) -> bytes:
    data = io.BytesIO()
    PIL.Image.new("1", (width, height)).save(data, "png")
    return data.getvalue()


def call(model: Any, **inputs: Any) -> dict[str, Any]:
    with conch.TestClient(model) as client:
        return client.generate(inputs)


def test_a_declared_function_stays_a_function() -> None:
    assert square(np.array([2.0])).tolist() == [4.0]


def test_values_become_tensors_and_back() -> None:
    assert call(square, x=[1, 2, 3]) == {"output": [1.0, 4.0, 9.0]}
    assert call(square, x=3) == {"output": [9.0]}
    assert call(stats, x=[3, 1, 2], options={"top": 2}) == {"mean": 2.0, "order": [1, 2]}
    assert call(stats, x=[3, 1, 2], options={"top": 2, "reverse": True})["order"] == [2, 1]
    assert call(pair, text="a") == {"first": "anone", "second": {"length": 1, "bytes": 4}}
    assert call(pair, text="é", data="x") == {"first": "éx", "second": {"length": 1, "bytes": 1}}
    assert call(swapped, a=7, b=True) == {"output_0": True, "output_1": 7}


def test_arrays_of_several_dimensions_are_nested_lists() -> None:
    assert call(transposed, x=[[1, 2, 3], [4, 5, 6]]) == {"output": [[1, 4], [2, 5], [3, 6]]}
    assert str(call(roots, x=[[4, -1]])) == "{'output': [2.0, nan]}"
    assert str(call(roots, x=[[4, -1], [0, 1]])) == "{'output': [[2.0, nan], [0.0, 1.0]]}"
    with pytest.raises(InvalidRequest, match="needs 4 elements, 'data' has 3"):
        call(transposed, x=[[1, 2], [3]])


def test_images_are_files_or_base64() -> None:
    image = base64.b64encode(png(3, 2)).decode()
    assert call(size, image=image) == {"output": [2, 3, 3]}
    assert call(size, image=f"data:image/png;base64,{image}", other=image) == {"output": [2, 3, 3, 3, 2]}
    with pytest.raises(BackendError, match="input 'image': it is neither an image file nor one in base64") as caught:
        call(size, image="hello")
    assert caught.value.code is Code.INVALID_ARG


def test_no_program_is_started_for_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow starts Ghostscript, if there is one, for files of PostScript."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # the plugin remembers what it has found
    file = io.BytesIO()
    PIL.Image.new("RGB", (3, 2)).save(file, "EPS")
    with pytest.raises(BackendError, match="neither an image file"):
        call(size, image=base64.b64encode(file.getvalue()).decode())
    assert not (tmp_path / "started").exists()


def test_a_jpeg_of_many_segments_is_refused() -> None:
    file = io.BytesIO()
    PIL.Image.new("RGB", (3, 2)).save(file, "JPEG")
    segment = b"\xff\xe1\x00\x0aExif\x00\x00aa"  # which Pillow joins in quadratic time
    for count, expected in ((500, {"output": [2, 3, 3]}), (600, None)):
        image = base64.b64encode(file.getvalue()[:2] + segment * count + file.getvalue()[2:]).decode()
        if expected:
            assert call(size, image=image) == expected
        else:
            with pytest.raises(BackendError, match="neither an image file"):
                call(size, image=image)


def test_an_image_of_too_many_pixels_is_refused() -> None:
    with pytest.raises(BackendError, match="pixels"):
        call(size, image=base64.b64encode(png(45_000, 2_000)).decode())


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ({}, "inputs are missing: options, x"),
        ({"x": [1], "options": 5}, "input 'options': it must be a JSON object"),
        ({"x": [1], "options": {"bottom": 1}}, "unexpected keyword argument 'bottom'"),
        ({"x": ["a"], "options": {"top": 1}}, "non-number as double; element 0 of input 'x'"),
    ],
)
def test_invalid_inputs(inputs: dict[str, Any], error: str) -> None:
    with pytest.raises((BackendError, InvalidRequest), match=error) as caught:
        call(stats, **inputs)
    assert caught.value.code is Code.INVALID_ARG


# ── classes ──


@conch.model
class Pipeline:
    def __init__(self) -> None:
        self.steps = ["init"]

    def setup(self, device: str) -> None:
        self.steps.append(device)

    def predict(self, text: str) -> str:
        return f"{text} {' '.join(self.steps)}"

    def teardown(self) -> None:
        self.steps.append("closed")


@conch.model
class Several:
    @conch.endpoint
    def upper(self, text: str) -> str:
        return text.upper()

    @conch.endpoint(name="lower", batch=True)
    def lowered(self, texts: list[str]) -> list[str]:
        return [text.lower() for text in texts]

    def helper(self) -> None: ...


@conch.model(batch=True)
class Staged:
    def preprocess(self, text: str) -> int:
        if text == "bad":
            raise conch.InvalidInput("'bad' is bad")
        return len(text)

    def predict(self, lengths: list[int]) -> list[int]:
        return [length * 2 for length in lengths]

    def postprocess(self, doubled: int) -> dict[str, int]:
        return {"doubled": doubled}


def test_a_class_is_set_up_once() -> None:
    with conch.TestClient(Pipeline) as client:
        assert client.models == ["Pipeline"]
        assert client.generate({"text": "a"}) == {"output": "a init cpu"}
        assert client.generate({"text": "b"}) == {"output": "b init cpu"}


def test_each_endpoint_is_a_model() -> None:
    client = conch.TestClient(Several)
    assert client.models == ["Several_upper", "lower"]
    assert client.generate({"text": "a"}, "Several_upper") == {"output": "A"}
    assert client.generate({"texts": ["A", "B"]}, "lower") == {"output": ["a", "b"]}
    with pytest.raises(NotFound, match="unknown model 'upper', name one of: Several_upper, lower"):
        client.generate({"text": "a"}, "upper")


def test_preprocess_and_postprocess_have_one_item_each() -> None:
    assert call(Staged, text="abc") == {"output": {"doubled": 6}}
    assert call(Staged, text=["a", "ab"]) == {"output": [{"doubled": 2}, {"doubled": 4}]}
    with pytest.raises(BackendError, match="'bad' is bad") as caught:
        call(Staged, text="bad")
    assert caught.value.code is Code.INVALID_ARG


# ── batches, streams, async functions ──


@conch.model(batch=True)
def doubled(x: NDArray[np.float32], names: list[str]) -> tuple[NDArray[np.float32], list[str]]:
    return x * 2, [name + str(len(names)) for name in names]


@conch.model
def countdown(n: int) -> Iterator[int]:
    while n:
        yield n
        n -= 1
    raise RuntimeError("liftoff")


@conch.model
async def ticks(n: int) -> AsyncIterator[str]:
    for number in range(n):
        await asyncio.sleep(0)
        yield str(number)


@conch.model
async def later(text: str) -> dict:
    await asyncio.sleep(0)
    if not text:
        raise conch.InvalidInput("empty")
    return {"text": text, "nothing": None}


def test_a_batch_has_a_batch_dimension() -> None:
    assert call(doubled, x=[[1, 2], [3, 4]], names=["a", "b"]) == {
        "output_0": [[2, 4], [6, 8]],
        "output_1": ["a2", "b2"],
    }
    assert call(doubled, x=[1, 2], names="a") == {"output_0": [2, 4], "output_1": "a1"}


def test_generators_stream() -> None:
    stream = conch.TestClient(countdown).generate_stream({"n": 2})
    assert [next(stream), next(stream)] == [{"output": 2}, {"output": 1}]
    with pytest.raises(BackendError, match="RuntimeError: liftoff"):
        next(stream)
    assert list(conch.TestClient(ticks).generate_stream({"n": 2})) == [{"output": "0"}, {"output": "1"}]


def test_async_functions() -> None:
    assert call(later, text="a") == {"output": {"text": "a", "nothing": None}}
    with pytest.raises(BackendError, match="empty") as caught:
        call(later, text="")
    assert caught.value.code is Code.INVALID_ARG


def test_wrong_results_name_the_output() -> None:
    @conch.model
    def flat(x: np.ndarray) -> np.ndarray:
        return np.ones((2, 2))

    @conch.model(batch=True)
    def short(texts: list[str]) -> list[str]:
        return texts[:1]

    @conch.model
    def nothing(x: np.ndarray) -> np.ndarray:
        return None

    @conch.model(batch=True)
    def none(x: np.ndarray) -> np.ndarray:
        return None

    @conch.model
    def word(x: float) -> int:
        return "word"

    for model in (nothing, none):
        with pytest.raises(BackendError, match="output 'output' is None: the function returned no value"):
            call(model, x=1)
    with pytest.raises(BackendError, match=r"output 'output': invalid literal for int\(\) with base 10: 'word'"):
        call(word, x=1)
    with pytest.raises(BackendError, match=r'Annotated\[np.ndarray, conch.Tensor\("FP32", \[-1, -1\]\)\]'):
        call(flat, x=1)
    with pytest.raises(BackendError, match="output 'output' has 1 items for a batch of 2"):
        call(short, texts=["a", "b"])


@pytest.mark.parametrize(
    "model", [square, stats, pair, transposed, size, swapped, Pipeline, Staged, doubled, countdown, ticks, later]
)
def test_the_example_of_a_model_is_one_that_it_accepts(model: Any) -> None:
    [declared] = endpoints_of(SimpleNamespace(model=model)).values()
    example = json.loads(declared.config()["parameters"]["example_request"]["string_value"])
    with conch.TestClient(model) as client:
        assert next(client.generate_stream(example)).keys() == declared.outputs.keys()


# ── wrong declarations ──


@conch.model
def unannotated(x) -> str:  # type: ignore[no-untyped-def]
    return str(x)


@conch.model
def odd(
    x: str,
    y: complex,
) -> str:
    return x


@conch.model
def silent(x: str):  # type: ignore[no-untyped-def]
    return x


@conch.model(batch=True)
def single(x: list[str]) -> str:
    return ""


@conch.model
def generator(x: str) -> str:  # type: ignore[misc]
    yield x


@conch.model
def starred(*x: str) -> str:
    return ""


@conch.model
class Empty:
    def run(self) -> None: ...


@pytest.mark.parametrize(
    ("model", "problem", "shown", "correct"),
    [
        (
            unannotated,
            "parameter 'x' of 'unannotated' has no annotation",
            "def unannotated(x) -> str:",
            "x: np.ndarray)",
        ),
        (odd, "parameter 'y' of 'odd' cannot be a tensor: 'complex' is not supported", "y: complex,", "y: np.ndarray)"),
        (
            silent,
            "the result of 'silent' has no annotation",
            "def silent(x: str):",
            "(x: str) -> np.ndarray:",
        ),
        (single, "the result of 'single' is of one item", "-> str:", "def single(x: list[str]) -> list[str]:"),
        (generator, "the result of 'generator' is a generator's", "-> str:", "-> Iterator[str]:"),
        (starred, "parameter 'x' of 'starred' cannot be an input: name each input", "def starred(*x: str)", ""),
        (Empty, "class 'Empty' has no method 'predict'", "", ""),
    ],
)
def test_a_wrong_annotation_shows_its_line_and_a_correct_one(
    model: Any, problem: str, shown: str, correct: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        conch.TestClient(model)
    text = str(caught.value)
    place, _, _ = text.partition(": ")
    path, _, line = place.rpartition(":")
    assert path == __file__
    assert shown in Path(__file__).read_text().splitlines()[int(line) - 1]
    assert problem in text
    assert correct in text


def test_two_models_of_one_name(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text(
        "import conch\n@conch.model\ndef a(x: str) -> str: ...\n@conch.model(name='a')\ndef b(x: str) -> str: ...\n"
    )
    with pytest.raises(DeclarationError, match=r"twice.py:4: 'a' is the name of two models"):
        conch.TestClient(file)


def test_a_file_without_models(tmp_path: Path) -> None:
    file = tmp_path / "nothing_here.py"
    file.write_text("import conch\n")
    with pytest.raises(DeclarationError, match=r"nothing_here.py: declares no model; put @conch.model above"):
        conch.TestClient(file)


def test_options_out_of_range() -> None:
    @conch.model(batch=True, max_batch_size=0)
    def never(x: list[str]) -> list[str]:
        return x

    with pytest.raises(DeclarationError, match=r"max_batch_size=0 of 'never' is not valid: it must be 1 or more"):
        conch.TestClient(never)


def test_json_may_be_nested_more_deeply_than_orjson_writes() -> None:
    @conch.model
    def nested(depth: int) -> list:
        value: list[Any] = []
        for _ in range(depth):
            value = [value]
        return value

    assert str(call(nested, depth=400)["output"]).count("[") == 401


def test_objects_and_own_errors() -> None:
    class TooDark(conch.InvalidInput):
        pass

    @dataclass(slots=True)
    class Light:
        level: float
        name: str

    @conch.model
    def light(level: float) -> Light:
        if level < 0:
            raise TooDark("it is too dark")
        return Light(level, "lamp")

    assert call(light, level=2) == {"level": 2.0, "name": "lamp"}
    with pytest.raises(BackendError, match="it is too dark") as caught:
        call(light, level=-1)
    assert caught.value.code is Code.INVALID_ARG
