"""`conch bench` asks the server before it imports what makes and measures requests: its start is quick."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 60.0
SCRIPT = str(Path(sys.executable).with_name("conch"))
# None of these, nor what is below them, before the first request.
LATER = (
    "asyncio",
    "bz2",
    "conch.domain.arrivals",
    "conch.measure.bench.inputs",
    "conch.measure.bench.load",
    "conch.measure.bench.observers",
    "conch.measure.bench.report",
    "conch.measure.bench.bench_run",
    "conch.measure.bench.statistics",
    "conch.measure.bench.run_view",
    "conch.measure.bench.run_view",
    "conch.protocols",
    "conch.domain.tensor",
    "difflib",
    "google",
    "grpc",
    "hpack",
    "importlib.metadata",
    "lzma",
    "multiprocessing",
    "numpy",
    "orjson",
    "platform",
    "rich",
    "statistics",
    "subprocess",
    "yaml",
)
# None of these before the first request of the load, if it is of generated tensors.
AFTER_THE_LOAD = (
    "conch.measure.bench.inputs.expected_answers",
    "conch.measure.bench.inputs.tensor_files",
    "conch.measure.bench.inputs.prompt_files",
    "conch.measure.bench.inputs.image_files",
    "conch.measure.bench.inputs.language",
    "conch.measure.bench.report",
    "conch.measure.bench.statistics",
    "google",
    "grpc",
    "hpack",
    "rich",
)


def modules_before_first_request(errors: Path, *command: str) -> list[str]:
    """Return what Python imports until the first byte of a request has come."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        errors.open("wb") as written,
        subprocess.Popen(
            [sys.executable, "-X", "importtime", *command, "bench", f"127.0.0.1:{listener.getsockname()[1]}", "-m=m"],
            stdout=subprocess.DEVNULL,
            stderr=written,
        ) as process,
    ):
        try:
            listener.settimeout(TIMEOUT_S)
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(TIMEOUT_S)
                assert connection.recv(4) == b"GET "
                return [line.rpartition("|")[2].strip() for line in errors.read_text().splitlines()]
        finally:
            process.kill()


@pytest.mark.parametrize("command", [("-m", "conch"), (SCRIPT,)], ids=["module", "script"])
def test_first_request_comes_before_what_makes_requests(tmp_path: Path, command: tuple[str, ...]) -> None:
    loaded = modules_before_first_request(tmp_path / "imports", *command)
    assert "conch.measure.bench.targets.discover" in loaded
    assert below(LATER, loaded) == []


def below(packages: tuple[str, ...], loaded: list[str]) -> list[str]:
    return [name for name in loaded if any(name == package or name.startswith(f"{package}.") for package in packages)]


def test_the_load_begins_before_statistics_and_reports_are_imported() -> None:
    script = "import sys, conch.measure.bench.bench_run, conch.measure.bench.run_view; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert below(AFTER_THE_LOAD, loaded.stdout.split()) == []
