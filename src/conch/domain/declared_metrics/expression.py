"""Expressions over a request: a small part of Python's, checked with types and compiled once.

Allowed are names of `facts`, numbers, texts, booleans, arithmetic, comparisons, `and`, `or`, `not`, `in`,
`A if CONDITION else B`, and calls of the functions below. There are no attributes, no indices and no other calls, so
that an expression cannot reach anything but the request. Products are of numbers, so that a text cannot grow.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from conch.base.suggestion import closest
from conch.domain.declared_metrics.request_facts import Evaluate, RequestFacts, Type

MAX_CHARACTERS = 1000
_REQUEST = "request"
_NUMERIC: tuple[type[ast.AST], ...] = (ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class ExpressionError(ValueError):
    """An expression is invalid; the message says where and what would be right."""


def _parameter(request: RequestFacts, name: str, default: Any) -> Any:
    """Return a parameter of the request in the type of the default; the default if it is missing or of another type."""
    parameters = request.parameters
    value = parameters.get(name) if isinstance(parameters, Mapping) else getattr(parameters, name, None)
    if value is None:
        return default
    if isinstance(default, str):
        return str(value)
    if isinstance(default, bool):
        return value if isinstance(value, bool) else default
    try:
        return value if isinstance(value, (int, float)) else float(value)
    except (TypeError, ValueError):
        return default


# Function → its implementation, types of its arguments, whether the last may be repeated, type of its result.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], tuple[Type, ...], bool, Type]] = {
    "abs": (abs, ("number",), False, "number"),
    "len": (len, ("text",), False, "number"),
    "lower": (str.lower, ("text",), False, "text"),
    "max": (max, ("number", "number"), True, "number"),
    "min": (min, ("number", "number"), True, "number"),
    "round": (round, ("number",), False, "number"),
}


def compile_expression(text: str, names: Mapping[str, Type], wanted: Type | None) -> Evaluate:
    """Return a function of a request. `wanted` is the type of the value, None for any. Raises ExpressionError."""
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(f"has {len(text)} characters; the maximum is {MAX_CHARACTERS}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(
            f"syntax error at column {error.offset or 1}: {error.msg}; in YAML, quote an expression with commas"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"cannot be parsed: {error}") from None
    try:
        actual = _Checker(names).type(tree)
        if wanted is not None and actual != wanted and (actual, wanted) != ("boolean", "number"):
            raise ExpressionError(f"is a {actual}; a {wanted} is needed")
        return _compiled(tree)
    except RecursionError:
        raise ExpressionError("has too many levels") from None


def _compiled(tree: ast.expr) -> Evaluate:
    """Return `lambda request: …`, in which names are attributes of the request."""
    body = _Binder().visit(tree)
    arguments = ast.arguments(posonlyargs=[], args=[ast.arg(_REQUEST)], kwonlyargs=[], kw_defaults=[], defaults=[])
    module = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, body)))
    functions = {f"_{name}": function for name, (function, *_) in _FUNCTIONS.items()}
    variables = {"__builtins__": {}, "_parameter": _parameter, **functions}
    # Of a tree that the checker has passed: names, constants, operators and functions of the table only.
    evaluate: Evaluate = eval(compile(module, "<expression>", "eval"), variables)  # noqa: S307
    return evaluate


class _Checker:
    """Returns the types of expressions, and refuses all that is not allowed."""

    def __init__(self, names: Mapping[str, Type]) -> None:
        self._names = names

    def type(self, node: ast.expr) -> Type:
        """Return the type of a part. Raises ExpressionError."""
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._expect(value, "boolean")
            return "boolean"
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.IfExp):
            self._expect(node.test, "boolean")
            first = self.type(node.body)
            self._expect(node.orelse, first)
            return first
        if isinstance(node, ast.Call):
            return self._call(node)
        raise self._error(node, f"{_source(node)} is not allowed: {_ALLOWED}")

    def _constant(self, node: ast.Constant) -> Type:
        if isinstance(node.value, bool):
            return "boolean"
        if isinstance(node.value, (int, float)):
            return "number"
        if isinstance(node.value, str):
            return "text"
        raise self._error(node, f"{_source(node)} is not a number, a text or a boolean")

    def _name(self, node: ast.Name) -> Type:
        known = self._names.get(node.id)
        if known is None:
            raise self._error(node, f'unknown name "{node.id}"{_suggestion(node.id, self._names)}')
        return known

    def _arithmetic(self, node: ast.BinOp) -> Type:
        if isinstance(node.op, ast.Add):
            first = self.type(node.left)
            self._expect(node.right, first)
            return "number" if first == "boolean" else first
        if not isinstance(node.op, _NUMERIC):
            raise self._error(node, f"the operator in {_source(node)} is not allowed: + - * / // %")
        self._expect(node.left, "number")
        self._expect(node.right, "number")
        return "number"

    def _unary(self, node: ast.UnaryOp) -> Type:
        if isinstance(node.op, ast.Not):
            self._expect(node.operand, "boolean")
            return "boolean"
        if isinstance(node.op, ast.Invert):
            raise self._error(node, "~ is not allowed")
        self._expect(node.operand, "number")
        return "number"

    def _comparison(self, node: ast.Compare) -> Type:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            first = self.type(left)
            if isinstance(operator, (ast.In, ast.NotIn)):
                self._membership(first, right)
            elif isinstance(operator, (ast.Eq, ast.NotEq, *_ORDER)):
                self._expect(right, first)
            else:
                raise self._error(node, "is is not allowed: write ==")
            left = right
        return "boolean"

    def _membership(self, member: Type, container: ast.expr) -> None:
        if isinstance(container, (ast.Tuple, ast.List, ast.Set)):
            for element in container.elts:
                self._expect(element, member)
        elif member == "text":
            self._expect(container, "text")
        else:
            raise self._error(container, f"{_source(container)} is not a list in parentheses")

    def _call(self, node: ast.Call) -> Type:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "parameter":
            return self._parameter(node)
        if name not in _FUNCTIONS or node.keywords:
            known = ["parameter", *_FUNCTIONS]
            raise self._error(node, f"the call {_source(node)} is not allowed; functions: {', '.join(known)}")
        _, types, repeated, result = _FUNCTIONS[name]
        if len(node.args) < len(types) or (len(node.args) > len(types) and not repeated):
            raise self._error(node, f"{name} takes {len(types)}{' or more' * repeated} arguments")
        for number, argument in enumerate(node.args):
            self._expect(argument, types[min(number, len(types) - 1)])
        return result

    def _parameter(self, node: ast.Call) -> Type:
        values = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        if len(node.args) != 2 or len(values) != 2 or node.keywords or not isinstance(values[0], str):
            raise self._error(node, 'a parameter needs its name and a default, such as parameter("tier", "none")')
        return self.type(node.args[1])

    def _expect(self, node: ast.expr, wanted: Type) -> None:
        actual = self.type(node)
        if actual != wanted and (actual, wanted) != ("boolean", "number"):
            raise self._error(node, f"{_source(node)} is a {actual}; a {wanted} is needed")

    def _error(self, node: ast.AST, text: str) -> ExpressionError:
        return ExpressionError(f"{text} (at column {getattr(node, 'col_offset', 0) + 1})")


class _Binder(ast.NodeTransformer):
    """Turns names into attributes of the request, and calls into those of the table."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Attribute(ast.Name(_REQUEST, ast.Load()), node.id, ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.AST:
        assert isinstance(node.func, ast.Name)
        arguments = [self.visit(argument) for argument in node.args]
        if node.func.id == "parameter":
            arguments.insert(0, ast.Name(_REQUEST, ast.Load()))
        return ast.Call(ast.Name(f"_{node.func.id}", ast.Load()), arguments, [])


_ALLOWED = "write names, numbers, texts, + - * / // %, comparisons, and, or, not, in, if … else and functions"


def _source(node: ast.AST) -> str:
    text = ast.unparse(node)
    return f"`{text if len(text) <= 40 else text[:39] + '…'}`"


def _suggestion(name: str, names: Sequence[str] | Mapping[str, Type]) -> str:
    near = closest(name, names)
    return f'; did you mean "{near}"?' if near else f"; names: {', '.join(names)}"
