"""Read the file of declared metrics: YAML, or Python for trusted operators. All of it is checked at the start."""

import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

from conch.base.errors import ConfigError, Unavailable
from conch.base.extras import install_command
from conch.base.suggestion import closest
from conch.domain.declared_metrics.expression import ExpressionError, compile_expression
from conch.domain.declared_metrics.request_facts import AT_BEGIN, AT_END, Evaluate, Type
from conch.domain.metrics.catalog import all_metrics
from conch.domain.metrics.metric import is_label_name, is_metric_name

MAX_FAMILIES = 200
MAX_LABELS = 20
MAX_BUCKETS = 100
MAX_SERIES = 100_000
_DEFAULT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_KINDS = ("counter", "gauge", "histogram")
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
_KEYS = ("name", "kind", "help", "labels", "expression", "where", "in_flight", "buckets", "max_series")

DEFAULT_MAX_SERIES = 1000

DeclaredKind: TypeAlias = Literal["counter", "gauge", "histogram"]
Where: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class DeclaredFamily:
    """One family: what is added to a counter, observed by a histogram, or set to a gauge for each request.

    `in_flight`: the gauge is increased when a request begins and decreased by the same amount when it ends.
    """

    name: str
    kind: DeclaredKind
    help: str
    value: Evaluate
    where: Evaluate | None = None  # only requests for which it is true
    labels: Mapping[str, Evaluate] = field(default_factory=dict)
    in_flight: bool = False
    buckets: tuple[float, ...] = ()  # upper bounds, the last being infinity
    max_series: int = DEFAULT_MAX_SERIES


def read_declarations(path: Path) -> list[DeclaredFamily]:
    """Return the families of a file. Raises ConfigError with the place of the first mistake and what would be right."""
    if path.suffix == ".py":
        return _Reader(path, _python(path), {}).families()
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"--metrics-config=custom_metrics={path}: the file must be YAML (.yaml, .yml) or Python (.py); "
            "docs/observability/custom-metrics.md describes it. Shared libraries are not supported"
        )
    try:
        from conch.base.yaml_documents import YamlError, load_document
    except ModuleNotFoundError:
        raise Unavailable(f"--metrics-config=custom_metrics=… needs PyYAML: {install_command('monitoring')}") from None
    try:
        document = load_document(path.read_text(encoding="utf-8"))
    except YamlError as error:
        raise ConfigError(f"{path}:{error.line}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--metrics-config=custom_metrics={path}: cannot read the file: {error}") from None
    return _Reader(path, document.value, document.lines).families()


def _python(path: Path) -> Any:
    """Run a file and return its `metrics` in the form of a YAML document."""
    try:
        return {"metrics": runpy.run_path(str(path)).get("metrics")}
    except Exception as error:
        raise ConfigError(f"--metrics-config=custom_metrics={path}: {type(error).__name__}: {error}") from error


