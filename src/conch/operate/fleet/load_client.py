"""The child process that sends requests with the official client.

    python -m conch.operate.fleet.load_client PROTOCOL URL MODEL

A line on stdin is the number of clients; its end stops them after their answers. Lines on stdout are counts in JSON.
Each client is a thread that waits for its answer. Nothing is retried: each request is counted once, by its outcome.
"""

import json
import sys
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

_REPORT_S = 0.25
_REQUEST_TIMEOUT_S = 60.0
_ERROR_PAUSE_S = 0.05
_MAX_MESSAGE_CHARACTERS = 200


class OfficialClient:
    """One connection of tritonclient, with a request of zeros for a model. `protocol` is grpc or http."""

    def __init__(self, protocol: str, url: str, model: str) -> None:
        self._model = model
        if protocol == "grpc":
            import tritonclient.grpc as triton

            # Without these arguments clients share connections.
            arguments = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
            self._client = triton.InferenceServerClient(url, channel_args=arguments)
            self._options = {"client_timeout": _REQUEST_TIMEOUT_S}
            metadata = self._client.get_model_metadata(model, as_json=True)
        else:
            import tritonclient.http as triton

            self._client = triton.InferenceServerClient(url, network_timeout=_REQUEST_TIMEOUT_S)
            self._options = {}
            metadata = self._client.get_model_metadata(model)
        self._inputs = [_zeros(triton, tensor) for tensor in metadata["inputs"]]

    def infer(self) -> None:
        """Send a request and wait for the answer. Raises InferenceServerException, OSError."""
        self._client.infer(self._model, self._inputs, **self._options)


def _zeros(triton: Any, tensor: dict[str, Any]) -> Any:
    shape = [max(int(size), 1) for size in tensor["shape"]]  # -1 is any size
    array = np.full(shape, b"", object) if tensor["datatype"] == "BYTES" else None
    made = triton.InferInput(tensor["name"], shape, tensor["datatype"])
    made.set_data_from_numpy(np.zeros(shape, triton_to_np_dtype(tensor["datatype"])) if array is None else array)
    return made


class Clients:
    """The threads and what they have counted."""

    def __init__(self, protocol: str, url: str, model: str) -> None:
        self._arguments = (protocol, url, model)
        self._wanted = 0
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._sent = self._answered = 0
        self._errors: Counter[str] = Counter()
        self._latencies: list[float] = []

    def set_number(self, number: int) -> None:
        """Set how many clients send requests."""
        with self._changed:
            self._wanted = number
            self._changed.notify_all()
        for index in range(len(self._threads), number):
            thread = threading.Thread(target=self._run, args=(index,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop all clients and wait for their answers."""
        with self._changed:
            self._wanted = -1
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_REQUEST_TIMEOUT_S * 2)

    def report(self) -> dict[str, Any]:
        """Return the counts since the start, and the latencies in seconds since the last report."""
        with self._changed:
            latencies, self._latencies = self._latencies, []
            return {
                "clients": max(self._wanted, 0),
                "sent": self._sent,
                "answered": self._answered,
                "failed": self._errors.total(),
                "errors": dict(self._errors),
                "latencies": latencies,
            }

    def _run(self, index: int) -> None:
        client = None
        while self._may_send(index):
            started, message = time.monotonic(), ""
            try:
                client = client or OfficialClient(*self._arguments)
                client.infer()
            except (InferenceServerException, OSError) as error:
                message = (str(error) or type(error).__name__)[:_MAX_MESSAGE_CHARACTERS]
            self._count(time.monotonic() - started, message)
            if message:
                time.sleep(_ERROR_PAUSE_S)

    def _may_send(self, index: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted < 0 or index < self._wanted)
            if self._wanted < 0:
                return False
            self._sent += 1
            return True

    def _count(self, took_s: float, message: str) -> None:
        with self._changed:
            if message:
                self._errors[message] += 1
            else:
                self._answered += 1
                self._latencies.append(took_s)


def main() -> None:
    """Follow stdin until its end."""
    protocol, url, model = sys.argv[1:4]
    clients = Clients(protocol, url, model)
    ended = threading.Event()

    def write() -> None:
        print(json.dumps(clients.report()), flush=True)

    def reporter() -> None:
        while not ended.wait(_REPORT_S):
            write()

    thread = threading.Thread(target=reporter)
    thread.start()
    for line in sys.stdin:
        clients.set_number(int(line))
    clients.stop()
    ended.set()
    thread.join()
    write()


if __name__ == "__main__":
    main()
