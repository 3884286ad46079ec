"""What makes an alert fire in a drill: samples of a model that does not exist, load, or a command."""

import http.client
import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

_REQUEST_TIMEOUT_S = 30
_COMMAND_TIMEOUT_S = 60
_PAUSE_AFTER_ERROR_S = 0.1


class LoadCause:
    """Requests with zeros to a model, from a number of threads, until it is stopped."""

    def __init__(self, url: str, model: str, concurrency: int) -> None:
        """Assign. `url` is that of the HTTP port of a server."""
        self._address = urlsplit(url).netloc or url
        self._model = model
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(concurrency)]
        self._body = b""
        self.sent = 0

    def start(self) -> None:
        """Ask the server for the model's inputs, and begin to send. Raises OSError or ValueError."""
        connection = self._connect()
        try:
            connection.request("GET", f"/v2/models/{self._model}")
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise ValueError(f"model '{self._model}': {text.decode(errors='replace')}")
        finally:
            connection.close()
        self._body = json.dumps({"inputs": [_zeros(each) for each in json.loads(text)["inputs"]]}).encode()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(_REQUEST_TIMEOUT_S)

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address, timeout=_REQUEST_TIMEOUT_S)

    def _send(self) -> None:
        connection = self._connect()
        headers = {"Content-Type": "application/json"}
        while not self._stopped.is_set():
            try:
                connection.request("POST", f"/v2/models/{self._model}/infer", self._body, headers)
                connection.getresponse().read()
                self.sent += 1
            except (OSError, http.client.HTTPException):
                # Refused and broken connections are part of what is drilled.
                connection.close()
                time.sleep(_PAUSE_AFTER_ERROR_S)
        connection.close()


class CommandCause:
    """A command that causes a fault, once or repeatedly, until it is stopped."""

    def __init__(self, command: str, every_s: float | None, log: Callable[[str], None]) -> None:
        """Assign. `log` is called with what goes wrong in repetitions."""
        self._command = command
        self._every_s = every_s
        self._log = log
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def start(self) -> None:
        """Run the command. Raises ValueError if it fails the first time."""
        if failure := self._run():
            raise ValueError(failure)
        if self._every_s is not None:
            self._thread.start()

    def stop(self) -> None:
        """Run it no more."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_COMMAND_TIMEOUT_S)

    def _repeat(self) -> None:
        while not self._stopped.wait(self._every_s):
            if failure := self._run():
                self._log(failure)

    def _run(self) -> str:
        try:
            result = subprocess.run(
                shlex.split(self._command), capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self._command}: {error}"
        if result.returncode == 0:
            return ""
        return f"{self._command}: exit status {result.returncode}: {(result.stderr or result.stdout).strip()}"


def _zeros(tensor: dict[str, Any]) -> dict[str, Any]:
    """Return an input of zeros, or of empty strings; unknown dimensions are 1."""
    shape = [max(int(size), 1) for size in tensor["shape"]]
    count = 1
    for size in shape:
        count *= size
    zero: Any = {"BYTES": "", "BOOL": False}.get(tensor["datatype"], 0)
    return {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": [zero] * count}
