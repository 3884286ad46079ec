"""What makes an alert fire in a drill: samples of a model that does not exist, load, or a command."""

import json
import shlex
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from conch.base.http.client import HttpClient, HttpSettings, RequestFailed

_REQUEST_TIMEOUT_S = 30
_COMMAND_TIMEOUT_S = 60
_PAUSE_AFTER_ERROR_S = 0.1
NO_RESPONSE = "none"


class LoadCause:
    """Requests with zeros to a model, from a number of threads, until it is stopped."""

    def __init__(self, url: str, model: str, concurrency: int) -> None:
        """`url` is the HTTP port of a server."""
        self._url = url.rstrip("/")
        self._client = HttpClient(HttpSettings.once(_REQUEST_TIMEOUT_S, max_redirects=0, environment_proxies=False))
        self._model = model
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(concurrency)]
        self._body = b""
        self._lock = threading.Lock()
        self.outcomes = Counter[str]()  # requests by HTTP status; NO_RESPONSE for broken and refused connections

    def failures(self) -> str:
        """Return how many requests failed, and how; "" if none did."""
        with self._lock:
            outcomes = dict(self.outcomes)
        failed = {status: count for status, count in outcomes.items() if status != "200"}
        if not failed:
            return ""
        parts = [
            f"{count} without a response" if status == NO_RESPONSE else f"{count} with status {status}"
            for status, count in sorted(failed.items())
        ]
        hint = " (429 is the status of an enforced limit)" if "429" in failed else ""
        return f"{sum(failed.values())} of {sum(outcomes.values())} requests failed: {', '.join(parts)}{hint}"

    def start(self) -> None:
        """Read the model's inputs from the server, and begin to send. Raises ValueError."""
        try:
            with self._client.open("GET", f"{self._url}/v2/models/{self._model}") as response:
                inputs = self._inputs(response.status, response.read())
        except RequestFailed as error:
            raise ValueError(f"cannot ask the server at {self._url}: {error.cause}; --url is its URL") from error
        self._body = json.dumps({"inputs": [_zeros(tensor) for tensor in inputs]}).encode()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(_REQUEST_TIMEOUT_S)

    def _inputs(self, status: int, text: bytes) -> Any:
        try:
            document = json.loads(text)
            if status == 200:
                return document["inputs"]
            reason = document["error"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self._url} does not serve models (HTTP status {status}); --url is its URL") from None
        raise ValueError(f"model '{self._model}' at {self._url}: {reason}")

    def _send(self) -> None:
        url, headers = f"{self._url}/v2/models/{self._model}/infer", {"Content-Type": "application/json"}
        while not self._stopped.is_set():
            try:
                with self._client.open("POST", url, headers, self._body) as response:
                    response.read()
                self._count(str(response.status))
            except RequestFailed:
                # Refused and broken connections are part of what is drilled.
                self._count(NO_RESPONSE)
                time.sleep(_PAUSE_AFTER_ERROR_S)

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1


class CommandCause:
    """A command that causes a fault, once or repeatedly, until it is stopped."""

    def __init__(self, command: str, every_s: float | None, log: Callable[[str], None]) -> None:
        """`log` is called with what goes wrong in repetitions."""
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
        except OSError as error:
            return f"--command '{self._command}' cannot run: {error.strerror}"
        except ValueError as error:
            return f"--command '{self._command}' is not valid: {error}"
        except subprocess.TimeoutExpired:
            return f"--command '{self._command}' did not end within {_COMMAND_TIMEOUT_S} s"
        if result.returncode == 0:
            return ""
        output = (result.stderr or result.stdout).strip()
        return f"--command '{self._command}' failed with exit status {result.returncode}" + (output and f": {output}")


def _zeros(tensor: dict[str, Any]) -> dict[str, Any]:
    """Return an input of zeros, or of empty strings; unknown dimensions are 1."""
    shape = [max(int(size), 1) for size in tensor["shape"]]
    count = 1
    for size in shape:
        count *= size
    zero: Any = {"BYTES": "", "BOOL": False}.get(tensor["datatype"], 0)
    return {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": [zero] * count}
