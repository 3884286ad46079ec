"""PromQL as a tree of values: parse, walk, rewrite, render. The only module that imports promql_parser.

A tree is rewritten with `rewrite`, or with `dataclasses.replace`: `render` adds the parentheses that precedence needs.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import promql_parser

MatchOperator: TypeAlias = Literal["=", "!=", "=~", "!~"]

_MATCH_OPERATORS: dict[str, MatchOperator] = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
COMPARISONS = ("==", "!=", "<=", "<", ">=", ">")
SET_OPERATORS = ("and", "or", "unless")
_LEVELS = (("or",), ("and", "unless"), COMPARISONS, ("+", "-"), ("*", "/", "%", "atan2"), ("unary -",), ("^",))
_PRECEDENCE = {operator: level for level, operators in enumerate(_LEVELS, 1) for operator in operators}
_UNARY_PRECEDENCE = _PRECEDENCE["unary -"]
_MAX_QUOTED = 30
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# Comments and strings are tokens, so that names in them are not taken for those of metrics and functions.
_TOKEN = re.compile(
    r"#[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`|[a-zA-Z_:][a-zA-Z0-9_:]*|\d[\w.]*|[<>=!]=|=~|!~|\S"
)


class PromqlError(ValueError):
    """A text is not a valid query. `offset` is where the text stops being one, in characters."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class LabelMatcher:
    """A condition on a label. A label that a series lacks has the value ""."""

    label: str
    operator: MatchOperator
    value: str

    def matches(self, value: str) -> bool:
        """Return whether a label's value fulfils the condition."""
        if self.operator in ("=", "!="):
            return (value == self.value) is (self.operator == "=")
        return (re.fullmatch(self.value, value) is not None) is (self.operator == "=~")


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """A selection of series, with a range in seconds for a range vector. `metric` is None if matchers choose the names.

    `at` is a timestamp in seconds, "start()" or "end()". `alternatives` are groups of matchers joined by `or`.
    `place` is the offset in the text.
    """

    metric: str | None
    matchers: tuple[LabelMatcher, ...] = ()
    range_s: float | None = None
    offset_s: float | None = None
    at: float | str | None = None
    alternatives: tuple[tuple[LabelMatcher, ...], ...] = ()
    place: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Subquery:
    """A range vector that evaluates an expression repeatedly."""

    expr: "Node"
    range_s: float
    step_s: float | None = None
    offset_s: float | None = None
    at: float | str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function."""

    function: str
    arguments: tuple["Node", ...]
    place: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """`sum by (labels) (expr)`. `grouping` is None if all series are aggregated into one."""

    operator: str
    expr: "Node"
    parameter: "Node | None" = None
    grouping: Literal["by", "without"] | None = None
    labels: tuple[str, ...] = ()
    place: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """A binary operation, with the labels of its vector matching; `group_labels` are None without group_left/right."""

    operator: str
    left: "Node"
    right: "Node"
    returns_bool: bool = False
    matching: Literal["on", "ignoring"] | None = None
    labels: tuple[str, ...] = ()
    group: Literal["group_left", "group_right"] | None = None
    group_labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Negation:
    """Unary minus."""

    expr: "Node"


@dataclass(frozen=True, slots=True)
class Parentheses:
    """Parentheses that the text has, needed or not."""

    expr: "Node"


Node: TypeAlias = Number | Text | Selector | Subquery | Call | Aggregation | Binary | Negation | Parentheses


# Prometheus 3 has renamed the function; the parser knows the new name only.
_HOLT_WINTERS, _SMOOTHING = "holt_winters", "double_exponential_smoothing"
_FORMER_NAME = re.compile(rf"\b{_HOLT_WINTERS}(?=\s*\()")


def parse(text: str) -> Node:
    """Return the tree of a query. Raises PromqlError."""
    try:
        parsed = promql_parser.parse(_FORMER_NAME.sub(_SMOOTHING, text))
    except ValueError as error:
        raise PromqlError(str(error), _error_offset(text, str(error))) from None
    try:
        return _Converter(text).convert(parsed)
    except RecursionError:
        raise PromqlError("the query is nested too deeply", 0) from None


def is_regular_expression(text: str) -> bool:
    """Return whether a text is a regular expression of a matcher, without look-around and back-references (RE2)."""
    try:
        parse(render(Selector("up", (LabelMatcher("job", "=~", text),))))
    except PromqlError:
        return False
    return True


def position(text: str, offset: int) -> str:
    """Return a place in a query in words: at its line and column, 1-based, and what stands there."""
    before, rest = text[:offset], text[offset:].split("\n")[0]
    line, column = before.count("\n") + 1, offset - before.rfind("\n")
    where = f"column {column}" if "\n" not in text else f"line {line}, column {column} of the expression"
    if not rest:
        return f"at {where}"
    return f"at {where}, '{rest if len(rest) <= _MAX_QUOTED else rest[:_MAX_QUOTED] + '…'}'"


def children(node: Node) -> tuple[Node, ...]:
    """Return the operands of a node, in the order of the text."""
    match node:
        case Binary():
            return node.left, node.right
        case Call():
            return node.arguments
        case Aggregation():
            return (node.expr,) if node.parameter is None else (node.parameter, node.expr)
        case Subquery() | Negation() | Parentheses():
            return (node.expr,)
        case _:
            return ()


def walk(node: Node, above: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield each node of a tree with the nodes above it, the outermost first, in the order of the text."""
    yield node, above
    for child in children(node):
        yield from walk(child, (*above, node))


