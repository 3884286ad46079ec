"""Rules for single nodes of Python code, which one walk over a file applies, and rules for a model's files together."""

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from conch.base.suggestion import closest
from conch.check.finding import Finding, Place
from conch.check.models.checked_model import CheckedModel
from conch.check.python.file import API_MODULE, Function, PythonFile, argument, text_of
from conch.server.backends import child as child_folder

_PROVIDED = {API_MODULE, "c_python_backend_utils"}
_LIFECYCLE_METHODS = ("initialize", "finalize", "auto_complete_config", "__init__")  # no request waits for them
_GAUGE_NAME = re.compile(r"gauge|metric|in_?flight|concurren|active", re.IGNORECASE)
_NMS = re.compile(r"nms|non_?max_?supp", re.IGNORECASE)
_DECODERS = {"cv2.imdecode", "Image.open", "PIL.Image.open", "imageio.imread", "iio.imread"}
# A row of a detector's output has a box, optionally objectness, and a score for each class.
_BOX_FIELDS = (0, 4, 5)
_MIN_COLUMNS = 6
_CLOCKS = ("time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "monotonic_ns", "now")
_SUBMISSIONS = ("async_infer", "async_stream_infer", "stream_infer")
_WAITS = ("get_result", "get", "wait", "join", "result", "stop_stream", "acquire", "gather", "as_completed", "sleep")


@dataclass(frozen=True, slots=True)
class ModelCode:
    """A file, and the model whose file it is, None for others. `reported` are inputs that have a finding."""

    file: PythonFile
    model: CheckedModel | None = None
    reported: set[str] = field(default_factory=set)


NodeRules: TypeAlias = Mapping[type[ast.AST], tuple[Callable[[ModelCode, Any], Iterator[Finding]], ...]]


def check_nodes(code: ModelCode, *families: NodeRules) -> Iterator[Finding]:
    """Apply families of rules to each node of a file."""
    for node in code.file.nodes:
        for rules in families:
            for rule in rules.get(type(node), ()):
                yield from rule(code, node)


# ---- uses of Triton's module -----------------------------------------------------------------------------------------


@cache
def _api_names() -> frozenset[str]:
    """Return the public names of this server's version of Triton's module, read from its file."""
    path = Path(child_folder.__file__).parent / f"{API_MODULE}.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return frozenset(ast.literal_eval(node.value))
    raise AssertionError(f"{path} has no __all__")


def _attribute(code: ModelCode, node: ast.Attribute) -> Iterator[Finding]:
    name = code.file.api(node)
    if name and name not in _api_names():
        yield _unknown_name(code.file, node, name)


def _imported_names(code: ModelCode, node: ast.ImportFrom) -> Iterator[Finding]:
    for alias in node.names if node.module == API_MODULE else ():
        if alias.name != "*" and alias.name not in _api_names():
            yield _unknown_name(code.file, node, alias.name)


def _unknown_name(file: PythonFile, node: ast.AST, name: str) -> Finding:
    near = closest(name, _api_names())
    cure = f"Did you mean '{near}'?" if near else f"It has: {', '.join(sorted(_api_names()))}."
    return Finding("python-api", file.place(node), f"{API_MODULE} has no '{name}'", cure)


def _metric_class(code: ModelCode, node: ast.ClassDef) -> Iterator[Finding]:
    for base in node.bases:
        if code.file.api(base) in ("MetricFamily", "Metric"):
            message = f"class {node.name} is a subclass of {code.file.api(base)}"
            yield Finding("python-metric-class", code.file.place(node), message)


def _constant_gauge(code: ModelCode, node: ast.Call) -> Iterator[Finding]:
    """Find gauges that requests set to a constant, as if that counted them."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr == "set"):
        return
    function, receiver = code.file.function_of(node), ast.unparse(node.func.value)
    if function is None or function.name in _LIFECYCLE_METHODS or not _is_gauge(code.file, receiver):
        return
    value = argument(node, 0, "value")
    if isinstance(value, ast.Constant) and value.value in (1, 1.0):
        message = f"{receiver}.set({ast.unparse(value)}) leaves the gauge at 1, whatever the number of requests"
        yield Finding("python-gauge-constant", code.file.place(node), message)


def _is_gauge(file: PythonFile, receiver: str) -> bool:
    return bool(_GAUGE_NAME.search(receiver)) or any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == receiver
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "Metric"
        for node in file.nodes
    )


# ---- habits of models ------------------------------------------------------------------------------------------------


def _print(code: ModelCode, node: ast.Call) -> Iterator[Finding]:
    if isinstance(node.func, ast.Name) and node.func.id == "print" and code.file.function_of(node):
        yield Finding("python-print", code.file.place(node), "print(…)")


def _sleep(code: ModelCode, node: ast.Call) -> Iterator[Finding]:
    """Find sleep in methods for which requests wait."""
    if ast.unparse(node.func) == "time.sleep":
        function = code.file.function_of(node)
        is_method = function is not None and code.file.parents[function] is code.file.model_class
        if function is not None and is_method and function.name not in _LIFECYCLE_METHODS:
            yield Finding("python-sleep", code.file.place(node), f"time.sleep in {function.name}")


# ---- items of a batch, and classes -----------------------------------------------------------------------------------


def _first_item(code: ModelCode, node: ast.Subscript) -> Iterator[Finding]:
    """Find that only the first item of a batch is read."""
    size = code.model.config.max_batch_size if code.model else 0
    if code.model is None or size == 0 or not _is_zero(node.slice) or not isinstance(node.ctx, ast.Load):
        return
    name = _input_behind(code.file, node.value)
    if name is not None and name not in code.reported:
        code.reported.add(name)
        message = f"only item 0 of input {name} is read; max_batch_size of model '{code.model.name}' is {size}"
        yield Finding("python-first-item", code.file.place(node), message)


def _whole_batch_suppression(code: ModelCode, node: ast.Call) -> Iterator[Finding]:
    """Find non-maximum suppression of all items of a batch together."""
    called = _last_name(node.func)
    if code.model is None or code.model.config.max_batch_size == 0 or not _NMS.search(called):
        return
    inputs = (_input_behind(code.file, passed) for passed in node.args)
    if name := next((name for name in inputs if name is not None), None):
        yield Finding("python-batch-nms", code.file.place(node), f"{called} receives input {name} of a whole request")


def _class_names(code: ModelCode, node: ast.Subscript) -> Iterator[Finding]:
    """Find lists of class names, indexed by class, that do not match the columns of the inputs."""
    inputs = code.model.config.inputs if code.model else ()
    wide = [spec.dims[-1] for spec in inputs if len(spec.dims) > 1 and spec.dims[-1] >= _MIN_COLUMNS]
    if not wide or isinstance(node.slice, ast.Constant | ast.Slice):
        return
    names = _literal(code.file, node.value)
    if names and all(len(names) != size - box for size in wide for box in _BOX_FIELDS):
        classes = wide[0] - _BOX_FIELDS[-1]
        message = f"{len(names)} class names for {classes} classes: rows of {wide[0]} are box, objectness and scores"
        yield Finding("python-class-count", code.file.place(node), message)


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
            assignment.value
            for assignment in file.nodes
            if isinstance(assignment, ast.Assign) and _last_name(assignment.targets[0]) == name
        ]
        value = assigned[0] if len(assigned) == 1 else None
    if isinstance(value, ast.List | ast.Tuple) and len(value.elts) > 1 and None not in map(text_of, value.elts):
        return value.elts
    return []


def _is_zero(node: ast.expr) -> bool:
    first = node.elts[0] if isinstance(node, ast.Tuple) and node.elts else node
    return isinstance(first, ast.Constant) and first.value == 0 and first.value is not False


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# ---- clients ---------------------------------------------------------------------------------------------------------


def _timing(code: ModelCode, node: Function | ast.Module) -> Iterator[Finding]:
    """Find a submission between two clock readings, without a wait for the result before the second."""
    submitted: ast.Call | None = None
    clocked = False
    for kind, event in sorted(_events(node), key=lambda event: (event[1].lineno, event[1].col_offset)):
        if kind == "clock":
            if submitted is not None:
                message = f"the clock stops when {_last_name(submitted.func)} returns, before the response arrives"
                yield Finding("client-timing", code.file.place(submitted), message)
            clocked, submitted = True, None
        elif kind == "submission" and clocked:
            submitted = event
        elif kind == "wait":
            submitted = None


def _events(node: ast.AST, inside: bool = False) -> Iterator[tuple[str, ast.Call]]:
    """Yield clock readings, submissions and waits of a function itself, not of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda | ast.ClassDef):
            continue
        awaited = inside or isinstance(child, ast.Await)
        if isinstance(child, ast.Call):
            name = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
            if name in _CLOCKS and not child.args:
                yield "clock", child
            elif name in _SUBMISSIONS and not isinstance(node, ast.Await):
                yield "submission", child
            elif name in _WAITS or isinstance(node, ast.Await):
                yield "wait", child
        elif isinstance(child, ast.AsyncFor | ast.For) and isinstance(child.iter, ast.Name):
            yield "wait", _at(child)
        elif isinstance(child, ast.AsyncFor):
            yield "wait", _after(child)
        yield from _events(child, awaited)


