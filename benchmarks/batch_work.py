"""P99 of clients beside batches: `python -m benchmarks.batch_work [--rounds 8] [--bursts 5]`.

Clients ask a small language model in bursts, the requests of a burst at random times, with random pauses between them.
In alternate rounds the server has a batch of thousands of requests as well (`/v1/batches`), which it may run in the
pauses. Reported are the latencies of the clients' requests with and without it, and how many requests of the batch
were answered.
"""

import http.client
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import openai
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.machine import CHECKOUT, machine
from benchmarks.harness.peers import Conch, Server
from benchmarks.llm.model import write_gguf

_MODEL = "small"
_BURST_RATE = 10.0  # requests/s
_BURST_REQUESTS = 100
_PAUSE_S = (2.0, 8.0)
_LINES = 5000
_BODY = {"model": _MODEL, "prompt": "LIVE TRAFFIC ", "max_tokens": 8, "temperature": 0}


class _BatchingConch(Conch):
    """Conch with a folder for batches."""

    def __init__(self, install: ConchInstall, folder: Path) -> None:
        super().__init__(install)
        self._folder = folder

    def command(self, repository: Path) -> list[str]:
        return [*super().command(repository), f"--batch-dir={self._folder}"]


def bench(
    rounds: Annotated[int, typer.Option(min=2, help="Rounds with a batch, and as many without.")] = 6,
    bursts: Annotated[int, typer.Option(min=1, help="Bursts of 100 requests in a round.")] = 4,
) -> None:
    """Print percentiles of latency with and without a batch, and the ratio of the P99."""
    install = ConchInstall(CHECKOUT, CHECKOUT / ".bench")
    install.ensure()
    latencies: dict[bool, list[float]] = {False: [], True: []}
    p99s: dict[bool, list[float]] = {False: [], True: []}
    answered = 0
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as name:
        folder = Path(name)
        _write_repository(folder / "models")
        with Server(_BatchingConch(install, folder / "batches"), folder / "models", folder / "log") as server:
            client = openai.OpenAI(base_url=f"http://{server.http_address}/v1", api_key="none")
            _live(server.http_address, 1, random.Random(0))  # warm-up, and the first intervals between requests
            for number in range(rounds):
                for beside in (True, False) if number % 2 else (False, True):
                    seed = random.Random(number)  # the same arrivals with and without
                    if beside:
                        with _batch(client) as batch_id:
                            times = _live(server.http_address, bursts, seed)
                            counts = client.batches.retrieve(batch_id).request_counts
                            answered += counts.completed if counts else 0
                    else:
                        times = _live(server.http_address, bursts, seed)
                    latencies[beside] += times
                    p99s[beside].append(float(np.percentile(times, 99)))
                    print(f"round {number + 1} {'with' if beside else 'without'} batch", flush=True)
    console = Console()
    console.print(machine())
    table = Table("", "requests", "P50 ms", "P90 ms", "P99 ms", "highest ms")
    for beside, label in ((False, "without"), (True, "with a batch")):
        figures = np.percentile(latencies[beside], [50, 90, 99, 100])
        table.add_row(label, str(len(latencies[beside])), *(f"{figure:.1f}" for figure in figures))
    console.print(table)
    ratio = np.percentile(latencies[True], 99) / np.percentile(latencies[False], 99)
    pairs = np.array(p99s[True]) / np.array(p99s[False])
    console.print(
        f"P99 with ÷ without: {ratio:.3f}; of rounds {np.median(pairs):.3f} ({pairs.min():.3f}–{pairs.max():.3f})"
    )
    console.print(f"{answered} requests of batches were answered")


def _write_repository(folder: Path) -> None:
    version = folder / _MODEL / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "openvino_genai"\n')
    write_gguf(version / "model.gguf")


@contextmanager
def _batch(client: openai.OpenAI) -> Iterator[str]:
    """Have a batch of more requests than can be answered, until the end of the block."""
    line = {"method": "POST", "url": "/v1/completions", "body": {**_BODY, "prompt": "BATCH WORK ", "max_tokens": 64}}
    lines = b"".join(json.dumps({"custom_id": str(number), **line}).encode() + b"\n" for number in range(_LINES))
    file = client.files.create(file=("work.jsonl", lines), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    try:
        yield batch.id
    finally:
        client.batches.cancel(batch.id)
        while client.batches.retrieve(batch.id).status != "cancelled":
            time.sleep(0.1)
        client.files.delete(file.id)


def _live(address: str, bursts: int, source: random.Random) -> list[float]:
    """Send bursts of requests at random times; return the latency of each in ms."""
    latencies: list[float] = []
    threads = []
    due = time.perf_counter()
    for burst in range(bursts):
        due += source.uniform(*_PAUSE_S) if burst else 0
        for _ in range(_BURST_REQUESTS):
            due += source.expovariate(_BURST_RATE)
            time.sleep(max(due - time.perf_counter(), 0))
            thread = threading.Thread(target=_ask, args=(address, latencies))
            thread.start()
            threads.append(thread)
    for thread in threads:
        thread.join()
    return latencies


def _ask(address: str, latencies: list[float]) -> None:
    connection = http.client.HTTPConnection(address, timeout=60)
    begun = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(_BODY), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {text[:300]!r}")
    latencies.append((time.perf_counter() - begun) * 1000)
    connection.close()


if __name__ == "__main__":
    typer.run(bench)
