"""A Python file with declared models as the repository of a real server: HTTP, gRPC, reload."""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from conch.server.backends import child
from tests.server.conformance.test_generate import events, post
from tests.support.ports import free_port
from tests.support.server_process import ConchProcess

APP = '''
import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import numpy as np

import conch
from suffix import SUFFIX

running = []


@conch.model
def square(x: np.ndarray) -> np.ndarray:
    return x * x


@conch.model(batch=True, max_batch_size=16, batch_delay_us=100_000)
def shout(texts: list[str]) -> list[str]:
    if "" in texts:
        raise conch.InvalidInput("empty")
    return [f"{text}{SUFFIX} of {len(texts)}" for text in texts]


@conch.model(batch=True, batch_delay_us=100_000)
async def whisper(texts: list[str]) -> list[str]:
    if "" in texts:
        raise conch.InvalidInput("empty")
    return [text.lower() for text in texts]


@conch.model
async def meet(parties: int) -> int:
    """Answers when as many requests run at the same time."""
    running.append(1)
    while len(running) < parties:
        await asyncio.sleep(0.001)
    return len(running)


@conch.model
def count(n: int) -> Iterator[int]:
    yield from range(n)


@conch.model
async def words(text: str) -> AsyncIterator[dict]:
    for word in text.split():
        yield {"word": word}


@conch.model
def text(x: str) -> str:
    return x


@conch.model
def keys(payload: dict) -> list[str]:
    return list(payload)


if __name__ == "__main__":
    conch.serve()
'''


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    (folder / "suffix.py").write_text('SUFFIX = "!"\n')
    (folder / "app.py").write_text(APP)
    return folder / "app.py"


@pytest.fixture(scope="module")
def server(app: Path) -> Iterator[ConchProcess]:
    with ConchProcess(app, log=app.with_name("log")) as conch:
        yield conch


def answer(server: ConchProcess, path: str, **inputs: Any) -> Any:
    status, _, text = post(server, path, inputs)
    assert status == 200, text
    return json.loads(text)["output"]


def test_generate_takes_the_inputs_as_json(server: ConchProcess) -> None:
    assert answer(server, "square/generate", x=[1, 2, 3]) == [1, 4, 9]
    assert answer(server, "text/generate", x="hello") == "hello"
    assert [event["output"] for event in events(post(server, "count/generate_stream", {"n": 3})[2])] == [0, 1, 2]
    stream = events(post(server, "words/generate_stream", {"text": "a b"})[2])
    assert [event["output"] for event in stream] == [{"word": "a"}, {"word": "b"}]


def test_json_inputs(server: ConchProcess) -> None:
    assert answer(server, "keys/generate", payload={"a": {"b": [1]}, "c": None}) == ["a", "c"]
    # Larger than what is decoded in the event loop.
    assert answer(server, "keys/generate", payload={"large": "x" * 3_000_000}) == ["large"]
    for body, error in (
        (
            b'{"payload":%s1%s}' % (b'{"a":' * 300, b"}" * 300),
            "input 'payload' cannot be read: Recursion limit reached",
        ),
        (b'{"payload":[1]}', "input 'payload': it must be a JSON object"),
        (b"{}", "missing required input"),
    ):
        status, _, text = post(server, "keys/generate", body)
        assert (status, error in text) == (400, True)


def test_tensors_over_both_protocols(server: ConchProcess) -> None:
    values = np.arange(4, dtype=np.float32)
    for module, address in ((http_client, server.http), (grpc_client, server.grpc)):
        with module.InferenceServerClient(address) as client:
            tensor = module.InferInput("x", [4], "FP32")
            tensor.set_data_from_numpy(values)
            assert client.infer("square", [tensor]).as_numpy("output").tolist() == [0, 1, 4, 9]


def test_text_that_is_not_utf_8_is_refused(server: ConchProcess) -> None:
    with http_client.InferenceServerClient(server.http) as client:
        tensor = http_client.InferInput("x", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b"\xff"], object))
        with pytest.raises(http_client.InferenceServerException, match="input 'x': it is not UTF-8 text") as caught:
            client.infer("text", [tensor])
    assert caught.value.status() == "400"


def test_only_invalid_requests_of_an_async_batch_fail(server: ConchProcess) -> None:
    statuses: dict[str, int] = {}

    def ask(text: str) -> None:
        statuses[text] = post(server, "whisper/generate", {"texts": text})[0]

    together(*(lambda text=text: ask(text) for text in ("A", "B", "")))
    assert statuses == {"A": 200, "B": 200, "": 400}


