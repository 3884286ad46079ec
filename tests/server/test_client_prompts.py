"""`conch client prompts` against a real server, whose engines follow a script or compute a small random model.

A Python model has the tensors of Triton's vLLM backend before it reported tokens.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conch.clients.client import client
from tests.server.backends.engines.gguf_model import write_gguf
from tests.server.test_openai import write_scripted
from tests.support.server_process import ConchProcess

SCRIPT: dict[str, Any] = {
    "rules": [
        {"match": "weather", "reply": "It rains all day."},
        {"match": "fall apart", "reply": "I do fall", "error": "the engine has a fault"},
    ],
    "reply": "Well, {no} idea.",
    "context_length": 1000,
}
# As Triton's vLLM backend was once: sampling parameters are an input, counts of tokens and the exclusion are not there.
OLDER = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
            asked = json.loads(pb_utils.get_input_tensor_by_name(request, "sampling_parameters").as_numpy()[0])
            sender = request.get_response_sender()
            words = [prompt, f" top_k={asked['top_k']} max_tokens={asked['max_tokens']}".encode()]
            if not pb_utils.get_input_tensor_by_name(request, "stream").as_numpy()[0]:
                words = [b"".join(words)]
            for word in words:
                text = pb_utils.Tensor("text_output", np.array([word], object))
                sender.send(pb_utils.InferenceResponse([text]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
OLDER_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
input { name: "stream" data_type: TYPE_BOOL dims: 1 }
input { name: "sampling_parameters" data_type: TYPE_STRING dims: 1 optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
"""
PROMPTS = "How is the weather?\n\nWho are you, {prompt}?\r\n"
SEPARATOR = "\n=========\n\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("prompts")
    repository = folder / "repository"
    write_scripted(repository / "words", SCRIPT)
    (repository / "random" / "1").mkdir(parents=True)
    (repository / "random" / "config.pbtxt").write_text('backend: "openvino_genai"\n')
    write_gguf(repository / "random" / "1" / "model.gguf")
    (repository / "older" / "1").mkdir(parents=True)
    (repository / "older" / "config.pbtxt").write_text(OLDER_CONFIG)
    (repository / "older" / "1" / "model.py").write_text(OLDER)
    with ConchProcess(repository, log=folder / "log") as process:
        yield process


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "prompts.txt").write_bytes(PROMPTS.encode())
    return tmp_path


@dataclass(frozen=True)
class Done:
    """How the command ended."""

    returncode: int
    stdout: str
    stderr: str


Ask = Callable[..., Done]


