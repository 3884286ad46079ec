"""Time to the first token by endpoint: `python -m benchmarks.first_token [--requests 200]`.

A small language model answers the same question through each streaming endpoint in turn, over one connection. The time
ends with the event that has the first piece of text.
"""

import http.client
import json
import socket
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.machine import CHECKOUT, machine
from benchmarks.harness.peers import Conch, Server
from benchmarks.llm.model import write_gguf

_MODEL = "small"
_QUESTION = "WHAT IS THE FIRST TOKEN OF THIS"
_ANSWER_TOKENS = 8
_MESSAGES = [{"role": "user", "content": _QUESTION}]
_CHAT = "/v1/chat/completions"


def _request(**fields: Any) -> bytes:
    return json.dumps({"model": _MODEL, "stream": True, **fields}).encode()


# Path → body, and what is only in events with text.
_ENDPOINTS: dict[str, tuple[bytes, bytes]] = {
    _CHAT: (_request(messages=_MESSAGES, max_tokens=_ANSWER_TOKENS), b'"content":"'),
    "/v1/completions": (_request(prompt=_QUESTION, max_tokens=_ANSWER_TOKENS), b'"text":"'),
    "/v1/messages": (_request(messages=_MESSAGES, max_tokens=_ANSWER_TOKENS), b'"text_delta"'),
    "/v1/responses": (_request(input=_QUESTION, max_output_tokens=_ANSWER_TOKENS), b"response.output_text.delta"),
    "/api/chat": (_request(messages=_MESSAGES, options={"num_predict": _ANSWER_TOKENS}), b'"content":"'),
}


class _OllamaConch(Conch):
    """Conch with the endpoints of Ollama."""

    def command(self, repository: Path) -> list[str]:
        return [*super().command(repository), "--ollama-api=true"]


def bench(requests: Annotated[int, typer.Option(min=2, help="Requests to each endpoint.")] = 200) -> None:
    """Print percentiles for each endpoint, and the ratio of its median to that of chat completions."""
    install = ConchInstall(CHECKOUT, CHECKOUT / ".bench")
    install.ensure()
    times: dict[str, list[float]] = {path: [] for path in _ENDPOINTS}
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as name:
        folder = Path(name)
        version = folder / "models" / _MODEL / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text('backend: "openvino_genai"\n')
        write_gguf(version / "model.gguf")
        with Server(_OllamaConch(install), folder / "models", folder / "log") as server:
            connection = http.client.HTTPConnection(server.http_address, timeout=60)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            paths = list(_ENDPOINTS)
            for number in range(requests + 5):
                for path in paths[number % len(paths) :] + paths[: number % len(paths)]:
                    first_ms = _first_token_ms(connection, path)
                    if number >= 5:  # the others warm up
                        times[path].append(first_ms)
    console = Console()
    console.print(machine())
    table = Table("endpoint", "P50 ms", "P90 ms", "÷ chat completions")
    chat = np.median(times[_CHAT])
    for path, values in times.items():
        middle, high = np.percentile(values, [50, 90])
        table.add_row(path, f"{middle:.2f}", f"{high:.2f}", f"{middle / chat:.3f}")
    console.print(table)


def _first_token_ms(connection: http.client.HTTPConnection, path: str) -> float:
    body, mark = _ENDPOINTS[path]
    begun = time.perf_counter()
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    first = 0.0
    while line := answer.readline():
        if not first and mark in line and mark + b'"' not in line:
            first = time.perf_counter() - begun
    if answer.status != 200 or not first:
        raise RuntimeError(f"{path} answered {answer.status} without text")
    return first * 1000


if __name__ == "__main__":
    typer.run(bench)
