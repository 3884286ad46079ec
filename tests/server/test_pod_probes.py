"""The probes that the chart gives the pods, asked of a server that loads, serves and drains."""

import http.client
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

from conch.operate.deployment.chart import release_objects
from tests.server.load import until
from tests.support.helm_process import require_helm
from tests.support.models import ECHO, tensor, write_python
from tests.support.server_process import ConchProcess

NUMBERS = f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('OUTPUT0', 'INT32', 1)}"


def server_container() -> dict[str, Any]:
    require_helm()
    [deployment] = [document for document in release_objects({}, "demo") if document["kind"] == "Deployment"]
    [server] = deployment["spec"]["template"]["spec"]["containers"]
    container: dict[str, Any] = server
    return container


async def test_a_loading_server_is_live_and_gets_no_requests(tmp_path: Path) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    slow = f"open({str(begun)!r}, 'w')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    write_python(tmp_path / "models", "m", NUMBERS, ECHO)
    model = tmp_path / "models" / "m" / "1" / "model.py"
    model.write_text(f"import os, time\n{slow}{model.read_text()}")
    container = server_container()
    timeout = [argument for argument in container["args"] if argument.startswith("--exit-timeout-secs")]

    with ConchProcess(tmp_path / "models", *timeout, log=tmp_path / "log", wait="") as server:

        def passes(probe: str) -> bool:
            """As the kubelet asks: each time on a new connection, any status from 200 to 399 passes."""
            with closing(http.client.HTTPConnection(server.http, timeout=60)) as connection:
                connection.request("GET", container[probe]["httpGet"]["path"])
                return 200 <= connection.getresponse().status < 400

        await until(begun.exists)
        assert passes("startupProbe")
        assert passes("livenessProbe")
        assert not passes("readinessProbe")
        gate.touch()
        await until(lambda: passes("readinessProbe"))
        assert passes("livenessProbe")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
