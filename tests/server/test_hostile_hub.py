"""`conch repo add hf://…` from a Hub that lies about names, sizes and commits, or redirects to another host."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from socket import create_server
from threading import Event, Thread

import pytest

from conch.base.errors import Unavailable
from conch.clients.repository import hub_download
from conch.clients.repository.hub_download import bounded_bars
from tests.server.backends.engines.gguf_model import write_gguf
from tests.server.hub import Hub
from tests.server.test_repo_add import from_hub

MIB = 1 << 20


def left(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file() and path.stat().st_size > 1000]


def test_more_bytes_than_announced(tmp_path: Path) -> None:
    with Hub({"team/one": {"one.gguf": bytes(40 * MIB)}}, announced={"one.gguf": MIB}) as hub:
        result = from_hub(hub, tmp_path, "hf://team/one")
    assert result.returncode == 1
    assert "team/one cannot be fetched: " in result.stderr
    assert left(tmp_path) == []
    assert not (tmp_path / "models").exists()


def test_more_bytes_in_all_than_announced(tmp_path: Path) -> None:
    """Each file stays below the limit of one. Which check ends the download depends on how many come at once."""
    names = [f"model-{number:05}-of-00004.safetensors" for number in range(1, 5)]
    files = {"config.json": b"{}", **dict.fromkeys(names, bytes(12 * MIB))}
    with Hub({"team/one": files}, announced=dict.fromkeys(names, MIB)) as hub:
        result = from_hub(hub, tmp_path, "hf://team/one")
    assert result.returncode == 1
    assert "team/one cannot be fetched: " in result.stderr
    assert not (tmp_path / "models").exists()


def test_the_bytes_of_all_files_are_counted() -> None:
    bars = bounded_bars(10)
    files, transferred = bars(disable=True), bars(disable=True, unit="B")
    files.update(11)
    transferred.update(10)
    with pytest.raises(OSError, match="sends more than the 10 bytes that it announces"):
        transferred.update(1)


def test_more_bytes_than_the_disk_has(tmp_path: Path) -> None:
    with Hub({"team/one": {"one.gguf": b"GGUF"}}, announced={"one.gguf": 10**15}) as hub:
        result = from_hub(hub, tmp_path, "hf://team/one")
        assert hub.fetched == []
    assert result.returncode == 1
    assert "conch repo add: team/one needs 1000000000000000 bytes, but '" in result.stderr
    assert "set HF_HOME to another disk" in result.stderr


def test_a_list_without_end(tmp_path: Path) -> None:
    with Hub({"team/one": {"one.gguf": b"GGUF"}}, endless=True) as hub:
        result = from_hub(hub, tmp_path, "hf://team/one")
    assert result.returncode == 1
    assert "cannot be fetched: the Hub's answer takes too much memory" in result.stderr


def test_a_list_that_trickles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then, so that no wait for the next one takes long."""
    stop = Event()
    listener = create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
                while not stop.wait(0.05):
                    connection.sendall(b" ")

    thread = Thread(target=serve)
    thread.start()
    monkeypatch.setattr(hub_download.constants, "ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
    monkeypatch.setattr(hub_download, "_LIST_S", 1.0)
    try:
        with pytest.raises(Unavailable, match="the list of its files takes more than 1 s"):
            hub_download.fetch(hub_download.parse_location("hf://team/one"), str)
    finally:
        stop.set()
        thread.join()


# Fetches with a short window.
FETCH = """
from conch.clients.repository import hub_download
hub_download.SLOW_WINDOW_S = 0.5
print(hub_download.fetch(hub_download.parse_location("hf://team/one"), str))
"""


def fetched(hub: Hub, home: Path, code: str = FETCH) -> subprocess.CompletedProcess[str]:
    """Run code in a separate process: the library reads its environment when it is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


def test_a_file_that_trickles_is_resumed(tmp_path: Path) -> None:
    content = b"GGUF" + bytes(range(256)) * (12 * MIB // 256)
    with Hub({"team/one": {"one.gguf": content}}, stops_at=11 * MIB, trickles=True) as hub:
        result = fetched(hub, tmp_path)
        assert Path(result.stdout.strip()).read_bytes() == content, result.stderr
        assert hub.ranges == [f"bytes={10 * MIB}-"]  # the library writes in pieces of 10 MiB


def test_a_file_that_always_trickles(tmp_path: Path) -> None:
    with Hub({"team/one": {"one.gguf": b"GGUF" + bytes(MIB)}}, stops_at=100, trickles=True) as hub:
        result = fetched(hub, tmp_path)
    assert result.returncode == 1
    slow = r"team/one cannot be fetched: too slow: \d+ bytes in \d s, the minimum is 1024 bytes a second"
    assert re.search(slow, result.stderr), result.stderr
    assert left(tmp_path) == []


@pytest.mark.parametrize("inner", ["http://169.254.169.254", "http://[fe80::1]"])
def test_a_redirect_to_an_inner_host(tmp_path: Path, inner: str) -> None:
    with Hub({"team/one": {"one.gguf": b"GGUF"}}, redirect=inner) as hub:
        result = from_hub(hub, tmp_path, "hf://team/one")
    assert result.returncode == 1
    assert f"{hub.endpoint}: names the inner address {inner}/team/one/" in result.stderr
    assert "which is refused" in result.stderr


def test_a_redirect_to_an_inner_host_after_a_failed_connection(tmp_path: Path) -> None:
    """The library closes its client after a failed connection and makes another, which has the checks, too."""
    code = """
import huggingface_hub
from conch.clients.repository import hub_download
listed = hub_download._listed
def closing(location):
    found = listed(location)
    huggingface_hub.close_session()
    return found
hub_download._listed = closing
hub_download.fetch(hub_download.parse_location("hf://team/one"), str)
"""
    with Hub({"team/one": {"one.gguf": b"GGUF"}}, redirect="http://169.254.169.254") as hub:
        result = fetched(hub, tmp_path, code)
    assert result.returncode == 1
    assert f"{hub.endpoint}: names the inner address http://169.254.169.254/team/one/" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("name", ["../../evil.gguf", "/tmp/evil.gguf", "a\x1b[2J\n.gguf", "a\\..\\b.gguf"])
def test_names_that_lead_out_or_control_the_terminal(tmp_path: Path, name: str) -> None:
    with Hub({"team/one": {name: b"GGUF"}}) as hub:
        result = from_hub(hub, tmp_path / "a" / "b", "hf://team/one")
        assert hub.fetched == []
    assert result.returncode == 1
    assert "leads out of its folder" in result.stderr or "contains control characters" in result.stderr
    assert "\x1b" not in result.stderr + result.stdout
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("commit", ["../../../evil", "..", "\x1b[2J"])
def test_commits_are_not_paths(tmp_path: Path, commit: str) -> None:
    with Hub({"team/one": {"one.gguf": b"GGUF"}}, commit=commit) as hub:
        result = from_hub(hub, tmp_path, "hf://team/one")
    assert result.returncode == 1
    assert "is not a commit" in result.stderr
    assert "\x1b" not in result.stderr


def test_a_redirect_to_another_host_has_no_token(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "small.gguf").read_bytes()
    models = {"team/one": {"one.gguf": gguf}}
    with Hub(models) as other, Hub(models, redirect=other.endpoint.replace("127.0.0.1", "localhost")) as hub:
        result = from_hub(hub, tmp_path, "hf://team/one", HF_TOKEN="hf_secret")
    assert result.returncode == 0, result.stderr
    assert "Bearer hf_secret" in hub.authorizations
    assert other.fetched == ["one.gguf"]
    assert not any(other.authorizations)
    assert "hf_secret" not in result.stdout + result.stderr
