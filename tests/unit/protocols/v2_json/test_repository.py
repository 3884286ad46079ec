import pytest

from conch.base.errors import InvalidRequest
from conch.protocols.v2_json.documents import read_index, read_load, read_unload


def test_empty_bodies_ask_for_the_defaults():
    assert read_index(b"") is False
    assert read_load(b"") == (None, {})
    assert read_unload(b"") is False


def test_bodies():
    assert read_index(b'{"ready": true}') is True
    assert read_load(b'{"parameters": {"config": "{}", "file:1/model.onnx": "AAE="}}') == (
        "{}",
        {"1/model.onnx": b"\0\1"},
    )
    assert read_unload(b'{"parameters": {"unload_dependents": true}}') is True


@pytest.mark.parametrize(
    ("read", "body", "message"),
    [
        (read_index, b'{"ready": 1}', "attempt to access JSON non-boolean as boolean"),
        (read_index, b"[]", "not an array"),
        (read_index, b"{", "failed to parse the request JSON buffer"),
        (read_load, b'{"parameters": {"config": {}}}', "attempt to access JSON non-string as string"),
        (read_load, b'{"parameters": {"other": "x"}}', "unrecognized load parameter 'other'"),
        (read_load, b'{"parameters": {"file:1/a": "!!"}}', "content of 'file:1/a' is not valid base64"),
        (read_load, '{"parameters": {"file:1/a": "ä"}}'.encode(), "content of 'file:1/a' is not valid base64"),
        (read_load, b'{"parameters": 1}', "non-object"),
        (read_unload, b'{"parameters": {"unload_dependents": "yes"}}', "non-boolean as boolean"),
        (read_unload, b'{"parameters": {"other": true}}', "unrecognized unload parameter 'other'"),
    ],
)
def test_what_is_wrong_is_said(read, body, message):
    with pytest.raises(InvalidRequest, match=message):
        read(body)
