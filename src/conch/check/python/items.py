"""Check the handling of batch items, classes and images for mistakes that give wrong results without an error."""

import ast
import re
from collections.abc import Iterator, Sequence

from conch.check.finding import Finding
from conch.check.models.model import CheckedModel
from conch.check.python.file import PythonFile, argument, text_of

_NMS = re.compile(r"nms|non_?max_?supp", re.IGNORECASE)
_DECODERS = {"cv2.imdecode", "Image.open", "PIL.Image.open", "imageio.imread", "iio.imread"}
# A row of a detector's output has a box, optionally objectness, and a score for each class.
_BOX_FIELDS = (0, 4, 5)
_MIN_COLUMNS = 6


def check_items(file: PythonFile, model: CheckedModel) -> Iterator[Finding]:
    """Check that every item of a request is processed, and separately."""
    if model.config.max_batch_size == 0:
        return
    reported: set[str] = set()
    for node in file.nodes:
        if isinstance(node, ast.Subscript) and _is_zero(node.slice) and isinstance(node.ctx, ast.Load):
            name = _input_behind(file, node.value)
            if name is not None and name not in reported:
                reported.add(name)
                message = (
                    f"only item 0 of input {name} is read; max_batch_size of model '{model.name}' is "
                    f"{model.config.max_batch_size}"
                )
                yield Finding("python-first-item", file.place(node), message)
        elif isinstance(node, ast.Call) and _NMS.search(_last_name(node.func)):
            name = next((name for each in node.args if (name := _input_behind(file, each)) is not None), None)
            if name is not None:
                message = f"{_last_name(node.func)} receives input {name} of a whole request"
                yield Finding("python-batch-nms", file.place(node), message)


def check_class_names(file: PythonFile, model: CheckedModel) -> Iterator[Finding]:
    """Check that lists of class names that are indexed by class match the columns of the inputs."""
    columns = [spec.dims[-1] for spec in model.config.inputs if len(spec.dims) > 1]
    wide = [size for size in columns if size >= _MIN_COLUMNS]
    if not wide:
        return
    for node in file.nodes:
        if not isinstance(node, ast.Subscript) or isinstance(node.slice, ast.Constant | ast.Slice):
            continue
        names = _literal(file, node.value)
        if names and all(len(names) != size - box for size in wide for box in _BOX_FIELDS):
            classes = wide[0] - _BOX_FIELDS[-1]
            message = (
                f"{len(names)} class names for {classes} classes: rows of {wide[0]} are box, objectness and scores"
            )
            yield Finding("python-class-count", file.place(node), message)


def check_images(files: Sequence[PythonFile]) -> Iterator[Finding]:
    """Check that a model that decodes images refuses images that are too large."""
    if any(_has_limit(file) for file in files):
        return
    for file in files:
        for node in file.nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _DECODERS:
                message = f"{ast.unparse(node.func)} decodes images of any size"
                yield Finding("python-image-limit", file.place(node), message)


def _input_behind(file: PythonFile, node: ast.expr) -> str | None:
    """Return the name, in quotes, of the input whose array an expression is; None if it is not an input."""
    value = file.value_of(node)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "as_numpy":
        tensor = file.value_of(value.func.value)
        if isinstance(tensor, ast.Call) and file.api(tensor.func) == "get_input_tensor_by_name":
            name = text_of(argument(tensor, 1, "name"))
            return "with a variable name" if name is None else f"'{name}'"
    return None


def _literal(file: PythonFile, node: ast.expr) -> list[ast.expr]:
    """Return the elements of a list of strings: a literal, or assigned once to this name or attribute."""
    value = file.value_of(node)
    if isinstance(value, ast.Attribute):
        name = value.attr
        assigned = [
            each.value for each in file.nodes if isinstance(each, ast.Assign) and _last_name(each.targets[0]) == name
        ]
        value = assigned[0] if len(assigned) == 1 else None
    if isinstance(value, ast.List | ast.Tuple) and len(value.elts) > 1 and None not in map(text_of, value.elts):
        return value.elts
    return []


def _has_limit(file: PythonFile) -> bool:
    """Whether the file raises an error after a comparison by size."""
    for node in file.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "MAX_IMAGE_PIXELS" and isinstance(node.ctx, ast.Store):
            return True
        if not isinstance(node, ast.If):
            continue
        compares = [op for each in ast.walk(node.test) if isinstance(each, ast.Compare) for op in each.ops]
        if any(isinstance(op, ast.Gt | ast.GtE | ast.Lt | ast.LtE) for op in compares) and any(
            isinstance(each, ast.Raise) or (isinstance(each, ast.Call) and file.api(each.func) == "TritonError")
            for statement in node.body
            for each in ast.walk(statement)
        ):
            return True
    return False


def _is_zero(node: ast.expr) -> bool:
    first = node.elts[0] if isinstance(node, ast.Tuple) and node.elts else node
    return isinstance(first, ast.Constant) and first.value == 0 and first.value is not False


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
