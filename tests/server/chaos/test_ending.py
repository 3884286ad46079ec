"""Models that do not want to end: unloaded, or under a server that is to stop."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.server.chaos.accounting import TIMEOUT_S, gone
from tests.server.chaos.concurrent_clients import concurrent_clients, when
from tests.server.chaos.crashing_models import write_crashing
from tests.support.server_process import ConchProcess

FLAGS = [
    "--model-control-mode=explicit",
    "--load-model=*",
    "--backend-config=python,stub-timeout-seconds=2",
    "--exit-timeout-secs=1",
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ConchProcess]:
    """A server that may end as it likes."""
    for name in ("looping", "stopped", "other"):
        write_crashing(tmp_path / "models", name)
    conch = ConchProcess(tmp_path / "models", *FLAGS, log=tmp_path / "log")
    conch.__enter__()
    yield conch
    if conch.process.poll() is None:
        conch.stop(signal.SIGKILL)


async def test_what_does_not_end_by_itself(server: ConchProcess, tmp_path: Path) -> None:
    async with concurrent_clients(server, tmp_path) as clients:
        # A stopped process is resumed, and ends as it should.
        stopped = await clients.pid("stopped")
        os.kill(stopped, signal.SIGSTOP)
        assert await clients.post("repository/models/stopped/unload") == (200, "")
        gone(stopped)
        assert "killed" not in server.text
        # One that executes for ever is killed when no client waits for its answer.
        looping = await clients.pid("looping")
        client = await clients.impatient("looping", gate=str(tmp_path / "gate"), do="loop")
        await when((tmp_path / "gate.reached").exists)
        (tmp_path / "gate.open").touch()
        client.close()
        assert await clients.post("repository/models/looping/unload") == (200, "")
        assert (await clients.ask("other")).answered
        gone(looping)
        assert "[looping_0] killed: it did not finish what it was executing within 2 s" in server.text
        assert await clients.post("repository/models/looping/load") == (200, "")
        # The server waits for it no longer than it may wait for anything.
        family = psutil.Process(server.process.pid).children(recursive=True)
        waiting, gate = await clients.gated("looping", do="loop")
        gate.touch()
        server.process.send_signal(signal.SIGTERM)
        refused = await waiting
        assert refused.status == 503
        assert "was stopped before the request was finished" in refused.error
        assert server.process.wait(TIMEOUT_S) == 1
        assert psutil.wait_procs(family, timeout=TIMEOUT_S)[1] == []
