"""Read values in the output of vendors' tools: numbers, quantities with units, JSON."""

from typing import Any

import orjson

from conch.machine.accelerators.base import CollectorError

MEBIBYTE = float(1 << 20)
MEGAHERTZ = 1e6
PERCENT = 0.01

# What tools write for a value that the device does not have.
_NOT_AVAILABLE = {"", "-", "--", "n/a", "na", "nan", "none", "null", "not supported", "unsupported", "/"}
# Factors to base units. The tools' MB and KB are binary.
_UNITS = {"MB": MEBIBYTE, "MiB": MEBIBYTE, "KB": 1024.0, "GB": float(1 << 30), "MHz": MEGAHERTZ, "%": PERCENT}


def number(value: object) -> float | None:
    """Return a number or None if the value is not available. Raises ValueError if it is neither."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a number")
    text = value.strip()
    return None if text.lower() in _NOT_AVAILABLE else float(text)


def quantity(value: object) -> float | None:
    """Return `{"value": 3, "unit": "MB"}` in base units, or None if it is not available."""
    if not isinstance(value, dict):
        return number(value)
    found = number(value.get("value"))
    return None if found is None else found * _UNITS.get(str(value.get("unit")), 1.0)


def scaled(value: float | None, factor: float) -> float | None:
    """Return the value times the factor, or None if there is no value."""
    return None if value is None else value * factor


def item(document: object, *path: str) -> Any:
    """Return what stands at a path of keys, or None if it is missing or, like "N/A", not an object."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def parse_json(tool: str, output: bytes) -> Any:
    """Return JSON. Raises CollectorError that names the tool and the line."""
    try:
        return orjson.loads(output)
    except orjson.JSONDecodeError as error:
        lines = output.decode(errors="replace").splitlines() or [""]
        line = lines[min(error.lineno, len(lines)) - 1]
        raise CollectorError(f"{tool}: line {error.lineno}: not JSON ({error.msg}): {line[:120]!r}") from error


def malformed(tool: str, number: int, line: str) -> CollectorError:
    """Return the error for a line that cannot be read."""
    return CollectorError(f"{tool}: line {number}: malformed: {line.strip()[:120]!r}")
