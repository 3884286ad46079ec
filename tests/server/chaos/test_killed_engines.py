"""Engines that are killed, at every endpoint: each caller gets one error, readiness follows, and the model recovers."""

import http.client
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psutil
import pytest

from tests.processes import command_lines, has_ended
from tests.server.backends.engines.gguf_model import CONTEXT, write_gguf
from tests.server.robustness.llm_endpoints import (
    ENDPOINTS,
    Reply,
    busy,
    engine,
    metric,
    resting,
    running,
    write_scripted,
)
from tests.server.robustness.slow_clients import until
from tests.support.server_process import ConchProcess

KILLED = "engine 'endless' was killed by SIGKILL while this request was being generated"


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("engines")
    models = root / "models"
    script: dict[str, Any] = {"context_length": 10**7, "step_ms": 2, "max_running": 64}
    write_scripted(models, "endless", {**script, "rules": [{"match": "die", "reply": "now", "exit": 3}]})
    write_scripted(models, "other", script)
    (models / "tiny" / "1").mkdir(parents=True)
    (models / "tiny" / "config.pbtxt").write_text('backend: "openvino_genai"\n')
    write_gguf(models / "tiny" / "1" / "model.gguf")
    (models / "tiny" / "1" / "model.json").write_text('{"num_kv_blocks": 64}')
    flags = ["--model-control-mode=explicit", "--load-model=*"]
    with ConchProcess(models, *flags, log=root / "conch.log") as server:
        yield server


class Asked:
    """Requests under way, one from each endpoint."""

    def __init__(self, conch: ConchProcess, model: str, prompt: str = " word", **params: Any) -> None:
        self.replies: dict[str, Reply] = {}
        self._threads = [
            threading.Thread(target=self._ask, args=(conch, endpoint, model, prompt, params)) for endpoint in ENDPOINTS
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, conch: ConchProcess, endpoint: str, model: str, prompt: str, params: dict[str, Any]) -> None:
        self.replies[endpoint] = ENDPOINTS[endpoint].ask(conch, model, prompt, **params)

    def all(self) -> dict[str, Reply]:
        """Return their replies, each complete."""
        for thread in self._threads:
            thread.join(60)
        assert self.replies.keys() == ENDPOINTS.keys()
        return self.replies


def back(conch: ConchProcess, model: str) -> None:
    """Wait until a model is ready and answers."""
    conch.until(f"/v2/models/{model}/ready")
    conch.until("/v2/health/ready")
    assert ENDPOINTS["openai"].ask(conch, model, " word", ignore_eos=True, max_tokens=3).error == ""
    resting(conch, model)


def kill(conch: ConchProcess, model: str) -> None:
    """Kill an engine; returns when it has gone, and the server can know."""
    process = engine(conch, model)
    os.kill(process, signal.SIGKILL)
    until(lambda: has_ended(process), "it lives on")


def test_each_caller_gets_one_error(conch: ConchProcess) -> None:
    failed = metric(conch, "nv_inference_request_failure", "endless", reason="BACKEND")
    neighbours = Asked(conch, "other", ignore_eos=True, max_tokens=600)
    asked = Asked(conch, "endless", ignore_eos=True, max_tokens=10**6)
    running(conch, "endless", len(ENDPOINTS))
    # So that there is something in each stream.
    until(lambda: metric(conch, "vllm:generation_tokens_total", "endless") > 50, "nothing is generated")
    kill(conch, "endless")
    for endpoint, reply in asked.all().items():
        assert KILLED in reply.error
        streamed = endpoint in ("openai stream", "generate_stream", "grpc")
        assert bool(reply.text) is streamed
        assert reply.status == {"grpc": 0}.get(endpoint, 200 if streamed else 500)
    assert metric(conch, "nv_inference_request_failure", "endless", reason="BACKEND") - failed == len(ENDPOINTS)
    back(conch, "endless")
    assert all(reply.error == "" for reply in neighbours.all().values())


def test_one_that_does_nothing_is_replaced(conch: ConchProcess) -> None:
    for model in ("endless", "tiny"):
        before = engine(conch, model)
        kill(conch, model)
        until(
            lambda model=model, before=before: engine_or_none(conch, model) not in (None, before), "it is not replaced"
        )  # type: ignore[misc]
        back(conch, model)