def _at(node: ast.For | ast.AsyncFor) -> ast.Call:
    """Return a node at the place of a loop."""
    return ast.Call(func=node.iter, args=[], keywords=[], lineno=node.lineno, col_offset=node.col_offset)


def _after(node: ast.AsyncFor) -> ast.Call:
    """Return a node after the head of a loop: iterating over `stream_infer(…)` waits for its responses."""
    end = node.iter
    return ast.Call(
        func=node.iter,
        args=[],
        keywords=[],
        lineno=end.end_lineno or end.lineno,
        col_offset=(end.end_col_offset or 0) + 1,
    )


# ---- a model's files together ----------------------------------------------------------------------------------------


def unlimited_images(files: Sequence[PythonFile]) -> Iterator[Finding]:
    """Check that a model that decodes images refuses images that are too large."""
    if any(_has_limit(file) for file in files):
        return
    for file in files:
        for node in file.nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _DECODERS:
                message = f"{ast.unparse(node.func)} decodes images of any size"
                yield Finding("python-image-limit", file.place(node), message)


def _has_limit(file: PythonFile) -> bool:
    """Whether the file raises an error after a comparison by size."""
    for node in file.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "MAX_IMAGE_PIXELS" and isinstance(node.ctx, ast.Store):
            return True
        if not isinstance(node, ast.If):
            continue
        compares = [op for compare in ast.walk(node.test) if isinstance(compare, ast.Compare) for op in compare.ops]
        if any(isinstance(op, ast.Gt | ast.GtE | ast.Lt | ast.LtE) for op in compares) and any(
            isinstance(inner, ast.Raise) or (isinstance(inner, ast.Call) and file.api(inner.func) == "TritonError")
            for statement in node.body
            for inner in ast.walk(statement)
        ):
            return True
    return False


