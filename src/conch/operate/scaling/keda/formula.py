"""Formulas of scaling modifiers: the grammar and the values of expr-lang, which KEDA uses, without strings and maps."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, fmod, isfinite
from statistics import mean, median
from typing import Literal, TypeAlias

from conch.base.errors import ConfigError

Value: TypeAlias = "int | float | bool | list[Value] | None"
Values: TypeAlias = Mapping[str, Value]

_MAX_ITEMS = 10_000
_MANY = 1000
__all__ = ["Formula", "FormulaError", "parse_formula"]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F_]+|\d[\d_]*(?:\.(?!\.)\d*)?(?:[eE][+-]?\d+)?|\.\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\?\?|\*\*|&&|\|\||==|!=|<=|>=|\.\.|[-+*/%^<>!?:(),\[\]{}#|;=]))"
)
_MAX_LENGTH = 2000
_MAX_DEPTH = 50
_CONSTANTS: dict[str, Value] = {"true": True, "false": False, "nil": None}
# Operator → how strongly it binds. Those of a tuple associate to the left, the power to the right.
_PRECEDENCE = {
    **dict.fromkeys(("|",), 0),
    **dict.fromkeys(("or", "||"), 10),
    **dict.fromkeys(("and", "&&"), 15),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 20),
    **dict.fromkeys(("..",), 25),
    **dict.fromkeys(("+", "-"), 30),
    **dict.fromkeys(("*", "/", "%"), 60),
    **dict.fromkeys(("**", "^"), 100),
    **dict.fromkeys(("??",), 500),
}
_UNARY = {"not": 50, "!": 1000, "-": 90, "+": 90}
_COMPARISONS = ("<", "<=", ">", ">=")
_BOOLEAN = ("or", "||", "and", "&&", "==", "!=", *_COMPARISONS, "in")
_NUMERIC = ("+", "-", "*", "/", "%", "**", "^", *_COMPARISONS)

# What is known of a value before the formula runs.
_Kind: TypeAlias = Literal["number", "bool", "list", "nil", "any"]


class FormulaError(ArithmeticError):
    """A formula has no value for its operands, such as a division by zero."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function: fewest and most arguments, what it returns, and its code."""

    arguments: tuple[int, int]
    kind: Literal["number", "bool", "list", "any"]
    function: Callable[..., Value] = lambda: None


def is_condition(value: Value) -> bool:
    """Return a boolean. Raises FormulaError for other values, which expr-lang does not convert."""
    if not isinstance(value, bool):
        raise FormulaError(f"{_shown(value)} is not a condition")
    return value


def to_float(value: Value) -> float:
    """Return the number that KEDA reports: it wraps formulas in float(). Raises FormulaError."""
    number = float(_as_number(value))
    if not isfinite(number):
        raise FormulaError(f"the value is {number:g}")
    return number


def _as_number(value: Value) -> float:
    if value is None or isinstance(value, bool | list):
        raise FormulaError(f"{_shown(value)} is not a number")
    return value


def _integer(value: Value) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormulaError(f"{_shown(value)} is not an integer; use int(…)")
    return value


def _as_list(value: Value) -> list[Value]:
    if not isinstance(value, list):
        raise FormulaError(f"{_shown(value)} is not a list")
    return value


def _shown(value: Value) -> str:
    if value is None:
        return "nil"
    return str(value).lower() if isinstance(value, bool) else "a list" if isinstance(value, list) else f"{value:g}"


def _numeric(function: Callable[[float, float], float]) -> Callable[[Value, Value], Value]:
    return lambda left, right: function(_as_number(left), _as_number(right))


def _remainder(left: float, right: float) -> float:
    return int(fmod(_integer(left), _integer(right)))


def _power(base: float, exponent: float) -> float:
    result: float | complex = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise FormulaError("the root of a negative number")
    return result


def _range(first: Value, last: Value) -> Value:
    low, high = _integer(first), _integer(last)
    if high - low >= _MAX_ITEMS:
        raise FormulaError(f"a list of more than {_MAX_ITEMS} items")
    return list(range(low, high + 1))


def _item(sequence: Value, index: Value) -> Value:
    items, place = _as_list(sequence), _integer(index)
    if not -len(items) <= place < len(items):
        raise FormulaError(f"the list has no item {place}")
    return items[place]


def _equal(left: Value, right: Value) -> bool:
    if isinstance(left, bool) is not isinstance(right, bool):
        return False  # True is 1 in Python
    return left == right


