"""Debian's registry of container images, on a free port."""

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.debian import debian_environment, debian_tool
from tests.support.ports import free_port


@contextmanager
def running_registry(folder: Path) -> Iterator[str]:
    """Run a registry that keeps its images in a folder, and yield `host:port`. Skips the test where there is none."""
    program = debian_tool("docker-registry")
    host = f"127.0.0.1:{free_port()}"
    storage, config = folder / "storage", folder / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{host}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: '{storage}'}}}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", config], stdout=log, stderr=log, env=debian_environment())
    try:
        _wait_for(f"http://{host}/v2/", process, folder / "log")
        yield host
    finally:
        process.terminate()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(url, timeout=60).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        else:
            return
