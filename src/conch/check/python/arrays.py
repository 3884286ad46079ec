"""Infer datatype and rank of numpy arrays from the expressions that create them."""

import ast
from collections.abc import Sequence

from conch.check.python.file import PythonFile, argument, text_of

# numpy's names → wire datatypes.
_DATATYPES = {
    "bool": "BOOL",
    "bool_": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "int": "INT64",
    "float16": "FP16",
    "half": "FP16",
    "float32": "FP32",
    "single": "FP32",
    "float64": "FP64",
    "double": "FP64",
    "float": "FP64",
    "object": "BYTES",
    "object_": "BYTES",
    "bytes_": "BYTES",
    "str_": "BYTES",
}
_DTYPE_POSITION = {"array": 1, "asarray": 1, "ascontiguousarray": 1, "zeros": 1, "ones": 1, "empty": 1, "full": 2}
_FILLED = ("zeros", "ones", "empty")  # FP64 by default
_SAME_DATATYPE = {"reshape", "transpose", "copy", "ravel", "flatten", "squeeze", "swapaxes", "clip", "expand_dims"}
_SAME_RANK = {"astype", "copy", "clip", "ascontiguousarray", "asarray", "array", "abs"}
_SCALARS = {"int", "float", "len", "round", "str", "bytes", "bool", "min", "max"}
_SCALAR_METHODS = {"encode", "decode", "item", "dumps", "tobytes"}
_MAX_DEPTH = 24


def datatype(file: PythonFile, node: ast.expr | None, depth: int = 0) -> str:
    """Return the wire datatype of an array, "" if it cannot be inferred."""
    node = file.value_of(node)
    if depth > _MAX_DEPTH or not isinstance(node, ast.Call | ast.Subscript):
        return ""
    if isinstance(node, ast.Subscript):
        return datatype(file, node.value, depth + 1)
    name, owner = _called(node)
    if name == "astype":
        return _named(argument(node, 0, "dtype"))
    if name in _DTYPE_POSITION:
        given = argument(node, _DTYPE_POSITION[name], "dtype")
        if given is not None:
            return _named(given)
        return "FP64" if name in _FILLED else datatype(file, argument(node, 0, "a"), depth + 1)
    if name in _SAME_DATATYPE:
        return datatype(file, argument(node, 0, "a") if owner is None else owner, depth + 1)
    return ""


def rank(file: PythonFile, node: ast.expr | None, depth: int = 0) -> int | None:
    """Return the number of dimensions of an array or number, None if it cannot be inferred."""
    if _is_from_shape(file, node):
        return 0
    node = file.value_of(node)
    if depth > _MAX_DEPTH:
        return None
    if isinstance(node, ast.Constant):
        return 0
    if isinstance(node, ast.BinOp):
        return _broadcast(rank(file, node.left, depth + 1), rank(file, node.right, depth + 1))
    if isinstance(node, ast.Subscript):
        return _indexed(file, node, depth)
    return _made(file, node, depth) if isinstance(node, ast.Call) else None


def _broadcast(left: int | None, right: int | None) -> int | None:
    """Apply numpy's rule: the larger rank. An unknown rank is assumed to be the smaller one if the other is above 1."""
    if left is not None and right is not None:
        return max(left, right)
    known = left if right is None else right
    return known if known is not None and known > 1 else None


def _made(file: PythonFile, call: ast.Call, depth: int) -> int | None:
    name, owner = _called(call)
    source = argument(call, 0, "a") if owner is None else owner
    arguments = call.args[1:] if owner is None else call.args
    if name in ("array", "asarray") and isinstance(source, ast.List | ast.Tuple):
        return _nested(file, source, depth)
    if name in ("zeros", "ones", "empty", "full"):
        shape = file.value_of(source)
        return len(shape.elts) if isinstance(shape, ast.Tuple | ast.List) else None
    if name == "reshape" or (name == "transpose" and arguments):
        return _axes(arguments)
    if name in ("ravel", "flatten", "frombuffer"):
        return 1
    if name == "expand_dims":
        inner = rank(file, source, depth + 1)
        return None if inner is None else inner + 1
    if name in _SAME_RANK:
        return rank(file, source, depth + 1)
    scalar = name in _SCALARS if isinstance(call.func, ast.Name) else name in _SCALAR_METHODS
    return 0 if scalar else None


def _axes(arguments: Sequence[ast.expr]) -> int | None:
    """Return the number of sizes or axes in `(2, 0, 1)` or `2, 0, 1`."""
    if len(arguments) == 1:
        if not isinstance(arguments[0], ast.Tuple | ast.List):
            return 1 if isinstance(arguments[0], ast.Constant | ast.UnaryOp) else None
        arguments = arguments[0].elts
    return None if any(isinstance(size, ast.Starred) for size in arguments) else len(arguments)


def _nested(file: PythonFile, node: ast.expr, depth: int) -> int | None:
    """Return the rank of nested lists: 2 for `[[a, b], [c, d]]` with numbers as elements."""
    if not isinstance(node, ast.List | ast.Tuple):
        return rank(file, node, depth + 1)
    if not node.elts or isinstance(node.elts[0], ast.Starred):
        return None
    inner = _nested(file, node.elts[0], depth + 1)
    return None if inner is None else inner + 1


def _indexed(file: PythonFile, node: ast.Subscript, depth: int) -> int | None:
    inner = rank(file, node.value, depth + 1)
    if inner is None:
        return None
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for part in parts:
        if (isinstance(part, ast.Constant) and part.value is None) or ast.unparse(part).endswith("newaxis"):
            inner += 1
        elif isinstance(part, ast.Constant) and isinstance(part.value, int):
            inner -= 1
        elif not isinstance(part, ast.Slice) and not (isinstance(part, ast.Constant) and part.value is ...):
            return None
    return inner


def _is_from_shape(file: PythonFile, node: ast.expr | None) -> bool:
    """Whether a name was unpacked from a shape: `height, width = image.shape[:2]`."""
    if not isinstance(node, ast.Name):
        return False
    scope = file.function_of(node) or file.tree
    for statement in ast.walk(scope):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
            names = [element.id for element in statement.targets[0].elts if isinstance(element, ast.Name)]
            value = statement.value.value if isinstance(statement.value, ast.Subscript) else statement.value
            if node.id in names and isinstance(value, ast.Attribute) and value.attr == "shape":
                return True
    return False


def _called(call: ast.Call) -> tuple[str, ast.expr | None]:
    """Return the name of a function and, for a method of an array, the array; None for `np.x`, `json.x`."""
    if isinstance(call.func, ast.Attribute):
        owner = call.func.value
        is_module = isinstance(owner, ast.Name) and owner.id in ("np", "numpy", "cv2", "json", "torch")
        return call.func.attr, None if is_module else owner
    return (call.func.id if isinstance(call.func, ast.Name) else ""), None


def _named(node: ast.expr | None) -> str:
    """Return the wire datatype of `np.float32`, "float32" or `float`."""
    text = text_of(node)
    if text is not None:
        return _DATATYPES.get(text, "")
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return _DATATYPES.get(name, "")
