"""After its client has left, an engine spends no step on a request but the one that it computes."""

import socket
from typing import Any

from conch.server.backends.child.conch_child.engine import messages
from conch.server.backends.child.conch_child.engine.driver import Driver, Event, Prompt
from conch.server.backends.child.conch_child.engine.service import _StepLoop
from conch.server.backends.child.conch_child.ipc.wire import FrameDecoder, encode_to_child


class AbortedDriver(Driver):
    """Generates for all requests, until the server sends messages during a step; stops the loop after an abort."""

    def __init__(self, server: socket.socket) -> None:
        super().__init__(lambda _level, _text: None)
        self.server = server
        self.live: dict[int, int] = {}  # steps of each request

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        return {}

    def add(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str) -> None:
        self.live[key] = 0

    def abort(self, key: int) -> None:
        self.aborted = self.live.pop(key)

    @property
    def wait_ms(self) -> int | None:
        return 0 if self.live else None

    def step(self) -> list[Event]:
        for key in self.live:
            self.live[key] += 1
        if self.live.get(1) == 3:
            self.server.sendall(encode_to_child((messages.ABORT, 1)))
        if self.live == {2: 5}:
            self.server.sendall(encode_to_child((messages.STOP,)))
        return [(key, ((0, "w", (1,), None, None, ()),), None) for key in self.live]

    def stats(self) -> tuple[int, int, float, int, int, int]:
        return (len(self.live), 0, 0.0, 0, 0, 0)


def test_an_abort_during_a_step_ends_the_request_with_that_step() -> None:
    server, child = socket.socketpair()
    with server, child:
        driver = AbortedDriver(server)
        requests = [(messages.GENERATE, key, "prompt", {}, "", 0) for key in (1, 2)]
        _StepLoop(child, FrameDecoder(), driver).run(requests)
        assert driver.aborted == 3
        assert driver.live == {2: 5}
