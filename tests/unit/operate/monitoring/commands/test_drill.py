"""Messages of `conch drill`; tests/server/test_drill.py runs drills."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from conch.operate.monitoring.commands.drill import _missing, drill
from conch.operate.monitoring.commands.drill_causes import CommandCause

RULE = {"name": "Mine", "duration": 60}


class Api(BaseHTTPRequestHandler):
    """The parts of Prometheus's API that a drill reads."""

    def do_GET(self) -> None:
        is_known = self.path.startswith("/api/v1/")
        data = {"groups": [{"rules": [RULE]}]} if "rules" in self.path else {"alerts": []}
        body = json.dumps({"data": data}).encode()
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def prometheus() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert drill(arguments) == 1
    error = capsys.readouterr().err
    assert "Errno" not in error
    return error.strip()


def test_an_unknown_alert(prometheus: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = failure(capsys, "nosuch", "--prometheus", prometheus)
    assert error.endswith("has no alert 'nosuch'; conch rules prometheus writes the alerts of Conch")
    error = failure(capsys, "mne", "--prometheus", prometheus)
    assert error.endswith("has no alert 'mne'; did you mean 'Mine'?")


def test_prometheus_that_cannot_be_asked(prometheus: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = "cannot ask Prometheus at http://127.0.0.1:9: connection refused; --prometheus is its URL"
    assert expected in failure(capsys, "mine", "--prometheus", "http://127.0.0.1:9")
    error = failure(capsys, "mine", "--prometheus", f"{prometheus}/wrong")
    assert f"{prometheus}/wrong: HTTP status 404 for /api/v1/rules; --prometheus" in error


def test_an_address_in_use(prometheus: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        address = f"127.0.0.1:{used.getsockname()[1]}"
        error = failure(capsys, "mine", "--prometheus", prometheus, "--listen", address, "--command", "true")
    assert f"cannot listen on {address}: Address already in use; --listen chooses another" in error


def test_a_timeout_within_the_hold_time(prometheus: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = failure(capsys, "mine", "--prometheus", prometheus, "--command", "true", "--timeout", "30")
    assert "--timeout 30 is not longer than the hold time of Mine, 60 s" in error


def test_the_reason_why_an_alert_did_not_fire() -> None:
    seen = {"alert pending"}
    assert "is pending, and did not fire within 90 s: its hold time is 60 s" in _missing(seen, "A", 90, 60, active=True)
    assert "ended before its hold time" in _missing(seen, "A", 90, 60, active=False)


@pytest.mark.slow
def test_causes_that_fail(prometheus: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("mine", "--prometheus", prometheus, "--listen", "127.0.0.1:0")
    assert failure(capsys, *common, "--command", "false").endswith("--command 'false' failed with exit status 1")
    assert "--command '/none' cannot run: No such file" in failure(capsys, *common, "--command", "/none")
    error = failure(capsys, *common, "--load", "m", "--url", "http://127.0.0.1:9")
    assert "cannot ask the server at http://127.0.0.1:9: connection refused; --url is its URL" in error
    error = failure(capsys, *common, "--load", "m", "--url", prometheus)
    assert f"{prometheus} does not serve models (HTTP status 404); --url is its URL" in error


def test_the_output_of_a_command_is_part_of_its_failure() -> None:
    with pytest.raises(ValueError, match=r"failed with exit status 2: .*nosuchfile"):
        CommandCause("ls nosuchfile", None, print).start()


@pytest.mark.parametrize("flag", ["--prometheus", "--url"])
def test_credentials_in_urls_are_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        drill(["mine", flag, "http://user:sekret@127.0.0.1:9/"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "'http://***@127.0.0.1:9/': credentials in URLs are not supported" in error
    assert "sekret" not in error
