"""Checks of what a model passes to its API, which raise what Triton's compiled classes raise."""

from __future__ import annotations

from typing import Any, Optional, Sequence

_SHOWN = 200  # characters of what was passed


class CallSignature:
    """A function of the API as Triton's messages write it."""

    def __init__(self, function: str, text: str) -> None:
        self._function = function
        self._text = text

    def mismatch(self, what: str, value: Any) -> TypeError:
        """Return the error for an argument of a wrong type."""
        kind = "constructor" if self._function == "__init__" else "function"
        return TypeError(
            "{}(): incompatible {} arguments. The following argument types are supported:\n    1. {}\n\n"
            "Invoked with: {}={}".format(self._function, kind, self._text, what, repr(value)[:_SHOWN])
        )

    def text(self, what: str, value: Any) -> str:
        """Return a `str`; bytes are taken as UTF-8. Raises TypeError."""
        if isinstance(value, str):
            return str(value)
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                pass
        raise self.mismatch(what, value)

    def number(self, what: str, value: Any, bits: int, signed: bool = False) -> int:
        """Return an integer of so many bits. Raises TypeError."""
        try:
            number = value.__index__()
        except AttributeError:
            raise self.mismatch(what, value) from None
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if not least <= number <= most:
            raise self.mismatch(what, value)
        return int(number)

    def items(self, what: str, value: Any) -> Sequence[Any]:
        """Return a sequence of things, which a text is not. Raises TypeError."""
        if isinstance(value, (list, tuple)):
            return value
        if isinstance(value, (str, bytes)) or not hasattr(value, "__getitem__") or not hasattr(value, "__len__"):
            raise self.mismatch(what, value)
        return list(value)

    def instance(self, what: str, value: Any, kind: type, none: Optional[bool] = False) -> Any:
        """Return what must be of a class, or None where that is allowed. Raises TypeError."""
        if isinstance(value, kind) or (none and value is None):
            return value
        raise self.mismatch(what, value)