def missing_modules(files: Sequence[PythonFile], beside: set[str]) -> Iterator[Finding]:
    """Find modules that are not installed here, without importing any. `beside` are the model's own modules."""
    places: dict[str, list[Place]] = {}
    for file in files:
        for name, place in _missing_imports(file, beside):
            places.setdefault(name, []).append(place)
    for name, uses in places.items():
        more = f" (and {len(uses) - 1} more places)" if len(uses) > 1 else ""
        yield Finding("python-import", uses[0], f"module '{name}' is not installed in this environment{more}")


def _missing_imports(file: PythonFile, beside: set[str]) -> Iterator[tuple[str, Place]]:
    for node in file.nodes:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        else:
            continue
        if any(isinstance(outer, ast.Try) for outer in file.around(node)):
            continue  # the model handles a failure
        for name in {module.partition(".")[0] for module in modules}:
            if name not in beside and name not in _PROVIDED and not _is_installed(name):
                yield name, file.place(node)


def _is_installed(name: str) -> bool:
    try:
        return name in sys.stdlib_module_names or find_spec(name) is not None
    except (ImportError, ValueError):
        return False


# By type of node, the rules for all files, for files that use Triton's module, for clients, and for models.
ANY_FILE: NodeRules = {
    ast.Attribute: (_attribute,),
    ast.ClassDef: (_metric_class,),
    ast.ImportFrom: (_imported_names,),
}
METRICS: NodeRules = {ast.Call: (_constant_gauge,)}
CLIENT: NodeRules = dict.fromkeys((ast.Module, ast.FunctionDef, ast.AsyncFunctionDef), (_timing,))
MODEL: NodeRules = {ast.Call: (_print, _sleep)}
MODEL_FILE: NodeRules = {ast.Call: (_whole_batch_suppression,), ast.Subscript: (_first_item, _class_names)}
