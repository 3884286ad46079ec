"""The OpenAI port and the administration of its models: health, fields, loading and unloading, who may do it."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.models import write_identity, write_scripted
from tests.support.server_process import ConchProcess

KEY = "a-secret"
ASKED: Any = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("administration")
    for name in ("one", "two"):
        write_scripted(folder / "repository", name, {"context_length": 300})
    write_identity(folder / "repository", "identity")
    flags = [
        "--openai-port=0",
        f"--openai-api-key={KEY}",
        "--model-control-mode=explicit",
        "--load-model=one",
        "--http-restricted-api=model-repository:x-admin=please",
    ]
    with ConchProcess(folder / "repository", *flags, log=folder / "log") as process:
        yield process


@pytest.fixture
def port(server: ConchProcess) -> str:
    """The URL of the OpenAI port."""
    match = re.search(r"Started OpenAI Service at 127\.0\.0\.1:(\d+)", server.text)
    assert match is not None
    return f"http://127.0.0.1:{match[1]}"


@pytest.fixture
def client(port: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{port}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
def administrator(client: openai.OpenAI) -> openai.OpenAI:
    return client.with_options(default_headers={"x-admin": "please"})


def names(client: openai.OpenAI) -> list[str]:
    return [model.id for model in client.models.list()]


def status(url: str, method: str = "GET") -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_port_has_the_api_its_health_and_metrics_and_nothing_else(port: str, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="one", messages=ASKED)
    assert answer.choices[0].message.content == "Hello there\n"
    for path in ("/health", "/health/ready", "/health/live", "/ping"):
        assert status(port + path) == (200, b"")
    assert status(f"{port}/health", "POST")[0] == 405
    metrics = status(f"{port}/metrics")[1]
    assert b'vllm:cache_config_info{enable_prefix_caching="False"' in metrics
    assert b'"None"' not in metrics
    assert set(json.loads(status(f"{port}/version")[1])) == {"version"}
    assert status(f"{port}/v2/health/ready")[0] == 401  # not a path of this port: the key is checked first
    assert status(f"{port}/v1/models")[0] == 401


def test_models_have_the_fields_that_clients_read(client: openai.OpenAI) -> None:
    model = client.models.retrieve("one").model_dump()
    assert (model["id"], model["object"], model["owned_by"]) == ("one", "model", "conch")
    assert (model["root"], model["parent"], model["max_model_len"]) == ("one", None, 300)
    assert "message.content" in model["chat_template"]
    assert model["created"] > 1_700_000_000


def test_models_are_loaded_and_unloaded(administrator: openai.OpenAI, server: ConchProcess) -> None:
    assert names(administrator) == ["one"]
    loaded: Any = administrator.post("/models/two/load", cast_to=object)
    assert (loaded["id"], loaded["max_model_len"]) == ("two", 300)
    assert names(administrator) == ["one", "two"]
    administrator.chat.completions.create(model="two", messages=ASKED)
    with pytest.raises(openai.BadRequestError, match="already loaded"):
        administrator.post("/models/two/load", cast_to=object)
    unloaded: Any = administrator.post("/models/two/unload", cast_to=object)
    assert unloaded == {"status": "success", "model": "two"}
    assert names(administrator) == ["one"]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        administrator.models.retrieve("two")
    with pytest.raises(openai.BadRequestError, match="Unknown model `two`: it is not loaded"):
        administrator.post("/models/two/unload", cast_to=object)
    with pytest.raises(openai.NotFoundError, match="failed to poll from model repository"):
        administrator.post("/models/nobody/load", cast_to=object)


def test_only_who_may_loads_and_unloads(client: openai.OpenAI, port: str) -> None:
    with pytest.raises(openai.AuthenticationError, match="restricted, expecting header 'x-admin'"):
        client.post("/models/two/load", cast_to=object)
    assert status(f"{port}/v1/models/two/load", "POST")[0] == 401
    assert names(client) == ["one"]


def test_a_restriction_of_inference_is_one_of_the_openai_api_too(tmp_path: Path) -> None:
    write_scripted(tmp_path / "repository", "one", {})
    restricted = "--http-restricted-api=inference,health:x-infer=please"
    with (
        ConchProcess(tmp_path / "repository", restricted, log=tmp_path / "log", wait="") as server,
        openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as client,
    ):
        server.until_logged("successfully loaded 'one'")
        with pytest.raises(openai.AuthenticationError, match="expecting header 'x-infer'"):
            client.chat.completions.create(model="one", messages=ASKED)
        allowed = client.with_options(default_headers={"x-infer": "please"})
        assert allowed.chat.completions.create(model="one", messages=ASKED).choices
        with pytest.raises(openai.BadRequestError, match="requires --model-control-mode=explicit"):
            client.post("/models/one/unload", cast_to=object)


def test_an_idle_engine_is_stopped_and_comes_back_when_asked(tmp_path: Path) -> None:
    parameter = 'parameters { key: "idle_unload_secs" value { string_value: "1" } }'
    write_scripted(tmp_path / "repository", "sleeper", {}, extra=parameter)
    write_scripted(tmp_path / "repository", "other", {})
    with (
        ConchProcess(tmp_path / "repository", log=tmp_path / "log") as server,
        openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as client,
    ):

        def idle(model: str) -> bool:
            labels = f'engine="0",model_name="{model}",sleep_state="discard_all",version="1"'
            return f"vllm:engine_sleep_state{{{labels}}} 1" in server.metrics()

        def starts() -> int:
            return server.text.count("starting the engine of model 'sleeper'")

        while idle("sleeper"):  # already, on a machine that is busy
            client.chat.completions.create(model="sleeper", messages=ASKED)
        before = starts()
        server.until_logged(f"(?s)('sleeper' was idle for 1 s; stopping its engine.*){{{before + 1}}}")
        assert idle("sleeper")
        assert not idle("other")
        server.until("/v2/models/sleeper/ready")
        assert names(client) == ["other", "sleeper"]
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(lambda _: client.chat.completions.create(model="sleeper", messages=ASKED), range(8))
            )
        assert {answer.choices[0].message.content for answer in answers} == {"Hello there\n"}
        assert starts() == before + 1

        # A damaged script: the cause is reported, and the model recovers with the script.
        server.until_logged(f"(?s)('sleeper' was idle.*){{{starts() + 1}}}")
        script = tmp_path / "repository" / "sleeper" / "1" / "model.json"
        script.write_text('{"surprise": 1}')
        with pytest.raises(
            openai.InternalServerError, match=r"cannot be started again.*unknown key 'surprise'"
        ) as told:
            client.chat.completions.create(model="sleeper", messages=ASKED)
        assert told.value.status_code == 503
        assert int(told.value.response.headers["retry-after"]) >= 1
        server.until("/v2/models/sleeper/ready", 400)
        script.write_text("{}")
        server.until("/v2/models/sleeper/ready")
        assert client.chat.completions.create(model="sleeper", messages=ASKED).choices
