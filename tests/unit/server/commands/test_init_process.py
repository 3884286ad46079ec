"""Process 1 of a container, played by process 1 of a PID namespace."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from tests.server.load import until

UNSHARE = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--pid", "--fork", "--mount-proc"]

pytestmark = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode,
    reason="a PID namespace is not permitted here",
)


def as_init(code: str) -> list[str]:
    """Return the command that runs code in the child of process 1."""
    head = "import os, signal, subprocess, sys, time\n"
    head += "from conch.server.commands.init_process import become_init\nbecome_init()\n"
    return [*UNSHARE, sys.executable, "-c", head + dedent(code)]


@contextmanager
def running(code: str, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", psutil.Process]]:
    """Yield unshare's process, after the code has printed a line, and process 1."""
    with subprocess.Popen([*as_init(code), *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            (init,) = psutil.Process(process.pid).children()
            yield process, init
        finally:
            for child in psutil.Process(process.pid).children() if process.poll() is None else []:
                child.kill()


def statuses(process: psutil.Process) -> list[str]:
    """Return the statuses of its children, none while one of them is being reaped."""
    try:
        return [child.status() for child in process.children()]
    except psutil.NoSuchProcess:
        return []


def test_the_childs_status_is_that_of_the_container() -> None:
    assert subprocess.run(as_init("sys.exit(7)"), check=False).returncode == 7
    assert subprocess.run(as_init("os.kill(os.getpid(), signal.SIGKILL)"), check=False).returncode == 128 + 9


def test_signals_reach_the_child_with_their_default_actions_too() -> None:
    code = """
        def stop(*_):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            print("stopping", flush=True)
        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        while True:
            signal.pause()
    """
    with running(code) as (process, init):
        init.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        init.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


async def test_orphans_are_reaped_and_process_1_shows_no_secrets() -> None:
    code = """
        subprocess.run(["sh", "-c", "sh -c 'read line' & exec true"], stdin=sys.stdin, check=True)
        print("ready", flush=True)
        signal.pause()
    """
    # A shell without job control gives its background commands an empty stdin, so the orphan ends at once.
    with running(code, "--openai-api-key=sesame") as (_, init):
        await until(lambda: statuses(init) == [psutil.STATUS_SLEEPING])
        await until(lambda: Path(f"/proc/{init.pid}/cmdline").read_bytes().rstrip(b"\0") == b"conch: init")


def test_the_command_line_runs_as_process_1() -> None:
    done = subprocess.run([*UNSHARE, sys.executable, "-m", "conch", "--version"], capture_output=True, check=False)
    assert (done.returncode, done.stdout[:6]) == (0, b"conch ")
