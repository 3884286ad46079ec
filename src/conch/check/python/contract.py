"""Check the contract of a Python model: its class, `execute` and its return value, and uses of Triton's module."""

import ast
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from conch.base.suggestion import closest
from conch.check.finding import Finding, Place
from conch.check.models.model import CheckedModel
from conch.check.python.file import API_MODULE, MODEL_CLASS, Function, PythonFile
from conch.server.backends import child as child_folder

_PROVIDED = {API_MODULE, "c_python_backend_utils"}
_LIFECYCLE_METHODS = ("initialize", "finalize", "auto_complete_config")  # no request waits for them


@cache
def api_names() -> frozenset[str]:
    """Return the public names of this server's version of Triton's module, read from its file."""
    path = Path(child_folder.__file__).parent / f"{API_MODULE}.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return frozenset(ast.literal_eval(node.value))
    raise AssertionError(f"{path} has no __all__")


def check_class(file: PythonFile) -> Iterator[Finding]:
    """Check that there is a TritonPythonModel with a method `execute(self, requests)`."""
    model = file.model_class
    if model is None:
        if not file.binds(MODEL_CLASS):
            message = f"{file.source.path.name} does not define a class {MODEL_CLASS}"
            yield Finding("python-class", file.place(file.tree), message)
        return
    execute = file.method("execute")
    if execute is None:
        assigned = any(
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "execute" for node in model.body
        )
        if not assigned and all(ast.unparse(base) == "object" for base in model.bases):
            yield Finding("python-execute", file.place(model), f"class {MODEL_CLASS} has no method 'execute'")
        return
    arguments = execute.args
    positional = [*arguments.posonlyargs, *arguments.args]
    static = any(ast.unparse(each) == "staticmethod" for each in execute.decorator_list)
    passed = 1 if static else 2
    required = len(positional) - len(arguments.defaults)
    if arguments.vararg is None and not required <= passed <= len(positional):
        message = f"execute takes {len(positional)} arguments; the server calls it with {passed}: self and requests"
        yield Finding("python-execute", file.place(execute), message)


def check_execute(file: PythonFile, model: CheckedModel) -> Iterator[Finding]:
    """Check what `execute` returns."""
    execute = file.method("execute")
    if execute is None or "set_model_transaction_policy" in file.source.text:
        return
    returns = [node for node in _own(execute) if isinstance(node, ast.Return)]
    values = [node for node in returns if node.value is not None and not _is_none(node.value)]
    sends = "get_response_sender" in file.source.text
    if model.config.decoupled:
        for node in values:
            message = "execute of a decoupled model returns a value; it must return None"
            yield Finding("python-return", file.place(node), message)
        return
    if not values and not sends and not _only_raises(execute):
        message = "execute returns nothing, and no response sender is used: no request gets a response"
        yield Finding("python-return", file.place(execute), message)
    for node in values:
        value = file.value_of(node.value)
        if isinstance(value, ast.Call) and file.api(value.func) == "InferenceResponse":
            message = "execute returns one InferenceResponse; it must return a list of them"
            yield Finding("python-return", file.place(node), message)
    if sends:
        attributes = (each for each in file.nodes if isinstance(each, ast.Attribute))
        sender = next((each for each in attributes if each.attr == "get_response_sender"), execute)
        message = f"model '{model.name}' uses a response sender, but its model_transaction_policy is not decoupled"
        yield Finding("python-sender", file.place(sender), message)
        return
    yield from _response_count(file, execute)


def _response_count(file: PythonFile, execute: Function) -> Iterator[Finding]:
    """Find paths through the loop over the requests that leave a request without a response."""
    positional = [*execute.args.posonlyargs, *execute.args.args]
    requests = positional[-1].arg if positional else "requests"
    for loop in (node for node in _own(execute) if isinstance(node, ast.For)):
        if requests not in {name.id for name in ast.walk(loop.iter) if isinstance(name, ast.Name)}:
            continue
        for node in _own(loop):
            if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
                message = "execute returns from inside its loop: the requests after this one get no response"
                yield Finding("python-response-count", file.place(node), message)
            elif isinstance(node, ast.Continue | ast.Break) and _leaves_unanswered(file, node, loop):
                word = "continue" if isinstance(node, ast.Continue) else "break"
                message = f"`{word}` leaves this request without a response"
                yield Finding("python-response-count", file.place(node), message)


def _leaves_unanswered(file: PythonFile, node: ast.AST, loop: ast.For) -> bool:
    """Whether no statement before this one in the loop adds a response."""
    if next(outer for outer in file.around(node) if isinstance(outer, ast.For | ast.While)) is not loop:
        return False
    while node is not loop:
        block = file.parents[node]
        for body in (getattr(block, name, []) for name in ("body", "orelse", "finalbody")):
            if node in body and any(_answers(inner) for one in body[: body.index(node)] for inner in ast.walk(one)):
                return False
        node = block
    return True


def _answers(node: ast.AST) -> bool:
    """Whether a node stores a response: `responses.append(…)`, `responses[index] = …`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("append", "extend", "send")
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def check_names(file: PythonFile) -> Iterator[Finding]:
    """Check each use of Triton's module, and subclasses of its metric classes."""
    for node in file.nodes:
        name = file.api(node) if isinstance(node, ast.Attribute) else ""
        if name and name not in api_names():
            yield Finding("python-api", file.place(node), f"{API_MODULE} has no '{name}'", _nearest(name))
        elif isinstance(node, ast.ImportFrom) and node.module == API_MODULE:
            for alias in node.names:
                if alias.name != "*" and alias.name not in api_names():
                    message = f"{API_MODULE} has no '{alias.name}'"
                    yield Finding("python-api", file.place(node), message, _nearest(alias.name))
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                if file.api(base) in ("MetricFamily", "Metric"):
                    message = f"class {node.name} is a subclass of {file.api(base)}"
                    yield Finding("python-metric-class", file.place(node), message)


def check_habits(file: PythonFile) -> Iterator[Finding]:
    """Find calls that a model on a server should avoid: print, and sleep while requests wait."""
    for node in file.nodes:
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "print" and file.function_of(node):
            yield Finding("python-print", file.place(node), "print(…)")
        elif ast.unparse(node.func) == "time.sleep":
            function = file.function_of(node)
            if (
                function is not None
                and function.name not in _LIFECYCLE_METHODS
                and file.parents[function] is file.model_class
            ):
                yield Finding("python-sleep", file.place(node), f"time.sleep in {function.name}")


def check_imports(files: Sequence[PythonFile], beside: set[str]) -> Iterator[Finding]:
    """Find modules that are not installed here, without importing any. `beside` are the model's own modules."""
    places: dict[str, list[Place]] = {}
    for file in files:
        for name, place in _missing_imports(file, beside):
            places.setdefault(name, []).append(place)
    for name, found in places.items():
        more = f" (and {len(found) - 1} more places)" if len(found) > 1 else ""
        yield Finding("python-import", found[0], f"there is no module '{name}' in this environment{more}")


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


def _nearest(name: str) -> str:
    near = closest(name, api_names())
    return f"Did you mean '{near}'?" if near else f"It has: {', '.join(sorted(api_names()))}."


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes inside a node, except those inside of nested functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own(child)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _only_raises(function: Function) -> bool:
    return isinstance(function.body[-1], ast.Raise)