class _Reader:
    """Reads one document. `lines` are those of its parts, where they are known."""

    def __init__(self, path: Path, document: Any, lines: Mapping[Where, int]) -> None:
        self._path = path
        self._document = document
        self._lines = lines
        self._taken: dict[str, str] = {}  # names in /metrics → what has them
        for metric in all_metrics().values():
            self._take(metric.name, metric.kind, "is a metric of the server")

    def families(self) -> list[DeclaredFamily]:
        """Return the families. Raises ConfigError."""
        document = self._document
        if not isinstance(document, dict) or not isinstance(document.get("metrics"), list):
            self._fail((), "a list named metrics is missing")
        for key in document:
            if key != "metrics":
                self._fail((str(key),), f'unknown key "{key}"; the only one is metrics')
        entries = document["metrics"]
        if len(entries) > MAX_FAMILIES:
            self._fail(("metrics",), f"{len(entries)} metrics; the maximum is {MAX_FAMILIES}")
        return [self._family(("metrics", number), entry) for number, entry in enumerate(entries)]

    def _family(self, at: Where, entry: Any) -> DeclaredFamily:
        if not isinstance(entry, dict):
            self._fail(at, "a metric is a mapping with name, kind, help and expression")
        for key in entry:
            if key not in _KEYS:
                near = closest(str(key), _KEYS)
                hint = f'did you mean "{near}"?' if near else f"known: {', '.join(_KEYS)}"
                self._fail((*at, str(key)), f'unknown key "{key}"; {hint}')
        kind = entry.get("kind")
        if kind not in _KINDS:
            self._fail((*at, "kind"), f"must be one of {', '.join(_KINDS)}, got {kind!r}")
        name = self._name((*at, "name"), entry.get("name"), kind)
        text = entry.get("help")
        if not isinstance(text, str) or not text.strip():
            self._fail((*at, "help"), "a help text is missing: one sentence that says what is measured")
        in_flight = entry.get("in_flight", False)
        if not isinstance(in_flight, bool) or (in_flight and kind != "gauge"):
            self._fail((*at, "in_flight"), "must be true or false, and is for gauges only")
        names = AT_BEGIN if in_flight else AT_END
        where = entry.get("where")
        return DeclaredFamily(
            name,
            kind,
            " ".join(text.split()),
            self._value(at, entry, kind, in_flight),
            None if where is None else self._expression((*at, "where"), where, names, "boolean"),
            self._labels((*at, "labels"), entry.get("labels", {}), kind, names),
            in_flight,
            self._buckets((*at, "buckets"), entry.get("buckets"), kind),
            self._max_series((*at, "max_series"), entry.get("max_series", DEFAULT_MAX_SERIES)),
        )

    def _name(self, at: Where, name: Any, kind: str) -> str:
        if not isinstance(name, str) or not is_metric_name(name):
            self._fail(at, f"{name!r} is not a valid name: letters, digits, _ and :, not beginning with a digit")
        for form in self._forms(name, kind):
            if owner := self._taken.get(form):
                self._fail(at, f'the name "{form}" {owner}; choose another, for example with a prefix of yours')
        self._take(name, kind, "is declared above")
        return name

    def _take(self, name: str, kind: str, owner: str) -> None:
        self._taken.update(dict.fromkeys(self._forms(name, kind), owner))

    @staticmethod
    def _forms(name: str, kind: str) -> list[str]:
        return [name, *(name + suffix for suffix in _SUFFIXES.get(kind, ()))]

    def _value(self, at: Where, entry: Mapping[str, Any], kind: str, in_flight: bool) -> Evaluate:
        expression = entry.get("expression")
        if expression is None:
            if kind != "counter" and not in_flight:
                self._fail((*at, "expression"), f"a {kind} needs an expression, such as duration")
            expression = "1"
        return self._expression((*at, "expression"), expression, AT_BEGIN if in_flight else AT_END, "number")

    def _labels(self, at: Where, labels: Any, kind: str, names: Mapping[str, Type]) -> dict[str, Evaluate]:
        if not isinstance(labels, dict):
            self._fail(at, "labels are a mapping from names to expressions, such as {model: model}")
        if len(labels) > MAX_LABELS:
            self._fail(at, f"{len(labels)} labels; the maximum is {MAX_LABELS}")
        expressions = {}
        for name, expression in labels.items():
            here = (*at, str(name))
            if not isinstance(name, str) or not is_label_name(name) or name.startswith("__"):
                self._fail(here, f"{name!r} is not a valid label name: letters, digits and _, not beginning with __")
            if kind == "histogram" and name == "le":
                self._fail(here, "the label le of a histogram is that of its buckets")
            expressions[name] = self._expression(here, expression, names, None)
        return expressions

    def _buckets(self, at: Where, buckets: Any, kind: str) -> tuple[float, ...]:
        if kind != "histogram":
            if buckets is not None:
                self._fail(at, "only histograms have buckets")
            return ()
        bounds = list(_DEFAULT_BUCKETS) if buckets is None else buckets
        valid = isinstance(bounds, list) and all(
            isinstance(bound, (int, float)) and not isinstance(bound, bool) and isfinite(bound) for bound in bounds
        )
        if not valid or not 0 < len(bounds) <= MAX_BUCKETS or sorted(set(bounds)) != bounds:
            self._fail(at, f"buckets are 1 to {MAX_BUCKETS} upper bounds in ascending order, without infinity")
        return (*map(float, bounds), inf)

    def _max_series(self, at: Where, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SERIES:
            self._fail(at, f"must be an integer from 1 to {MAX_SERIES}, got {value!r}")
        return value

    def _expression(self, at: Where, value: Any, names: Mapping[str, Type], wanted: Type | None) -> Evaluate:
        if callable(value):  # of a Python file
            function: Callable[..., Any] = value
            return function
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            self._fail(at, f"{value!r} is not an expression: a text, such as duration")
        try:
            return compile_expression(str(value), names, wanted)
        except ExpressionError as error:
            hint = "; in_flight gauges know what the request had when it began" if names is AT_BEGIN else ""
            self._fail(at, f"{error}{hint}")

    def _fail(self, at: Where, message: str) -> NoReturn:
        path = at
        while path and path not in self._lines:
            path = path[:-1]
        line = f":{self._lines[path]}" if path in self._lines else ""
        part = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in at).lstrip(".")
        raise ConfigError(f"{self._path}{line}: {part + ': ' if part else ''}{message}")
