"""What commands print on a terminal of 40 columns: lines break at words, and lines that change stay one line."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tests.clients.running import Running, environment
from tests.server.hub import Hub
from tests.support.models import ECHO, tensor, write_python
from tests.support.ports import free_port
from tests.support.server_process import ConchProcess
from tests.support.terminal_text import without_erased

COLUMNS = 40
CONCH = [sys.executable, "-m", "conch"]
DIGITS = Path("examples/models/digits/1/model.onnx").absolute()
CHAT = Path("examples/models/chat").absolute()
ASCII_ONLY = {"LC_ALL": "C", "PYTHONUTF8": "0"}
BAR = """
from rich.console import Console
from conch.clients.repository.transfer import progress_bar
with progress_bar(Console(stderr=True)) as bar:
    task = bar.add_task("reading a-model-with-a-long-name.onnx", total=300_000_000)
    for _ in range(3):
        bar.update(task, advance=90_000_000, refresh=True)
"""
WAIT = """
from conch.base.command_line.wait_for_model import wait_for_model
from conch.base.errors import ModelLoading
states = ["a model with a long name is starting, as it was before"] * 2
def attempt():
    if states:
        raise ModelLoading(states.pop())
wait_for_model(attempt, "conch chat", 9)
"""


def shown(home: Path, *command: str, until: str = "", columns: int = COLUMNS, typed: bytes = b"", **more: str) -> str:
    """Return what a command writes to a terminal; with `until`, it is interrupted after that."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    given = {name: value for name, value in environment(home).items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env={**given, "TERM": "xterm", **more})
    os.close(end)
    os.write(terminal, typed)
    text = b""
    with suppress(OSError):  # Linux ends the reading of a closed terminal in EIO
        while data := os.read(terminal, 65536):
            text += data
            if until and until.encode() in text:
                process.send_signal(signal.SIGINT)
    os.close(terminal)
    process.wait(60)
    return text.decode().replace("\r\n", "\n")


