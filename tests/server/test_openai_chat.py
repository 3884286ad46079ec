"""Chat completions of a real server, with the official client: fields, tools, and what goes wrong midway."""

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.test_openai import TOOLS, write_scripted
from tests.support.server_process import ConchProcess

ASKED: Any = [{"role": "user", "content": "call it"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("openai_chat")
    write_scripted(folder / "repository" / "tools", TOOLS)
    with ConchProcess(folder / "repository", log=folder / "log") as process:
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as made:
        yield made


UNKNOWN: dict[str, Any] = {"verbosity": "low", "extra_body": {"my_field": 1, "surprise": {"a": 1}}}
SHOWN = "verbosity, my_field, surprise"


def test_ignored_fields_are_named_in_headers_metrics_and_log(server: ConchProcess, client: openai.OpenAI) -> None:
    answer = client.chat.completions.with_raw_response.create(model="tools", messages=ASKED, **UNKNOWN)
    assert answer.headers["X-Conch-Ignored"] == SHOWN
    assert answer.headers["X-Conch-Degraded"] == "field_ignored"
    assert answer.parse().choices[0].message.content
    streamed = client.chat.completions.with_raw_response.create(model="tools", messages=ASKED, stream=True, **UNKNOWN)
    assert streamed.headers["X-Conch-Ignored"] == SHOWN
    assert len(list(streamed.parse())) > 1
    with pytest.raises(openai.NotFoundError) as refusal:
        client.chat.completions.create(model="missing", messages=ASKED, **UNKNOWN)
    assert refusal.value.response.headers["X-Conch-Ignored"] == SHOWN
    plain = client.chat.completions.with_raw_response.create(model="tools", messages=ASKED, user="me")
    assert not {"X-Conch-Ignored", "X-Conch-Degraded"} & {*plain.headers}
    large: Any = [{"role": "user", "content": [{"type": "text", "text": "a" * 100_000, "cache_control": {}}]}]
    answer = client.chat.completions.with_raw_response.create(model="tools", messages=large, **UNKNOWN)
    assert set(answer.headers["X-Conch-Ignored"].split(", ")) == {
        *SHOWN.split(", "),
        "messages[].content[].cache_control",
    }
    chat = 'conch_ignored_fields_total{endpoint="/v1/chat/completions"'
    metrics = server.metrics()
    assert f'{chat},field="verbosity"}} 4\n' in metrics
    assert f'{chat},field="other"}} 8\n' in metrics
    assert 'conch_degraded{reason="field_ignored"} 1\n' in metrics
    for name in ("verbosity", "my_field", "surprise"):
        line = f"the field '{name}' of requests to /v1/chat/completions has no effect"
        server.until_logged(re.escape(line))
        assert server.text.count(line) == 1


def test_other_endpoints_name_ignored_fields_too(server: ConchProcess, client: openai.OpenAI) -> None:
    extra: Any = {"extra_body": {"surprise": 1}}
    completion = client.completions.with_raw_response.create(model="tools", prompt="a", **extra)
    assert completion.headers["X-Conch-Ignored"] == "surprise"
    for path, body in (("/tokenize", {"prompt": "a b"}), ("/detokenize", {"tokens": []})):
        with closing(http.client.HTTPConnection(server.http, timeout=30)) as connection:
            connection.request("POST", path, json.dumps({**body, "surprise": 1}))
            assert connection.getresponse().headers["X-Conch-Ignored"] == "surprise"


def test_a_strict_server_refuses_ignored_fields(tmp_path: Path) -> None:
    write_scripted(tmp_path / "models" / "tools", TOOLS)
    flags = "--openai-strict=true"
    with (
        ConchProcess(tmp_path / "models", flags, log=tmp_path / "log") as server,
        openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as client,
    ):
        for fields, words in (
            ({"extra_body": {"surprise": 1}}, "Unrecognized request argument supplied: surprise"),
            ({"verbosity": "low"}, "'verbosity' is not supported: the model decides"),
        ):
            with pytest.raises(openai.BadRequestError, match=words) as refusal:
                client.chat.completions.create(model="tools", messages=ASKED, **fields)  # type: ignore[call-overload]
            assert refusal.value.param in ("surprise", "verbosity")
        assert client.chat.completions.create(model="tools", messages=ASKED, verbosity="medium", user="me").choices
