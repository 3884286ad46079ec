"""Grafana's variables in queries: `$name`, `${name}` and `${name:format}`, which PromQL does not know.

Outside of strings each is replaced by a placeholder that the parser accepts at that place, and restored afterwards.
In strings they are characters like others.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product

from conch.operate.monitoring import promql

_TOKEN = re.compile(
    r"(?P<string>\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`)"
    r"|(?P<variable>\$\{[^}]*\}|\$[a-zA-Z_]\w*)"
    r"|(?P<open>\[)|(?P<close>\])|(?P<offset>\boffset\s+-?)|."
    "",
    re.DOTALL,
)
_DURATION_S = 1_000_000_000  # no query has such durations and numbers
_NUMBER = "1.2345678901{:02d}7e+150"
MIN_PLACEHOLDER = 1e150
PLACEHOLDER = "grafana_variable_"
_MAX_ATTEMPTS = 64


@dataclass(frozen=True, slots=True)
class Template:
    """The tree of a query with placeholders, and the variables for which they stand."""

    tree: promql.Node
    variables: tuple[tuple[str, str], ...]

    def text(self, tree: promql.Node) -> str:
        """Render a tree with the variables in their places."""
        return self.restore(promql.render(tree))

    def restore(self, text: str) -> str:
        """Return a text with variables in place of the placeholders."""
        for placeholder, variable in self.variables:
            text = text.replace(placeholder, variable)
        return text


def parse_template(text: str) -> Template:
    """Return the tree of a query that may have variables. Raises PromqlError."""
    error: promql.PromqlError | None = None
    for protected, variables in islice(_attempts(text), _MAX_ATTEMPTS):
        try:
            return Template(promql.parse(protected), variables)
        except promql.PromqlError as caught:
            error = error or caught
    assert error is not None
    raise error


def _attempts(text: str) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Yield the query with each variable replaced by a number, or by a name, in all combinations."""
    parts = list(_parts(text))
    others = sum(kind == "variable" for kind, _ in parts)
    for kinds in product(("number", "name"), repeat=others):
        remaining = iter(kinds)
        pieces, variables = [], []
        for index, (kind, piece) in enumerate(parts):
            if kind == "text":
                pieces.append(piece)
                continue
            if kind == "duration":
                inserted, rendered = f"{_DURATION_S + index}s", promql.duration(_DURATION_S + index)
            elif next(remaining) == "number":
                inserted = rendered = repr(float(_NUMBER.format(index)))
            else:
                inserted = rendered = f"{PLACEHOLDER}{index}_"
            pieces.append(inserted)
            variables.append((rendered, piece))
        yield "".join(pieces), tuple(variables)


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a query: text, variables that are durations, and other variables."""
    in_range = after_offset = False
    pending = ""
    for token in _TOKEN.finditer(text):
        if token["variable"] is None:
            pending += token[0]
            in_range = token["open"] is not None or (in_range and token["close"] is None)
        else:
            yield "text", pending
            pending = ""
            yield "duration" if in_range or after_offset else "variable", token[0]
        after_offset = token["offset"] is not None
    yield "text", pending
