"""Every decoder answers values of the wrong kind with a message about the request, never with one of Python."""

import copy
import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.support.models import write_identity, write_scripted
from tests.support.server_process import ConchProcess

# What Python's own errors look like; and the answer to an error that was not expected.
PYTHON = re.compile(
    r"NoneType|' object |has no attribute|invalid literal for|Exceeds the limit|codec can't|is not iterable|unhashable"
    r"|subscriptable|must be real number|unsupported operand|cannot convert|expected str|bytes-like|argument of type"
    r"|surrogates not allowed|Traceback|int too large|<class|takes \d|(?:Key|Type|Value|Attribute|System)Error"
    r"|internal error|type object|not '(?:int|str|list|dict|bool|float)'"
)
WRONG = (
    "null", "true", "[]", "{}", '""', '"\\ud800"', '"a\\u0000b"', "-1", "1e400", "NaN", "1" * 400, "1" * 5000, "1.5",
    '"' + "1" * 400 + '"', '"' + "1" * 5000 + '"', "[null]", "[[]]", '{"a":null}', '"\uff11"', '"1_0"', '"nan"',
)  # fmt: skip
PLACE = "@@place@@"
TENSOR = {"data_type": "TYPE_FP32", "dims": [4]}
CONFIG = {
    "name": "m",
    "backend": "identity",
    "max_batch_size": 4,
    "input": [{"name": "INPUT0", "reshape": {"shape": [4]}, "format": "FORMAT_NONE", **TENSOR}],
    "output": [{"name": "OUTPUT0", "label_filename": "x", **TENSOR}],
    "instance_group": [{"name": "g", "kind": "KIND_CPU", "count": 1, "rate_limiter": {"resources": [{"name": "r"}]}}],
    "dynamic_batching": {"preferred_batch_size": [2], "default_queue_policy": {"timeout_action": "DELAY"}},
    "version_policy": {"specific": {"versions": [1]}},
    "model_warmup": [{"name": "w", "batch_size": 1, "inputs": {"INPUT0": {"zero_data": True, **TENSOR}}}],
    "parameters": {"execute_delay_ms": {"string_value": "1"}, "idle_unload_secs": {"string_value": "1"}},
    "optimization": {"cuda": {"graph_spec": [{"batch_size": 1, "input": {"a": {"dim": [1]}}}]}},
}
LOAD = "/v2/repository/models/m/load"
TRACE = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "-1", "log_frequency": "0"}
PART = {"shared_memory_region": "a", "shared_memory_offset": 0, "shared_memory_byte_size": 3, "binary_data_size": 4}
INPUT = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "x"}]}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT = {"model": "llm", "messages": [MESSAGE]}
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "conch:eA=="},
    {"type": "function_call", "call_id": "a", "name": "f", "namespace": "n", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": "x"}]},
]
TOOLS = [
    {"type": "custom", "name": "c", "format": {"type": "text"}},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "parameters": {}}]},
]
RESPONSE = {"model": "llm", "input": "x", "text": {"format": {"type": "text"}}, "store": False, "instructions": "x"}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (LOAD, {"parameters": {"config": json.dumps(CONFIG), "file:1/model": "aGk="}}),
    ("/v2/repository/models/none/unload", {"parameters": {"unload_dependents": True}}),
    ("/v2/repository/index", {"ready": True}),
    ("/v2/logging", {"log_info": True, "log_verbose_level": 0, "log_format": "default"}),
    ("/v2/trace/setting", TRACE),
    ("/v2/models/m/trace/setting", TRACE),
    ("/v2/systemsharedmemory/region/a/register", {"key": "/none", "offset": 0, "byte_size": 10}),
    ("/v2/models/m/infer", {"id": "a", "parameters": {"sequence_id": 1, "priority": 1}, "inputs": [INPUT]}),
    ("/v2/models/m/infer", {"inputs": [{**INPUT, "parameters": PART}], "outputs": [{"name": "O", "parameters": PART}]}),
    ("/v2/models/m/generate", {"INPUT0": [1, 2, 3, 4], "id": "a", "parameters": {"a": 1}}),
    ("/v2/models/llm/generate", {"text_input": "x", "max_tokens": 3, "sampling_parameters": '{"top_k":1}'}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 3, "temperature": 1, "stop": ["a"], "logit_bias": {"1": 1}}),
    ("/v1/chat/completions", {**CHAT, "tools": [FUNCTION], "tool_choice": FUNCTION, "stream_options": {}}),
    ("/v1/responses", {"model": "llm", "input": ITEMS, "tools": TOOLS, "tool_choice": "auto", "max_output_tokens": 3}),
    ("/v1/responses", {**RESPONSE, "reasoning": {"effort": "low"}, "include": ["a"], "metadata": {"a": "b"}}),
    ("/v1/completions", {"model": "llm", "prompt": ["a"], "n": 1, "seed": 1, "logprobs": 1}),
    ("/v1/embeddings", {"model": "llm", "input": ["a"], "dimensions": 2, "encoding_format": "float"}),
    ("/tokenize", {"model": "llm", "prompt": "a", "add_special_tokens": True}),
    ("/detokenize", {"model": "llm", "tokens": [1, 2]}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("texts")
    write_identity(folder / "models", "m", "FP32", 4, batch=4)
    write_scripted(folder / "models", "llm", {"reply": "hi"})
    flags = ["--model-control-mode=explicit", "--load-model=*"]
    with ConchProcess(folder / "models", *flags, log=folder / "log") as server:
        yield server
        assert "Traceback" not in server.text


def changed(document: Any) -> Iterator[str]:
    """Yield the document with every member, and every name of one, replaced by something wrong."""
    for path in _paths(document):
        if not path:
            continue
        copied = copy.deepcopy(document)
        place = copied
        for step in path[:-1]:
            place = place[step]
        value = place[path[-1]]
        place[path[-1]] = PLACE
        text = json.dumps(copied)
        yield from (text.replace(f'"{PLACE}"', wrong) for wrong in WRONG)
        if isinstance(place, dict):
            del place[path[-1]]
            place[PLACE] = value
            yield json.dumps(copied).replace(f'"{PLACE}"', '"\\ud800"')


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for step in value if isinstance(value, dict) else range(len(value)):
            yield from _paths(value[step], (*path, step))


def check(server: ConchProcess, path: str, bodies: Iterator[str]) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=60)) as connection:
        for body in bodies:
            connection.request("POST", path, body.encode())
            answer = connection.getresponse()
            text = answer.read().decode()
            assert not PYTHON.search(text), f"{body[:500]}: {answer.status} {text[:500]}"


@pytest.mark.parametrize(("path", "document"), BODIES, ids=[f"{path} {list(body)[-1]}" for path, body in BODIES])
def test_values_of_the_wrong_kind(server: ConchProcess, path: str, document: dict[str, Any]) -> None:
    check(server, path, (wrong for wrong in (*WRONG, "{", "[1", '{"a":}')))
    check(server, path, changed(document))


def test_configurations_of_loads(server: ConchProcess) -> None:
    check(server, LOAD, (json.dumps({"parameters": {"config": text}}) for text in (*changed(CONFIG), *WRONG)))
