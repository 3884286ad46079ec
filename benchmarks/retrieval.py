"""Compares rerank and embeddings of Conch with infinity-emb on the same ONNX files, side by side.

    python -m benchmarks.retrieval --infinity VENV/bin/infinity_emb

The models have the size of MiniLM-L6 (6 layers of 384, random weights) and the texts' lengths are drawn from a
log-normal distribution. Both servers run at once; rounds alternate between them, so that other load of the machine
meets both. Reported are medians over the rounds, and each server's CPU time for a request, which other load changes
least. infinity-emb 0.0.77 needs `transformers<4.49 optimum<2 numpy<2 pyarrow<20`.
"""

import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer
from tests.support.encoders import write_encoder, write_tokenizer
from tests.support.ports import free_port

_START_TIMEOUT_S = 180
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 512,
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}


@dataclass(frozen=True)
class Workload:
    """Requests of one kind: `path` is Conch's, `texts` the number of texts in each, all of `words` unless that is 0."""

    name: str
    path: str
    texts: int
    words: int = 0

    def body(self, text: Callable[[int], str]) -> bytes:
        """Return a request."""
        texts = [text(self.words) for _ in range(self.texts)]
        if self.path.endswith("rerank"):
            return json.dumps({"model": "ranker", "query": "what is that", "documents": texts}).encode()
        return json.dumps({"model": "encoder", "input": texts, "encoding_format": "base64"}).encode()


WORKLOADS = (
    Workload("rerank, 10 documents", "/v1/rerank", 10),
    Workload("embeddings, 1 text", "/v1/embeddings", 1),
    Workload("embeddings, 16 texts", "/v1/embeddings", 16),
    Workload("embeddings, 16 texts of equal lengths", "/v1/embeddings", 16, 46),
)


@dataclass(frozen=True)
class Server:
    """A running server. `prefix` is what its paths lack of Conch's."""

    name: str
    port: int
    prefix: str
    process: subprocess.Popen[bytes]

    def cpu_s(self) -> float:
        """Return the CPU time of the server and its children so far."""
        process = psutil.Process(self.process.pid)
        times = [member.cpu_times() for member in (process, *process.children(recursive=True))]
        return sum(spent.user + spent.system for spent in times)

    def wait(self, body: bytes, path: str) -> None:
        """Return when the server answers."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self.ask(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60), body, path)
                return
            except (OSError, http.client.HTTPException, RuntimeError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def ask(self, connection: http.client.HTTPConnection, body: bytes, path: str) -> None:
        """Send one request. Raises RuntimeError for an error."""
        connection.request("POST", path.removeprefix(self.prefix), body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{self.name} answered {answer.status}: {text[:300]!r}")


def write_models(folder: Path) -> list[str]:
    """Write a ranker and an encoder as checkpoints of the Hub. Return the words of their vocabulary."""
    drawn = random.Random(3)
    words = ["".join(drawn.choices("aeioubcdfghlmnprst", k=drawn.randint(3, 9))) for _ in range(8000)]
    for name, labels in (("ranker", 1), ("encoder", 0)):
        tokenizer = write_tokenizer(folder / name, words)
        tokenizer.save(str(folder / name / "tokenizer.json"))
        size = tokenizer.get_vocab_size()
        write_encoder(folder / name, labels=labels, hidden=384, layers=6, heads=12, vocabulary=size, positions=512)
        (folder / name / "onnx").mkdir()
        (folder / name / "model.onnx").rename(folder / name / "onnx" / "model.onnx")
        (folder / name / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG))
    return words


@contextmanager
def running(name: str, prefix: str, command: Sequence[str], port: int, log: Path) -> Iterator[Server]:
    """Run a server until the end of the block."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "HF_HOME": str(log.parent / "hf")}
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process:
        try:
            yield Server(name, port, prefix, process)
        finally:
            process.terminate()


def measured(server: Server, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> tuple[float, float]:
    """Send requests from `clients` connections; return requests per second and CPU seconds of a request."""
    counts = [0] * clients
    end = time.monotonic() + seconds

    def run(client: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        place = client * 37
        while time.monotonic() < end:
            server.ask(connection, bodies[place % len(bodies)], path)
            counts[client] += 1
            place += 1
        connection.close()

    before, begun = server.cpu_s(), time.monotonic()
    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, spent = time.monotonic() - begun, server.cpu_s() - before
    return sum(counts) / elapsed, spent / max(sum(counts), 1)


def main(
    infinity: Annotated[Path, typer.Option(help="the program infinity_emb of its environment")],
    clients: Annotated[int, typer.Option(help="clients of each server")] = 16,
    rounds: Annotated[int, typer.Option(help="rounds of each server and workload")] = 5,
    seconds: Annotated[float, typer.Option(help="length of a round")] = 8.0,
    only: Annotated[str, typer.Option(help="only workloads whose names contain this")] = "",
) -> None:
    """Print a table in Markdown."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        words = write_models(folder / "hub")
        drawn = random.Random(5)

        def text(length: int) -> str:
            return " ".join(drawn.choices(words, k=length or max(3, min(400, int(drawn.lognormvariate(3.7, 0.8))))))

        workloads = [workload for workload in WORKLOADS if only in workload.name]
        bodies = {workload: [workload.body(text) for _ in range(256)] for workload in workloads}
        repository = folder / "models"
        for name in ("ranker", "encoder"):
            command = [sys.executable, "-m", "conch", "repo", "add", str(folder / "hub" / name)]
            subprocess.run([*command, "--repository", str(repository)], check=True, stdout=subprocess.DEVNULL)
        ports = [free_port() for _ in range(4)]
        conch = [sys.executable, "-m", "conch", "serve", f"--model-repository={repository}"]
        conch += [f"--http-port={ports[0]}", f"--grpc-port={ports[2]}", f"--metrics-port={ports[3]}"]
        other = [str(infinity), "v2", "--host=127.0.0.1", f"--port={ports[1]}", "--no-bettertransformer"]
        for name in ("ranker", "encoder"):
            other += [f"--model-id={folder / 'hub' / name}", f"--served-model-name={name}", "--engine=optimum"]
            other += ["--device=cpu"]
        servers = [
            stack.enter_context(running("Conch", "", conch, ports[0], folder / "conch.log")),
            stack.enter_context(running("infinity-emb", "/v1", other, ports[1], folder / "infinity.log")),
        ]
        print("| workload | Conch, requests/s | infinity-emb | ratio | CPU ms of a request | infinity-emb | ratio |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for workload in workloads:
            for server in servers:
                server.wait(bodies[workload][0], workload.path)
                measured(server, workload.path, bodies[workload], clients, seconds / 2)  # warm-up
            results: dict[str, list[tuple[float, float]]] = {server.name: [] for server in servers}
            for number in range(rounds):
                for server in servers if number % 2 else servers[::-1]:
                    results[server.name].append(measured(server, workload.path, bodies[workload], clients, seconds))
            rates = [statistics.median(rate for rate, _ in results[server.name]) for server in servers]
            costs = [1000 * statistics.median(cost for _, cost in results[server.name]) for server in servers]
            print(
                f"| {workload.name} | {rates[0]:.1f} | {rates[1]:.1f} | {rates[0] / rates[1]:.2f} "
                f"| {costs[0]:.1f} | {costs[1]:.1f} | {costs[1] / costs[0]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
