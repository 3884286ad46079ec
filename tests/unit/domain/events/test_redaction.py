"""Secrets in nested JSON."""

import json

import pytest

from conch.domain.events.redaction import REDACTED, Redaction


def test_values_of_secret_keys_are_replaced_at_any_depth() -> None:
    value = {"user": {"name": "a", "Password": "x", "keys": [{"api_key": "k", "id": 1}]}, "token": {"deep": 1}}
    assert Redaction().of_json(value) == {
        "user": {"name": "a", "Password": REDACTED, "keys": [{"api_key": REDACTED, "id": 1}]},
        "token": REDACTED,
    }


def test_json_that_is_a_text_within_json_is_redacted_too() -> None:
    inner = json.dumps({"password": "x", "deeper": json.dumps([{"secret": "y", "kept": 1}])})
    shown = Redaction().of_json({"arguments": inner})["arguments"]
    assert json.loads(shown)["password"] == REDACTED
    assert json.loads(json.loads(shown)["deeper"]) == [{"secret": REDACTED, "kept": 1}]


@pytest.mark.parametrize("rule", ["messages.content", "CONTENT", "cont*"])
def test_rules_name_keys_or_ends_of_paths(rule: str) -> None:
    value = {"messages": [{"role": "user", "content": "my address"}], "max_tokens": 7}
    assert Redaction([rule]).of_json(value) == {
        "messages": [{"role": "user", "content": REDACTED}],
        "max_tokens": 7,
    }


def test_a_path_matches_at_its_end_only() -> None:
    assert Redaction(["a.b"]).of_json({"b": 1, "a": {"b": 2, "c": {"b": 3}}}) == {
        "b": 1,
        "a": {"b": REDACTED, "c": {"b": 3}},
    }


def test_other_texts_stay_as_they_are() -> None:
    for text in ("", "plain", "{not json", '{"a": 1.0}', "[1, 2]"):
        assert Redaction().of_text(text) == text


def test_what_is_nested_too_deeply_or_too_long_is_removed() -> None:
    value: object = {"password": "x"}
    for _ in range(200):
        value = [value]
    assert '"x"' not in json.dumps(Redaction().of_json(value))
    assert Redaction().of_text("[" + " " * (1 << 20) + "]") == REDACTED
