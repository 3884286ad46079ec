"""`conch launch` against a real server. The program that it starts prints what it got."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme

from tests.support.models import write_scripted
from tests.support.server_process import ConchProcess

KEY = "a-secret"
PROGRAMS = ("claude", "codex", "opencode")
SHOWS = f"""#!{sys.executable}
import json, os, sys
print(json.dumps({{"arguments": sys.argv[1:], "variables": dict(os.environ)}}))
sys.exit(7)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch")
    write_scripted(folder / "repository", "words", {"context_length": 8000})
    (folder / "programs").mkdir()
    for name in PROGRAMS:
        program = folder / "programs" / name
        program.write_text(SHOWS)
        program.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ConchProcess]:
    with ConchProcess(folder / "repository", f"--openai-api-key={KEY}", log=folder / "log") as process:
        yield process


def launched(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CONCH_API_KEY": KEY, "PATH": str(folder / "programs") if path is None else path}
    command = [sys.executable, "-m", "conch", "launch", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def started(server: ConchProcess, folder: Path) -> dict[str, Any]:
    """What each program got, by its name."""
    results = {name: launched(folder, name, "--url", f"http://{server.http}", "--", "two words") for name in PROGRAMS}
    assert [result.returncode for result in results.values()] == [7] * 3, results
    return {name: json.loads(result.stdout) for name, result in results.items()}


def test_a_program_gets_server_model_and_key(server: ConchProcess, started: dict[str, Any]) -> None:
    url = f"http://{server.http}"
    variables = started["claude"]["variables"]
    assert (variables["ANTHROPIC_BASE_URL"], variables["ANTHROPIC_AUTH_TOKEN"]) == (url, KEY)
    assert variables["ANTHROPIC_MODEL"] == variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "words"
    assert variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "8000"
    settings = started["codex"]["arguments"]
    assert f'model_providers.conch.base_url="{url}/v1"' in settings
    assert "model_context_window=8000" in settings
    config = json.loads(started["opencode"]["variables"]["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == "conch/words"
    assert config["provider"]["conch"]["models"]["words"]["limit"] == {"context": 8000, "output": 2000}
    assert [started[name]["variables"]["CONCH_API_KEY"] for name in PROGRAMS] == [KEY] * 3
    assert [started[name]["arguments"][-1] for name in PROGRAMS] == ["two words"] * 3


def test_a_program_trusts_a_private_authority(folder: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    for name, blob in (("root", authority.cert_pem), ("cert", certificate.cert_chain_pems[0])):
        blob.write_to_path(str(folder / name))
    certificate.private_key_pem.write_to_path(str(folder / "key"))
    flags = ["--http-use-ssl=true", f"--http-server-cert={folder}/cert", f"--http-server-key={folder}/key"]
    with ConchProcess(folder / "repository", *flags, log=folder / "tls.log", wait="") as server:
        server.until_logged("Started HTTPService")
        url = f"https://localhost:{server.ports['http']}"
        for name, variable in (
            ("claude", "NODE_EXTRA_CA_CERTS"),
            ("codex", "CODEX_CA_CERTIFICATE"),
            ("opencode", "NODE_EXTRA_CA_CERTS"),
        ):
            result = launched(folder, name, "--url", url, "--ca-file", f"{folder}/root")
            assert result.returncode == 7, result.stderr
            shown = json.loads(result.stdout)
            assert shown["variables"][variable] == f"{folder}/root"
            assert f"{url}" in json.dumps(shown)
        refused = launched(folder, "claude", "--url", url, "--ca-file", f"{folder}/key")
        assert (refused.returncode, "cannot read the certificates in" in refused.stderr) == (1, True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_printed_lines_do_the_same_without_the_key(
    server: ConchProcess, folder: Path, started: dict[str, Any], name: str
) -> None:
    result = launched(folder, name, "--url", f"http://{server.http}", "--print", "--", "two words", path="")
    assert result.returncode == 0, result.stderr
    assert KEY not in result.stdout
    environment = {"CONCH_API_KEY": KEY, "PATH": str(folder / "programs")}
    ran = subprocess.run(["/bin/sh", "-c", result.stdout], env=environment, capture_output=True, text=True, timeout=60)
    shown = json.loads(ran.stdout)
    assert shown["arguments"] == started[name]["arguments"]
    expected = {key: value for key, value in started[name]["variables"].items() if key not in os.environ}
    assert expected.items() <= shown["variables"].items()


@pytest.mark.parametrize("model", ["${x:-$(touch taken)}", "{file:/etc/passwd}", "a\nb"])
def test_the_name_of_a_servers_model_is_not_expanded(folder: Path, model: str) -> None:
    class Hostile(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": model}], "id": model, "max_model_len": 8000}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Hostile) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        results = [launched(folder, name, "--url", f"http://127.0.0.1:{other.server_port}") for name in PROGRAMS[::2]]
        other.shutdown()
    assert [result.returncode for result in results] == [1, 1], results
    assert all("would be expanded" in result.stderr for result in results)


def test_a_server_for_the_program(folder: Path) -> None:
    result = launched(folder, "claude", "--run", str(folder / "repository" / "words"))
    assert result.returncode == 7, result.stderr
    assert json.loads(result.stdout)["variables"]["ANTHROPIC_MODEL"] == "words"


def test_what_is_missing_is_named(server: ConchProcess, folder: Path) -> None:
    missing = launched(folder, "codex", "--url", f"http://{server.http}", path="")
    assert missing.returncode == 1
    assert "'codex' is not on PATH; npm install -g @openai/codex installs it" in missing.stderr
    nowhere = launched(folder, "codex", "--url", "http://127.0.0.1:9")
    assert (nowhere.returncode, "http://127.0.0.1:9" in nowhere.stderr) == (1, True)
