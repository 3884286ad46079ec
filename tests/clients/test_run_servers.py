"""`conch ps` and `stop` of real servers."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.running import ASCII_ONLY, TIMEOUT_S, Running, conch, environment
from tests.support.models import write_identity, write_scripted
from tests.support.ports import free_port
from tests.support.screen import Screen


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def models(home: Path) -> Iterator[Running]:
    for name in ("left", "right"):
        write_identity(home / "models", name, "FP32", 4, extra="instance_group [ { kind: KIND_GPU } ]")
    with Running(home, str(home / "models")) as server:
        yield server


def rows(home: Path) -> list[dict[str, Any]]:
    result = conch(home, "ps", "--json")
    assert result.returncode == 0, result.stderr
    return list(json.loads(result.stdout))


def test_ps_lists_models_with_the_device_really_used(home: Path, models: Running) -> None:
    left, right = rows(home)
    assert (left["model"], right["model"]) == ("left", "right")
    assert (left["backend"], left["device"], left["state"], left["queue"]) == ("identity", "CPU", "ready", 0)
    assert (left["url"], left["pid"], left["until"]) == (models.url, models.process.pid, None)
    assert left["memory"] is None  # one process for both
    assert "kind_gpu_on_cpu" in left["degraded"]


def test_ps_lists_a_language_model_with_the_device_of_its_engine(tmp_path: Path) -> None:
    write_scripted(tmp_path, "words", {})
    with Running(tmp_path, str(tmp_path / "words")):
        (row,) = rows(tmp_path)
    assert (row["model"], row["backend"], row["device"]) == ("words", "scripted", "CPU")


def test_each_of_several_models_has_a_request_that_works(models: Running) -> None:
    sent = [line for line in models.text.splitlines() if line.startswith("curl -s")]
    answers = [json.loads(subprocess.check_output(line, shell=True, timeout=TIMEOUT_S)) for line in sent]
    assert [answer["model_name"] for answer in answers] == ["left", "right"]
    assert models.text.index("\nleft:\ninputs ") < models.text.index("\nright:\ninputs ")


def test_ps_prints_a_table_and_what_is_degraded(home: Path, models: Running) -> None:
    result = conch(home, "ps", COLUMNS="120")
    assert result.returncode == 0
    head, *_ = result.stdout.splitlines()
    assert head.split() == ["model", "backend", "device", "memory", "state", "queue", "rate", "until", "url"]
    assert models.url in result.stdout
    assert "degraded: left, right: kind_gpu_on_cpu." in result.stdout


def test_ps_leaves_out_live_figures_on_a_terminal_of_eighty_columns(home: Path, models: Running) -> None:
    keyboard, terminal = pty.openpty()
    command = [sys.executable, "-m", "conch", "ps"]
    more = environment(home, TERM="dumb", COLUMNS="80")
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=more)
    os.close(terminal)
    try:
        screen = Screen(keyboard)
        head, left, right = screen.until("degraded: ").splitlines()
        assert head.split() == ["model", "backend", "device", "memory", "state", "until", "url"]
        assert left.split() == ["left", "identity", "CPU", "ready", "stopped", models.url]
        assert right.split() == ["right", "identity", "CPU", "ready", "stopped", models.url]
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)


def test_a_running_model_is_shown(home: Path, models: Running) -> None:
    result = conch(home, "show", "left")
    assert (result.returncode, result.stderr) == (0, "")
    first, *rest = result.stdout.splitlines()
    assert first == f"left at {models.url} (pid {models.process.pid}) is ready"
    lines = dict(line.split(maxsplit=1) for line in rest)
    assert (lines["backend"], lines["device"]) == ("identity", "CPU")
    assert (lines["inputs"], lines["outputs"]) == ("INPUT0 FP32[4]", "OUTPUT0 FP32[4]")
    (loaded,) = json.loads(conch(home, "show", "left", "--json").stdout)["running"]
    assert loaded["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "dims": [4]}]
    near = conch(home, "show", "lefft")
    assert (near.returncode, near.stdout) == (1, "")
    assert near.stderr == "conch show: 'lefft' is not on disk and does not run; did you mean 'left'?\n"


def test_a_running_language_model_is_shown_with_context_and_template(tmp_path: Path) -> None:
    write_scripted(tmp_path, "words", {"context_length": 300, "chat_template": "{% for m in messages %}\n{{ m }}"})
    with (tmp_path / "words/config.pbtxt").open("a") as config:
        config.write('parameters { key: "note" value { string_value: "mine" } }')
    with Running(tmp_path, str(tmp_path / "words")):
        lines = [line.strip() for line in conch(tmp_path, "show", "words").stdout.splitlines()]
        document = json.loads(conch(tmp_path, "show", "words", "--json").stdout)
    assert {"context    300 tokens", "parameters note=mine"} < {*lines}
    assert lines[-3:] == ["template", "{% for m in messages %}", "{{ m }}"]
    (loaded,) = document["running"]
    assert (document["config"]["name"], loaded["context_length"]) == ("words", 300)
    assert (loaded["parameters"], loaded["template"][:7]) == ({"note": "mine"}, "{% for ")


def test_ps_fits_forty_columns_and_watches_until_ctrl_c(home: Path, models: Running) -> None:
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "conch", "ps", "--watch", "0.2"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment(home, TERM="xterm", COLUMNS="40", NO_COLOR="1"),
        start_new_session=True,
    )
    os.close(terminal)
    try:
        screen = Screen(keyboard)
        screen.until("model    left")
        screen.until(f"url      {models.url}")
        screen.until("rate     0.0/s")  # of the second reading
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)


def test_a_load_that_takes_long_shows_its_time_in_forty_columns_and_ascii(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import os, time, conch\n\n@conch.model\nclass Slow:\n    def __init__(self):\n"
        f"        while not os.path.exists({str(tmp_path / 'go')!r}):\n            time.sleep(0.02)\n\n"
        "    def predict(self, x: float) -> float:\n        return x\n"
    )
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "conch", "run", str(app), f"--port={free_port()}"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment(tmp_path, TERM="xterm", COLUMNS="40", NO_COLOR="1", **ASCII_ONLY),
        start_new_session=True,
    )
    os.close(terminal)
    try:
        screen = Screen(keyboard)
        screen.until("of memory")
        screen.until("| starting Slow 0:00:0")
        (tmp_path / "go").touch()
        screen.until("Slow is ready on")
        screen.until("        starting the server ")
        screen.until("        starting ")
        screen.until("Ctrl-C stops the server")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)


def test_stop_explains_that_a_model_is_one_of_several(models: Running, home: Path, tmp_path: Path) -> None:
    with Running(tmp_path, str(home / "models"), "--address=0.0.0.0", "--insecure") as server:
        result = conch(tmp_path, "stop", "left")
        assert result.returncode == 1
        assert f"'left' is one of several models of {server.url}" in result.stderr
        assert f"conch stop {server.process.pid} stops this server" in result.stderr
        assert "did you mean 'left'" in conch(tmp_path, "stop", "leftt").stderr


def test_a_model_that_is_served_alone_is_stopped_with_its_server(home: Path, tmp_path: Path) -> None:
    idle = 'parameters { key: "idle_unload_secs" value { string_value: "600" } }'
    write_identity(tmp_path, "alone", "FP32", 4, extra=idle)
    with Running(tmp_path, str(tmp_path / "alone")) as server:
        (row,) = rows(tmp_path)
        assert row["memory"] > 1 << 20
        assert row["until"] > 600
        result = conch(tmp_path, "stop", "alone")
        assert (result.returncode, result.stdout) == (0, f"stopped 'alone' at {server.url}\n")
        assert server.process.wait(TIMEOUT_S) == 0
        assert rows(tmp_path) == []
        assert "no server runs; conch run X starts one" in conch(tmp_path, "ps").stdout


def test_a_model_that_is_loading_is_stopped_with_its_server(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import time, conch\n\n@conch.model\nclass Slow:\n    def __init__(self):\n        time.sleep(600)\n\n"
        "    def predict(self, x: float) -> float:\n        return x\n"
    )
    command = [sys.executable, "-m", "conch", "run", str(app), f"--port={free_port()}"]
    process = subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not rows(tmp_path):
            assert time.monotonic() < deadline
        result = conch(tmp_path, "stop", "Slow")
        assert (result.returncode, result.stdout[:15]) == (0, "stopped 'Slow' "), result.stderr
        process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()


def test_a_model_of_two_servers_is_stopped_by_its_server_also_without_a_home(tmp_path: Path) -> None:
    (tmp_path / "home").touch()  # nothing can be created in it, even by root
    (tmp_path / "temporary").mkdir()
    more = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    write_identity(tmp_path / "models", "left", "FP32", 4)
    model = str(tmp_path / "models/left")
    with Running(tmp_path, model, **more) as first, Running(tmp_path, model, port=first.port, **more) as second:
        assert f"port {first.port} is in use" in second.text
        result = conch(tmp_path, "stop", "left", **more)
        assert result.returncode == 1
        assert "'left' is loaded more than once: name the server instead, by its pid" in result.stderr
        assert f"{second.url} (pid {second.process.pid})" in result.stderr
        assert conch(tmp_path, "stop", str(first.process.pid), **more).stdout.endswith(f"at {first.url}\n")
        assert conch(tmp_path, "stop", "left", **more).stdout == f"stopped 'left' at {second.url}\n"


def test_a_server_that_does_not_answer_is_listed(home: Path, tmp_path: Path) -> None:
    write_identity(tmp_path, "alone", "FP32", 4)
    with Running(tmp_path, str(tmp_path / "alone")) as server:
        server.process.send_signal(signal.SIGSTOP)
        try:
            (row,) = rows(tmp_path)
            assert row["state"].startswith("no answer: ")
        finally:
            server.process.send_signal(signal.SIGCONT)
        with urllib.request.urlopen(f"{server.url}/v2/health/ready", timeout=TIMEOUT_S) as response:
            assert response.status == 200


def test_a_server_with_keys_says_which_key_is_missing(tmp_path: Path) -> None:
    write_identity(tmp_path, "alone", "FP32", 4)
    keys = tmp_path / "keys"
    keys.write_text("alice infer 4fQe0cW2x81Lr5kD\nme manage,infer,metrics x81Lr5kD4fQe0cW2\n")
    keys.chmod(0o600)
    with Running(tmp_path, str(tmp_path / "alone"), f"--api-key-file={keys}") as server:
        (without,) = rows(tmp_path)
        assert without["state"].endswith("its clients need a key: set CONCH_API_KEY")
        stopped = conch(tmp_path, "stop", "alone", CONCH_API_KEY="4fQe0cW2x81Lr5kD")
        assert stopped.returncode == 1
        assert "The API key 'alice' lacks the scope 'manage'." in stopped.stderr
        assert f"conch stop {server.process.pid} stops this server" in stopped.stderr
        (row,) = json.loads(conch(tmp_path, "ps", "--json", CONCH_API_KEY="x81Lr5kD4fQe0cW2").stdout)
        assert (row["model"], row["state"]) == ("alone", "ready")
        assert conch(tmp_path, "stop", "alone", CONCH_API_KEY="x81Lr5kD4fQe0cW2").returncode == 0


def test_top_and_doctor_show_all_servers(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_identity(tmp_path, name, "FP32", 4)
    with Running(tmp_path, str(tmp_path / "first")) as first, Running(tmp_path, str(tmp_path / "second")) as second:
        printed = conch(tmp_path, "top", "--once", "--interval=10ms").stdout
        lines = conch(tmp_path, "top", "--json", "--interval=10ms").stdout.splitlines()
        diagnoses = json.loads(conch(tmp_path, "doctor", "--json").stdout)
        second.process.send_signal(signal.SIGSTOP)
        try:
            silent = conch(tmp_path, "top", "--once", "--interval=10ms")
        finally:
            second.process.send_signal(signal.SIGCONT)
    assert printed.index(first.url) < printed.index("first ") < printed.index(second.url) < printed.index("second ")
    readings = [json.loads(line) for line in lines]
    assert [(reading["url"], reading["models"][0]["name"]) for reading in readings] == [
        (first.url, "first"),
        (second.url, "second"),
    ]
    assert {f"server {first.url}", f"server {second.url}"} < {diagnosis["area"] for diagnosis in diagnoses}
    assert silent.returncode == 0
    assert "first " in silent.stdout
    assert f"cannot read {second.url}: no server answers at {second.url}: " in silent.stdout


def test_stop_unloads_one_of_several_models(home: Path, models: Running) -> None:
    assert conch(home, "stop", "left").stdout == f"unloaded 'left' from {models.url}\n"
    assert [row["model"] for row in rows(home) if row["state"] == "ready"] == ["right"]
    with pytest.raises(urllib.error.HTTPError, match="503"):  # it may bring code along
        urllib.request.urlopen(f"{models.url}/v2/repository/models/left/load", b"{}", timeout=TIMEOUT_S)