def rewrite(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a tree whose nodes are replaced by `change`, operands before what they are operands of."""
    changed: dict[str, Any] = {}
    for item in fields(node):
        value = getattr(node, item.name)
        if isinstance(value, Node):
            changed[item.name] = rewrite(value, change)
        elif item.name == "arguments":
            changed[item.name] = tuple(rewrite(argument, change) for argument in value)
    return change(replace(node, **changed) if changed else node)


def strip(node: Node) -> Node:
    """Return a node without the parentheses around it."""
    while isinstance(node, Parentheses):
        node = node.expr
    return node


@dataclass(frozen=True, slots=True)
class MetricUse:
    """A selector, with the names of the functions and aggregations that are applied to it, the innermost first."""

    selector: Selector
    functions: tuple[str, ...]


def metric_uses(node: Node) -> list[MetricUse]:
    """Return the uses of all metrics in a tree. A comparison or an operation with another vector ends no chain."""
    uses = []
    for inner, above in walk(node):
        if isinstance(inner, Selector):
            names = [
                outer.function if isinstance(outer, Call) else outer.operator
                for outer in reversed(above)
                if isinstance(outer, Call | Aggregation)
            ]
            uses.append(MetricUse(inner, tuple(names)))
    return uses


def metric_names(node: Node) -> set[str]:
    """Return the names of all metrics that a tree selects by name."""
    return {use.selector.metric for use in metric_uses(node) if use.selector.metric is not None}


def render(node: Node) -> str:
    """Return the text of a tree, on one line."""
    match node:
        case Number():
            return _number(node.value)
        case Text():
            return json.dumps(node.value, ensure_ascii=False)
        case Selector():
            return _selector(node) + _modifiers(node.at, node.offset_s)
        case Subquery():
            step = "" if node.step_s is None else duration(node.step_s)
            window = f"[{duration(node.range_s)}:{step}]"
            return _operand(node.expr, _UNARY_PRECEDENCE + 2) + window + _modifiers(node.at, node.offset_s)
        case Call():
            return f"{node.function}({', '.join(map(render, node.arguments))})"
        case Aggregation():
            grouping = f" {node.grouping} ({', '.join(node.labels)}) " if node.grouping else ""
            return f"{node.operator}{grouping}({', '.join(map(render, children(node)))})"
        case Binary():
            return _binary(node)
        case Negation():
            return f"-{_operand(node.expr, _UNARY_PRECEDENCE)}"
        case Parentheses():
            return f"({render(node.expr)})"


def duration(seconds: float) -> str:
    """Return a duration as PromQL and rule files write it, such as 1h30m."""
    return str(promql_parser.display_duration(timedelta(seconds=seconds)))


def _binary(node: Binary) -> str:
    precedence = _PRECEDENCE[node.operator]
    # Operators of one precedence associate to the left, except the power.
    power = node.operator == "^"
    words = [node.operator]
    if node.returns_bool:
        words.append("bool")
    if node.matching:
        words.append(f"{node.matching} ({', '.join(node.labels)})")
    if node.group:
        words.append(f"{node.group} ({', '.join(node.group_labels)})")
    left, right = _operand(node.left, precedence + power), _operand(node.right, precedence + (not power))
    return f"{left} {' '.join(words)} {right}"


def _operand(node: Node, minimum: int) -> str:
    """Return the text of an operand, in parentheses unless it binds at least as strongly as the minimum."""
    precedence = 9
    if isinstance(node, Binary):
        precedence = _PRECEDENCE[node.operator]
    elif isinstance(node, Negation) or (isinstance(node, Number) and node.value < 0):
        precedence = _UNARY_PRECEDENCE
    return render(node) if precedence >= minimum else f"({render(node)})"


def _selector(node: Selector) -> str:
    plain = node.metric is not None and _NAME.fullmatch(node.metric) is not None
    conditions = [] if plain or node.metric is None else [json.dumps(node.metric, ensure_ascii=False)]
    conditions.append(
        " or ".join(_matchers(group) for group in node.alternatives) if node.alternatives else _matchers(node.matchers)
    )
    inside = ", ".join(filter(None, conditions))
    window = "" if node.range_s is None else f"[{duration(node.range_s)}]"
    return (node.metric or "" if plain else "") + (f"{{{inside}}}" if inside else "") + window


def _matchers(matchers: tuple[LabelMatcher, ...]) -> str:
    return ", ".join(
        f"{matcher.label}{matcher.operator}{json.dumps(matcher.value, ensure_ascii=False)}" for matcher in matchers
    )


def _modifiers(at: float | str | None, offset_s: float | None) -> str:
    text = "" if at is None else f" @ {at if isinstance(at, str) else _number(at)}"
    if offset_s:
        text += f" offset {'-' if offset_s < 0 else ''}{duration(abs(offset_s))}"
    return text


def _number(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}[str(value)]
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


class _Converter:
    """Convert the parser's nodes, which have no places and cannot be changed, and find their places in the text."""

    def __init__(self, text: str) -> None:
        self._names = list(_names(text))

    def convert(self, node: Any) -> Node:
        """Convert a node and those below it, in the order of the text."""
        return getattr(self, f"_{type(node).__name__}")(node)  # type: ignore[no-any-return]

    def _place(self, name: str) -> int:
        """Return the offset of the next occurrence of a name, and continue after it."""
        for index, (word, offset) in enumerate(self._names):
            if word == name:
                del self._names[: index + 1]
                return offset
        return 0

    def _NumberLiteral(self, node: Any) -> Node:  # noqa: N802  # named after the parser's class
        return Number(node.val)

    def _StringLiteral(self, node: Any) -> Node:  # noqa: N802
        return Text(node.val)

    def _ParenExpr(self, node: Any) -> Node:  # noqa: N802
        return Parentheses(self.convert(node.expr))

    def _UnaryExpr(self, node: Any) -> Node:  # noqa: N802
        return Negation(self.convert(node.expr))

    def _Call(self, node: Any) -> Node:  # noqa: N802
        name = node.func.name
        if name == _SMOOTHING:
            name = next(word for word, _ in self._names if word in (_HOLT_WINTERS, _SMOOTHING))
        place = self._place(name)
        return Call(name, tuple(self.convert(argument) for argument in node.args), place)

    def _AggregateExpr(self, node: Any) -> Node:  # noqa: N802
        place = self._place(str(node.op))
        grouping: Literal["by", "without"] | None = None
        if node.modifier is not None:
            grouping = "by" if node.modifier.type == promql_parser.AggModifierType.By else "without"
        parameter = None if node.param is None else self.convert(node.param)
        labels = tuple(node.modifier.labels) if node.modifier else ()
        return Aggregation(str(node.op), self.convert(node.expr), parameter, grouping, labels, place)

    def _BinaryExpr(self, node: Any) -> Node:  # noqa: N802
        left, right = self.convert(node.lhs), self.convert(node.rhs)
        modifier = node.modifier
        if modifier is None:
            return Binary(str(node.op), left, right)
        if modifier.fill_values is not None and (modifier.fill_values.lhs, modifier.fill_values.rhs) != (None, None):
            raise PromqlError("fill modifiers of binary operations are not supported", 0)
        matching: Literal["on", "ignoring"] | None = None
        if modifier.matching is not None:
            matching = "on" if modifier.matching.type == promql_parser.LabelModifierType.Include else "ignoring"
        cards = promql_parser.VectorMatchCardinality
        group: Literal["group_left", "group_right"] | None = None
        if modifier.card in (cards.ManyToOne, cards.OneToMany):
            group = "group_left" if modifier.card == cards.ManyToOne else "group_right"
        labels = tuple(modifier.matching.labels) if modifier.matching else ()
        group_labels = tuple(modifier.group_labels or ())
        return Binary(str(node.op), left, right, modifier.return_bool, matching, labels, group, group_labels)

    def _VectorSelector(self, node: Any) -> Selector:  # noqa: N802
        matchers = [_matcher(matcher) for matcher in node.matchers.matchers]
        metric = node.name
        for matcher in matchers:
            if metric is None and matcher.label == "__name__" and matcher.operator == "=":
                metric = matcher.value
                matchers.remove(matcher)
                break
        place = self._place(node.name) if node.name else 0
        alternatives = tuple(tuple(_matcher(matcher) for matcher in group) for group in node.matchers.or_matchers)
        return Selector(metric, tuple(matchers), None, _seconds(node.offset), _at(node.at), alternatives, place)

    def _MatrixSelector(self, node: Any) -> Node:  # noqa: N802
        return replace(self._VectorSelector(node.vector_selector), range_s=node.range.total_seconds())

    def _SubqueryExpr(self, node: Any) -> Node:  # noqa: N802
        inner = self.convert(node.expr)
        return Subquery(inner, node.range.total_seconds(), _seconds(node.step), _seconds(node.offset), _at(node.at))


def _matcher(matcher: Any) -> LabelMatcher:
    operator = str(matcher.op).rpartition(".")[2]
    return LabelMatcher(matcher.name, _MATCH_OPERATORS[operator], matcher.value)


def _seconds(delta: timedelta | None) -> float | None:
    return None if delta is None else delta.total_seconds()


def _at(modifier: Any) -> float | str | None:
    if modifier is None:
        return None
    if modifier.type == promql_parser.AtModifierType.At:
        return float(modifier.at.timestamp())
    return "start()" if modifier.type == promql_parser.AtModifierType.Start else "end()"


def _names(text: str) -> Iterator[tuple[str, int]]:
    """Yield the names outside of braces, brackets, strings and comments, with their offsets."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "{[":
            depth += 1
        elif token[0] in "}]":
            depth -= 1
        elif depth == 0 and _NAME.fullmatch(token[0]):
            yield token[0], token.start()


def _error_offset(text: str, message: str) -> int:
    """Return where a text stops being a query: at a name in the message, or after the longest part that is one."""
    if quoted := re.search(r"'([a-zA-Z_:][\w:]*)'", message):
        for name, offset in _names(text):
            if name == quoted[1]:
                return offset
    tokens = list(_TOKEN.finditer(text))
    for index in range(len(tokens) - 1, 0, -1):
        try:
            promql_parser.parse(text[: tokens[index].start()])
        except ValueError:
            continue
        return tokens[index].start()
    return 0
