"""Clients written for vLLM: its extensions of the OpenAI API, sent by the official client to a real server.

`words` follows a script, whose tokens are known; `chat` is the language model that ships, run by OpenVINO GenAI.
"""

import http.client
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.test_openai import TOOL, write_scripted
from tests.support.server_process import ConchProcess

CHAT = Path(__file__).parents[2] / "examples" / "models" / "chat"
ASKED: Any = [{"role": "user", "content": "How is the weather?"}]
SCRIPT: dict[str, Any] = {
    "rules": [
        {"match": "think", "reply": "<think>Hm.</think>Done."},
        {"match": "<tool_response>\\nIt rains", "reply": "So it rains in Rome."},
        {
            "match": '<tools>\\n.*"name":"weather"(.|\\n)*Rome',
            "reply": 'I look. <tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>',
        },
        {"match": "weather", "reply": "It rains all day."},
    ],
    "context_length": 400,
    "chat_template": (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}{{ documents or '' }}"
        "{% if add_generation_prompt %}assistant:{% endif %}{# </think> #}"
    ),
}
# What load tools and gateways send though it changes nothing.
DEFAULTS: dict[str, Any] = {
    "best_of": 1,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "stop": None,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None,
    "prompt_logprobs": None,
    "allowed_token_ids": None,
    "bad_words": [],
    "logit_bias": {},
    "logprobs": None,
    "stream_options": None,
    "stream": False,
    "n": 1,
    "seed": None,
    "user": None,
    "priority": 0,
    "guided_json": None,
    "guided_choice": None,
    "guided_decoding_backend": None,
    "guided_whitespace_pattern": None,
    "structured_outputs": None,
    "response_format": None,
    "logits_processors": None,
    "return_tokens_as_token_ids": False,
    "return_token_ids": False,
    "cache_salt": None,
    "kv_transfer_params": None,
    "mm_processor_kwargs": None,
    "vllm_xargs": None,
    "thinking_token_budget": -1,
    "stream_interval": 1,
    "add_special_tokens": True,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("vllm_clients")
    write_scripted(folder / "repository" / "words", SCRIPT)
    shutil.copytree(CHAT, folder / "repository" / "chat")
    shutil.copytree(CHAT, folder / "repository" / "uncached")
    options = folder / "repository" / "uncached" / "1" / "model.json"
    options.write_text(json.dumps({**json.loads(options.read_text()), "enable_prefix_caching": False}))
    with ConchProcess(folder / "repository", log=folder / "log") as process:
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as made:
        yield made


def post(server: ConchProcess, path: str, document: dict[str, Any]) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection(server.http, timeout=30)) as connection:
        connection.request("POST", path, json.dumps(document), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("model", ["words", "chat"])
def test_defaults_sent_explicitly_are_accepted(server: ConchProcess, model: str) -> None:
    sent = {**DEFAULTS, "model": model, "max_tokens": 2}
    status, answer = post(server, "/v1/completions", {**sent, "prompt": "copy a", "echo": False, "suffix": None})
    assert (status, answer["usage"]["completion_tokens"]) == (200, 2), answer
    del sent["best_of"]
    chat = {
        "tools": None,
        "tool_choice": None,
        "top_logprobs": None,
        "functions": None,
        "documents": None,
        "chat_template": None,
        "chat_template_kwargs": None,
        "continue_final_message": False,
        "add_generation_prompt": True,
        "add_special_tokens": False,
        "parallel_tool_calls": None,
        "include_reasoning": True,
        "echo": False,
    }
    status, answer = post(server, "/v1/chat/completions", {**sent, **chat, "messages": ASKED})
    assert (status, answer["usage"]["completion_tokens"]) == (200, 2), answer


@pytest.mark.parametrize(
    "field",
    [
        {"use_beam_search": True},
        {"logits_processors": ["a.b"]},
        {"vllm_xargs": {"a": 1}},
        {"logprob_token_ids": [1]},
        {"prompt_embeds": "AAAA"},
        {"structured_outputs": {"regex": "a", "structural_tag": "b"}},
        {"bad_words": ["rain"]},
        {"allowed_token_ids": [1]},
        {"cache_salt": "abc"},
        {"truncation_side": "middle"},
        {"truncate_prompt_tokens": 0},
        {"priority": 1},
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_name(server: ConchProcess, field: dict[str, Any]) -> None:
    status, answer = post(server, "/v1/completions", {"model": "chat", "prompt": "weather", "max_tokens": 1, **field})
    assert status == 400
    assert next(iter(field)) in answer["error"]["message"]


def test_what_changes_nothing_is_ignored_and_named(client: openai.OpenAI) -> None:
    extra = {
        "kv_transfer_params": {"do_remote_decode": True},
        "thinking_token_budget": 5,
        "stream_interval": 5,
        "guided_whitespace_pattern": " ",
        "no_such_field": 1,
    }
    answer = client.completions.with_raw_response.create(model="chat", prompt="a", max_tokens=1, extra_body=extra)
    assert answer.headers["X-Conch-Ignored"].split(", ") == [*extra]


@pytest.mark.parametrize("model", ["words", "chat"])
def test_lengths_are_what_a_load_tool_wants(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="copy", max_tokens=30, extra_body={"ignore_eos": True, "min_tokens": 30}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 30
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("model", ["words", "chat"])
def test_every_chunk_has_the_usage_so_far(client: openai.OpenAI, model: str) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    whole = client.completions.create(model=model, prompt="how is the weather", max_tokens=5)
    assert whole.usage is not None
    chunks = list(
        client.completions.create(
            model=model, prompt="how is the weather", max_tokens=5, stream=True, stream_options=options
        )
    )
    usages = [chunk.usage for chunk in chunks]
    assert all(usage is not None for usage in usages)
    counts = [usage.completion_tokens for usage in usages if usage is not None]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert {usage.prompt_tokens for usage in usages if usage is not None} == {whole.usage.prompt_tokens}
    talk = list(
        client.chat.completions.create(model=model, messages=ASKED, max_tokens=5, stream=True, stream_options=options)
    )
    assert all(chunk.usage is not None and chunk.usage.prompt_tokens for chunk in talk)
    assert talk[0].choices[0].delta.role == "assistant"
    assert talk[-1].choices == []


def test_token_ids_come_with_the_text(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True, "return_tokens_as_token_ids": True, "ignore_eos": True}
    answer = client.completions.create(model="chat", prompt="copy a folder", max_tokens=4, logprobs=0, extra_body=extra)
    choice: Any = answer.choices[0]
    assert answer.usage is not None
    assert len(choice.prompt_token_ids) == answer.usage.prompt_tokens
    assert len(choice.token_ids) == 4
    assert choice.logprobs.tokens == [f"token_id:{token_id}" for token_id in choice.token_ids]
    again: Any = client.completions.create(
        model="chat", prompt=[choice.prompt_token_ids], max_tokens=4, temperature=0, stream=True, extra_body=extra
    )
    chunks = [chunk.choices[0] for chunk in again]
    assert chunks[0].prompt_token_ids == choice.prompt_token_ids
    assert not hasattr(chunks[1], "prompt_token_ids")
    assert sum(len(chunk.token_ids) for chunk in chunks) == 4
    chat: Any = client.chat.completions.create(model="chat", messages=ASKED, max_tokens=4, extra_body=extra)
    assert len(chat.prompt_token_ids) == chat.usage.prompt_tokens
    assert len(chat.choices[0].token_ids) == 4
    streamed: Any = client.chat.completions.create(
        model="chat", messages=ASKED, max_tokens=4, stream=True, extra_body=extra
    )
    first, *rest = list(streamed)
    assert first.prompt_token_ids == chat.prompt_token_ids
    assert sum(len(chunk.choices[0].token_ids) for chunk in rest) == 4


def test_an_echo_has_the_log_probabilities_of_the_prompt(client: openai.OpenAI) -> None:
    plain = client.completions.create(model="uncached", prompt="copy a folder", max_tokens=3, temperature=0, logprobs=0)
    answer = client.completions.create(
        model="uncached", prompt="copy a folder", max_tokens=3, temperature=0, logprobs=0, echo=True
    )
    assert answer.usage is not None
    assert answer.choices[0].text == "copy a folder" + plain.choices[0].text
    told, alone = answer.choices[0].logprobs, plain.choices[0].logprobs
    assert told is not None
    assert alone is not None
    assert told.tokens is not None
    assert told.token_logprobs is not None
    assert len(told.tokens) == answer.usage.prompt_tokens + 3
    assert "".join(told.tokens) == answer.choices[0].text
    assert told.token_logprobs[0] is None
    assert all(logprob < 0 for logprob in told.token_logprobs[1:])
    assert told.tokens[-3:] == alone.tokens

    # The prompt alone, by its token ids, as harnesses measure likelihoods.
    ids: Any = client.completions.create(
        model="uncached", prompt="copy a folder", max_tokens=1, extra_body={"return_token_ids": True}
    )
    scored: Any = client.completions.create(
        model="uncached", prompt=[ids.choices[0].prompt_token_ids] * 2, max_tokens=0, echo=True, logprobs=0
    )
    for choice in scored.choices:
        assert choice.text == "copy a folder"
        assert choice.logprobs.token_logprobs == told.token_logprobs[: len(choice.logprobs.tokens)]
        assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens
    assert scored.usage.completion_tokens == 0
    asked: Any = client.chat.completions.create(
        model="uncached", messages=ASKED, max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    assert asked.prompt_logprobs[0] is None
    (entry,) = asked.prompt_logprobs[1].values()
    assert entry["logprob"] < 0


def test_a_cached_prompt_has_no_log_probabilities(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match='"enable_prefix_caching": false'):
        client.completions.create(model="chat", prompt="copy a folder", max_tokens=1, logprobs=0, echo=True)


def test_an_echo_is_streamed(client: openai.OpenAI) -> None:
    for model in ("words", "chat"):
        whole = client.completions.create(model=model, prompt="copy a folder", max_tokens=3, temperature=0, echo=True)
        stream = client.completions.create(
            model=model, prompt="copy a folder", max_tokens=3, temperature=0, echo=True, stream=True
        )
        text = "".join(chunk.choices[0].text for chunk in stream)
        assert text == whole.choices[0].text
        assert text.startswith("copy a folder")
    nothing = client.completions.create(model="words", prompt="one two", max_tokens=0, echo=True)
    assert nothing.choices[0].text == "one two"
    with pytest.raises(openai.BadRequestError, match="max_tokens must be at least 1"):
        client.completions.create(model="words", prompt="one two", max_tokens=0)


def test_a_prompt_is_truncated(client: openai.OpenAI) -> None:
    def kept(prompt: Any, **extra: Any) -> tuple[str, int]:
        answer = client.completions.create(model="words", prompt=prompt, max_tokens=1, echo=True, extra_body=extra)
        assert answer.usage is not None
        return answer.choices[0].text, answer.usage.prompt_tokens

    assert kept("one two three", truncate_prompt_tokens=2) == (" two three two", 2)
    assert kept("one two three", truncate_prompt_tokens=2, truncation_side="right") == ("one twoone", 2)
    assert kept("one " * 1000, truncate_prompt_tokens=-1)[1] == 399
    answer = client.completions.create(
        model="chat",
        prompt="copy a folder " * 2000,
        max_tokens=2,
        extra_body={"truncate_prompt_tokens": -1, "ignore_eos": True},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


def test_a_client_chooses_the_id(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="words", prompt="a", extra_body={"request_id": "mine"})
    assert answer.id == "cmpl-mine"
    chat = client.chat.completions.create(model="words", messages=ASKED, extra_headers={"X-Request-Id": "r-1"})
    assert chat.id == "chatcmpl-r-1"


def test_messages_are_continued_echoed_and_have_documents(client: openai.OpenAI) -> None:
    talk: Any = [*ASKED, {"role": "assistant", "content": "It"}]
    extra: Any = {
        "continue_final_message": True,
        "add_generation_prompt": False,
        "echo": True,
        "return_token_ids": True,
    }
    answer: Any = client.chat.completions.create(model="words", messages=talk, extra_body=extra)
    assert answer.choices[0].message.content == "ItIt rains all day."
    assert answer.usage.prompt_tokens == 7  # user: How is the weather? assistant: It
    streamed = client.chat.completions.create(model="words", messages=talk, stream=True, extra_body=extra)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == "ItIt rains all day."
    with pytest.raises(openai.BadRequestError, match="cannot both be true"):
        client.chat.completions.create(
            model="words", messages=talk, extra_body={**extra, "add_generation_prompt": True}
        )
    plain: Any = client.chat.completions.create(model="words", messages=ASKED)
    more: Any = client.chat.completions.create(
        model="words", messages=ASKED, extra_body={"documents": [{"title": "a", "text": "b"}]}
    )
    assert more.usage.prompt_tokens > plain.usage.prompt_tokens
    thought: Any = client.chat.completions.create(
        model="words", messages=[{"role": "user", "content": "think"}], extra_body={"include_reasoning": False}
    )
    assert thought.choices[0].message.content == "Done."
    assert not hasattr(thought.choices[0].message, "reasoning_content")


def test_tools_of_a_template_without_tools_are_called(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "How is it in Rome?"}]
    tools: Any = [TOOL]
    answer = client.chat.completions.create(model="words", messages=asked, tools=tools, tool_choice="auto")
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rome"})
    asked += [choice.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "It rains."}]
    again = client.chat.completions.create(model="words", messages=asked, tools=tools)
    assert again.choices[0].message.content == "So it rains in Rome."
    # A model that has not learnt it answers with text.
    plain = client.chat.completions.create(model="chat", messages=ASKED, tools=tools, max_tokens=5)
    assert plain.choices[0].message.content
    assert not plain.choices[0].message.tool_calls


def test_tokens_and_texts_of_a_model(server: ConchProcess, client: openai.OpenAI) -> None:
    status, tokenized = post(
        server, "/tokenize", {"model": "chat", "prompt": "copy a folder", "return_token_strs": True}
    )
    assert status == 200
    assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"]) > 0
    assert "".join(tokenized["token_strs"]) == "copy a folder"
    assert tokenized["max_model_len"] == client.models.retrieve("chat").to_dict()["max_model_len"]
    assert post(server, "/detokenize", {"model": "chat", "tokens": tokenized["tokens"]}) == (
        200,
        {"prompt": "copy a folder"},
    )
    answer = client.chat.completions.create(model="chat", messages=ASKED, max_tokens=1)
    assert answer.usage is not None
    status, talk = post(server, "/tokenize", {"model": "chat", "messages": ASKED})
    assert (status, talk["count"]) == (200, answer.usage.prompt_tokens)
    assert talk["token_strs"] is None
    assert post(server, "/tokenize", {"model": "chat", "prompt": ""})[1]["tokens"] == []
    assert post(server, "/tokenize", {"prompt": "a"})[0] == 400  # which of the two?
    assert post(server, "/tokenize", {"model": "chat"})[0] == 400
    assert post(server, "/tokenize", {"model": "nobody", "prompt": "a"})[0] == 404
    assert post(server, "/detokenize", {"model": "chat", "tokens": [10**9]})[0] == 400
    assert post(server, "/detokenize", {"model": "chat", "tokens": []}) == (200, {"prompt": ""})


def test_models_have_the_fields_of_vllm(client: openai.OpenAI) -> None:
    model: Any = client.models.retrieve("chat").to_dict()
    assert model["root"] == "chat"
    assert model["max_model_len"] > 0
    assert model["permission"][0]["allow_sampling"] is True


def test_the_http_port_has_the_paths_of_vllms_server(server: ConchProcess) -> None:
    def get(path: str, method: str = "GET") -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(server.http, timeout=30)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    assert get("/health") == get("/ping") == (200, b"")
    assert set(json.loads(get("/version")[1])) == {"version"}
    assert get("/health", "POST")[0] == 405
    assert get("/tokenize")[0] == 405
    assert get("/v2/health/ready")[0] == 200
