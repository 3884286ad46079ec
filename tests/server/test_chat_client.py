"""`conch chat` against a real server whose engine follows a script."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.server.test_openai import write_scripted
from tests.support.models import tensor, write_python
from tests.support.screen import Screen
from tests.support.server_process import ConchProcess

KEY = "a-secret"
SCRIPT: dict[str, Any] = {
    "rules": [
        {"match": "weather(.|\\n)*And then", "reply": "After the rain, sun."},
        {"match": "weather", "reply": "It rains all day."},
        {"match": "fall apart", "reply": "I do fall", "error": "the engine has a fault"},
        {"match": "slowly", "reply": "word " * 400},
        {"match": "accents", "reply": "Caf\u00e9 \u2713"},
        {"match": "short", "reply": "Two words"},
        {"match": "escape", "reply": "\x1b]0;owned\x07a\ttab"},
    ],
    "reply": "Well.",
    "step_ms": 10,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("chat")
    write_scripted(folder / "repository" / "words", SCRIPT)
    # Listed by /v1/models as well, but nothing to talk with.
    vectors = f"input {tensor('TEXT', 'STRING', 1)} output {tensor('VECTOR', 'FP32', 3)}"
    write_python(folder / "repository", "vectors", vectors, "return None")
    with ConchProcess(folder / "repository", f"--openai-api-key={KEY}", log=folder / "log") as process:
        yield process


def command(server: ConchProcess, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "conch", "chat", "--url", f"http://{server.http}/v1", *arguments]


def said(server: ConchProcess, *arguments: str, key: str = KEY, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENAI_API_KEY": key}
    return subprocess.run(
        command(server, *arguments), input=text, env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_prompt_from_a_pipe_is_answered_with_its_speed(server: ConchProcess) -> None:
    result = said(server, text="How is the weather?\n")
    assert (result.returncode, result.stdout) == (0, "It rains all day.\n"), result.stderr
    assert "[4 tokens, first token after " in result.stderr
    assert "tokens/s]" in result.stderr


def test_few_tokens_have_no_rate(server: ConchProcess) -> None:
    result = said(server, text="be short")
    assert result.stderr.startswith("[2 tokens, first token after ")
    assert "tokens/s" not in result.stderr
    assert json.loads(said(server, "--json", "be short").stdout)["tokens_per_second"] is None


def test_a_terminal_of_ascii_gets_escapes(server: ConchProcess) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, **ascii_only, "OPENAI_API_KEY": KEY}
    result = subprocess.run(
        command(server), input="with accents: \u00e9".encode(), env=environment, capture_output=True, timeout=60
    )
    assert (result.returncode, result.stdout) == (0, b"Caf\\xe9 \\u2713\n"), result.stderr


def test_json_for_programs(server: ConchProcess) -> None:
    result = said(server, "--json", "--model", "words", "--max-tokens", "2", "the", "weather")
    answer = json.loads(result.stdout)
    assert (answer["text"], answer["finish_reason"], answer["completion_tokens"]) == ("It rains", "length", 2)
    assert 0 < answer["first_s"] <= answer["total_s"]


def test_failures_are_printed_and_set_the_exit_status(server: ConchProcess) -> None:
    for arguments, key, complaint in (
        (["--model", "nobody", "hi"], KEY, "nobody"),
        (["fall apart"], KEY, "the engine has a fault"),
        (["hi"], "another", "API key"),
        (["--url", "ftp://here", "hi"], KEY, "ftp://here"),
        (["--url", "http://127.0.0.1:9/v1", "hi"], KEY, "connection refused: no server listens there"),
        (["--url", f"http://{server.http}", "hi"], KEY, f"such as http://{server.http}/v1"),
        (["--url", f"http://{server.grpc}/v1", "hi"], KEY, "does not speak HTTP/1.1"),
        ([], KEY, "the prompt is empty"),
    ):
        result = said(server, *arguments, key=key)
        assert result.returncode == 1
        assert complaint in result.stderr
        assert "Traceback" not in result.stderr


def test_a_model_does_not_control_the_terminal(server: ConchProcess) -> None:
    """A program that reads the answer gets it as it is."""
    assert said(server, "escape").stdout == "\x1b]0;owned\x07a\ttab\n"
    keyboard, terminal = pty.openpty()
    environment = {**os.environ, "OPENAI_API_KEY": KEY, "TERM": "dumb"}
    shown = b""
    with subprocess.Popen(command(server, "escape"), stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        with suppress(OSError):  # the end, on Linux
            while piece := os.read(keyboard, 4096):
                shown += piece
    os.close(keyboard)
    assert process.returncode == 0
    assert "\N{REPLACEMENT CHARACTER}]0;owned\N{REPLACEMENT CHARACTER}a".encode() in shown
    assert b"tab" in shown
    assert b"\x1b" not in shown


def test_a_conversation_continues_and_ctrl_c_ends_only_the_answer(server: ConchProcess) -> None:
    keyboard, terminal = pty.openpty()
    environment = {**os.environ, "OPENAI_API_KEY": KEY, "TERM": "dumb"}
    process = subprocess.Popen(
        command(server), stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
    )
    os.close(terminal)
    screen = Screen(keyboard)
    try:
        screen.until("> ")
        os.write(keyboard, b"slowly\n")
        screen.until("word word")
        process.send_signal(signal.SIGINT)
        screen.until("[interrupted]")
        os.write(keyboard, b"the weather?\n")
        screen.until("It rains all day.")
        screen.until("> ")
        os.write(keyboard, b"And then?\n")
        screen.until("After the rain, sun.")
        screen.until("> ")
        os.write(keyboard, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