OPERATORS: dict[str, Callable[[Value, Value], Value]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _numeric(lambda left, right: left < right),
    "<=": _numeric(lambda left, right: left <= right),
    ">": _numeric(lambda left, right: left > right),
    ">=": _numeric(lambda left, right: left >= right),
    "in": lambda item, sequence: any(_equal(item, member) for member in _as_list(sequence)),
    "+": _numeric(lambda left, right: left + right),
    "-": _numeric(lambda left, right: left - right),
    "*": _numeric(lambda left, right: left * right),
    "/": _numeric(lambda left, right: float(left) / right),
    "%": _numeric(_remainder),
    "**": _numeric(_power),
    "^": _numeric(_power),
    "..": _range,
    "[]": _item,
}


def _flat(values: Sequence[Value]) -> list[float]:
    numbers: list[float] = []
    for value in values:
        numbers += _flat(value) if isinstance(value, list) else [_as_number(value)]
    return numbers


def _largest(*values: Value) -> float:
    return max(_flat(values))


def _smallest(*values: Value) -> float:
    return min(_flat(values))


def _mean(*values: Value) -> float:
    flat = _flat(values)
    return float(mean(flat)) if flat else 0.0


def _median(*values: Value) -> float:
    flat = _flat(values)
    return float(median(flat)) if flat else 0.0


def _round(value: Value) -> float:
    number = _as_number(value)
    return float(floor(abs(number) + 0.5)) * (-1 if number < 0 else 1)  # halves away from zero, as Go


_MANY_NUMBERS = (1, _MANY)
FUNCTIONS: dict[str, Function] = {
    "abs": Function((1, 1), "number", lambda value: abs(_as_number(value))),
    "ceil": Function((1, 1), "number", lambda value: float(ceil(_as_number(value)))),
    "floor": Function((1, 1), "number", lambda value: float(floor(_as_number(value)))),
    "round": Function((1, 1), "number", _round),
    "int": Function((1, 1), "number", lambda value: int(_as_number(value))),
    "float": Function((1, 1), "number", lambda value: float(_as_number(value))),
    "max": Function(_MANY_NUMBERS, "number", _largest),
    "min": Function(_MANY_NUMBERS, "number", _smallest),
    "mean": Function(_MANY_NUMBERS, "number", _mean),
    "median": Function(_MANY_NUMBERS, "number", _median),
    "len": Function((1, 1), "number", lambda value: len(_as_list(value))),
    "first": Function((1, 1), "any", lambda value: (_as_list(value) or [None])[0]),
    "last": Function((1, 1), "any", lambda value: (_as_list(value) or [None])[-1]),
}
# Functions whose second argument is evaluated for each item, which is # there.
PREDICATES: dict[str, Function] = {
    "all": Function((2, 2), "bool"),
    "any": Function((2, 2), "bool"),
    "none": Function((2, 2), "bool"),
    "one": Function((2, 2), "bool"),
    "count": Function((1, 2), "number"),
    "sum": Function((1, 2), "number"),
    "filter": Function((2, 2), "list"),
    "map": Function((2, 2), "list"),
    "find": Function((2, 2), "any"),
}


def call_predicate(name: str, sequence: Value, predicate: Callable[[Values], Value] | None, values: Values) -> Value:
    """Return what a function of `PREDICATES` does. Raises FormulaError."""
    items = _as_list(sequence)
    results = items if predicate is None else [predicate({**values, "#": item}) for item in items]
    if name == "map":
        return results
    if name == "sum":
        return sum(map(_as_number, results))
    fulfilled = [item for item, result in zip(items, results, strict=True) if is_condition(result)]
    by_function: dict[str, Value] = {
        "all": len(fulfilled) == len(items),
        "any": bool(fulfilled),
        "none": not fulfilled,
        "one": len(fulfilled) == 1,
        "count": len(fulfilled),
        "filter": fulfilled,
        "find": fulfilled[0] if fulfilled else None,
    }
    return by_function[name]