def lines(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()


def test_the_list_of_commands_breaks_at_words(tmp_path: Path) -> None:
    printed = lines(shown(tmp_path, *CONCH))
    assert max(map(len, printed)) <= COLUMNS
    assert "  serve         serve a model repository" in printed
    assert "                over HTTP and gRPC" in printed
    assert "An inference server for Triton's model" in printed


@pytest.mark.parametrize("command", ["run", "bench", "repo add", "doctor"])
def test_help_has_whole_flags_and_room_for_their_texts(tmp_path: Path, command: str) -> None:
    printed = lines(shown(tmp_path, *CONCH, *command.split(), "--help"))
    examples = printed.index("examples:") if "examples:" in printed else len(printed)  # which are copied
    # Choices are one word.
    assert [line for line in printed[:examples] if len(line) > COLUMNS and not re.search(r"[{|]", line)] == []
    assert "      show this help message and exit" in printed
    if command == "run":
        assert "      [--input NAME:TYPE:DIMS]" in printed
    wide = shown(tmp_path, *CONCH, *command.split(), "--help", columns=80)
    assert "show this help message and exit\n" in wide
    assert "\n      show" not in wide


def test_errors_of_arguments_break_at_words(tmp_path: Path) -> None:
    printed = lines(shown(tmp_path, *CONCH, "ls", "--model-repository", "examples/models"))
    assert max(map(len, printed)) <= COLUMNS
    assert printed[-3:] == [
        "conch ls: error: unrecognized arguments:",
        "  --model-repository examples/models;",
        "  see conch ls --help",
    ]


def test_facts_of_a_model_break_at_words_and_its_requests_stay_whole(tmp_path: Path) -> None:
    with ConchProcess("examples/models", "--model-control-mode=explicit", log=tmp_path / "log"):
        command = [*CONCH, "run", str(DIGITS), "--name=digits", f"--port={free_port()}"]
        printed = lines(shown(tmp_path, *command, until="conch ps shows"))
    curl = next(number for number, line in enumerate(printed) if line.startswith("curl"))
    facts = [line for line in printed[:curl] if str(DIGITS) not in line]  # paths are copied
    assert max(map(len, facts)) <= COLUMNS
    assert "digits is ready on CPU, backend" in facts
    assert printed[curl].endswith("'")  # one line, which the terminal wraps


def test_doctor_breaks_at_words_except_cures(tmp_path: Path) -> None:
    printed = lines(shown(tmp_path, *CONCH, "doctor"))
    assert [line for line in printed if len(line) > COLUMNS and not line.startswith("          cure  ")] == []
    assert re.search(r"  ok      versions: conch \S+ Python\n          3\.", "\n".join(printed))


def test_top_shows_whole_names_and_states_of_models_that_are_not_ready(tmp_path: Path) -> None:
    numbers = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
    names = ("sentence_tokens", "sentence_encoder", "broken_sentences")
    for name in names:
        write_python(tmp_path / "models", name, numbers, ECHO)
    (tmp_path / "models" / names[2] / "1" / "model.py").write_text("1 / 0")
    with ConchProcess(tmp_path / "models", "--exit-on-error=false", log=tmp_path / "log", wait="live") as server:
        server.until_logged("failed to load 'broken_sentences'")
        url = ["--url", f"http://{server.http}", "--metrics-url", f"http://127.0.0.1:{server.ports['metrics']}"]
        printed = lines(shown(tmp_path, *CONCH, "top", "--once", "--interval=10ms", *url))
    assert max(map(len, printed)) <= COLUMNS
    together = "".join(line[:18].strip() for line in printed)
    assert names[0] in together
    assert names[1] in together
    assert f"{names[2]} UNAVAILABLE" in together or f"{names[2]}UNAVAILABLE" in together


def test_explanations_and_forecasts_fit(tmp_path: Path) -> None:
    numbers = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
    write_python(tmp_path / "models", "sentence_tokens", numbers, ECHO)
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        url = f"http://{server.http}"
        for _ in range(300):
            urllib.request.urlopen(f"{url}/v2/models/sentence_tokens/infer", body, timeout=60).close()
        why = shown(tmp_path, *CONCH, "why", "p99", "--url", url)
        forecast = shown(tmp_path, *CONCH, "whatif", "sentence_tokens", "--instances=2", "--url", url)
    assert max(map(len, lines(why))) <= COLUMNS
    assert re.search(r"^sentence_toke +0 ns +\S+ [mµ]?s\n\S+$", "\n".join(lines(why)), re.MULTILINE)  # a bar below
    assert "simulating" in forecast
    table = [line for line in lines(forecast.replace("\r", "\n")) if "simulating" not in line]
    assert max(map(len, table)) <= COLUMNS
    assert "…" not in "".join(table)


def test_facts_of_a_running_model_break_at_words(tmp_path: Path) -> None:
    with Running(tmp_path, str(DIGITS), "--name=handwritten_digits"):
        printed = lines(shown(tmp_path, *CONCH, "show", "handwritten_digits"))
    assert max(map(len, printed)) <= COLUMNS
    assert printed[0] == "handwritten_digits at"
    assert "  outputs    probabilities FP32[10]" in printed


def test_lists_of_repositories_have_whole_names(tmp_path: Path) -> None:
    printed = lines(shown(tmp_path, *CONCH, "repo", "list", "examples/models"))
    assert [line for line in printed if len(line) > COLUMNS and not line.startswith("conch ")] == []  # to be copied
    assert any(line.startswith(" postprocess  ") for line in printed)


def test_lines_of_a_chat_break_at_words(tmp_path: Path) -> None:
    command = [*CONCH, "run", str(CHAT), f"--port={free_port()}"]
    printed = lines(shown(tmp_path, *command, typed=b"/help\n/bye\n"))
    assert [line for line in printed if len(line) > COLUMNS and str(CHAT) not in line] == []
    assert "/set nohistory           keep what" in printed


def test_answers_break_at_words_and_are_whole_elsewhere(tmp_path: Path) -> None:
    command = [*CONCH, "run", str(CHAT), "What is numpy?", "--temperature=0", f"--port={free_port()}"]
    answer = "NumPy is the Python package for arrays of numbers and for fast mathematics on them."
    printed = lines(without_erased(shown(tmp_path, *command)))
    first = next(number for number, line in enumerate(printed) if "NumPy" in line)  # after the progress of the load
    assert [line.rstrip() for line in printed[first : first + 3]] == [
        "NumPy is the Python package for arrays",
        "of numbers and for fast mathematics on",
        "them.",
    ]
    piped = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert piped.stdout == f"{answer}\n"


@pytest.mark.parametrize("more", [{}, ASCII_ONLY])
def test_progress_stays_in_one_line(tmp_path: Path, more: dict[str, str]) -> None:
    text = shown(tmp_path, sys.executable, "-c", BAR, **more)
    assert "270.0/300.0 MB" in text
    assert re.search(r"0:00:0\d", text)  # what remains
    assert max(map(len, lines(text.replace("\r", "\n")))) <= COLUMNS
    assert "\x1b[1A" not in text  # the cursor never leaves the line


def test_a_pull_breaks_at_words_and_its_spinner_is_ascii(tmp_path: Path) -> None:
    with Hub({"team/digits-of-a-long-name": {"digits-of-a-long-name.onnx": DIGITS.read_bytes()}}) as hub:
        given = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        text = shown(tmp_path, *CONCH, "pull", "hf://team/digits-of-a-long-name", **given, **ASCII_ONLY)
    assert "run it: conch run digits-of-a-long-name" in text
    assert "\nfetching digits-of-a-long-name.onnx of\n  team/digits-of-a-long-name at" in f"\n{text}"
    assert "writing digits-of-a-long-name, " in text
    assert "\\u28" not in text  # dots in Braille


def test_the_line_of_a_wait_is_cut_so_that_it_can_be_erased(tmp_path: Path) -> None:
    text = shown(tmp_path, sys.executable, "-c", WAIT)
    assert "conch chat: a model with a long" in text
    assert max(map(len, lines(text.replace("\r", "\n")))) < COLUMNS
