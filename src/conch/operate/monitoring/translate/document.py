"""Translate Grafana dashboards and Prometheus rule files, as plain JSON and YAML values. They are changed in place."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from conch.domain.metrics.metric import UNITS
from conch.operate.monitoring import promql
from conch.operate.monitoring.translate.dialects import LABELS, Dialect, Untranslatable
from conch.operate.monitoring.translate.expression import Part, Rewriter, original_unit
from conch.operate.monitoring.translate.variables import Template, parse_template

Status: TypeAlias = Literal["translated", "unchanged", "no counterpart", "invalid"]

# Units of panels: Grafana's id → ours. The official dashboard of DCGM shows MiB as MB.
_PANEL_UNITS: dict[str, str] = {
    **{
        form.grafana: unit for unit, form in UNITS.items() if form.dimension not in ("count", "tokens") and form.grafana
    },
    "decmbytes": "mebibytes",
    "rotmhz": "megahertz",
}
_MIXES = "selects all models of the server, others than language models too; --model NAME selects one"
_LABEL_VALUES = "label_values("
_LEGEND_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_TEMPLATE_LABEL = re.compile(r"(?<=\$labels\.)\w+|(?<=\.Labels\.)\w+")


@dataclass(frozen=True, slots=True)
class QueryTranslation:
    """The result for one query: its place, the query before and after, and the reason if it is not translated."""

    place: str
    status: Status
    before: str
    after: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Query:
    """A query that was parsed and rewritten."""

    template: Template
    part: Part
    remark: str = ""

    @property
    def original(self) -> str:
        """The query with values in the units of the original."""
        return self.template.text(original_unit(self.part))

    @property
    def native(self) -> str:
        """The query with values in the units of the new metrics."""
        return self.template.text(self.part.node)


class Translator:
    """Translates documents from one dialect to another. `outcomes` has one entry for each query."""

    def __init__(self, source: Dialect, target: Dialect, model: str = "") -> None:
        self._model = model
        self._source: Dialect = source
        self._target: Dialect = target
        self.outcomes: list[QueryTranslation] = []

    def translate(self, document: Any) -> None:
        """Translate a dashboard, a rule file, a PrometheusRule or a list of them. Raises ValueError for others."""
        if not isinstance(document, dict):
            raise ValueError("a document must be a dashboard or a file of rules")
        if document.get("kind") == "List":
            for item in document.get("items") or []:
                self.translate(item)
        elif isinstance(document.get("dashboard"), dict):  # as Grafana's API returns it
            self.translate(document["dashboard"])
        elif document.get("kind") == "PrometheusRule":
            self._groups(document["spec"]["groups"])
        elif isinstance(document.get("groups"), list):
            self._groups(document["groups"])
        elif "panels" in document or "rows" in document or "templating" in document:
            self._dashboard(document)
        else:
            raise ValueError("neither a Grafana dashboard (panels) nor rules (groups)")

    def query(self, text: str, *, keep_unit: bool = False) -> str:
        """Translate one query. Its values are in the units of the new metrics, or as they were."""
        rewritten = self._rewritten("query", text)
        if rewritten is None:
            return text
        after = self._done("query", text, rewritten.original if keep_unit else rewritten.native, rewritten.remark)
        if rewritten.part.scale != 1 and not keep_unit:
            self._remark(f"values are {float(rewritten.part.scale):g} times what they were")
        return after

    def _groups(self, groups: Any) -> None:
        for group in groups:
            for rule in group.get("rules") or []:
                self._rule(f"{group.get('name', '')}/{rule.get('alert') or rule.get('record')}", rule)

    def _rule(self, place: str, rule: dict[str, Any]) -> None:
        """Translate a rule. What a recording rule records keeps its unit; alerts compare in the new one."""
        before = str(rule.get("expr", ""))
        query = self._rewritten(place, before)
        if query is None:
            return
        rule["expr"] = self._done(place, before, query.native if rule.get("alert") else query.original, query.remark)
        if not query.part.translated:
            return
        for key in ("annotations", "labels"):
            for name, text in (rule.get(key) or {}).items():
                if isinstance(text, str):
                    rule[key][name] = _TEMPLATE_LABEL.sub(lambda label: self._label(label[0]), text)
                    if rule.get("alert") and query.part.scale != 1 and "$value" in text:
                        self._remark(f"$value is now {float(query.part.scale):g} times what it was")

    def _dashboard(self, dashboard: dict[str, Any]) -> None:
        for place, panel in _panels(dashboard):
            self._panel(place, panel)
        for variable in _listed(dashboard, "templating"):
            self._variable(f"variable {variable.get('name', '')}", variable)
        for annotation in _listed(dashboard, "annotations"):
            if isinstance(annotation.get("expr"), str):
                place = f"annotation {annotation.get('name', '')}"
                query = self._rewritten(place, annotation["expr"])
                if query is not None:
                    annotation["expr"] = self._done(place, annotation["expr"], query.original, query.remark)

    def _panel(self, place: str, panel: dict[str, Any]) -> None:
        """Translate a panel's queries, and its unit and thresholds if all queries change alike."""
        given = panel.get("targets") or []
        targets = [target for target in given if isinstance(target.get("expr"), str) and target["expr"]]
        queries = [self._rewritten(f"{place}/{target.get('refId', '')}", target["expr"]) for target in targets]
        scales = {query.part.scale for query in queries if query is not None}
        native = None not in queries and len(scales) == 1 and _convert_panel(panel, next(iter(scales)))
        for target, query in zip(targets, queries, strict=True):
            if query is None:
                continue
            text = query.native if native else query.original
            target["expr"] = self._done(f"{place}/{target.get('refId', '')}", target["expr"], text, query.remark)
            if query.part.translated and isinstance(target.get("legendFormat"), str):
                legend = target["legendFormat"]
                target["legendFormat"] = _LEGEND_LABEL.sub(lambda match: f"{{{{{self._label(match[1])}}}}}", legend)

    def _variable(self, place: str, variable: dict[str, Any]) -> None:
        query = variable.get("query")
        text = query.get("query") if isinstance(query, dict) else query
        if variable.get("type") != "query" or not isinstance(text, str):
            return
        new = self._variable_query(place, text)
        if isinstance(query, dict):
            query["query"] = new
        else:
            variable["query"] = new
        if variable.get("definition") == text:
            variable["definition"] = new

    def _variable_query(self, place: str, text: str) -> str:
        """Translate `label_values(selector, label)`, the function of Grafana, or `query_result(query)`."""
        stripped = text.strip()
        for function in (_LABEL_VALUES, "query_result("):
            if stripped.startswith(function) and stripped.endswith(")"):
                inner = stripped[len(function) : -1]
                selector, comma, label = inner.rpartition(",") if function == _LABEL_VALUES else (inner, "", "")
                if not selector:
                    break  # the values of a label of all metrics
                query = self._rewritten(place, selector, whole=text, patterns=function == _LABEL_VALUES)
                if query is None:
                    return text
                name = self._label(label.strip()) if query.part.translated else label.strip()
                rewritten = query.native if function == _LABEL_VALUES else query.original
                return self._done(place, text, f"{function}{rewritten}{comma and ', '}{name})", query.remark)
        return text

    def _rewritten(self, place: str, text: str, *, whole: str = "", patterns: bool = False) -> _Query | None:
        """Return the rewritten query, or None with an outcome that says why there is none."""
        try:
            template = parse_template(text)
            rewriter = Rewriter(self._source, self._target, patterns=patterns, model=self._model)
            part = rewriter.rewrite(template.tree)
        except promql.PromqlError as error:
            self.outcomes.append(QueryTranslation(place, "invalid", whole or text, whole or text, str(error)))
        except Untranslatable as error:
            reason = f"{error.subject}: {error}"
            self.outcomes.append(QueryTranslation(place, "no counterpart", whole or text, whole or text, reason))
        else:
            return _Query(template, part, _MIXES if rewriter.mixes else "")
        return None

    def _done(self, place: str, before: str, after: str, remark: str = "") -> str:
        """Record the translation of a query, and return it: as it was if nothing in it has another name."""
        if _same(before, after):
            after = before
        status: Status = "unchanged" if after == before else "translated"
        self.outcomes.append(QueryTranslation(place, status, before, after, remark))
        return after

    def _remark(self, text: str) -> None:
        """Add a remark to the last outcome, once."""
        last = self.outcomes[-1]
        if text not in last.reason:
            self.outcomes[-1] = replace(last, reason="; ".join(filter(None, (last.reason, text))))

    def _label(self, label: str) -> str:
        return next((row.get(self._target, label) for row in LABELS if row.get(self._source) == label), label)


