"""Custom metrics of Python models: which exist, and whether gauges count."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from conch.check.finding import Finding, Place
from conch.check.python.file import PythonFile, text_of
from conch.check.source import SourceFile

_FAMILY = "MetricFamily"
_GAUGE_NAME = re.compile(r"gauge|metric|in_?flight|concurren|active", re.IGNORECASE)
_LIFECYCLE_METHODS = ("initialize", "finalize", "auto_complete_config", "__init__")


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """A metric that Python code declares."""

    name: str
    kind: str  # "gauge", "counter", "histogram" or ""
    place: Place


def declared_metrics(sources: Iterable[SourceFile]) -> dict[str, DeclaredMetric]:
    """Return the metrics that files declare, by name: calls of MetricFamily, and subclasses of it."""
    found: dict[str, DeclaredMetric] = {}
    for source in sources:
        if _FAMILY not in source.text:
            continue
        try:
            file = PythonFile.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # another rule reports it
        for each in _declared(file):
            found.setdefault(each.name, each)
    return found


def check_gauges(file: PythonFile) -> Iterator[Finding]:
    """Find gauges that requests set to a constant, as if that counted them."""
    for node in file.nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "set"):
            continue
        function = file.function_of(node)
        receiver = ast.unparse(node.func.value)
        if function is None or function.name in _LIFECYCLE_METHODS or not _is_gauge(file, receiver):
            continue
        values = [*node.args[:1], *(each.value for each in node.keywords if each.arg == "value")]
        if values and isinstance(values[0], ast.Constant) and values[0].value in (1, 1.0):
            message = f"{receiver}.set({ast.unparse(values[0])}) leaves the gauge at 1, whatever the number of requests"
            yield Finding("python-gauge-constant", file.place(node), message)


def _is_gauge(file: PythonFile, receiver: str) -> bool:
    if _GAUGE_NAME.search(receiver):
        return True
    assigned = (node for node in file.nodes if isinstance(node, ast.Assign))
    return any(
        ast.unparse(node.targets[0]) == receiver
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "Metric"
        for node in assigned
    )


def _declared(file: PythonFile) -> Iterator[DeclaredMetric]:
    for call in file.calls_of(_FAMILY):
        settings = {each.arg: each.value for each in call.keywords if each.arg}
        name = text_of(settings.get("name") or (call.args[0] if call.args else None))
        if name:
            kind = settings.get("kind")
            yield DeclaredMetric(name, _kind(kind), file.place(call))
    for node in file.nodes:
        if isinstance(node, ast.ClassDef) and any(file.api(base) == _FAMILY for base in node.bases):
            values = {
                target.id: each.value
                for each in node.body
                if isinstance(each, ast.Assign)
                for target in each.targets
                if isinstance(target, ast.Name)
            }
            if name := text_of(values.get("name")):
                yield DeclaredMetric(name, _kind(values.get("kind")), file.place(node))


def _kind(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr.lower()
    return (text_of(node) or "").lower()