def test_requests_form_batches_and_only_invalid_ones_fail(server: ConchProcess) -> None:
    answers: dict[str, tuple[int, Any]] = {}

    def ask(text: str) -> None:
        status, _, body = post(server, "shout/generate", {"texts": text})
        answers[text] = status, json.loads(body)

    together(*(lambda text=text: ask(text) for text in ("a", "b", "")))
    assert answers[""] == (400, {"error": "empty"})
    assert {answers[text][0] for text in "ab"} == {200}
    assert all(re.fullmatch(rf"{text}! of [123]", answers[text][1]["output"]) for text in "ab")
    assert answer(server, "shout/generate", texts=["x", "y"]) == ["x! of 2", "y! of 2"]


def test_async_functions_run_at_the_same_time_in_one_instance(server: ConchProcess) -> None:
    results: list[int] = []
    together(*[lambda: results.append(answer(server, "meet/generate", parties=4))] * 4)
    assert results == [4, 4, 4, 4]


def together(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_a_change_reloads_and_a_broken_file_keeps_what_is_served(app: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(app.parent, tmp_path / "reload", ignore=shutil.ignore_patterns("__pycache__", "log"))
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with ConchProcess(folder / "app.py", *flags, log=tmp_path / "log") as conch:
        ask = lambda: answer(conch, "shout/generate", texts="a")  # noqa: E731
        assert ask() == "a! of 1"
        (folder / "app.py").write_text(APP + "\nraise RuntimeError('oops')\n")
        until(lambda: "RuntimeError: oops" in conch.text)
        assert f'File \\"{folder}/app.py\\", line {APP.count(chr(10)) + 2}, in <module>' in conch.text
        assert ask() == "a! of 1"
        (folder / "suffix.py").write_text('SUFFIX = "?"\n')  # a module that the file imports
        (folder / "app.py").write_text(APP.replace("def text(", "def other("))
        until(lambda: post(conch, "other/generate", {"x": "a"})[0] == 200)
        until(lambda: ask() == "a? of 1")
        until(lambda: post(conch, "text/generate", {"x": "a"})[0] in (400, 404))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_declared_model_in_an_ordinary_repository(tmp_path: Path) -> None:
    """Without TritonPythonModel and without config.pbtxt."""
    (tmp_path / "models" / "double" / "1").mkdir(parents=True)
    (tmp_path / "models" / "double" / "1" / "model.py").write_text(
        "import numpy as np\nimport conch\n@conch.model\ndef any_name(x: np.ndarray) -> np.ndarray:\n    return 2 * x\n"
    )
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as conch:
        assert answer(conch, "double/generate", x=[1, 2]) == [2, 4]


def test_a_declared_model_needs_numpy_only(tmp_path: Path) -> None:
    """As in another environment, which Conch is not installed in."""
    for path in Path(np.__file__).parents[1].glob("numpy*"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text("from conch import model\n@model\ndef a(x: str) -> str: ...\n")
    code = (
        "import importlib.util, sys; sys.path.append(sys.argv[1]); assert importlib.util.find_spec('conch') is None; "
        "from conch_child.python.model_host import load_class; print(load_class(sys.argv[2], '1', 'model.py').endpoint)"
    )
    command = [sys.executable, "-S", "-c", code, str(Path(child.__file__).parent), str(tmp_path)]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert "DeclaredModel(name='a'" in done.stdout, done.stderr


def test_a_script_serves_its_models(app: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        script = app.read_text().replace("conch.serve()", f"conch.serve(port={free_port()})")
        (tmp_path / "app.py").write_text(script)
        shutil.copy(app.with_name("suffix.py"), tmp_path)
        process = subprocess.Popen([sys.executable, "app.py"], cwd=tmp_path, stdout=log, stderr=log)
    try:
        port = int(re.findall(r"port=(\d+)", script)[-1])
        until(lambda: _reachable(port, process))
        body = json.dumps({"x": [2]}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/square/generate", body) as response:
            assert json.load(response)["output"] == [4]
    finally:
        process.terminate()
        assert process.wait(120) == 0, (tmp_path / "log").read_text()


def _reachable(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready"):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("@conch.model\ndef a(x) -> str: ...\n", "{file}:3: parameter 'x' of 'a' has no annotation"),
        ("raise SystemExit(3)\n", '{file}: the import failed\n  File "{file}", line 2, in <module>'),
        ("import os\nos._exit(7)\n", "{file}: the import ended the process, with status 7"),
        ("x = (\n", "SyntaxError: '(' was never closed"),
        (
            '@conch.model(config={"cash": 1})\ndef a(x: int) -> int: ...\n',
            'is not valid: Message type "inference.ModelConfig" has no field named "cash" at "ModelConfig".\n',
        ),
    ],
)
def test_conch_run_explains_a_file_that_cannot_be_served(tmp_path: Path, code: str, error: str) -> None:
    file = tmp_path / "app.py"
    file.write_text("import conch\n" + code)
    command = [sys.executable, "-m", "conch", "run", str(file), "--serve"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert error.format(file=file) in done.stderr