@dataclass(frozen=True, slots=True)
class _Term:
    evaluate: Callable[[Values], Value]
    kind: _Kind = "any"


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula and the names of the triggers that it uses."""

    text: str
    names: frozenset[str]
    _evaluate: Callable[[Values], Value] = field(repr=False, compare=False)

    def value(self, values: Values) -> float:
        """Return the value, as a float. None is a trigger without a value. Raises FormulaError."""
        try:
            return to_float(self._evaluate(values))
        except RecursionError:
            raise FormulaError(f"formula '{self.text}': nested too deeply") from None
        except (ArithmeticError, ValueError, TypeError) as error:
            raise FormulaError(f"formula '{self.text}': {error}") from None


def parse_formula(text: str, path: str = "formula") -> Formula:
    """Return a formula. Raises ConfigError, which starts with the path."""
    if len(text) > _MAX_LENGTH:
        raise ConfigError(f"{path}: expected at most {_MAX_LENGTH} characters, got {len(text)}")
    parser = _FormulaParser(text, path)
    term = parser.expression(0)
    if parser.word:
        raise parser.error("an operator or the end")
    if term.kind not in ("number", "any"):
        raise ConfigError(f"{path}: expected a number, got a {term.kind}; use a condition, such as a > 1 ? 5 : 0")
    return Formula(text, frozenset(parser.names), term.evaluate)


class _FormulaParser:
    """Precedence climbing; `word` is the next token, "" at the end."""

    def __init__(self, text: str, path: str) -> None:
        self.names: set[str] = set()
        self._variables: list[str] = []
        self._text, self._path, self._at, self._depth = text, path, 0, 0
        self._predicates = 0
        self.word = ""
        self._advance()

    def error(self, expected: str) -> ConfigError:
        token = f"'{self.word}'" if self.word else "the end"
        return ConfigError(f"{self._path}: expected {expected}, got {token} in '{self._text[:60]}'")

    def expression(self, precedence: int) -> _Term:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ConfigError(f"{self._path}: nested too deeply")
        term = self._variable() if precedence == 0 and self.word == "let" else self._operations(precedence)
        self._depth -= 1
        return term

    def _operations(self, precedence: int) -> _Term:
        term, previous = self._operand(), ""
        while _PRECEDENCE.get(self.word, -1) >= precedence:
            operator = self.word
            if previous == "??" and operator not in ("??", "|"):
                raise ConfigError(
                    f"{self._path}: {operator} and ?? cannot be mixed; put one of them in parentheses in"
                    f" '{self._text[:60]}'"
                )
            self._advance()
            if operator == "|":
                term = self._pipe(term)
            elif operator in _COMPARISONS:
                term = self._comparisons(operator, term)
            else:
                binds = _PRECEDENCE[operator]
                right = self.expression(binds if operator in ("**", "^") else binds + 1)
                term = self._joined(operator, term, right)
            previous = operator
        return self._conditional(term) if precedence == 0 else term

    def _comparisons(self, operator: str, left: _Term) -> _Term:
        """Return a < b < c as a < b and b < c."""
        right = self.expression(_PRECEDENCE[operator] + 1)
        term = self._joined(operator, left, right)
        while self.word in _COMPARISONS:
            operator, left = self.word, right
            self._advance()
            right = self.expression(_PRECEDENCE[operator] + 1)
            term = self._joined("and", term, self._joined(operator, left, right))
        return term

    def _joined(self, operator: str, left: _Term, right: _Term) -> _Term:
        if operator in _NUMERIC:
            for term in (left, right):
                self._require(term, "number", f"an operand of {operator}")
        if operator in ("or", "||"):
            return _Term(
                lambda values: is_condition(left.evaluate(values)) or is_condition(right.evaluate(values)), "bool"
            )
        if operator in ("and", "&&"):
            return _Term(
                lambda values: is_condition(left.evaluate(values)) and is_condition(right.evaluate(values)), "bool"
            )
        if operator == "??":
            return _Term(_coalesced(left, right), left.kind if left.kind == right.kind else "any")
        function = OPERATORS[operator]
        kind: _Kind = "bool" if operator in _BOOLEAN else "list" if operator == ".." else "number"
        return _Term(lambda values: function(left.evaluate(values), right.evaluate(values)), kind)

    def _conditional(self, condition: _Term) -> _Term:
        while self.word == "?":
            self._advance()
            self._require(condition, "bool", "a condition")
            then = condition if self.word == ":" else self.expression(0)
            self._expect(":")
            condition = _chosen(condition, then, self.expression(0))
        return condition

    def _variable(self) -> _Term:
        self._advance()
        name = self._name()
        self._expect("=")
        value = self.expression(0)
        self._expect(";")
        self._variables.append(name)
        rest = self.expression(0)
        self._variables.pop()
        return _Term(lambda values: rest.evaluate({**values, name: value.evaluate(values)}), rest.kind)

    def _operand(self) -> _Term:
        word = self.word
        if word in _UNARY:
            self._advance()
            term = self.expression(_UNARY[word])
            if word in ("not", "!"):
                self._require(term, "bool", f"the operand of {word}")
                return _Term(lambda values: not is_condition(term.evaluate(values)), "bool")
            self._require(term, "number", f"the operand of {word}")
            zero = OPERATORS[word]
            return self._indexed(_Term(lambda values: zero(0, term.evaluate(values)), "number"))
        if word == "(":
            self._advance()
            inner = self.expression(0)
            self._expect(")")
            return self._indexed(inner)
        if word == "[":
            return self._indexed(self._list())
        if word == "#" and self._predicates:
            self._advance()
            return self._indexed(_Term(lambda values: values["#"]))
        if word[:1].isdigit() or word[:1] == ".":
            number = self._number(word)
            self._advance()
            return number
        if not word[:1].isalpha() and not word.startswith("_"):
            raise self.error("a number, a name or (")
        self._advance()
        if word in _CONSTANTS:
            constant = _CONSTANTS[word]
            return _Term(lambda _: constant, "nil" if constant is None else "bool")
        if self.word == "(":
            return self._indexed(self._call(word, []))
        if word not in self._variables:
            self.names.add(word)
        return self._indexed(_Term(lambda values: values[word]))

    def _number(self, word: str) -> _Term:
        text = word.replace("_", "")
        try:
            number = (
                int(text, 16) if text[:2].lower() == "0x" else float(text) if re.search("[.eE]", text) else int(text)
            )
        except ValueError:  # such as "..", "1.2.3", or more digits than Python reads
            raise self.error("a number") from None
        return _Term(lambda _: number, "number")

    def _list(self) -> _Term:
        self._advance()
        items: list[_Term] = []
        while self.word != "]":
            if items:
                self._expect(",")
                if self.word == "]":
                    break
            items.append(self.expression(0))
        self._advance()
        return _Term(lambda values: [item.evaluate(values) for item in items], "list")

    def _indexed(self, term: _Term) -> _Term:
        while self.word == "[":
            self._advance()
            term = self._joined("[]", term, self.expression(0))
            self._expect("]")
            term = _Term(term.evaluate)
        return term

    def _pipe(self, first: _Term) -> _Term:
        return self._call(self._name(), [first])

    def _call(self, name: str, arguments: list[_Term]) -> _Term:
        if name not in FUNCTIONS and name not in PREDICATES:
            known = ", ".join(sorted({*FUNCTIONS, *PREDICATES}))
            raise ConfigError(f"{self._path}: '{name}' is not a supported function; known: {known}")
        self._expect("(")
        piped = len(arguments)
        while self.word != ")":
            if len(arguments) > piped:
                self._expect(",")
                if self.word == ")":
                    break
            takes_predicate = name in PREDICATES and len(arguments) == 1
            arguments.append(self._predicate() if takes_predicate else self.expression(0))
        self._advance()
        return self._called(name, arguments)

    def _called(self, name: str, arguments: list[_Term]) -> _Term:
        known = PREDICATES.get(name) or FUNCTIONS[name]
        low, high = known.arguments
        if not low <= len(arguments) <= high:
            raise ConfigError(f"{self._path}: {name} takes {_arguments(low, high)}, got {len(arguments)}")
        kind: _Kind = known.kind
        if name in PREDICATES:
            sequence, *rest = arguments
            self._require(sequence, "list", f"the first argument of {name}")
            predicate = rest[0].evaluate if rest else None
            return _Term(lambda values: call_predicate(name, sequence.evaluate(values), predicate, values), kind)
        function = known.function
        return _Term(lambda values: function(*(argument.evaluate(values) for argument in arguments)), kind)

    def _predicate(self) -> _Term:
        braces = self.word == "{"
        if braces:
            self._advance()
        self._predicates += 1
        term = self.expression(0)
        self._predicates -= 1
        if braces:
            self._expect("}")
        return term

    def _require(self, term: _Term, kind: _Kind, what: str) -> None:
        if term.kind not in (kind, "any"):
            raise ConfigError(f"{self._path}: {what} is a {term.kind}, expected a {kind} in '{self._text[:60]}'")

    def _name(self) -> str:
        word = self.word
        if not re.fullmatch(r"[A-Za-z_]\w*", word) or word in _PRECEDENCE or word in _CONSTANTS:
            raise self.error("a name")
        self._advance()
        return word

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


def _coalesced(left: _Term, right: _Term) -> Callable[[Values], Value]:
    def evaluate(values: Values) -> Value:
        value = left.evaluate(values)
        return right.evaluate(values) if value is None else value

    return evaluate


def _chosen(condition: _Term, then: _Term, otherwise: _Term) -> _Term:
    def evaluate(values: Values) -> Value:
        return (then if is_condition(condition.evaluate(values)) else otherwise).evaluate(values)

    return _Term(evaluate, then.kind if then.kind == otherwise.kind else "any")


def _arguments(low: int, high: int) -> str:
    if high > 1:
        return f"at least {low} arguments" if high > low else f"{low} arguments"
    return "one argument"
