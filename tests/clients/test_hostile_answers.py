"""Commands that ask a server whose answers are nested deeply, of wrong types, or have control characters."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socket import create_server
from threading import Thread

import pytest

DEEP = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000
REASON = b"HTTP/1.1 500 \x1b]0;owned\x07\r\nContent-Length: 22\r\n\r\n" + b'{"error":"\\u001b[2J"}  '
WRONG = b"""{"name":5,"versions":{},"inputs":[{"name":"X","datatype":"NOPE","shape":["a"]}],"max_batch_size":"x",
"version":"2","extensions":"x","state":{},"data":[{"id":5,"max_model_len":"x"}],"models":[{"name":5}],"choices":5}"""
WRONG = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(WRONG) + WRONG
COMMANDS = [
    ["bench", "m", "--url"], ["doctor", "--url"], ["top", "--once", "--url"], ["chat", "hi", "--wait", "0s", "--url"],
    ["tune", "m", "--url"], ["client", "prompts", "--url"],
]  # fmt: skip


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Run a server that answers each request with these bytes."""
    with create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.recv(65_536)
                        connection.sendall(answer)

        Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("answer", [DEEP, REASON, WRONG], ids=["deep", "reason", "wrong"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_hostile_answers_are_named(command: list[str], answer: bytes) -> None:
    with answering(answer) as url:
        place = f"{url}/v1" if command[0] == "chat" else url
        words = [sys.executable, "-m", "conch", *command, place]
        result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    said = result.stdout + result.stderr
    assert result.returncode in (0, 1, 2)  # conch top shows what it understands
    assert "Traceback" not in said
    assert "\x1b]" not in said
    assert "\x1b[2J" not in said