def _same(before: str, after: str) -> bool:
    """Return whether two queries differ in spaces only."""
    try:
        template = parse_template(before)
        return template.text(template.tree) == after
    except promql.PromqlError:
        return before == after


def _panels(container: dict[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the panels of a dashboard with their places, also those in rows."""
    for panel in _dicts(container.get("panels")) + _dicts(container.get("rows")):
        place = f"{above}{panel.get('title') or panel.get('id') or 'panel'}"
        if "targets" in panel:
            yield place, panel
        yield from _panels(panel, f"{place}/")


def _dicts(values: Any) -> list[dict[str, Any]]:
    return [item for item in values if isinstance(item, dict)] if isinstance(values, list) else []


def _listed(dashboard: dict[str, Any], key: str) -> list[dict[str, Any]]:
    section = dashboard.get(key)
    return _dicts(section.get("list")) if isinstance(section, dict) else []


def _convert_panel(panel: dict[str, Any], scale: Fraction) -> bool:
    """Change a panel's unit, bounds and thresholds; return whether values may be in the new unit."""
    config = panel.get("fieldConfig")
    if scale == 1 or not isinstance(config, dict) or not isinstance(config.get("defaults"), dict):
        return scale == 1
    defaults = config["defaults"]
    old = _PANEL_UNITS.get(str(defaults.get("unit", "")))
    new = None if old is None else _unit_of(old, scale)
    if new is None or _dicts(config.get("overrides")):
        return False
    defaults["unit"] = UNITS[new].grafana
    for key in ("min", "max"):
        if isinstance(defaults.get(key), int | float):
            defaults[key] = _number(defaults[key], scale)
    thresholds = defaults.get("thresholds")
    if isinstance(thresholds, dict) and thresholds.get("mode") != "percentage":
        for step in _dicts(thresholds.get("steps")):
            if isinstance(step.get("value"), int | float):
                step["value"] = _number(step["value"], scale)
    return True


def _unit_of(unit: str, scale: Fraction) -> str | None:
    """Return the unit in which values are `scale` times those in another unit, if Grafana has it."""
    wanted = UNITS[unit].factor / scale
    candidates: Iterable[tuple[str, Any]] = UNITS.items()
    for candidate, form in candidates:
        if form.dimension == UNITS[unit].dimension and form.factor == wanted and form.grafana:
            return candidate
    return None


def _number(value: float, scale: Fraction) -> float:
    product = Fraction(repr(value)) * scale
    return int(product) if product.denominator == 1 else float(product)
