"""`conch pull`, `ls`, `show` and `rm`, and `conch run` of what they fetch."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.clients.running import TIMEOUT_S, Running, conch, environment
from tests.server.hub import Hub
from tests.support.registry import running_registry

EXAMPLES = Path(__file__).parents[2] / "examples/models"
DIGITS = (EXAMPLES / "digits/1/model.onnx").read_bytes()
_CHUNK = 10 << 20  # the Hub's client writes chunks of this size


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    files = {"digits.onnx": DIGITS}
    with Hub({"team/digits": files, "other/digits": files}) as hub:
        yield hub


def settings(hub: Hub, home: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}


def test_a_model_is_pulled_listed_shown_run_and_removed(hub: Hub, tmp_path: Path) -> None:
    more = settings(hub, tmp_path)

    def printed(*arguments: str) -> str:
        result = conch(tmp_path, *arguments, **more)
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert printed("ls") == "no model is on disk; conch pull hf://org/name fetches one\n"
    assert printed("pull", "team/digits").endswith("run it: conch run digits\n")
    assert hub.fetched == ["digits.onnx"]
    assert json.loads(printed("ls", "--json"))[0]["name"] == "digits"
    shown: dict[str, Any] = json.loads(printed("show", "digits", "--json"))
    assert shown["config"]["name"] == "digits"
    assert shown["memory"] > len(DIGITS)
    assert shown["files"][-1]["path"] == "1/model.onnx"
    printed("pull", "hf://team/digits")  # again, without a download
    with Running(tmp_path, "hf://team/digits", **more) as server:
        assert "digits is ready on CPU" in server.text
        result = conch(tmp_path, "rm", "digits")
        assert (result.returncode, f"'digits' is served at {server.url}" in result.stderr) == (1, True)
    conflict = conch(tmp_path, "run", "hf://other/digits", **more)
    assert conflict.returncode == 1
    assert "on disk is hf://team/digits, not hf://other/digits: --name sets another name" in conflict.stderr
    assert "did you mean 'digits'" in conch(tmp_path, "run", "digit").stderr
    assert printed("pull", "hf://team/digits", "--name=silent", "--quiet") == ""
    assert printed("rm", "silent", "-q") == ""
    assert printed("rm", "digits").startswith("removed 'digits'\n")
    assert json.loads(printed("ls", "--json")) == []
    assert hub.fetched == ["digits.onnx"]


def test_an_interrupted_download_continues_where_it_ended(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(DIGITS)
    model.doc_string = "x" * (_CHUNK + 1000)
    content = model.SerializeToString()
    with Hub({"team/large": {"large.onnx": content}}, stops_at=_CHUNK + 100) as hub:
        more = {**settings(hub, tmp_path), "HF_HUB_DISABLE_XET": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "conch", "pull", "hf://team/large"],
            env=environment(tmp_path, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while process.poll() is None and not any(
                path.stat().st_size for path in (tmp_path / "hf").rglob("*.incomplete")
            ):
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
        assert process.returncode == 130, errors
        assert "conch pull: interrupted" in errors
        assert "Traceback" not in errors
        assert list((tmp_path / ".local/share/conch/models").glob("[!.]*")) == []
        hub.goes_on.set()
        result = conch(tmp_path, "pull", "hf://team/large", **more)
        assert result.returncode == 0, result.stderr
        assert hub.ranges == [f"bytes={_CHUNK}-"]
    assert (tmp_path / ".local/share/conch/models/large/1/model.onnx").read_bytes() == content


def test_a_home_that_cannot_be_written_is_replaced(hub: Hub, tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.touch()  # nothing can be created in it, even by root
    temporary.mkdir()
    more = {**settings(hub, tmp_path), "TMPDIR": str(temporary)}
    result = conch(home, "pull", "hf://team/digits", **more)
    assert result.returncode == 0, result.stderr
    assert f"{temporary}/conch-{os.getuid()}/models/digits" in result.stdout


def test_images_of_a_registry_are_pulled_run_and_named(tmp_path: Path) -> None:
    with running_registry(tmp_path) as registry:
        url = f"oci://{registry}/team/digits:1"

        def done(*arguments: str) -> subprocess.CompletedProcess[str]:
            return conch(tmp_path, *arguments)

        packed = done("repo", "pack", str(EXAMPLES), url.removeprefix("oci://"), "--model=digits")
        assert packed.returncode == 0, packed.stderr
        store = tmp_path / ".local/share/conch/models"
        for name, flags in (("digits", ()), ("renamed", ("--name=renamed",)), ("digits", ())):
            result = done("pull", url, *flags)
            assert result.stdout.endswith(f"{store / name}\nrun it: conch run {name}\n"), result.stderr
            assert (store / name / "1/model.onnx").read_bytes() == DIGITS
        with Running(tmp_path, "renamed") as server:
            assert "renamed is ready on CPU" in server.text
        with Running(tmp_path, "renamed", "--name=third") as server:
            assert "third is ready on CPU" in server.text
        assert "no effect (--name); use conch pull" in done("run", url, "--name=third").stderr
        with Running(tmp_path, url) as server:
            assert "digits is ready on CPU" in server.text
        both = done("repo", "pack", str(EXAMPLES), f"{registry}/team/two:1", "--model=digits", "--model=simple_echo")
        assert both.returncode == 0, both.stderr
        result = done("pull", f"oci://{registry}/team/two:1", "--name=one")
        assert result.returncode == 1
        assert "--name is for one model; " in result.stderr
        assert "has 2: digits, simple_echo" in result.stderr
        result = done("pull", f"oci://{registry}/team/two:1")
        assert f"'digits' on disk is {url}, not oci://{registry}/team/two:1" in result.stderr
