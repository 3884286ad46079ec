"""Run the steps of one page in a separate network namespace, so that its ports are free. Started by the tests.

Arguments: a JSON file with the steps (name, kind, text, expected), and the folder to run them in. Prints what failed as
JSON.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

READY_S = 120
COMMAND_S = 180
STOP_S = 60
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def raise_loopback() -> None:
    """Switch on `lo`, which is down in a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = b"lo"
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sh14x", name, 0)))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", name, flags | IFF_UP))


class Page:
    """Runs steps; a server stays until the next one starts, or the page ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: subprocess.Popen[bytes] | None = None
        self.log = folder / "server.log"

    def run(self, step: dict[str, Any]) -> str:
        """Run one step; return what is wrong, "" for nothing."""
        if step["kind"] == "python":
            return self._command([sys.executable, "-c", step["text"]], step["expected"])
        if re.match(r"""conch (serve\b|run [^"']*$)""", step["text"]):  # a prompt in quotes is answered once
            return self._serve(step["text"])
        return self._command(["bash", "-euo", "pipefail", "-c", step["text"]], step["expected"])

    def _command(self, command: list[str], expected: list[str]) -> str:
        try:
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            return f"no end after {COMMAND_S} s"
        if done.returncode:
            return f"status {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}{self._words()}"
        missing = [line for line in expected if line.strip(" …") and not _has(done.stdout + done.stderr, line)]
        return f"does not print {missing[0]!r} but {done.stdout[-3000:]!r}" if missing else ""

    def _serve(self, text: str) -> str:
        self.stop()
        with self.log.open("wb") as log:
            command = ["bash", "-c", f"exec {text}"]
            self.server = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self.server.poll() is not None:
                return f"the server ended with {self.server.returncode}:{self._words()}"
            try:
                with urllib.request.urlopen("http://localhost:8000/v2/health/ready", timeout=60):
                    return ""
            except OSError:
                time.sleep(0.1)
        return f"the server is not ready after {READY_S} s:{self._words()}"

    def stop(self) -> None:
        """End the server, if there is one, with what its output is piped to."""
        if self.server is not None:
            group, deadline = self.server.pid, time.monotonic() + STOP_S
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
                self.server.wait(STOP_S)
                while time.monotonic() < deadline:
                    os.killpg(group, 0)
                    time.sleep(0.05)
        self.server = None

    def _words(self) -> str:
        return f"\nserver: {self.log.read_text(errors='replace')[-3000:]}" if self.log.exists() else ""


def _has(output: str, line: str) -> bool:
    """Whether a line was printed: numbers may differ, `…` stands for anything, and blanks for any number of them."""
    parts = [re.escape(part) for part in re.split(r"…|(?<=\s)\s+|\d[\d.,]*", line.strip())]
    pattern = r".*?".join(part.replace(r"\ ", r"\s+") for part in parts)
    return re.search(pattern, output, re.DOTALL) is not None


def main() -> None:
    steps, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    raise_loopback()
    page = Page(folder)
    try:
        wrong = [(step["name"], step["text"], said) for step in steps if (said := page.run(step))]
    finally:
        page.stop()
    print(json.dumps(wrong))


if __name__ == "__main__":
    assert shutil.which("curl"), "the pages use curl"
    main()
