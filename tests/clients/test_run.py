"""`conch run` of models that are not language models: what it prints works as printed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.running import ASCII_ONLY, TIMEOUT_S, Running, conch, environment, printed_by
from tests.support.encoders import write_encoder, write_tokenizer
from tests.support.models import tensor, write_ensemble, write_identity, write_python
from tests.support.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples/models"
DIGITS = EXAMPLES / "digits/1/model.onnx"
PHOTO = EXAMPLES.parent / "images/plate.jpg"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def digits(home: Path) -> Iterator[Running]:
    with Running(home, str(DIGITS), "--name=digits") as server:
        yield server


def test_the_plate_has_device_memory_and_url(digits: Running) -> None:
    assert "digits is ready on CPU, backend onnxruntime" in digits.text
    assert "MiB" in digits.text
    assert digits.url == f"http://127.0.0.1:{digits.port}"
    assert "inputs  image FP32[8,8]" in digits.text
    assert digits.errors == ""


def test_why_a_model_cannot_be_loaded_is_one_plain_line(home: Path, tmp_path: Path) -> None:
    number = tensor("X", "FP32", 1)
    write_python(
        tmp_path, "broken", f"input {number} output {number}", "return []", more="def initialize(self, args): 1 / 0"
    )
    result = conch(home, "run", str(tmp_path / "broken"), f"--port={free_port()}")
    first, *others = result.stderr.splitlines()
    assert result.returncode == 1
    assert first == (
        "conch run: failed to load 'broken' version 1: Internal: model instance 'broken_0' failed to initialize: "
        "ZeroDivisionError: division by zero"
    )
    assert all(line.startswith("  ") for line in others)  # the place in its code


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("broken.gguf", b"GGUF\x03\0\0\0junk"),
        ("forest.json", b'{"learner": {"x": 1}}'),
        (
            "model.py",
            b"class TritonPythonModel:\n    def initialize(self, args):\n        1 / 0\n    execute = initialize\n",
        ),
    ],
)
def test_the_error_of_a_load_names_the_given_file(name: str, content: bytes, home: Path, tmp_path: Path) -> None:
    """The server reads it through a link in a temporary folder, which no message shows."""
    path = tmp_path / name
    path.write_bytes(content)
    result = conch(home, "run", str(path), "--serve", "--port=0")
    assert result.returncode == 1
    assert str(path) in result.stderr
    assert "conch-model-uploads" not in result.stdout + result.stderr


def test_the_printed_curl_line_works(digits: Running) -> None:
    answer = json.loads(printed_by(digits.curl))
    assert answer["outputs"][0]["name"] == "probabilities"


def test_the_printed_program_works(digits: Running) -> None:
    assert "'name': 'probabilities'" in printed_by([sys.executable, "-c", digits.python])


def test_a_checkpoint_of_a_cross_encoder_is_served_as_a_ranker(home: Path, tmp_path: Path) -> None:
    hub = write_encoder(tmp_path / "ranker", labels=1)
    write_tokenizer(hub)
    with Running(home, str(hub)) as server:
        assert f"{server.url}/v1/rerank" in server.curl
        assert {result["index"] for result in json.loads(printed_by(server.curl))["results"]} == {0, 1}
        assert "'relevance_score': 0." in printed_by([sys.executable, "-c", server.python])


SIZE_OF_IMAGE = """
from io import BytesIO
from PIL import Image
file = pb_utils.get_input_tensor_by_name(request, "RAW_IMAGE").as_numpy()[0, 0]
text = "{0} x {1}".format(*Image.open(BytesIO(file)).size).encode()
return pb_utils.InferenceResponse([pb_utils.Tensor("SIZE", np.array([[text]], np.object_))])
"""


def test_the_requests_to_a_model_of_images_send_an_image(home: Path, tmp_path: Path) -> None:
    config = """
        max_batch_size: 8
        input [ { name: "RAW_IMAGE" data_type: TYPE_STRING dims: [ 1 ] } ]
        output [ { name: "SIZE" data_type: TYPE_STRING dims: [ 1 ] } ]
    """
    write_python(tmp_path, "sizes", config, SIZE_OF_IMAGE)
    with Running(home, str(tmp_path / "sizes")) as server:
        assert "1 x 1" in printed_by(server.curl)
        assert "1 x 1" in printed_by([sys.executable, "-c", server.python])
        assert "cat photo.jpg instead of echo" in server.text
        assert "960 x 640" in printed_by(f"cat {PHOTO} |{server.curl.partition('base64 -d |')[2]}")


def test_a_model_of_images_may_answer_with_numbers(home: Path, tmp_path: Path) -> None:
    with Running(home, "--name=preprocess", str(EXAMPLES / "preprocess")) as server:
        command = subprocess.run(server.curl, shell=True, cwd=tmp_path, timeout=TIMEOUT_S, check=True)
        assert command.returncode == 0
        assert b'"name":"IMAGE"' in (tmp_path / "answer.bin").read_bytes()


def test_a_python_file_and_a_model_may_have_names_that_the_locale_lacks(home: Path, tmp_path: Path) -> None:
    app = tmp_path / "caf\u00e9.py"
    name = "f\u00fcr" + 240 * "x"  # with "conch … inputs" longer than the name of a memfd
    lines = ["import conch", 'print("\u2713")', "@conch.model", f"def {name}(x: float) -> float:"]
    app.write_text("\n".join([*lines, '    print("\u2713")', "    return x"]))
    with Running(home, str(app), **ASCII_ONLY) as server:
        assert server.text.isascii()
        assert json.loads(printed_by(server.curl))["model_name"] == name
        assert f'"{name}"' in printed_by([sys.executable, "-c", server.python])


def test_a_script_that_raises_at_import_keeps_what_is_served(home: Path, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    code = "import conch\n\n@conch.model\ndef first(x: float) -> float:\n    return x\n"
    app.write_text(code)
    with Running(home, str(app), "--reload") as server:
        app.write_text(f"{code}\nraise RuntimeError('oops')\n")
        while "RuntimeError: oops" not in server.errors:
            time.sleep(0.05)
        assert json.loads(printed_by(server.curl))["output"] == 1
        app.write_text(code.replace("first", "second"))
        command = server.curl.replace("first", "second")
        while json.loads(printed_by(command)).get("output") != 1:
            time.sleep(0.05)
        assert "conch run: successfully loaded 'second' version 1 in " in server.errors


def test_reload_waits_for_a_change_after_a_first_load_that_failed(home: Path, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    code = "import conch\n\n@conch.model\nclass Same:\n    def predict(self, x: float) -> float:\n        return x\n"
    raises = code + "\n    def __init__(self):\n        raise RuntimeError('no weights')\n"
    app.write_text(f"import nunpy\n{code}")
    server = Running(home, str(app), "--reload")

    def correct() -> None:
        for number, text in enumerate((raises, code), start=1):
            while not server.started or server.errors.count("waiting for changes of ") < number:
                time.sleep(0.05)
            app.write_text(text)

    correcting = threading.Thread(target=correct, daemon=True)
    correcting.start()
    with server:
        correcting.join()
        assert "No module named 'nunpy'" in server.errors
        assert "failed to initialize: RuntimeError: no weights" in server.errors
        assert json.loads(printed_by(server.curl))["output"] == 1
    result = conch(home, "run", str(tmp_path / "absent.py"), "--reload")
    assert (result.returncode, "waiting" in result.stderr) == (1, False)
    result = conch(home, "run", str(app), "--reload", "--address=0.0.0.0")
    assert (result.returncode, "waiting" in result.stderr) == (1, False)


def test_the_folder_of_an_ensemble_runs_and_stops_with_the_models_beside_it(home: Path, tmp_path: Path) -> None:
    write_identity(tmp_path, "copy", "FP32", 1)
    write_identity(tmp_path, "other", "FP32", 1)
    inputs, outputs = (f"{kind} {tensor(f'{kind.upper()}0', 'FP32', 1)}" for kind in ("input", "output"))
    names = ({"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})
    write_ensemble(tmp_path, "inner", inputs, outputs, ("copy", *names))
    write_ensemble(tmp_path, "outer", inputs, outputs, ("inner", *names))
    with Running(home, str(tmp_path / "outer")) as server:
        assert "outer is ready, an ensemble of inner" in server.text
        assert json.loads(printed_by(server.curl))["outputs"][0]["data"] == [1.0]
        listed = json.loads(conch(home, "ps", "--json").stdout)
        assert [row["model"] for row in listed if row["url"] == server.url] == ["copy", "inner", "outer"]
        assert conch(home, "stop", "outer").stdout == f"stopped 'outer' at {server.url}\n"
        assert server.process.wait(TIMEOUT_S) == 0
    renamed = conch(home, "run", str(tmp_path / "outer"), "--name=new")
    assert (
        renamed.stderr == f"conch run: '{tmp_path}/outer' is an ensemble, which keeps its name: --name has no effect\n"
    )
    for name in ("copy", "inner"):
        shutil.rmtree(tmp_path / name)
    result = conch(home, "run", str(tmp_path / "outer"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"conch run: '{tmp_path}/outer' is an ensemble with steps of a model that {tmp_path} does not have: inner\n"
    )
    assert json.loads(conch(home, "show", str(tmp_path / "outer"), "--json").stdout)["config"]["name"] == "outer"


def test_a_port_in_use_is_replaced_by_the_next_free_one(digits: Running, home: Path) -> None:
    with Running(home, str(DIGITS), port=digits.port) as second:
        assert f"port {digits.port} is in use" in second.text
        assert second.url != digits.url
        assert json.loads(printed_by(second.curl))["outputs"]


def test_another_address_needs_a_key_or_insecure(home: Path) -> None:
    result = conch(home, "run", str(DIGITS), "--address=0.0.0.0")
    assert result.returncode == 1
    assert "--api-key-file" in result.stderr
    assert "--insecure" in result.stderr


def test_an_address_of_another_machine_names_the_options_of_this_command(home: Path) -> None:
    result = conch(home, "run", str(DIGITS), "--address=192.0.2.1", "--insecure")
    assert result.returncode == 1
    assert "Cannot assign requested address; --address and --port choose another" in result.stderr


def test_invalid_command_lines_say_what_is_valid(home: Path) -> None:
    result = conch(home, "run", "--serve")
    assert result.returncode == 2
    assert "error: X is missing: a file, a folder, a URL or the name of a pulled model\n" in result.stderr
    assert "X is missing" in conch(home, "run", "").stderr
    assert "argument --port: '70000' is not a valid port" in conch(home, "run", str(DIGITS), "--port=70000").stderr
    assert "gRPC and metrics take the next two ports" in conch(home, "run", str(DIGITS), "--port=65534").stderr
    batches = conch(home, "run", str(DIGITS), "--max-batch-size=4")
    assert "--max-batch-size has no effect without --input and --output" in batches.stderr


def test_a_prompt_for_a_model_without_language_is_refused(home: Path) -> None:
    result = conch(home, "run", str(DIGITS), "hello")
    assert (result.returncode, result.stdout) == (1, "")
    assert "is not a language model, so it takes no prompt" in result.stderr
    settings = conch(home, "run", str(DIGITS), "--temperature=0", "--max-tokens=3")
    assert settings.stderr.startswith("conch run: --temperature, --max-tokens would have no effect with ")


UNDECLARED = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        read = pb_utils.get_input_tensor_by_name
        tensors = [pb_utils.Tensor("OUTPUT0", read(request, "INPUT0").as_numpy() * 2) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""


def test_the_plate_of_a_model_without_tensors_has_the_method_that_declares_them(home: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(UNDECLARED)
    with Running(home, str(tmp_path / "model.py"), "--name=m") as server:
        assert "inputs  none declared, so requests that have inputs are refused." in server.text
        assert "curl" not in server.text
        assert "inputs     none declared" in conch(home, "show", "m").stdout
        _, method = server.text.split("declares them:\n")
    (tmp_path / "model.py").write_text(UNDECLARED + method.partition("\nCtrl-C")[0])
    with Running(home, str(tmp_path / "model.py"), "--name=m") as server:
        assert '"data":[2.0]' in printed_by(server.curl)
        assert "'data': [2.0]" in printed_by([sys.executable, "-c", server.python])


def test_ctrl_c_while_a_python_file_is_imported_prints_one_line(home: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "app.py").write_text("import conch\n")
    # The process that imports the file waits before it imports anything.
    wait = f"open({str(begun)!r}, 'w').close(); time.sleep({TIMEOUT_S})"
    code = f"import sys, time\nif sys.orig_argv[1] == '-c':\n    {wait}\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    command = [sys.executable, "-m", "conch", "run", str(tmp_path / "app.py")]
    given = environment(home, PYTHONPATH=str(tmp_path))
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=given, stderr=pipe, text=True, start_new_session=True)
    deadline = time.monotonic() + TIMEOUT_S
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.communicate(timeout=TIMEOUT_S)[1] == "conch run: interrupted\n"
    assert process.returncode == 130
