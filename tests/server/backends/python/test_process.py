"""The child host by itself: any program that reads and writes frames."""

import asyncio
import logging
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from conch.base.errors import ModelLoadError
from conch.server.backends.child.conch_child.ipc import wire
from conch.server.backends.processes.child_process import ChildProcess
from conch.server.backends.processes.launch import Exit, Program
from conch.server.backends.processes.supervisor import restart_delay_s
from tests.server.backends.python.running import TIMEOUT_S

ECHO = """
import socket, sys
sys.path.insert(0, FOLDER)
from wire import FrameDecoder, encode_to_server
connection = socket.socket(fileno=int(sys.argv[1]))
decoder = FrameDecoder()
while True:
    data = connection.recv(1 << 16)
    if not data:
        break
    for message, payload in decoder.feed(data):
        if message[0] == "exit":
            sys.exit(message[1])
        connection.sendall(encode_to_server(message, [payload], len(payload)))
"""


class Host:
    """A child process and what it has said."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[tuple[Any, bytes]] = asyncio.Queue()
        self.exits: list[Exit] = []
        self.child = ChildProcess("child", self._received, self.exits.append)

    def _received(self, message: wire.Message, payload: memoryview) -> None:
        if message[0] == "bad":
            raise KeyError(message)
        self.messages.put_nowait((message, bytes(payload)))

    async def start(self, code: str = ECHO) -> None:
        folder = str(Path(wire.__file__).parent)
        program = Program([sys.executable, "-c", code.replace("FOLDER", repr(folder))], {})
        await self.child.start(program)

    async def ended(self) -> Exit:
        assert await self.child.wait(TIMEOUT_S)
        (end,) = self.exits
        return end


async def test_messages_of_any_size_go_both_ways() -> None:
    host = Host()
    await host.start()
    payloads = [b"", b"x", bytes(3_000_000)]
    for payload in payloads:
        host.child.send(("echo", len(payload)), [payload], len(payload))
    for payload in payloads:
        message, returned = await asyncio.wait_for(host.messages.get(), TIMEOUT_S)
        assert message == ("echo", len(payload))
        assert returned == payload
    host.child.send(("exit", 0))
    assert str(await host.ended()) == "exited with status 0"


async def test_the_end_is_put_into_words() -> None:
    host = Host()
    await host.start()
    assert "running" in repr(host.child)
    host.child.send(("exit", 3))
    assert await host.ended() == Exit(3)
    assert "exited with status 3" in repr(host.child)
    assert str(Exit(-11)) == "was killed by SIGSEGV"
    assert str(Exit(-200)) == "was killed by signal 200"
    host.child.kill()
    host.child.send(("too late",))


async def test_everything_sent_before_the_end_is_delivered() -> None:
    host = Host()
    await host.start()
    for number in range(100):
        host.child.send((number,))
    host.child.send(("exit", 1))
    await host.ended()
    assert [host.messages.get_nowait()[0] for _ in range(100)] == [(number,) for number in range(100)]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_write_that_fails_loses_nothing_received(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def check() -> None:
        host = Host()
        await host.start()
        for number in range(10):
            host.child.send((number,))
        host.child.send(("exit", 1))
        # This loop sees the end of the process only after it has written to it.
        child = psutil.Process(host.child.pid)
        deadline = time.monotonic() + TIMEOUT_S
        while child.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)  # noqa: ASYNC251 - the loop is not to run
        for _ in range(2):
            host.child.send(("late",))
        await host.ended()
        assert [host.messages.get_nowait()[0] for _ in range(10)] == [(number,) for number in range(10)]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


async def test_a_message_that_cannot_be_dealt_with_ends_the_child(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    await host.start()
    host.child.send(("bad",))
    assert str(await host.ended()) == "was killed by SIGKILL"
    (record,) = caplog.records
    assert "error while handling one of its messages" in record.getMessage()
    assert "KeyError" in record.block


async def test_what_it_wrote_last_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "conch.model")
    host = Host()
    await host.start("import sys; print('out'); print('one\\ntwo', file=sys.stderr); sys.exit(1)")
    await host.ended()
    assert host.child.stderr_tail == "one\ntwo"
    assert {record.getMessage() for record in caplog.records} == {"out", "one", "two"}


async def test_a_child_that_only_closes_its_socket_is_ended() -> None:
    host = Host()
    await host.start("import os, sys, time; os.close(int(sys.argv[1])); time.sleep(600)")
    assert str(await host.ended()) == "was killed by SIGKILL"


async def test_a_program_that_is_not_there() -> None:
    host = Host()
    with pytest.raises(ModelLoadError, match="cannot run '/no/such/python': No such file or directory"):
        await host.child.start(Program(["/no/such/python"], {}))
    assert await host.child.wait(0)


def test_restarts_are_immediate_once_and_then_delayed() -> None:
    assert [restart_delay_s(deaths) for deaths in range(1, 10)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]


async def test_a_child_that_prints_without_end_is_neither_blocked_nor_logged_without_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """100 MB in lines of 10 bytes and in one line without end; the loop meanwhile comes around."""
    caplog.set_level(logging.INFO, "conch.model")
    host = Host()
    code = (
        "import os, sys\n"
        "for _ in range(50):\n"
        "    os.write(1, b'123456789\\n' * 100_000)\n"
        "    os.write(2, b'x' * 1_000_000)\n"
        "os.write(2, b'\\nthe cause\\n')\n"
        "os._exit(3)"
    )
    started_s = time.monotonic()
    await host.start(code)
    turns = 0
    while not host.exits:
        await asyncio.sleep(0)
        turns += 1
    assert str(await host.ended()) == "exited with status 3"
    assert turns > 100
    seconds = time.monotonic() - started_s + 2  # and the burst
    assert len(caplog.records) < 2000 * seconds
    assert sum(len(record.getMessage()) for record in caplog.records) < seconds * (2 << 20)
    assert host.child.stderr_tail.endswith("the cause")
    dropped = [record for record in caplog.records if "dropped" in record.getMessage()]
    assert dropped
    for record in dropped:
        assert re.fullmatch(
            r"dropped \d+ lines \(\d+ bytes\) of its output, which exceeds 2000 lines or 2 MiB per second",
            record.getMessage(),
        )
        assert record.levelno == logging.WARNING


async def test_output_within_the_limit_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "conch.model")
    host = Host()
    await host.start("print('\\n'.join(map(str, range(1500))))")
    await host.ended()
    assert [record.getMessage() for record in caplog.records] == [str(number) for number in range(1500)]


async def test_long_lines_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "conch.model")
    host = Host()
    await host.start("print('x' * 40_000); print('next')")
    await host.ended()
    assert [len(record.getMessage()) for record in caplog.records] == [16384, 16384, 7232, 4]
