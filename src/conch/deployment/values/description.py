"""What the types of values say: each key's place, type, default and description, in the order of the classes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import msgspec

from conch.deployment.values.section import Section


@dataclass(frozen=True, slots=True)
class ValueKey:
    """One key of the values. `section` is the type of a mapping with fixed keys, None for other keys."""

    path: tuple[str, ...]
    annotation: Any
    default: Any
    description: str
    section: type[Section] | None

    @property
    def name(self) -> str:
        """The last part of the path, as YAML has it."""
        return self.path[-1]


def keys(section: type[Section], prefix: tuple[str, ...] = ()) -> Iterator[ValueKey]:
    """Yield the keys of a section, each before those below it."""
    hints = get_type_hints(section, include_extras=True)
    for each in msgspec.structs.fields(section):
        annotation = hints[each.name]
        default = each.default_factory() if callable(each.default_factory) else each.default
        plain = plain_type(annotation)
        below = plain if isinstance(plain, type) and issubclass(plain, Section) else None
        path = (*prefix, each.encode_name)
        yield ValueKey(path, annotation, default, _description(annotation), below)
        if below is not None:
            yield from keys(below, path)


def plain_type(annotation: Any) -> Any:
    """Return a type without its Annotated[…]."""
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def constraints(annotation: Any) -> list[msgspec.Meta]:
    """Return what Annotated[…] says of a type, the innermost first."""
    return [each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, msgspec.Meta)]


def _description(annotation: Any) -> str:
    found = [each.description for each in constraints(annotation) if each.description]
    assert found, f"{annotation} has no description"
    return found[-1]
