"""Many clients at once, each of which must get exactly one answer within a limit."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.server_process import ConchProcess

TIMEOUT_S = 60


@dataclass(frozen=True)
class Outcome:
    """What a client got: the value back with the process that computed it, or an error."""

    status: int
    sent: int
    at: float  # monotonic s
    value: int | None = None
    pid: int = 0
    error: str = ""

    @property
    def answered(self) -> bool:
        """Whether it was the right answer; a wrong one is a failure of the test."""
        assert self.value in (None, self.sent), f"asked for {self.sent}, got {self.value}"
        return self.status == 200


class ConcurrentClients:
    """Clients of one server."""

    def __init__(self, server: ConchProcess, session: aiohttp.ClientSession, gates: Path) -> None:
        self.server = server
        self._session = session
        self._gates = gates
        self._number = 0

    async def ask(self, model: str, value: int = 7, **parameters: Any) -> Outcome:
        """Send one number; `parameters` are orders to the model (see `crashing_model.py`)."""
        url = f"http://{self.server.http}/v2/models/{model}/infer"
        async with (
            asyncio.timeout(TIMEOUT_S),
            self._session.post(url, json=request_body(value, parameters)) as response,
        ):
            answer = await response.json()
        now = time.monotonic()
        if response.status != 200:
            return Outcome(response.status, value, now, error=answer["error"])
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        assert all(number == value for number in outputs.get("LARGE", ()))
        return Outcome(200, value, now, outputs["OUTPUT0"][0], outputs["PID"][0])

    def send(self, model: str, value: int = 7, **parameters: Any) -> "asyncio.Task[Outcome]":
        """`ask` in the background."""
        return asyncio.create_task(self.ask(model, value, **parameters))

    async def gated(self, model: str, value: int = 7, **parameters: Any) -> "tuple[asyncio.Task[Outcome], Path]":
        """Send a request and return when the model executes it; it continues when the returned file exists."""
        self._number += 1
        gate = self._gates / f"gate{self._number}"
        asked = self.send(model, value, gate=str(gate), **parameters)
        await when(gate.with_suffix(".reached").exists)
        return asked, gate.with_suffix(".open")

    async def pid(self, model: str) -> int:
        """Ask which process serves the model."""
        answer = await self.ask(model)
        assert answer.answered, answer
        return answer.pid

    async def waiting(self, model: str, number: int) -> None:
        """Return when `count` requests wait for the model."""
        await when(lambda: counts(self.server, model)["pending"] == number)

    async def impatient(self, model: str, **parameters: Any) -> asyncio.StreamWriter:
        """Send a request and return what to close for leaving before the answer."""
        host, _, port = self.server.http.partition(":")
        body = json.dumps(request_body(7, parameters)).encode()
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + body)
        return writer

    async def post(self, path: str, **body: Any) -> tuple[int, str]:
        """POST anything; returns status and text."""
        url = f"http://{self.server.http}/v2/{path}"
        async with asyncio.timeout(TIMEOUT_S), self._session.post(url, json=body) as response:
            return response.status, await response.text()


@asynccontextmanager
async def concurrent_clients(server: ConchProcess, gates: Path) -> AsyncIterator[ConcurrentClients]:
    """Clients that leave no connection behind."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield ConcurrentClients(server, session, gates)


async def when(condition: Any) -> None:
    """Return when the condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.002)


async def outcomes(asked: "Sequence[asyncio.Task[Outcome]]") -> list[Outcome]:
    """Wait for everybody's one answer."""
    return list(await asyncio.gather(*asked))


def request_body(value: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [value]}
    return {"inputs": [tensor], "parameters": parameters}


_SAMPLE = re.compile(r'^nv_inference_(\w+)\{model="([^"]*)".*?(?:reason="(\w+)".*?)?\} (\S+)$', re.MULTILINE)


def counts(server: ConchProcess, model: str) -> Counter[str]:
    """What the metrics say of a model: `success`, `pending`, and failures by their reason."""
    counted: Counter[str] = Counter()
    for name, of, reason, value in _SAMPLE.findall(server.metrics()):
        if of == model:
            short = {"request_success": "success", "pending_request_count": "pending"}.get(name, reason)
            if short:
                counted[short] = int(float(value))
    return counted
