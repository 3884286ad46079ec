"""LoRA adapters that are loaded and unloaded while a model is served, with an engine that follows a script."""

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.processes import command_lines
from tests.support.models import write_scripted
from tests.support.server_process import ConchProcess

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, adapters below `loras`, and a folder beside that."""
    folder = tmp_path_factory.mktemp("adapters")
    write_scripted(folder / "models", "base", {"max_adapters": 4, "reply": "Hello."})
    write_scripted(folder / "models", "fixed", {})
    for name in ("loras/poems", "loras/more/letters", "secret"):
        (folder / name).mkdir(parents=True)
        (folder / name / "adapter_config.json").write_text("{}")
    (folder / "loras" / "empty").mkdir()
    (folder / "loras" / "link").symlink_to(folder / "secret")
    (folder / "loras" / "loop").symlink_to(folder / "loras" / "loop")
    (folder / "keys").write_text("user infer key-user\nops manage,metrics key-ops\n")
    (folder / "keys").chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ConchProcess]:
    flags = (f"--lora-dir={folder / 'loras'}", f"--api-key-file={folder / 'keys'}")
    with ConchProcess(folder / "models", *flags, log=folder / "log") as process:
        yield process


def ask(server: ConchProcess, path: str, document: Any, key: str = "key-ops") -> tuple[int, str]:
    """Status and text of the answer to a POST."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{server.http}/v1/{path}", json.dumps(document).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def load(server: ConchProcess, name: str, path: str, **more: Any) -> tuple[int, str]:
    return ask(server, "load_lora_adapter", {"lora_name": name, "lora_path": path, "model": "base", **more})


def unload(server: ConchProcess, name: str) -> tuple[int, str]:
    return ask(server, "unload_lora_adapter", {"lora_name": name, "model": "base"})


def complete(server: ConchProcess, model: str) -> str:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="key-user", max_retries=0) as client:
        return client.completions.create(model=model, prompt="Hi").choices[0].text


def test_an_adapter_is_loaded_used_and_unloaded(server: ConchProcess, folder: Path) -> None:
    assert load(server, "poems", "poems") == (200, "Success: LoRA adapter 'poems' added successfully.")
    assert load(server, "letters", str(folder / "loras" / "more" / "letters"))[0] == 200
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="key-user") as client:
        listed = {model.id: model for model in client.models.list()}
    assert {"base", "base_lora_poems", "base_lora_letters", "fixed"} == {*listed}
    assert complete(server, "base_lora_poems") == complete(server, "poems") == "Hello."  # the latter as with vLLM
    status, text = load(server, "poems", "poems")
    assert (status, "already been loaded" in text) == (400, True)
    assert load(server, "poems", "more/letters", load_inplace=True)[0] == 200
    assert unload(server, "letters") == (200, "Success: LoRA adapter 'letters' removed successfully.")
    with pytest.raises(openai.NotFoundError):
        complete(server, "base_lora_letters")
    assert unload(server, "letters")[0] == 404
    assert unload(server, "poems")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc", "link", "loop", "absent", "", ".", "..", "poems/../../secret", "poems\0", "%2e%2e/secret"],
)
def test_paths_stay_in_the_folder(server: ConchProcess, folder: Path, path: str) -> None:
    """The answer is the same whether the path exists or not."""
    for sent in (path, str(folder / "secret")):
        status, text = load(server, "escape", sent)
        assert status == 400
        assert json.loads(text)["error"]["message"] == (
            "'lora_path' must be a folder below --lora-dir, or its path within that"
        )


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\nb", "x" * 200, "base", ".hidden", "a,b"])
def test_names_are_restricted(server: ConchProcess, name: str) -> None:
    status, text = load(server, name, "poems")
    assert (status, "lora_name" in text) == (400, True)


def test_adapters_that_the_engine_refuses(server: ConchProcess) -> None:
    status, text = load(server, "empty", "empty")
    assert (status, "has no adapter_config.json" in text) == (400, True)
    status, text = ask(server, "load_lora_adapter", {"lora_name": "x", "lora_path": "poems"})
    assert (status, "base, fixed" in text) == (400, True)


def test_keys_without_the_scope_manage_load_nothing(server: ConchProcess) -> None:
    for key, expected in (("key-user", 403), ("wrong", 401)):
        for path in ("load_lora_adapter", "unload_lora_adapter"):
            assert ask(server, path, {"lora_name": "poems", "lora_path": "poems", "model": "base"}, key)[0] == expected


def test_adapters_survive_the_death_of_the_engine(server: ConchProcess) -> None:
    assert load(server, "poems", "poems")[0] == 200
    (pid,) = engines(server, "base")
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + TIMEOUT_S
    while engines(server, "base") in ([], [pid]) or load(server, "probe", "poems")[0] == 503:
        assert time.monotonic() < deadline, server.text
        time.sleep(0.05)
    assert complete(server, "poems") == "Hello."
    assert [unload(server, name)[0] for name in ("poems", "probe")] == [200, 200]


def test_loads_at_the_same_time_are_counted(server: ConchProcess) -> None:
    """However many clients load at once, a model has at most 256 adapters, and a name is loaded once."""
    with ThreadPoolExecutor(40) as pool:
        names = [f"many{number}" for number in range(300)]
        answers = [*pool.map(lambda name: load(server, name, "poems"), names)]
        assert [status for status, _ in answers].count(200) == 256
        assert {text for _, text in answers if "256 adapters, which is the maximum" in text}
        loaded = [name for name, (status, _) in zip(names, answers, strict=True) if status == 200]
        assert [*pool.map(lambda name: unload(server, name)[0], loaded)] == [200] * 256
        same = [*pool.map(lambda _: load(server, "same", "poems")[0], range(40))]
    assert (same.count(200), {*same} - {200}) == (1, {400, 503} & {*same})
    assert unload(server, "same")[0] == 200


def test_the_metric_of_adapters(server: ConchProcess) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{server.ports['metrics']}/metrics")
    request.add_header("Authorization", "Bearer key-ops")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        series = [line for line in answer.read().decode().splitlines() if line.startswith("vllm:lora_requests_info{")]
    (only,) = series  # the other model takes no adapters
    assert 'max_lora="4"' in only
    assert 'running_lora_adapters=""' in only
    assert 'waiting_lora_adapters=""' in only


def test_without_the_folder_nothing_is_loaded(folder: Path, tmp_path: Path) -> None:
    with ConchProcess(folder / "models", log=tmp_path / "log") as server:
        status, text = load(server, "poems", "poems")
        assert (status, "--lora-dir" in text) == (400, True)


def engines(server: ConchProcess, model: str) -> list[int]:
    """The processes of a model's engine."""
    return [
        child.pid for child, line in command_lines(server.process.pid) if re.search(rf"\b{model}\b", " ".join(line))
    ]