@pytest.fixture
def ask(server: ConchProcess, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run the command in the folder of the prompts."""
    monkeypatch.chdir(place)

    def run(*arguments: str, model: str = "words") -> Done:
        try:
            status = client(["prompts", "-u", server.grpc, "--model-name", model, *arguments])
        except SystemExit as ended:
            status = int(str(ended.code))
        return Done(status, *capsys.readouterr())

    return run


def test_the_lines_the_times_and_the_file(server: ConchProcess, place: Path) -> None:
    command = [sys.executable, "-m", "conch", "client", "prompts", "--url", server.grpc, "--model-name", "words"]
    command += ["--input-prompts", "prompts.txt", "--results-file", "words.txt"]
    result = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "Loading inputs from `prompts.txt`..."
    times = {}
    for line in lines[1:3]:
        told = re.fullmatch(r"Model words - Request (\d): (\d+\.\d\d) ms \((\d) tokens\)", line)
        assert told, line
        times[int(told[1])] = float(told[2])
    assert lines[3] == "Storing results into `words.txt`..."
    total = re.fullmatch(r"Total time for all requests: \d+\.\d\d seconds \((\d+\.\d\d) milliseconds\)", lines[4])
    assert total
    assert 0 < min(times.values()) <= max(times.values()) <= float(total[1])
    assert lines[5:] == ["PASS: vLLM example"]
    assert (place / "words.txt").read_text() == (
        f"How is the weather?It rains all day.\n{SEPARATOR}Who are you, {{prompt}}?Well, {{no}} idea.\n{SEPARATOR}"
    )
    subprocess.run([*command, "--template=llama2"], cwd=place, check=True, capture_output=True, timeout=60)
    start = "<s>[INST]<<SYS>>\nKeep short answers of no more than 100 sentences.\n<</SYS>>\n\n"
    assert (place / "words.txt").read_text() == (
        f"{start}How is the weather?\n[/INST]It rains all day.\n{SEPARATOR}"
        f"{start}Who are you, {{prompt}}?\n[/INST]Well, {{no}} idea.\n{SEPARATOR}"
    )


def test_templates_repetitions_and_answers_alone(ask: Ask, place: Path) -> None:
    (place / "form").write_text("{system}: {prompt} the weather")
    flags = ("--template=form", "--system=You {prompt}", "--iterations=2", "--offset=7", "--verbose")
    result = ask(*flags)
    assert sorted(re.findall(r"Request (\d+)", result.stdout)) == ["10", "7", "8", "9"]
    texts = (place / "results.txt").read_text().split(SEPARATOR)
    assert texts[0] == "You {prompt}: How is the weather? the weatherIt rains all day.\n"
    assert texts[:2] == texts[2:4]
    assert texts[4:] == [""]
    assert (place / "results.txt").read_text() in result.stdout
    ask("--template=chatml", "--system=Be brief.")
    assert (
        (place / "results.txt")
        .read_text()
        .startswith(
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow is the weather?<|im_end|>\n"
            "<|im_start|>assistant\nIt rains all day.\n"
        )
    )
    ask("--template=none", "--exclude-inputs-in-outputs", "--sampling-parameters", '{"n": 2}')
    assert (place / "results.txt").read_text().startswith("It rains all day.\nIt rains all day.\n" + SEPARATOR)


@pytest.mark.parametrize("model", ["words", "random"])
def test_a_stream_has_the_same_text_and_the_time_of_its_first_token(ask: Ask, place: Path, model: str) -> None:
    flags = ("--json", "--template=none", "--temperature=0", "--max-tokens=12")
    whole = json.loads(ask(*flags, model=model).stdout)
    stored = (place / "results.txt").read_text()
    streamed = json.loads(ask(*flags, "--streaming-mode", model=model).stdout)
    assert (place / "results.txt").read_text() == stored
    for unstreamed, other in zip(whole["requests"], streamed["requests"], strict=True):
        assert unstreamed["texts"] == other["texts"]
        assert unstreamed["texts"][0].startswith(unstreamed["prompt"])
        assert (unstreamed["error"], unstreamed["first_s"]) == (None, None)
        assert unstreamed["output_tokens"] == other["output_tokens"] > 0
        assert unstreamed["input_tokens"] == other["input_tokens"] > 0
        assert 0 < other["first_s"] <= other["total_s"] <= streamed["total_s"]
    assert whole["failed"] == 0


def test_a_model_with_the_tensors_of_before(ask: Ask, place: Path) -> None:
    flags = ("--template=none", "--sampling-parameters", '{"top_k": 3, "max_tokens": 9}')
    for more in ((), ("--max-tokens=4", "-s", "--json")):
        result = ask(*flags, *more, model="older")
        assert result.returncode == 0, result.stderr
    (first, _) = json.loads(result.stdout)["requests"]
    prompt = "How is the weather?"
    assert first["texts"] == [f"{prompt}{prompt} top_k=3 max_tokens=4"]
    assert (first["output_tokens"], first["first_s"] > 0) == (None, True)
    refused = ask(*flags, "--exclude-inputs-in-outputs", model="older")
    assert refused.returncode == 1
    assert "has no input 'exclude_input_in_output'" in refused.stderr


def test_failures_are_printed_for_each_prompt_and_fail_the_run(ask: Ask, place: Path) -> None:
    (place / "prompts.txt").write_text("fall apart\nthe weather\n")
    result = ask()
    assert result.returncode == 1
    assert "PASS" not in result.stdout
    assert "Model words - Request 0: the engine has a fault" in result.stderr
    assert "FAIL: 1 of 2 prompts failed" in result.stderr
    failed, answered, _ = (place / "results.txt").read_text().split(SEPARATOR)
    assert failed == "Error: the engine has a fault\n"
    assert answered.endswith("It rains all day.\n")
    result = ask("--json", "-s")
    assert result.returncode == 1
    assert [request["error"] for request in json.loads(result.stdout)["requests"]] == ["the engine has a fault", None]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model-name", "nobody"), "unknown model"),
        (("--url", "127.0.0.1:1"), "127.0.0.1:1: failed to connect"),
        (("--url", "127.0.0.1:1"), "is the server running, and is this its gRPC port?"),
        (("--url", "http://127.0.0.1:1"), "--url is host:port without a scheme, such as 127.0.0.1:1"),
        (("--input-prompts", "missing.txt"), "'missing.txt' cannot be read: No such file"),
        (("--input-prompts", "empty.txt"), "'empty.txt' has no prompts"),
        (("--input-prompts", "latin.txt"), "'latin.txt' is not UTF-8 text"),
        (("--results-file", "missing/results.txt"), "'missing/results.txt' cannot be written"),
        (("--template", "latin.txt"), "is not UTF-8 text"),
        (("--template", "empty.txt"), "has no {prompt} in it"),
        (("--template", "none", "--system", "Hello"), "has no {system} in it"),
        (("--streaming-mode", "--sampling-parameters", '{"n": 2}'), "'n' must be 1"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_lost(
    ask: Ask, place: Path, arguments: tuple[str, ...], words: str
) -> None:
    (place / "results.txt").write_text("of before")
    (place / "empty.txt").write_text("\n \n")
    (place / "latin.txt").write_bytes(b"caf\xe9\n")
    result = ask(*arguments)
    assert result.returncode == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert (place / "results.txt").read_text() == "of before"


def test_wrong_calls(ask: Ask, place: Path) -> None:
    for arguments in (("--iterations=0",), ("--sampling-parameters=[1]",), ("--sampling-parameters={",)):
        assert ask(*arguments).returncode == 2
