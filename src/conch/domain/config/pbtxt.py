"""Parse config.pbtxt, the text form of Triton's `ModelConfig` message.

protobuf's parser reads it. Its error messages are rewritten to file, line, column, what was expected and what would be
right.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf import text_format

from conch.base.errors import ConfigError
from conch.domain.config.field_errors import unknown_field, unknown_value
from conch.domain.config.size_limits import shortened
from conch.domain.triton_messages import ModelConfig as ConfigMessage

# Of the text before and after a mistake that is used to explain it: a line may have millions of characters.
_MAX_CONTEXT_CHARS = 1000
_TOKEN = re.compile(r"\"[^\"\n]*\"?|[\w.+-]+|.")


def parse_pbtxt(text: str, where: str) -> ConfigMessage:
    """Return the message of a configuration text.

    Raises ConfigError for invalid text; its message begins with `where` (the file), the line and the column.
    """
    message = ConfigMessage()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        mistake = _Mistake(text.split("\n"), line, column, str(error))
        raise ConfigError(f"{where}:{line}:{column}: {_explain(mistake)}") from error
    except ValueError as error:  # of a number for an enum
        raise ConfigError(f"{where}: {shortened(str(error))}") from error
    return message


@dataclass(frozen=True, slots=True)
class _Mistake:
    """A place in a text, 1-based, and the parser's message about it."""

    lines: list[str]
    line: int
    column: int
    detail: str

    @property
    def before(self) -> str:
        """The text before the place."""
        line = self.lines[self.line - 1][: self.column - 1][-_MAX_CONTEXT_CHARS:]
        before = self.lines[max(self.line - 1 - _MAX_CONTEXT_CHARS, 0) : self.line - 1]
        return "\n".join([*before, line])[-_MAX_CONTEXT_CHARS:]

    @property
    def rest(self) -> str:
        """The text from the place to the end."""
        line = self.lines[self.line - 1][self.column - 1 :][:_MAX_CONTEXT_CHARS]
        following = self.lines[self.line : self.line + _MAX_CONTEXT_CHARS]
        return "\n".join([line, *following]).lstrip()[:_MAX_CONTEXT_CHARS]

    @property
    def actual(self) -> str:
        """The token at the place, "" at the end of the text."""
        match = _TOKEN.match(self.rest)
        return shortened(match[0]) if match else ""

    @property
    def after(self) -> str:
        """The text after the token at the place."""
        match = _TOKEN.match(self.rest)
        return self.rest[match.end() :] if match else ""

    @property
    def field(self) -> str:
        """The name of the field whose value begins at the place."""
        match = re.search(r"(\w+)\s*:?\s*$", self.before)
        return shortened(match[1]) if match else ""

    @property
    def owner(self) -> str:
        """The name of the field, or of what has the value within a list."""
        return self.field or "a list element"


def _explain(mistake: _Mistake) -> str:
    # The parser puts the place, and often the line, before its message.
    detail = mistake.detail.removeprefix(f"{mistake.line}:{mistake.column} : ")
    detail = detail.removeprefix(f"'{mistake.lines[mistake.line - 1]}': ")
    if len(detail) > 2 * _MAX_CONTEXT_CHARS:
        detail = f"{detail[:_MAX_CONTEXT_CHARS]}…{detail[-_MAX_CONTEXT_CHARS:]}"
    for pattern, explain in _EXPLANATIONS:
        if match := pattern.search(detail):
            if isinstance(explain, str):
                return explain.format(**match.groupdict(), at=mistake)
            return explain(mistake, match)
    return shortened(detail)


def _no_brace(mistake: _Mistake, _: re.Match[str]) -> str:
    field, actual = mistake.field, mistake.actual
    if actual == "[" and field:
        return (
            f"'{field}' is one message, not a list: write `{field} {{ … }}`; "
            "the form `[ { … } ]` is for repeated fields such as input and instance_group"
        )
    if mistake.before.rstrip().endswith(","):
        return (
            f"expected another element after ',', found '{actual}'; remove the comma after the last element of a list"
        )
    if not field:
        return f"expected '{{', found '{actual}'"
    if field == "value":
        return f"expected '{{', found {actual}; write `value: {{ string_value: \"…\" }}`"
    return f"expected '{{' after '{field}', found '{actual}'; it is a message: write `{field} {{ … }}`"


def _no_close(mistake: _Mistake, match: re.Match[str]) -> str:
    if not mistake.after.strip():
        return f"expected '{match['token']}', found the end of the text; a bracket is not closed"
    return f"expected '{match['token']}', found '{mistake.actual}'"


# What protobuf says, and in its place a function or a text with the groups of the pattern and `at`, the mistake.
_EXPLANATIONS: tuple[tuple[re.Pattern[str], str | Callable[[_Mistake, re.Match[str]], str]], ...] = (
    (
        re.compile(r'Message type "(?P<type>[^"]+)" has no field named "(?P<field>[^"]*)"'),
        lambda _, match: unknown_field(match["type"], shortened(match["field"])),
    ),
    (
        re.compile(r'Enum type "(?P<type>[^"]+)" has no value (?:named|with number) (?P<value>.+?)\.?$'),
        lambda _, match: unknown_value(match["type"], shortened(match["value"])),
    ),
    (
        re.compile(r'Field "(?P<second>\w+)" is specified along with field "(?P<first>\w+)"'),
        "'{second}' and '{first}' are mutually exclusive; remove one of them",
    ),
    (
        re.compile(r'Message type "(?:\w+\.)?(?P<type>[\w.]+)" should not have multiple "(?P<field>\w+)" fields'),
        "'{field}' is given twice in {type}",
    ),
    (re.compile(r'Expected "\{"\.$'), _no_brace),
    (re.compile(r'Expected "(?P<token>[}\]>])"\.$'), _no_close),
    (re.compile(r'Expected ":"\.$'), "expected ':' and a value after '{at.field}', found '{at.actual}'"),
    (
        re.compile(r'Expected ","\.$'),
        "expected ',' or ']', found '{at.actual}'; the elements of a list are separated by commas",
    ),
    (re.compile(r'Expected "true" or "false"\.$'), "expected true or false for '{at.field}', found '{at.actual}'"),
    (re.compile(r"Expected string but found"), "'{at.field}' is a string: write it in quotes, \"{at.actual}\""),
    (re.compile(r"Couldn't parse integer"), "expected an integer for '{at.owner}', found {at.actual}"),
    (re.compile(r"Value out of range"), "{at.actual} is out of range for '{at.owner}'"),
    (re.compile(r" codec can't "), "the string before this place is not valid UTF-8"),
    (re.compile(r"Expected identifier or number"), "expected the name of a field, found '{at.actual}'"),
)
