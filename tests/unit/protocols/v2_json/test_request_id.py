"""The id of a body that is not parsed."""

import json

import pytest

from conch.protocols.v2_json.request_id import peek_id

TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]}
LARGE = {**TENSOR, "data": [1.0] * 10_000}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"id": "me", "inputs": [TENSOR]}, "me"),
        ({"inputs": [TENSOR], "id": "me"}, "me"),
        ({"id": "me", "inputs": [LARGE]}, "me"),
        ({"id": 'a"b\\c\né€', "inputs": [LARGE]}, 'a"b\\c\né€'),
        ({"inputs": [{**TENSOR, "parameters": {"id": "other"}}]}, ""),
        ({"inputs": [TENSOR]}, ""),
        ({"id": "", "inputs": [TENSOR]}, ""),
        ({"id": 5, "inputs": [TENSOR]}, ""),
        (["id"], ""),
        ({"inputs": [LARGE], "id": "me"}, ""),  # announced: the id is looked for in 4 KiB
        ({"id": "long" * 2000}, ""),
    ],
)
def test_id_of_json(document: object, expected: str) -> None:
    text = json.dumps(document).encode()
    assert peek_id(text, None) == expected
    assert peek_id(memoryview(b" \n" + json.dumps(document, ensure_ascii=False, indent=1).encode()), None) == expected
    assert peek_id(text + b'\xff{"id":"tail"', str(len(text)).encode()) == expected


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"id":"\\x"}', b'{"id":"\xff"}', b'\x1f\x8b"id"', b'{"id"' + b"[" * 4000]
)
@pytest.mark.parametrize("header_length", [None, b"3", b"-1", b"9" * 5000])
def test_any_bytes_have_an_id_or_none(body: bytes, header_length: bytes | None) -> None:
    assert peek_id(body, header_length) == ""
