"""`conch fleet`: what the command does before a process runs."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from conch.operate.fleet.command import fleet


def test_an_early_interrupt_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(main: Coroutine[Any, Any, int]) -> int:
        main.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run", interrupted)
    assert fleet(["demo"]) == 130
    assert capsys.readouterr().err == ""
