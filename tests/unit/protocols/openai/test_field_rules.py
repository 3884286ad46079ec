"""Each field of the OpenAI API has a decision, by which the readers work and from which the reference is written."""

import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from tools.openai_fields_page import PAGE, page

from conch.domain.tensor import Buffer
from conch.protocols.openai.embeddings import read_embedding
from conch.protocols.openai.field_rules import ALL_RULES, CHAT, COMPLETION, EMBEDDING, FieldRules
from conch.protocols.openai.fields import Fields, InvalidField, ignored_header
from conch.protocols.openai.requests import read_chat, read_completion
from conch.protocols.openai.tokens import read_detokenize, read_tokenize

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT_BODY = {"model": "m", "messages": MESSAGES}
COMPLETION_BODY = {"model": "m", "prompt": "hi"}
EMBEDDING_BODY = {"model": "m", "input": "hi"}
FULL = {
    "stream": True,
    "stream_options": {},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
}


def test_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.openai_fields_page"


@pytest.mark.parametrize(
    ("params", "rules"),
    [
        (chat_create_params.CompletionCreateParamsBase, CHAT),
        (chat_create_params.CompletionCreateParamsStreaming, CHAT),
        (completion_create_params.CompletionCreateParamsBase, COMPLETION),
        (completion_create_params.CompletionCreateParamsStreaming, COMPLETION),
        (embedding_create_params.EmbeddingCreateParams, EMBEDDING),
    ],
)
def test_each_field_of_the_official_client_has_a_rule(params: Any, rules: FieldRules) -> None:
    missing = [path for path in paths(params, "") if path not in rules and not decided(path, rules)]
    assert missing == []


def paths(kind: Any, prefix: str) -> Iterator[str]:
    """Yield the names of all fields, also of inner objects; those in arrays are after `[]`."""
    origin = typing.get_origin(kind)
    if hasattr(kind, "__required_keys__"):
        for name, inner in typing.get_type_hints(kind).items():
            yield f"{prefix}{name}"
            yield from paths(inner, f"{prefix}{name}.")
    elif origin in (typing.Union, types.UnionType):
        for choice in typing.get_args(kind):
            yield from paths(choice, prefix)
    elif isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, dict):
        yield from paths(typing.get_args(kind)[0], f"{prefix[:-1]}[].")


def decided(path: str, rules: FieldRules) -> bool:
    """Whether the rule of an outer object holds for all that is in it."""
    ends = [place for place, character in enumerate(path) if character == "."]
    outer = [path[:end].removesuffix("[]") for end in ends]
    return any(name in rules and rules[name].decision != "used" for name in outer)


@pytest.mark.parametrize(
    ("title", "read", "bodies"),
    [
        ("Chat completions", read_chat, [{**CHAT_BODY, **FULL}, {**CHAT_BODY, "structured_outputs": {}}]),
        ("Completions", read_completion, [{**COMPLETION_BODY, **FULL}, {**COMPLETION_BODY, "structured_outputs": {}}]),
        ("Embeddings", read_embedding, [EMBEDDING_BODY]),
        ("`/tokenize`", read_tokenize, [CHAT_BODY]),
        ("`/detokenize`", read_detokenize, [{"model": "m", "tokens": [1]}]),
    ],
)
def test_the_readers_use_the_fields_of_their_rules(
    monkeypatch: pytest.MonkeyPatch, title: str, read: Callable[[Buffer], object], bodies: list[dict[str, Any]]
) -> None:
    rules, taken = ALL_RULES[title], set()
    plain = Fields.take

    def take(self: Fields, name: str) -> Any:
        if self._rules is rules:
            taken.add(self._prefix + name)
        return plain(self, name)

    monkeypatch.setattr(Fields, "take", take)
    monkeypatch.setattr(Fields, "given", lambda self, names: [name for name in names if self.take(name) is not None])
    for body in bodies:
        read(orjson.dumps(body))
    used = {name for name, rule in rules.items() if rule.decision == "used" and not is_checked_elsewhere(name)}
    if title == "`/tokenize`":  # what belongs to the chat is read only if it is there
        used -= {name for name in used - taken if name in CHAT}
    assert taken == used


@pytest.mark.parametrize(
    ("read", "body", "rules"),
    [
        (read_chat, CHAT_BODY, CHAT),
        (read_completion, COMPLETION_BODY, COMPLETION),
        (read_embedding, EMBEDDING_BODY, EMBEDDING),
    ],
)
def test_the_rules_decide(read: Callable[[Buffer], Any], body: dict[str, Any], rules: FieldRules) -> None:
    for rule in rules.values():
        if rule.decision == "used" or "[]" in rule.name:
            continue
        assert read(_with(body, rule.name, None)).ignored == ()
        for neutral in rule.neutral:
            assert read(_with(body, rule.name, neutral)).ignored == ()
        sent = _with(body, rule.name, "surprise")
        if rule.decision == "refused":
            with pytest.raises(InvalidField) as refusal:
                read(sent)
            assert (refusal.value.param, refusal.value.message) == (
                rule.name,
                f"'{rule.name}' is not supported: {rule.note}",
            )
        else:
            expected = [rule.name] if rule.decision == "ignored" else []
            assert [field.name for field in read(sent).ignored] == expected


def is_checked_elsewhere(name: str) -> bool:
    """Whether a rule is about what is in messages and tools, which `Fields` does not read."""
    return "[]" in name or name.startswith("tool_choice.")


def _with(body: dict[str, Any], path: str, value: Any) -> bytes:
    document: dict[str, Any] = {**body}
    if path.startswith("response_format."):
        document["response_format"] = {"type": "json_schema", "json_schema": {"schema": {}}}
    *outer, name = path.split(".")
    inner = document
    for key in outer:
        inner = inner.setdefault(key, {})
    inner[name] = value
    return orjson.dumps(document)


def test_unknown_fields_are_collected_at_every_level() -> None:
    body = {
        **CHAT_BODY,
        "surprise": 1,
        "stream": True,
        "stream_options": {"include_obfuscation": True, "more": None},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {}, "title": "x"}, "also": 1},
    }
    ignored = read_chat(orjson.dumps(body)).ignored
    assert {field.name: field.known for field in ignored} == {
        "surprise": False,
        "stream_options.include_obfuscation": True,
        "stream_options.more": False,
        "response_format.also": False,
        "response_format.json_schema.title": False,
    }
    assert ignored[0].refusal == "Unrecognized request argument supplied: surprise"


def test_header_of_ignored_fields_is_safe_and_bounded() -> None:
    names = ["a\r\nSet-Cookie: b", "ключ", "x" * 1000, *(f"field{number}" for number in range(50))]
    ignored = read_chat(orjson.dumps({**CHAT_BODY, **dict.fromkeys(names, 1)})).ignored
    line = ignored_header(ignored)
    assert line.startswith(b"X-Conch-Ignored: a??Set-Cookie??b, ????, " + b"x" * 64 + b", field0, ")
    assert line.endswith(b", field12, ...\r\n")
    assert ignored_header(ignored[-1:]) == b"X-Conch-Ignored: field49\r\n"
    assert ignored_header(()) == b""
