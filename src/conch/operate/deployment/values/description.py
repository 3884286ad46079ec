"""What the types of values say: each key's place, type, default and description, in the order of the classes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import msgspec

from conch.operate.deployment.values.section import Section


@dataclass(frozen=True, slots=True)
class ValueKey:
    """One key of the values."""

    path: tuple[str, ...]
    annotation: Any
    default: Any
    description: str

    @property
    def name(self) -> str:
        """The last part of the path, as YAML has it."""
        return self.path[-1]

    @property
    def is_section(self) -> bool:
        """Whether the key is a mapping with fixed keys, which are listed themselves."""
        return isinstance(self.default, Section)


def keys(section: Section, prefix: tuple[str, ...] = ()) -> Iterator[ValueKey]:
    """Yield the keys of a section, each before those below it. The section's values are the defaults."""
    hints = get_type_hints(type(section), include_extras=True)
    for each in msgspec.structs.fields(type(section)):
        default = getattr(section, each.name)
        key = ValueKey((*prefix, each.encode_name), hints[each.name], default, _description(hints[each.name]))
        yield key
        if isinstance(default, Section):
            yield from keys(default, key.path)


def plain_type(annotation: Any) -> Any:
    """Return a type without its Annotated[…]."""
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def constraints(annotation: Any) -> list[msgspec.Meta]:
    """Return what Annotated[…] says of a type, the innermost first."""
    return [each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, msgspec.Meta)]


def annotation_at(section: type[Section], place: str) -> Any:
    """Return the annotated type at a place such as `metrics[0].name`, or None where types say nothing."""
    current: Any = section
    for part in re.findall(r"[^.\[\]]+|\[[^\]]*\]", place):
        plain = plain_type(current)
        if part.startswith("["):
            current = next(iter(get_args(plain)), None)
        elif isinstance(plain, type) and issubclass(plain, Section):
            hints = get_type_hints(plain, include_extras=True)
            names = {each.encode_name: each.name for each in msgspec.structs.fields(plain)}
            current = hints.get(names.get(part, ""))
        else:
            return None
    return current


def _description(annotation: Any) -> str:
    found = [each.description for each in constraints(annotation) if each.description]
    assert found, f"{annotation} has no description"
    return found[-1]
