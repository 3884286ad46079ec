"""A debugger, attached to a running model over the Debug Adapter Protocol as an editor would do it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np

from conch.domain.tensor import Tensor
from tests.server.backends.python.running import TIMEOUT_S, running

MODEL = """
    import os
    import debugpy
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            _, port = debugpy.listen(("127.0.0.1", 0))
            with open(os.path.join(args["model_repository"], "port"), "w") as file:
                file.write(str(port))

        def execute(self, requests):
            answer = 6 * 7
            question = None  # the debugger stops here
            return [pb_utils.InferenceResponse([t]) for r in requests for t in r.inputs()]
"""


class Debugger:
    """The least that a client of the Debug Adapter Protocol must do."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._seen: list[dict[str, Any]] = []

    def send(self, command: str, **arguments: Any) -> int:
        self._number += 1
        body = json.dumps({"seq": self._number, "type": "request", "command": command, "arguments": arguments}).encode()
        self._writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self._number

    async def request(self, command: str, **arguments: Any) -> Any:
        number = self.send(command, **arguments)
        return await self.wait(type="response", request_seq=number, success=True)

    async def wait(self, **wanted: Any) -> Any:
        """Return the body of the first message with these fields."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for message in self._seen:
                    if wanted.items() <= message.items():
                        self._seen.remove(message)
                        return message.get("body")
                header = await self._reader.readuntil(b"\r\n\r\n")
                self._seen.append(json.loads(await self._reader.readexactly(int(header.split(b":")[1]))))

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def test_a_debugger_stops_and_looks_into_execute(tmp_path: Path) -> None:
    async with running(tmp_path, MODEL) as runner:
        reader, writer = await asyncio.open_connection("127.0.0.1", int((tmp_path / "port").read_text()))
        debugger = Debugger(reader, writer)
        await debugger.request("initialize", adapterID="test", pathFormat="path")
        attached = debugger.send("attach", subProcess=False)
        await debugger.wait(type="event", event="initialized")
        line = next(n for n, text in enumerate(MODEL.splitlines(), 1) if "stops here" in text)
        path = str(tmp_path / "1" / "model.py")
        await debugger.request("setBreakpoints", source={"path": path}, breakpoints=[{"line": line}])
        await debugger.request("configurationDone")
        await debugger.wait(type="response", request_seq=attached, success=True)

        caller = runner.submit(Tensor.from_numpy("IN", np.arange(3)))
        stopped = await debugger.wait(type="event", event="stopped")
        assert stopped["reason"] == "breakpoint"
        frames = (await debugger.request("stackTrace", threadId=stopped["threadId"]))["stackFrames"]
        assert frames[0]["name"] in ("execute", "TritonPythonModel.execute")
        seen = await debugger.request("evaluate", expression="answer", frameId=frames[0]["id"])
        assert seen["result"] == "42"
        assert runner.instance.ready
        await debugger.request("continue", threadId=stopped["threadId"])
        assert (await caller.response()).outputs[0].to_numpy().tolist() == [0, 1, 2]
        await debugger.close()
