"""JSON that does not parse is described in RapidJSON's words, at its offset, as recorded from the real server."""

import pytest

from conch.base.errors import InvalidRequest
from conch.protocols.json_document import parse


@pytest.mark.parametrize(
    ("text", "described"),
    [
        (b'{"inputs":[', "Invalid value. at 11"),
        (b"{", "Missing a name for object member. at 1"),
        (b"x", "Invalid value. at 0"),
        (b'{"inputs"}', "Missing a colon after a name of object member. at 9"),
        (b'{"inputs":[]]', "Missing a comma or '}' after an object member. at 12"),
        (b"{inputs:1}", "Missing a name for object member. at 1"),
        (b'{"a":1,}', "Missing a name for object member. at 7"),
        (b'{"inputs":[1,]}', "Invalid value. at 13"),
        (b"", "The document is empty. at 0"),
        (b"\n\n", "The document is empty. at 2"),
        (b"\0", "The document is empty. at 0"),
        (b'{"a":01}', "Missing a comma or '}' after an object member. at 6"),
        (b"[01]", "Missing a comma or ']' after an array element. at 2"),
        (b'{"a":1e999}', "Number too big to be stored in double. at 5"),
        (b'{"a":"\1"}', "Invalid escape character in string. at 6"),
        (b'{"a":"\\x"}', "Invalid escape character in string. at 6"),
        (b'{"a":"\\u12"}', "Incorrect hex digit after \\u escape in string. at 6"),
        (b'{"a":"\\ud800"}', "The surrogate pair in string is invalid. at 6"),
        (b'{"a":tru}', "Invalid value. at 8"),  # codespell:ignore
        (b"//c\n{}", "Invalid value. at 0"),
        (b"{}xx", "The document root must not be followed by other values. at 2"),
        (b"{}{}", "The document root must not be followed by other values. at 2"),
        (b'{"inputs":[{"name":"a"', "Missing a comma or '}' after an object member. at 22"),
        (b'{"inputs":"a', "Missing a closing quotation mark in string. at 12"),
        (b'{"inputs":[1,2', "Missing a comma or ']' after an array element. at 14"),
        (b'{"inputs":[1 2]}', "Missing a comma or ']' after an array element. at 13"),
        (b'{"inputs":', "Invalid value. at 10"),
        (b'{"inputs"', "Missing a colon after a name of object member. at 9"),
        (b'{"a":1', "Missing a comma or '}' after an object member. at 6"),
        (b'{"a":-}', "Invalid value. at 6"),
        (b'{"a":1.}', "Miss fraction part in number. at 7"),
        (b'{"a":1e}', "Miss exponent in number. at 7"),
        (b'{"a":nul', "Invalid value. at 8"),
        # The slower parser, for what orjson does not read.
        (b'{"a":NaN', "Missing a comma or '}' after an object member. at 8"),
        (b'{"a":NaN}x', "The document root must not be followed by other values. at 9"),
        (b"[NaN 1]", "Missing a comma or ']' after an array element. at 5"),
        (b'{"a":NaN,x}', "Missing a name for object member. at 9"),
        (b'{"a":NaN,"b":x}', "Invalid value. at 13"),
    ],
)
def test_a_text_that_does_not_parse(text: bytes, described: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(text)
    assert caught.value.message.startswith(f"failed to parse the request JSON buffer: {described}")


def test_a_long_text_is_not_scanned() -> None:
    with pytest.raises(InvalidRequest, match=r"at 2000001"):
        parse(b"[" + b"1," * 1_000_000)
