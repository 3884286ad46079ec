"""Start the server for tests, on a port that is free."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODELS = Path(__file__).with_name("models")
START_TIMEOUT_S = 120


@contextmanager
def serving() -> Iterator[str]:
    """Serve `models` within the block; the value is the URL."""
    ports = [f"--{name}-{flag}" for name in ("http", "grpc", "metrics") for flag in ("address=127.0.0.1", "port=0")]
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "conch", "serve", f"--model-repository={MODELS}", *ports]
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield _url(server, log)
        finally:
            server.terminate()
            server.wait()


def _url(server: subprocess.Popen, log) -> str:
    """Return the URL once the models are loaded."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        log.seek(0)
        text = log.read()
        if server.poll() is not None:
            raise RuntimeError(f"the server has ended:\n{text}")
        port = re.search(r"Started HTTPService at \S*:(\d+)", text)
        if port and "| READY" in text:
            return f"http://127.0.0.1:{port[1]}"
        time.sleep(0.05)
    raise TimeoutError(text)
