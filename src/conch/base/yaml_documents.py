"""Documents in YAML, as values with the lines of their parts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import yaml

# More parts come from aliases of aliases, which expand without bounds.
_MAX_PARTS = 1 << 19
# The parser of libyaml is ten times faster, but its messages say less.
_MAX_FAST_DEPTH = 100
_FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

YamlPath: TypeAlias = tuple[str | int, ...]


class YamlError(ValueError):
    """A text is not YAML. `line` is 1-based."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A document and the lines, 1-based, of its parts by the keys and indices that lead to them."""

    value: Any
    lines: dict[YamlPath, int] = field(default_factory=dict)

    def line(self, path: YamlPath) -> int:
        """Return the line of a part, or of the nearest part around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def load_documents(text: str, *, unique_keys: bool = False) -> list[YamlDocument]:
    """Parse the documents of a text; empty ones are omitted.

    Raises YamlError, with `unique_keys` also for a key that a mapping has twice.
    """
    if _is_shallow(text):
        try:
            return _documents(_FAST_LOADER(text), unique_keys)
        except YamlError:
            pass  # the other loader has the message
    return _documents(yaml.SafeLoader(text), unique_keys)


def load_document(text: str, *, unique_keys: bool = False) -> YamlDocument:
    """Parse a text of one document; that of an empty text is None. Raises YamlError, also for several documents."""
    documents = load_documents(text, unique_keys=unique_keys)
    if len(documents) > 1:
        raise YamlError(f"{len(documents)} documents; write one", documents[1].line(()))
    return documents[0] if documents else YamlDocument(None)


def _is_shallow(text: str) -> bool:
    """Whether the fast loader can read a text: it crashes on deep nesting, as its recursion is unbounded."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_FAST_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > _MAX_FAST_DEPTH:
                    return False
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except yaml.YAMLError:
        return False
    return True


def _documents(loader: Any, unique_keys: bool) -> list[YamlDocument]:
    documents = []
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # check_node says so
            parts = list(islice(_lines(node, (), (), unique_keys), _MAX_PARTS))
            lines = dict(parts)
            if len(parts) == _MAX_PARTS:
                raise YamlError(f"more than {_MAX_PARTS} parts, with those of aliases", 1)
            if (value := loader.construct_document(node)) is not None:
                documents.append(YamlDocument(value, lines))
    except YamlError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(f"invalid YAML: {error.problem or error.context}", mark.line + 1 if mark else 1) from None
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise YamlError(f"invalid YAML: {error}", 1) from None
    finally:
        loader.dispose()
    return documents


def dump_documents(documents: Iterable[Any]) -> str:
    """Return documents as YAML, with keys in their order and long texts on one line."""
    return yaml.dump_all(documents, sort_keys=False, allow_unicode=True, width=1 << 16, Dumper=_Dumper)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """Return a text of several lines as a block."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _lines(
    node: yaml.Node, path: YamlPath, above: tuple[int, ...], unique_keys: bool
) -> Iterator[tuple[YamlPath, int]]:
    # The text of a block begins on the line after its indicator.
    block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    yield path, node.start_mark.line + 1 + block
    if id(node) in above:
        return  # an alias of a part around it
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, (*path, index), above, unique_keys)
    elif isinstance(node, yaml.MappingNode):
        names = set[str]()
        for key, value in node.value:
            name = str(key.value)
            if unique_keys and name in names:
                raise YamlError(f"'{name}' is given twice; remove one of them", key.start_mark.line + 1)
            names.add(name)
            yield from _lines(value, (*path, name), above, unique_keys)
            if not isinstance(value, yaml.ScalarNode):
                yield (*path, name), key.start_mark.line + 1
