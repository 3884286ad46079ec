"""Log lines of a real server that explain mistakes of models and of flags, and their colours."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.support.models import ECHO, tensor, write_config, write_python
from tests.support.server_process import ConchProcess

EXAMPLE = Path(__file__).parents[2] / "examples/models/digits/1/model.onnx"
TENSORS = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
WRONG = """
value = request.inputs()[0].as_numpy()
if value[0] < 0:
    raise ValueError("negative")
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value.astype(np.int64)), pb_utils.Tensor("OUT", value)])
"""


def infer(server: ConchProcess, value: float, outputs: list[str]) -> int:
    document = {
        "inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [value]}],
        "outputs": [{"name": name} for name in outputs],
    }
    request = urllib.request.Request(f"http://{server.http}/v2/models/m/infer", json.dumps(document).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_wrong_outputs_of_a_model_are_logged_once_each(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "m", TENSORS, WRONG)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        assert [infer(server, 1, names) for names in ([], ["OUTPUT0"], [])] == [200, 200, 200]
        dropped = "output 'OUT' is dropped: it is not among the outputs of config.pbtxt ('OUTPUT0')"
        server.until_logged(re.escape(dropped))
        changed = "output 'OUTPUT0' has datatype INT64, config.pbtxt says FP32; it is sent as it is"
        assert (server.text.count(dropped), server.text.count(changed)) == (1, 1)


def test_a_batch_limit_that_was_completed_is_explained(tmp_path: Path) -> None:
    (tmp_path / "models/digits/1").mkdir(parents=True)
    shutil.copy(EXAMPLE, tmp_path / "models/digits/1")
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        default = (
            "config.pbtxt has no max_batch_size, the default is --backend-config=onnxruntime,default-max-batch-size=4"
        )
        assert f"max_batch_size of model 'digits' is 4: {default}" in server.text
        with triton.InferenceServerClient(server.http) as client:
            metadata = client.get_model_metadata("digits")["inputs"][0]
            shape = [5, *metadata["shape"][1:]]
            images = triton.InferInput(metadata["name"], shape, metadata["datatype"])
            images.set_data_from_numpy(np.zeros(shape, np.float32))
            with pytest.raises(InferenceServerException) as raised:
                client.infer("digits", [images])
        assert f"inference request batch-size must be <= 4 for 'digits' ({default})" in raised.value.message()


def test_an_exception_of_a_model_is_logged_with_its_own_file_and_line(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "m", TENSORS, WRONG)
    raised = (
        (tmp_path / "models/m/1/model.py").read_text().splitlines().index('            raise ValueError("negative")')
    )
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        assert infer(server, -1, []) == 500
        server.until_logged(rf'(?m)^E.* model\.py:{raised + 1}\] "\[m_0\] execute of model instance')


def test_settings_of_a_backend_that_do_not_exist_are_named(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "m", TENSORS, ECHO)
    flags = ("--backend-config=python,foo=bar", "--backend-config=python,env-path=/x")
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server:
        assert "--backend-config=python,foo has no effect: backend 'python' has no setting 'foo'" in server.text
        assert "--backend-config=python,env-path has no effect: " in server.text


def test_the_last_line_of_a_reload_says_what_is_served(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_python(root, "m", TENSORS, ECHO)
    with ConchProcess(root, "--model-control-mode=explicit", "--load-model=m", log=tmp_path / "log") as server:
        with (root / "m" / "1" / "model.py").open("a") as file:
            file.write("# changed\n")
        with urllib.request.urlopen(f"http://{server.http}/v2/repository/models/m/load", b"{}", timeout=30):
            server.until_logged("serving 'm' version 1; unloaded the previous version 1")
        lines = [line for line in server.text.splitlines() if "'m'" in line]
        ends = ("successfully loaded 'm'", "successfully unloaded 'm'", "serving 'm' version 1")
        assert all(end in line for end, line in zip(ends, lines[-3:], strict=True)), lines


def failing(folder: Path, *flags: str) -> list[str]:
    """The command of a server that has an error to log and ends: its only model is broken."""
    write_config(folder / "models", "broken", 'backend: "nothing"')
    ports = (f"--{port}-port=0" for port in ("http", "grpc", "metrics"))
    return [sys.executable, "-m", "conch", "serve", f"--model-repository={folder / 'models'}", *flags, *ports]


@pytest.fixture
def plain() -> dict[str, str]:
    """The environment without what decides about colours."""
    return {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}


@pytest.mark.parametrize(
    ("variables", "flags", "coloured"),
    [
        ({"TERM": "xterm"}, [], True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, [], False),
        ({"TERM": "dumb"}, [], False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, [], True),
        ({"TERM": "xterm", "NO_COLOR": "1", "FORCE_COLOR": "1"}, [], False),
        ({"TERM": "xterm"}, ["--log-format=json"], False),
        ({"TERM": "xterm"}, ["--log-format=ISO8601"], True),
    ],
)
def test_only_the_letter_has_a_colour_and_only_on_terminals(
    tmp_path: Path, plain: dict[str, str], variables: dict[str, str], flags: list[str], coloured: bool
) -> None:
    leader, follower = pty.openpty()
    command = failing(tmp_path, *flags)
    with subprocess.Popen(command, env=plain | variables, stderr=follower, stdout=follower) as process:
        os.close(follower)
        text = b""
        while piece := read(leader):
            text += piece
    os.close(leader)
    assert process.returncode == 1
    errors = [line for line in text.decode().splitlines() if "exiting; use --exit-on-error" in line]
    assert len(errors) == 1
    letter = "\x1b[1;31mE\x1b[0m"
    assert (letter in errors[0]) is coloured
    assert all(line.replace(letter, "").isprintable() for line in text.decode().splitlines())


@pytest.mark.parametrize("flags", [[], ["--log-format=json"], ["--log-format=ISO8601"]])
def test_files_have_no_colours(tmp_path: Path, plain: dict[str, str], flags: list[str]) -> None:
    file = tmp_path / "log"
    command = failing(tmp_path, *flags, f"--log-file={file}")
    subprocess.run(command, env=plain | {"FORCE_COLOR": "1"}, check=False, timeout=60)
    assert "exiting; use --exit-on-error" in file.read_text()
    assert "\x1b" not in file.read_text()


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other side is closed
        return b""


@pytest.mark.parametrize("folder", [".", "1"])
def test_requirements_that_are_not_installed_are_named(tmp_path: Path, folder: str) -> None:
    write_python(tmp_path / "models", "m", TENSORS, ECHO)
    write_python(tmp_path / "models", "fine", TENSORS, ECHO)
    file = tmp_path / "models/m" / folder / "requirements.txt"
    file.write_text("# models\nnumpy>=1\nno-such-package-of-conch[extra]>=2 ; python_version > '3'\n-r other.txt\n")
    (tmp_path / "models/fine/requirements.txt").write_text("numpy\n")
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        # The table at the end of the start repeats it.
        notices = [line for line in server.text.splitlines() if line.startswith("W") and "requirements.txt" in line]
        assert len(notices) == 1
        assert "its environment lacks no-such-package-of-conch; run pip install -r there, or name an" in notices[0]
