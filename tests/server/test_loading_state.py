"""What clients read while models load, wait for other models, reload, and after a load has failed."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from tests.support.models import ECHO, tensor, write_config, write_ensemble, write_python, write_scripted
from tests.support.server_process import ConchProcess

LOADING = r"model 'slow' is loading \(\d+ s so far\)"
TENSORS = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
REQUEST = {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
# A load that lasts until the test writes the file.
GATED = """
def initialize(self, args):
    import pathlib
    gate = pathlib.Path(args["model_repository"]).parent.parent / "gate"
    while not gate.exists():
        time.sleep(0.02)
"""


def write_repository(folder: Path) -> Path:
    """A model that loads until `gate` exists, an ensemble of it, one that has failed, and a language model."""
    root = folder / "models"
    write_python(root, "slow", TENSORS, ECHO, more=GATED)
    ends = (f"input [{tensor('INPUT0', 'FP32', -1)}]", f"output [{tensor('OUTPUT0', 'FP32', -1)}]")
    write_ensemble(root, "whole", *ends, ("slow", {"INPUT0": "INPUT0"}, {"OUTPUT0": "OUTPUT0"}))
    write_python(root, "broken", TENSORS, ECHO, more="def initialize(self, args): raise ValueError('no weights')")
    write_config(root, "unread", 'backend: "python" nonsense: 1')
    write_scripted(root, "words", {"reply": "Good."})
    return root


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("loading")
    root = write_repository(folder)
    with opened(folder, ConchProcess(root, "--exit-on-error=false", log=folder / "log", wait="")) as process:
        process.until_logged("failed to load 'broken'")
        process.until("/v2/models/words/ready")
        yield process


@contextmanager
def opened(folder: Path, server: ConchProcess) -> Iterator[ConchProcess]:
    """Run a server, and end its loads at the end."""
    with server:
        try:
            yield server
        finally:
            (folder / "gate").touch()


def ask(server: ConchProcess, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, str], Any]:
    """Return status, headers and document of the answer to a GET, or to a POST of `body`."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{server.http}{path}", data), timeout=30) as answer:
            return answer.status, dict(answer.headers), json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), json.loads(error.read() or b"null")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("infer", REQUEST),
        ("versions/1/infer", REQUEST),
        ("generate", {"INPUT0": 1.0}),
        ("generate_stream", {"INPUT0": 1.0}),
        ("", None),
        ("config", None),
    ],
)
def test_a_loading_model_is_unavailable_over_http(server: ConchProcess, path: str, body: dict[str, Any] | None) -> None:
    status, headers, document = ask(server, f"/v2/models/slow/{path}".rstrip("/"), body)
    assert status == 503, document
    assert 1 <= int(headers["Retry-After"]) <= 10
    assert re.fullmatch(
        f"Request for unknown model: 'slow' (has no available versions|version 1 is not at ready state): {LOADING}",
        document["error"],
    )


def test_statistics_keep_the_status_of_triton(server: ConchProcess) -> None:
    status, _, document = ask(server, "/v2/models/slow/stats")
    assert status == 400
    assert re.fullmatch(f"requested model 'slow' is not available: {LOADING}", document["error"])


def test_an_ensemble_names_the_model_that_it_waits_for(server: ConchProcess) -> None:
    status, _, document = ask(server, "/v2/models/whole/infer", REQUEST)
    assert status == 503
    assert re.search(r"model 'whole' is loading \(\d+ s so far; waits for model 'slow'\)", document["error"])


def test_a_loading_model_is_unavailable_over_grpc(server: ConchProcess) -> None:
    wanted = grpc.InferInput("INPUT0", [1], "FP32")
    wanted.set_data_from_numpy(np.ones(1, np.float32))
    with grpc.InferenceServerClient(server.grpc) as client:
        for call in (
            lambda: client.infer("slow", [wanted]),
            lambda: client.get_model_metadata("slow"),
            lambda: client.get_model_config("slow"),
        ):
            with pytest.raises(InferenceServerException, match=LOADING) as caught:
                call()
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
        assert not client.is_model_ready("slow")
        answers: list[Any] = []
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer("slow", [wanted])
        client.stop_stream()
    assert [re.search(LOADING, str(answer)) is not None for answer in answers] == [True]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("completions", {"prompt": "hi"}),
        ("embeddings", {"input": "hi"}),
        ("tokenize", {"prompt": "hi"}),
        ("detokenize", {"tokens": [1]}),
    ],
)
def test_the_openai_api_says_that_a_model_is_loading(server: ConchProcess, path: str, body: dict[str, Any]) -> None:
    prefix = "" if "token" in path else "/v1"
    status, headers, document = ask(server, f"{prefix}/{path}", {"model": "slow", **body})
    assert status == 503, document
    assert int(headers["Retry-After"]) >= 1
    assert re.fullmatch(LOADING, document["error"]["message"])


def test_the_openai_client_reads_which_models_load(server: ConchProcess) -> None:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["words"]
        with pytest.raises(openai.InternalServerError, match=LOADING):
            client.models.retrieve("slow")
    assert ask(server, "/v1/models")[2]["loading"] == ["slow", "whole"]


def test_health_names_what_is_not_ready(server: ConchProcess) -> None:
    words = [sys.executable, "-m", "conch", "health", "--port", server.http.rpartition(":")[2]]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stdout.endswith("status 400 Bad Request; loading: 'slow', 'whole'; failed: 'broken', 'unread'\n")


