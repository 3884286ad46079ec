"""`conch run` of language models: a conversation on a terminal, and prompts that are answered once."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clients.running import ASCII_ONLY, Running, conch, environment
from tests.support.models import ECHO, tensor, write_python, write_scripted
from tests.support.ports import free_port
from tests.support.screen import Screen

SCRIPT: dict[str, Any] = {
    "rules": [
        {"match": "first line\\nsecond line", "reply": "Two lines."},
        {"match": "slowly", "reply": "word " * 400},
    ],
    "reply": "Well.",
    "step_ms": 10,
}

X = tensor("INPUT0", "FP32", 1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    write_scripted(home, "words", SCRIPT)
    return home


@dataclass
class Terminal:
    """A chat on a pseudo-terminal."""

    process: subprocess.Popen[bytes]
    keyboard: int
    screen: Screen

    def type(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def answer(self, line: bytes) -> str:
        """Type a line; return what is shown up to the next prompt."""
        self.type(line + b"\n")
        return self.screen.until("> ")


@contextmanager
def chatting(home: Path, **more: str) -> Iterator[Terminal]:
    """A chat with the model "words" of the home, at its first prompt."""
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "conch", "run", str(home / "words"), f"--port={free_port()}"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment(home, **{"TERM": "dumb", "COLUMNS": "80", **more}),
        start_new_session=True,
    )
    os.close(terminal)
    screen = Screen(keyboard)
    try:
        yield Terminal(process, keyboard, screen)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)


def test_a_conversation_on_a_terminal(home: Path) -> None:
    with chatting(home, COLUMNS="40") as chat:
        screen, keyboard = chat.screen, chat.keyboard
        screen.until("words is ready on CPU at\n  http://127.0.0.1:")
        screen.until("> ")
        os.write(keyboard, b"slowly\n")
        screen.until("word word")
        chat.process.send_signal(signal.SIGINT)
        screen.until("[interrupted]")
        screen.until("> ")
        os.write(keyboard, b"half a mess")
        screen.until("half a mess")
        # readline looks at signals when it begins to wait for a key, and after the next one.
        while psutil.Process(chat.process.pid).status() != psutil.STATUS_SLEEPING:
            time.sleep(0.01)
        chat.process.send_signal(signal.SIGINT)  # too late for the answer
        screen.until("Ctrl-D or /bye ends the conversation")
        screen.until("> ")
        os.write(keyboard, b'"""first line\nsecond line"""\n')
        screen.until("Two lines.")
        screen.until(",\n  context ")
        screen.until("> ")
        os.write(keyboard, b"/set max_tokens 1\n")
        screen.until("max_tokens is 1")
        os.write(keyboard, b"/show\n")
        screen.until("model        words")
        screen.until("max_tokens   1")
        os.write(keyboard, b"/nothing\n")
        screen.until("unknown command '/nothing'")
        os.write(keyboard, b"/bye\n")


def test_a_prompt_is_answered_by_a_server_with_keys(home: Path) -> None:
    keys = home / "keys"
    keys.write_text("me infer 4fQe0cW2x81Lr5kD\n")
    keys.chmod(0o600)
    result = conch(home, "run", str(home / "words"), "hello", f"--api-key-file={keys}", f"--port={free_port()}")
    assert (result.returncode, result.stdout) == (0, "Well.\n"), result.stderr


def test_pasted_lines_are_one_message_and_old_messages_are_forgotten(tmp_path: Path) -> None:
    write_scripted(tmp_path, "words", {**SCRIPT, "reply": "{prompt}", "context_length": 40})
    with chatting(tmp_path, TERM="xterm") as chat:
        screen, keyboard = chat.screen, chat.keyboard
        screen.until("> ")
        os.write(keyboard, b"\x1b[200~first line\nsecond line\x1b[201~\n")
        screen.until("Two lines.")
        screen.until("> ")
        os.write(keyboard, b"one two three four five six\n")
        assert "forgotten" not in screen.until("> ")
        os.write(keyboard, b"long " * 25 + b"\n")
        answer = screen.until("> ")
        assert ", the oldest 2 messages no longer fit and are forgotten]" in answer
        os.write(keyboard, b"word " * 60 + b"\n")
        screen.until("This model's maximum context length is 40 tokens.")
        screen.until("> ")
        os.write(keyboard, b"\x04")


UP, ENTER = b"\x1b[A", b"\n"


def test_what_was_typed_is_kept_for_later_chats(tmp_path: Path) -> None:
    write_scripted(tmp_path, "words", {**SCRIPT, "reply": "{prompt}"})
    history = tmp_path / ".local/state/conch/chat_history"
    with chatting(tmp_path, TERM="xterm") as chat:
        chat.screen.until("> ")
        chat.answer(b'"""first line\nsecond line"""')
        chat.answer(b"remember me")
        chat.answer(b"remember me")
        assert "not kept" in chat.answer(b"/set nohistory")
        chat.answer(b"a secret")
        chat.type(b"/bye\n")
    assert history.stat().st_mode & 0o777 == 0o600
    kept = ["first line\nsecond line", "remember me", "/set nohistory"]
    assert [json.loads(line) for line in history.read_text().splitlines()] == kept
    with chatting(tmp_path, TERM="xterm") as chat:
        chat.screen.until("> ")
        assert "remember me" in chat.answer(UP + UP)
        assert "Two lines." in chat.answer(UP + UP + UP + UP)
        chat.type(b"/bye\n")


def test_a_home_that_cannot_be_written_keeps_no_history(tmp_path: Path) -> None:
    write_scripted(tmp_path, "words", SCRIPT)
    blocked = tmp_path / "blocked"
    blocked.write_text("not a folder, also for root")
    with chatting(tmp_path, XDG_STATE_HOME=str(blocked), XDG_DATA_HOME=str(blocked), COLUMNS="400") as chat:
        chat.screen.until("> ")
        assert "Well." in chat.answer(b"hello")
        assert f"'{blocked}/conch/chats/plans.json' cannot be written: Not a directory" in chat.answer(b"/save plans")
        chat.type(b"/bye\n")


def test_a_saved_conversation_continues(tmp_path: Path) -> None:
    write_scripted(tmp_path, "words", {**SCRIPT, "reply": "{prompt}"})
    file = tmp_path / ".local/share/conch/chats/plans.json"
    with chatting(tmp_path, COLUMNS="400") as chat:
        chat.screen.until("> ")
        chat.answer(b"hello")
        chat.answer(b"/set seed 3")
        chat.answer(b"/set system Be brief.")
        assert f"saved 2 messages to {file}" in chat.answer(b"/save plans")
        assert "'../plans' is not a valid name" in chat.answer(b"/save ../plans")
        chat.type(b"/bye\n")
    assert file.stat().st_mode & 0o777 == 0o600
    with chatting(tmp_path, COLUMNS="400") as chat:
        chat.screen.until("> ")
        assert "did you mean 'plans'?" in chat.answer(b"/load plan")
        assert "plans" in chat.answer(b"/load")
        assert "loaded 2 messages" in chat.answer(b"/load plans")
        shown = chat.answer(b"/show")
        assert "2 messages" in shown
        assert "seed         3" in shown
        assert "system       Be brief." in shown
        assert "hello" in chat.answer(b"again")
        chat.type(b"/bye\n")
    file.write_text('{"model": 1}')
    with chatting(tmp_path, COLUMNS="400") as chat:
        chat.screen.until("> ")
        assert f"'{file}' is not a saved conversation: the document lacks the field 'messages'" in chat.answer(
            b"/load plans"
        )
        chat.type(b"/bye\n")


@pytest.mark.parametrize(("flag", "status"), [("hello", 130), ("--serve", 0)])
def test_ctrl_c_while_loading_ends_the_server(tmp_path: Path, flag: str, status: int) -> None:
    root = tmp_path / "models"
    write_scripted(root, "words", SCRIPT)
    write_python(root, "late", f"input {X} output {X}", ECHO, more="def initialize(self, args): time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-m", "conch", "run", str(root), flag, f"--port={free_port()}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
        text=True,
    )
    servers = tmp_path / ".local/state/conch/servers"
    try:
        while process.poll() is None and not list(servers.glob("*.json")):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    # The same to a shell: CPython ends itself by the signal if it came while an import was in exec().
    returned = 128 + signal.SIGINT if process.returncode == -signal.SIGINT else process.returncode
    assert (returned, output) == (status, ""), errors
    assert "Traceback" not in errors
    assert list(servers.glob("*.json")) == []


def test_a_prompt_is_answered_once(home: Path) -> None:
    result = conch(home, "run", str(home / "words"), f"--port={free_port()}", "How", "are", "you?")
    assert (result.returncode, result.stdout) == (0, "Well.\n"), result.stderr
    assert re.fullmatch(r"\[1 token, first token after \d+ ms, context \d+/\d+\]\n", result.stderr)


def test_a_prompt_on_stdin_is_answered_once_also_in_ascii(home: Path) -> None:
    result = conch(home, "run", str(home / "words"), f"--port={free_port()}", text="Hi\n", **ASCII_ONLY)
    assert (result.returncode, result.stdout) == (0, "Well.\n"), result.stderr


def test_without_prompt_and_terminal_the_flag_to_serve_is_named(home: Path) -> None:
    command = f"{sys.executable} -m conch run {home / 'words'} --port={free_port()}"
    for stdin in ("</dev/null", "<&-"):
        result = subprocess.run(
            f"{command} {stdin}", shell=True, env=environment(home), capture_output=True, text=True, timeout=60
        )
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == (
            "conch run: no prompt, and stdin is not a terminal: --serve serves the model without a chat\n"
        )


def test_serve_only_serves_and_prints_requests_that_work(home: Path) -> None:
    with Running(home, str(home / "words")) as server:
        assert "words is ready on CPU" in server.text
        for command in (["bash", "-c", server.curl], [sys.executable, "-c", server.python]):
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert "Well." in answer.stdout, answer.stderr
