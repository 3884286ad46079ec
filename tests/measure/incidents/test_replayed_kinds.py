"""`conch replay` of ensembles, sequences, decoupled and language models: of real servers."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.http as triton

from conch.measure.incidents.record import record
from conch.measure.incidents.replay import replay
from tests.server.clients import Client
from tests.support.models import tensor, write_config, write_ensemble, write_python, write_scripted
from tests.support.server_process import ConchProcess

TENSORS = f"max_batch_size: 4 input {tensor('IN', 'FP32', 2)} output {tensor('OUT', 'FP32', 2)} "
ANSWER = "return pb_utils.InferenceResponse([pb_utils.Tensor('OUT', request.inputs()[0].as_numpy())])"
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 3600000000 oldest { max_candidate_sequences: 4 } }"
# Answers twice.
MANY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(2):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
LENGTHS = [(3, 5), (9, 2), (20, 12)]  # words of prompts, tokens of answers


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kinds") / "models"
    write_python(root, "step", TENSORS, ANSWER)
    write_python(root, "state", TENSORS + SEQUENCES, ANSWER)
    inputs, outputs = f"max_batch_size: 4 input {tensor('IN', 'FP32', 2)}", f"output {tensor('OUT', 'FP32', 2)}"
    steps = ("step", {"IN": "IN"}, {"OUT": "between"}), ("step", {"IN": "between"}, {"OUT": "OUT"})
    write_ensemble(root, "pipeline", inputs, outputs, *steps)
    decoupled = f'backend: "python" {TENSORS} model_transaction_policy {{ decoupled: true }}'
    (write_config(root, "many", decoupled) / "1" / "model.py").write_text(MANY)
    write_scripted(root, "words", {"context_length": 200})
    return root


@pytest.fixture(scope="module")
def bundle(models: Path) -> Path:
    path = models.parent / "x.conch.tar.zst"
    with ConchProcess(models, log=models.parent / "log") as server:
        with Client(server, "http") as client:
            for _ in range(10):
                client.ask("pipeline", {"IN": np.zeros((1, 2), np.float32)})
        url = f"http://{server.http}/v2/models/many/generate_stream"
        for _ in range(5):
            with urllib.request.urlopen(url, b'{"IN": [1, 2]}', timeout=60) as answer:
                assert answer.read().count(b"data: ") == 2
        with triton.InferenceServerClient(server.http) as http:
            for number in range(12):  # three sequences that alternate
                value = triton.InferInput("IN", [1, 2], "FP32")
                value.set_data_from_numpy(np.zeros((1, 2), np.float32))
                turn, sequence = divmod(number, 3)
                http.infer(
                    "state",
                    [value],
                    sequence_id=7 + sequence,
                    sequence_start=turn == 0,
                    sequence_end=turn == 3 and sequence < 2,
                )
        with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none") as asking:
            for words, tokens in LENGTHS:
                prompt = " ".join(["word"] * words)
                asking.completions.create(
                    model="words", prompt=prompt, max_tokens=tokens, extra_body={"ignore_eos": True}
                )
        assert record([server.http, "-o", str(path), "--last", "10m"]) == 0
    return path


def replayed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, dict[str, Any]]:
    """The comparisons by model."""
    assert replay([*map(str, arguments), "--json"]) == 0
    return {run["model"]: run for run in json.loads(capsys.readouterr().out)["models"]}


@pytest.mark.parametrize("on", ["simulation", "stand-in", "models"])
def test_ensembles_sequences_and_decoupled_models(
    bundle: Path, models: Path, capsys: pytest.CaptureFixture[str], on: str
) -> None:
    asked = ["--model", "pipeline", "--model", "state", "--speed", "0.5"]
    asked += [] if on == "simulation" else ["--model", "many"]
    comparisons = replayed(capsys, bundle, "--on", models if on == "models" else on, *asked)
    for model, count in (("pipeline", 10), ("state", 12), ("many", 5))[: len(comparisons)]:
        run = comparisons[model]["replayed"]
        assert (run["requests"], run["failed"]) == (count, 0), model
        assert run["p50_s"] > 0


def test_a_language_model(bundle: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ConchProcess(models, log=models.parent / "log") as server:
        run = replayed(capsys, bundle, "--on", server.http, "--model", "words")["words"]["replayed"]
        assert (run["requests"], run["failed"]) == (len(LENGTHS), 0)
        path = models.parent / "again.conch.tar.zst"
        assert record([server.http, "-o", str(path), "--last", "10m"]) == 0
    assert _lengths(path)[-len(LENGTHS) :] == _lengths(bundle)


def _lengths(path: Path) -> list[tuple[int, int]]:
    """Tokens of prompts and answers, in the order of arrival."""
    from conch.domain.events.bundle import Bundle

    log = Bundle.read(path).log
    rows = np.sort(log.requests[log.requests["model"] == log.names.index("words")], order="received")
    return list(zip(rows["prompt_tokens"].tolist(), rows["completion_tokens"].tolist(), strict=True))


def test_what_cannot_be_replayed_is_said(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--model", "words"], "'words' cannot be replayed on simulation: it is a language model, whose steps are not"),
        (["--model", "words", "--on", "stand-in"], "'words' cannot be replayed on stand-in: it is a language model"),
        (["--model", "pipeline", "--instances", "2"], "'pipeline' cannot be replayed on simulation: it is an ensemble"),
        (
            ["--model", "state", "--on", "stand-in", "--delay", "1ms"],
            "'state' has sequence batching, which has no delay",
        ),
    ):
        assert replay([str(bundle), *arguments]) == 1
        assert message in capsys.readouterr().err
