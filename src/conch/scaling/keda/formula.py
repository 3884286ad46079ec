"""Formulas of scaling modifiers: the arithmetic of expr-lang, which KEDA uses, without strings and lists."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, floor
from typing import TypeAlias

from conch.errors import ConfigError

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\*\*|&&|\|\||==|!=|<=|>=|[-+*/%^<>!?:(),]))"
)
_MAX_LENGTH = 2000
_MAX_DEPTH = 50
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||", "or"),
    ("&&", "and"),
    ("==", "!=", "<", "<=", ">", ">="),
    ("+", "-"),
    ("*", "/", "%"),
)
Values: TypeAlias = Mapping[str, float]
Expression: TypeAlias = Callable[[Values], float]

_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "||": lambda a, b: float(bool(a) or bool(b)),
    "&&": lambda a, b: float(bool(a) and bool(b)),
    "==": lambda a, b: float(a == b),
    "!=": lambda a, b: float(a != b),
    "<": lambda a, b: float(a < b),
    "<=": lambda a, b: float(a <= b),
    ">": lambda a, b: float(a > b),
    ">=": lambda a, b: float(a >= b),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
}
_OPERATORS |= {"or": _OPERATORS["||"], "and": _OPERATORS["&&"]}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": lambda value: abs(value),
    "ceil": lambda value: float(ceil(value)),
    "floor": lambda value: float(floor(value)),
    "round": lambda value: float(floor(value + 0.5)),
    "max": max,
    "min": min,
    "sum": lambda *values: sum(values),
    "mean": lambda *values: sum(values) / len(values),
}
_ONE_ARGUMENT = frozenset({"abs", "ceil", "floor", "round"})


class FormulaError(ArithmeticError):
    """A formula has no value for its operands, such as a division by zero."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula and the names of the triggers that it uses."""

    text: str
    names: frozenset[str]
    _evaluate: Expression = field(repr=False, compare=False)

    def value(self, values: Values) -> float:
        """Return the value. Raises FormulaError."""
        try:
            return self._evaluate(values)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise FormulaError(f"formula '{self.text}': {error}") from None


def parse_formula(text: str, path: str = "formula") -> Formula:
    """Return a formula. Raises ConfigError, which starts with the path."""
    if len(text) > _MAX_LENGTH:
        raise ConfigError(f"{path}: expected at most {_MAX_LENGTH} characters, got {len(text)}")
    parser = _FormulaParser(text, path)
    expression = parser.ternary()
    if parser.word:
        raise parser.error("an operator or the end")
    return Formula(text, frozenset(parser.names), expression)


class _FormulaParser:
    """Recursive descent; `word` is the next token, "" at the end."""

    def __init__(self, text: str, path: str) -> None:
        self.names: set[str] = set()
        self._text, self._path, self._at, self._depth = text, path, 0, 0
        self.word = ""
        self._advance()

    def error(self, expected: str) -> ConfigError:
        found = f"'{self.word}'" if self.word else "the end"
        return ConfigError(f"{self._path}: expected {expected}, got {found} in '{self._text[:60]}'")

    def ternary(self) -> Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ConfigError(f"{self._path}: nested too deeply")
        condition = self._binary(0)
        if self.word == "?":
            self._advance()
            then = self.ternary()
            self._expect(":")
            otherwise = self.ternary()
            test = condition
            condition = lambda values: then(values) if test(values) else otherwise(values)  # noqa: E731
        self._depth -= 1
        return condition

    def _binary(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self.word in _LEVELS[level]:
            operator = _OPERATORS[self.word]
            self._advance()
            left = _joined(operator, left, self._binary(level + 1))
        return left

    def _unary(self) -> Expression:
        if self.word in {"-", "+", "!", "not"}:
            sign = self.word
            self._advance()
            operand = self._unary()
            if sign in {"!", "not"}:
                return lambda values: float(not operand(values))
            return (lambda values: -operand(values)) if sign == "-" else operand
        base = self._primary()
        if self.word in {"**", "^"}:
            self._advance()
            return _joined(_power, base, self._unary())
        return base

    def _primary(self) -> Expression:
        word = self.word
        if word == "(":
            self._advance()
            inner = self.ternary()
            self._expect(")")
            return inner
        if word[:1].isdigit() or word.startswith("."):
            self._advance()
            number = float(word)
            return lambda _: number
        if not word[:1].isalpha() and not word.startswith("_"):
            raise self.error("a number, a name or (")
        self._advance()
        if self.word == "(":
            return self._call(word)
        self.names.add(word)
        return lambda values: values[word]

    def _call(self, name: str) -> Expression:
        function = _FUNCTIONS.get(name)
        if function is None:
            raise ConfigError(f"{self._path}: '{name}' is not a supported function; known: {', '.join(_FUNCTIONS)}")
        self._expect("(")
        arguments = [self.ternary()]
        while self.word == ",":
            self._advance()
            arguments.append(self.ternary())
        self._expect(")")
        if name in _ONE_ARGUMENT and len(arguments) != 1:
            raise ConfigError(f"{self._path}: {name} takes one argument, got {len(arguments)}")
        if len(arguments) == 1 and name in {"max", "min"}:
            return arguments[0]
        return lambda values: float(function(*(each(values) for each in arguments)))

    def _expect(self, word: str) -> None:
        if self.word != word:
            raise self.error(f"'{word}'")
        self._advance()

    def _advance(self) -> None:
        if not self._text[self._at :].strip():
            self.word = ""
            return
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at :].strip()[:20]
            raise ConfigError(f"{self._path}: '{rest}' is not valid; expected numbers, names and operators")
        self._at = match.end()
        self.word = match[0].strip()


def _joined(operator: Callable[[float, float], float], left: Expression, right: Expression) -> Expression:
    return lambda values: operator(left(values), right(values))


def _power(base: float, exponent: float) -> float:
    result: float | complex = base**exponent
    if isinstance(result, complex):
        raise ArithmeticError("the root of a negative number")
    return result