def test_the_readiness_of_a_model_has_the_reason(server: ConchProcess) -> None:
    for name, reason in (("slow", LOADING), ("broken", "version 1 of model 'broken' failed to load: .*no weights")):
        status, _, document = ask(server, f"/v2/models/{name}/ready")
        assert status == 400
        assert re.fullmatch(f"Model version not ready: {reason}", document["error"])


def test_a_failed_model_says_why(server: ConchProcess) -> None:
    status, _, document = ask(server, "/v2/models/broken/infer", REQUEST)
    assert status == 404
    text = document["error"]
    assert text.startswith("Request for unknown model: 'broken' has no available versions: version 1 of model 'broken'")
    assert "failed to load: " in text
    assert "no weights" in text
    assert "\n" not in text
    _, _, unread = ask(server, "/v2/models/unread/infer", REQUEST)
    assert "configuration of model 'unread' failed to load: config.pbtxt:1:19: unknown field" in unread["error"]
    chat = ask(server, "/v1/chat/completions", {"model": "broken", "messages": [{"role": "user", "content": "hi"}]})
    assert chat[0] == 404
    assert chat[2]["error"]["code"] == "model_not_found"
    assert chat[2]["error"]["message"].startswith("The model `broken` is not served: version 1 of model 'broken' fail")


def test_an_unknown_model_of_the_openai_api_names_the_others(server: ConchProcess) -> None:
    _, _, document = ask(server, "/v1/completions", {"model": "wrods", "prompt": "hi"})
    assert document["error"]["message"] == "The model `wrods` does not exist. Served models: `words`."


def test_unknown_models_stay_unknown_during_loads(server: ConchProcess) -> None:
    status, _, document = ask(server, "/v2/models/nope/infer", REQUEST)
    assert (status, document) == (404, {"error": "Request for unknown model: 'nope' is not found"})


def test_explicit_loads_and_what_follows(tmp_path: Path) -> None:
    root = write_repository(tmp_path)
    flags = ("--model-control-mode=explicit", "--load-model=words")
    with opened(tmp_path, ConchProcess(root, *flags, log=tmp_path / "log")) as server:
        status, _, document = ask(server, "/v2/models/slow/infer", REQUEST)
        hint = "it is in the repository but not loaded; POST /v2/repository/models/slow/load loads it"
        assert (status, document["error"]) == (404, f"Request for unknown model: 'slow' is not found: {hint}")
        assert ask(server, "/v1/models/slow")[2]["error"]["message"] == f"The model `slow` is not served: {hint}"
        with ThreadPoolExecutor() as pool:
            loaded = pool.submit(ask, server, "/v2/repository/models/slow/load", {})
            server.until("/v2/models/slow", 503)
            (tmp_path / "gate").touch()
            assert loaded.result()[0] == 200
        assert ask(server, "/v2/models/slow/infer", REQUEST)[0] == 200
        assert ask(server, "/v2/repository/models/slow/unload", {})[0] == 200
        status, _, document = ask(server, "/v2/models/slow/infer", REQUEST)
        assert (status, document["error"]) == (404, "Request for unknown model: 'slow' has no available versions")


def test_a_server_that_reads_its_repository_knows_no_names(tmp_path: Path) -> None:
    root = write_repository(tmp_path)
    mounted = tmp_path / "mounted"
    flags = (f"--model-dir={mounted}", "--model-name=later", "--model-dir-wait-secs=60")
    with opened(tmp_path, ConchProcess(root, *flags, log=tmp_path / "log", wait="live")) as server:
        status, headers, document = ask(server, "/v2/models/later")
        assert (status, "Retry-After" in headers) == (503, True)
        assert re.search(r"the server is reading its model repository \(\d+ s so far\)", document["error"])
        assert ask(server, "/v1/models/later")[0] == 503
        (root / "slow").rename(mounted)
        server.until_logged("loading: later:1")
        assert re.search(r"model 'later' is loading", ask(server, "/v2/models/later")[2]["error"])


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("command", ["bench", "bench grpc", "chat"])
def test_clients_wait_for_a_model_that_is_loading(tmp_path: Path, command: str, named: bool) -> None:
    root = tmp_path / "models"
    write_python(root, "slow", TENSORS, ECHO, more=GATED)
    with opened(tmp_path, ConchProcess(root, log=tmp_path / "log", wait="")) as server:
        server.until("/v2/models/slow", 503)
        shape = ("--shape", "INPUT0:1")
        words = {
            "bench": ["bench", server.http, "--requests", "20", "--concurrency", "1", *shape],
            "bench grpc": ["bench", f"grpc://{server.grpc}", "--requests", "20", "--concurrency", "1", *shape],
            "chat": ["chat", "--url", f"http://{server.http}/v1", "hello"],
        }[command]
        if named:
            words += ["--model", "slow"]
        with run_command(*words) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            expected = rf"conch {words[0]}: .*(slow' is loading|is loading slow).*; waiting"
            assert re.match(expected, line), line + process.stderr.read()
            (tmp_path / "gate").touch()
            rest = process.stderr.read()
            if command == "chat":  # which it can ask for by then; it is not a language model
                assert process.wait(60) == 1
                assert ("does not generate text" if named else "the server has no language model") in rest
            else:
                assert process.wait(60) in (0, 3), rest  # 3: on a busy machine the measurement is invalid


def test_the_wait_for_a_model_is_bounded(server: ConchProcess) -> None:
    for words in (["chat", "--url", f"http://{server.http}/v1", "hello"], ["bench", server.http]):
        with run_command(*words, "--model", "slow", "--wait", "0") as process:
            assert process.stderr is not None
            assert re.search(rf"{LOADING}; --wait 1m waits", process.stderr.read())
            assert process.wait(60) in (1, 2)


@contextmanager
def run_command(*words: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-m", "conch", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