def test_openvino_comes_back_with_all_of_its_cache(conch: ConchProcess) -> None:
    asked = Asked(conch, "tiny", ignore_eos=True, max_tokens=CONTEXT - 20, n=16)
    until(lambda: busy(conch, "tiny")[0] > 0, "nothing runs")
    kill(conch, "tiny")
    errors = [reply.error for reply in asked.all().values()]
    assert any("was killed by SIGKILL while this request was being generated" in error for error in errors)
    back(conch, "tiny")
    assert busy(conch, "tiny") == (0, 0, 0, 0)


def test_killed_again_and_again_it_is_waited_with_and_the_server_says_so(conch: ConchProcess) -> None:
    """Without having been of use, it is started later and later; meanwhile requests are refused with a time."""
    killed = 0
    deadline = time.monotonic() + 60
    while not re.search(r"(restarting|retrying) in 2 s", conch.text):
        assert time.monotonic() < deadline, conch.text
        pid = engine_or_none(conch, "endless")
        if pid is not None:
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    assert killed >= 4
    conch.until("/v2/models/endless/ready", 400)
    conch.until("/v2/health/ready", 400)
    conch.until("/v2/health/live")
    for endpoint, reply in Asked(conch, "endless", max_tokens=3).all().items():
        assert "model 'endless' is not ready: its engine is being restarted" in reply.error
        assert reply.status == {"grpc": 0, "generate_stream": 503}.get(endpoint, 503)
        assert endpoint == "grpc" or int(reply.retry_after) >= 1
    assert ENDPOINTS["openai"].ask(conch, "other", " word", max_tokens=3).error == ""
    back(conch, "endless")


def test_a_request_that_kills_the_engine_does_so_to_no_one_for_long(conch: ConchProcess) -> None:
    asked = Asked(conch, "endless", ignore_eos=True, max_tokens=10**6)
    running(conch, "endless", len(ENDPOINTS))
    deadly = ENDPOINTS["openai"].ask(conch, "endless", "please die")
    assert "engine 'endless' exited with status 3 while this request was being generated" in deadly.error
    assert all("exited with status 3" in reply.error for reply in asked.all().values())
    back(conch, "endless")


def test_unloading_lets_streams_end_and_loading_takes_new_ones(conch: ConchProcess) -> None:
    words = 1200
    asked = Asked(conch, "other", ignore_eos=True, max_tokens=words)
    running(conch, "other", len(ENDPOINTS))
    assert post(conch, "/v2/repository/models/other/unload") == 200
    gone = ENDPOINTS["openai"].ask(conch, "other", " word", max_tokens=3)
    assert gone.status in (404, 503)
    assert "other" in gone.error
    assert all(reply.text.split() == ["word"] * words for reply in asked.all().values())
    assert post(conch, "/v2/repository/models/other/load") == 200
    back(conch, "other")
    # Loaded again in the midst of streams, because its files have changed: who is there stays with the old one.
    asked = Asked(conch, "other", ignore_eos=True, max_tokens=words)
    running(conch, "other", len(ENDPOINTS))
    script = conch.log.parent / "models" / "other" / "1" / "model.json"
    script.write_text('{"reply": "changed", "context_length": 1000}')
    assert post(conch, "/v2/repository/models/other/load") == 200
    assert ENDPOINTS["openai"].ask(conch, "other", " word", max_tokens=3).text == "changed"
    assert all(reply.text.split() == ["word"] * words for reply in asked.all().values())
    until(lambda: len(engines(conch)) == 3, f"there are other engines than those of the models: {engines(conch)}")


def engines(conch: ConchProcess) -> list[str]:
    """Return the names of the engines that run."""
    lines = (line for _, line in command_lines(conch.process.pid))
    return [line[-1] for line in lines if any("engine_main.py" in part for part in line)]


def engine_or_none(conch: ConchProcess, model: str) -> int | None:
    """Return the process of a model's engine, if there is one now."""
    try:
        return engine(conch, model)
    except (AssertionError, psutil.Error, IndexError):
        return None


def post(conch: ConchProcess, path: str) -> int:
    """Send an order to the server; returns the status."""
    with closing(http.client.HTTPConnection(conch.http, timeout=30)) as connection:
        connection.request("POST", path, b"{}")
        return connection.getresponse().status
