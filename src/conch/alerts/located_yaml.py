"""YAML with the line of each value."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import yaml

from conch.errors import ConfigError

# The keys and indices that lead to a value.
YamlPath: TypeAlias = tuple[str | int, ...]


def load_located(text: str) -> tuple[Any, dict[YamlPath, int]]:
    """Parse a document; return its value and the lines of all values by path. Raises ConfigError."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        lines = dict(_lines(node, (), set())) if node is not None else {}
        return (loader.construct_document(node) if node is not None else None), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{where}invalid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"invalid YAML: {type(error).__name__}") from None
    finally:
        loader.dispose()


def _lines(node: yaml.Node, path: YamlPath, seen: set[int]) -> Iterator[tuple[YamlPath, int]]:
    yield path, node.start_mark.line + 1
    if id(node) in seen:
        return  # an alias
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, each in enumerate(node.value):
            yield from _lines(each, (*path, index), seen)
    elif isinstance(node, yaml.MappingNode):
        names = set[str]()
        for key, value in node.value:
            name = str(key.value)
            if name in names:
                raise ConfigError(f"line {key.start_mark.line + 1}: '{name}' is given twice; remove one of them")
            names.add(name)
            yield from _lines(value, (*path, name), seen)
            yield (*path, name), key.start_mark.line + 1
