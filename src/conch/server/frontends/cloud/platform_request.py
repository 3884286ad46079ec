"""Requests of hosting platforms, as the same requests to the HTTP port.

Platforms forward a body and its content type, but no path and no other headers. The size of the JSON part of a body
with binary data is therefore a parameter of the content type.
"""

import re

from conch.protocols.http.message import HttpRefusal, HttpRequest, content_type

_TEXT = content_type(b"text/plain")
_CONTENT_TYPE = b"content-type"
_LENGTH = b"inference-header-content-length"
# As C's atoi reads a number, as Triton does; a text without digits is 0.
_NUMBER = re.compile(rb"\s*([+-]?\d{1,10})")


def refused(status: int) -> HttpRefusal:
    """Return a refusal without a body, as Triton sends on these ports."""
    return HttpRefusal(status, "", _TEXT, b"")


def translated(request: HttpRequest, method: bytes, path: str, binary_type: bytes) -> HttpRequest:
    """Return the request to the HTTP port's path, with the header of the JSON part's size if the type has it.

    Raises HttpRefusal for a content type that only contains `binary_type`.
    """
    headers = {name: value for name, value in request.headers.items() if name != _LENGTH}
    given = headers.get(_CONTENT_TYPE, b"")
    if given.startswith(binary_type):
        number = _NUMBER.match(given, len(binary_type))
        headers[_LENGTH] = number[1] if number else b"0"
    elif binary_type in given:
        shown, expected = given.decode("latin-1"), binary_type.decode()
        raise HttpRefusal(400, f"expect MIME type for binary data starts with '{expected}', got: {shown}")
    fields = [field for field in request.fields if field[0].lower() != _LENGTH]
    copy = HttpRequest(method, path, fields, headers)
    copy.body = request.body
    copy.keep_alive = request.keep_alive
    copy.old_version = request.old_version
    return copy
