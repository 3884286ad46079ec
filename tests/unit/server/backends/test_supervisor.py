"""How long a process that died waits for its successor: not at all, if it or the one before has worked."""

import asyncio
from dataclasses import dataclass

import pytest

from conch.server.backends.processes.launch import Exit
from conch.server.backends.processes.supervisor import ProcessSupervisor


@dataclass
class Process:
    pid: int
    alive: bool = True
    has_worked: bool = False


class Processes:
    """Brings processes up that end when the test says so."""

    def __init__(self) -> None:
        self.started = 0
        self.supervisor = ProcessSupervisor("process", "model_0", self._bring_up, lambda: None)

    async def _bring_up(self) -> Process:
        self.started += 1
        return Process(self.started)

    async def die(self, *, worked: bool) -> None:
        """End the process in service and wait for the next."""
        process = self.supervisor.current
        assert process is not None
        process.alive, process.has_worked = False, worked
        self.supervisor.died(Exit(1))
        while not self.supervisor.ready:
            await asyncio.sleep(0.01)


async def test_work_resets_the_delay(caplog: pytest.LogCaptureFixture) -> None:
    processes = Processes()
    await processes.supervisor.start()
    for worked in (True, True, False, True, False):
        await processes.die(worked=worked)
    assert processes.started == 6
    assert [message.partition("; ")[2] for message in caplog.messages] == [
        "restarting now",
        "restarting now",
        "restarting in 0.5 s",
        "restarting now",
        "restarting in 0.5 s",
    ]
    await processes.supervisor.withdraw()
