"""Check arguments of Triton's Python API, with the exceptions and messages of its compiled classes."""

from __future__ import annotations

from typing import Any, Optional, Sequence

_MAX_REPR_CHARACTERS = 200


class CallSignature:
    """A function's signature as in Triton's messages."""

    def __init__(self, function: str, text: str) -> None:
        self._function = function
        self._text = text

    def mismatch(self, what: str, value: Any) -> TypeError:
        """Return the TypeError for an argument of a wrong type."""
        kind = "constructor" if self._function == "__init__" else "function"
        return TypeError(
            "{}(): incompatible {} arguments. The following argument types are supported:\n    1. {}\n\n"
            "Invoked with: {}={}".format(self._function, kind, self._text, what, repr(value)[:_MAX_REPR_CHARACTERS])
        )

    def text(self, what: str, value: Any) -> str:
        """Return a `str`, decoded from UTF-8 if bytes are given. Raises TypeError."""
        if isinstance(value, str):
            return str(value)
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                pass
        raise self.mismatch(what, value)

    def number(self, what: str, value: Any, bits: int, signed: bool = False) -> int:
        """Return an integer that fits into `bits`. Raises TypeError."""
        try:
            number = value.__index__()
        except AttributeError:
            raise self.mismatch(what, value) from None
        smallest, largest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if not smallest <= number <= largest:
            raise self.mismatch(what, value)
        return int(number)

    def flag(self, what: str, value: Any) -> bool:
        """Return a truth value: a bool, or a number. Raises TypeError."""
        if not hasattr(value, "__bool__") or value is None:
            raise self.mismatch(what, value)
        return bool(value)

    def items(self, what: str, value: Any) -> Sequence[Any]:
        """Return a sequence other than text. Raises TypeError."""
        if isinstance(value, (list, tuple)):
            return value
        if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__getitem__") or not hasattr(value, "__len__"):
            raise self.mismatch(what, value)
        return list(value)

    def instance(self, what: str, value: Any, kind: type, none: Optional[bool] = False) -> Any:
        """Return an instance of `kind`, or with `none` None. Raises TypeError."""
        if isinstance(value, kind) or (none and value is None):
            return value
        raise self.mismatch(what, value)
