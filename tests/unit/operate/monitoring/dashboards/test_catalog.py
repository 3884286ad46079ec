"""Dashboards as values and as JSON."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from conch.base.yaml_documents import load_documents
from conch.check.check_paths import check_paths
from conch.domain.metrics.catalog import all_metrics
from conch.domain.metrics.metric import UNITS
from conch.operate.monitoring import promql
from conch.operate.monitoring.commands.dashboards import dashboards
from conch.operate.monitoring.dashboards import grafana
from conch.operate.monitoring.dashboards.catalog import GrafanaDashboard, all_dashboards
from conch.operate.monitoring.dashboards.grafana import dashboard_json, dashboard_object
from conch.operate.monitoring.translate.document import Translator
from conch.operate.monitoring.translate.variables import parse_template

ALL = [*all_dashboards(), all_dashboards("4.7")[4]]
_VARIABLE = re.compile(r"\$(\w+)")
_BUILT_IN = {"__rate_interval", "__interval", "__range"}
RATE_UNITS: dict[str, set[str]] = {
    "": {"", "requests_per_second"},
    "bytes": {"bytes_per_second"},
    "tokens": {"tokens_per_second"},
    "joules": {"watts"},
}
_SUFFIX = re.compile(r"_(bucket|sum|count)$")

each_dashboard = pytest.mark.parametrize(
    "dashboard", ALL, ids=lambda dashboard: f"{dashboard.uid} {dashboard.description[-8:]}"
)


@each_dashboard
def test_queries_name_metrics_of_the_catalogue(dashboard: GrafanaDashboard) -> None:
    for panel in dashboard.panels:
        for query in panel.queries:
            for name in promql.metric_names(parse_template(query.expr).tree):
                assert name in all_metrics() or all_metrics()[_SUFFIX.sub("", name)].kind == "histogram", name


def units_of(tree: promql.Node, otherwise: str) -> set[str]:
    """Return the units that the values of an aggregated gauge, rate or quantile may have, by the catalogue."""
    match tree:
        case promql.Aggregation(operator="sum" | "min" | "max", expr=promql.Selector(metric=str(name))):
            unit = all_metrics()[name].unit
            return {unit, ""} if unit == "ratio" else {unit}  # a sum of ratios is a number of devices
        case promql.Aggregation(expr=promql.Call(function="increase", arguments=(promql.Selector(metric=str(name)),))):
            return {"" if name.endswith("_bucket") else all_metrics()[name].unit}
        case promql.Aggregation(expr=promql.Call(function="rate", arguments=(promql.Selector(metric=str(name)),))):
            return RATE_UNITS.get(all_metrics()[name].unit, {""})
        case promql.Call(function="histogram_quantile", arguments=(_, buckets)):
            [name] = promql.metric_names(buckets)
            return {all_metrics()[_SUFFIX.sub("", name)].unit}
        case _:
            return {otherwise}


@each_dashboard
def test_panels_have_one_unit_and_are_described(dashboard: GrafanaDashboard) -> None:
    titles = Counter((row.title, panel.title) for row in dashboard.rows for panel in row.panels)
    assert set(titles.values()) == {1}
    for panel in dashboard.panels:
        for query in panel.queries:
            assert panel.unit in units_of(parse_template(query.expr).tree, panel.unit), panel.title
        assert UNITS[panel.unit].grafana, panel.title
        assert panel.description.endswith("."), panel.title
        assert all(query.legend for query in panel.queries)
        legends = [query.legend for query in panel.queries]
        assert len(set(legends)) == len(legends), panel.title
    for row in dashboard.rows:
        for panel in row.panels:
            assert panel.width in (6, 8, 12, 16, 24)


@each_dashboard
def test_variables_are_defined(dashboard: GrafanaDashboard) -> None:
    text = dashboard_json(dashboard)
    defined = {variable["name"] for variable in json.loads(text)["templating"]["list"]}
    assert set(_VARIABLE.findall(text)) - _BUILT_IN - {"__all"} <= defined


@each_dashboard
def test_json_is_stable_and_valid(dashboard: GrafanaDashboard) -> None:
    text = dashboard_json(dashboard)
    assert text == dashboard_json(dashboard)
    plain = json.loads(text)
    register_default_plugins()
    assert Dashboard.from_json(plain).uid == dashboard.uid
    assert plain["schemaVersion"] >= 36
    ids = [panel["id"] for panel in plain["panels"]]
    assert len(set(ids)) == len(ids)
    places = Counter(_cell(panel, x, y) for panel in plain["panels"] for x, y in _cells(panel))
    assert max(places.values()) == 1, "panels overlap"
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in plain["panels"])


def _cells(panel: dict[str, Any]) -> list[tuple[int, int]]:
    place = panel["gridPos"]
    return [(x, y) for x in range(place["w"]) for y in range(place["h"])]


def _cell(panel: dict[str, Any], x: int, y: int) -> tuple[int, int]:
    return panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y


def test_ids_are_unique() -> None:
    uids = [dashboard.uid for dashboard in all_dashboards()]
    assert len(set(uids)) == len(uids)
    assert all(re.fullmatch(r"conch-[a-z-]{1,34}", uid) for uid in uids)  # Grafana allows 40 characters


def test_the_gpu_dashboard_follows_the_names_of_dcgm() -> None:
    legacy, new = (json.dumps(dashboard_object(all_dashboards(names)[4])) for names in ("legacy", "4.7"))  # type: ignore[arg-type]
    assert "DCGM_FI_DEV_FB_USED{" in legacy
    assert "DCGM_FI_DEV_FB_USED_BYTES{" in new
    assert '"mbytes"' in legacy
    assert '"mbytes"' not in new


def test_a_translated_dashboard_of_legacy_names_is_that_of_new_names() -> None:
    legacy, new = (dashboard_object(all_dashboards(names)[4]) for names in ("legacy", "4.7"))  # type: ignore[arg-type]
    translator = Translator("dcgm-legacy", "dcgm-4.7")
    translator.translate(legacy)
    for old_panel, new_panel in zip(legacy["panels"], new["panels"], strict=True):
        for key in ("targets", "fieldConfig"):
            assert old_panel.get(key) == new_panel.get(key), old_panel["title"]


def test_config_maps_carry_the_label_of_the_sidecar(capsys: pytest.CaptureFixture[str]) -> None:
    assert dashboards(["--configmaps", "--namespace", "monitoring", "--folder", "Conch"]) == 0
    documents = [document.value for document in load_documents(capsys.readouterr().out)]
    assert len(documents) == len(all_dashboards())
    for document, dashboard in zip(documents, all_dashboards(), strict=True):
        assert document["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert document["metadata"]["annotations"] == {"grafana_folder": "Conch"}
        assert document["metadata"]["namespace"] == "monitoring"
        assert document["data"] == {f"{dashboard.uid}.json": dashboard_json(dashboard)}


def test_a_config_map_is_not_larger_than_kubectl_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grafana, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        grafana.config_map(all_dashboards()[0])


def test_the_command_writes_files_and_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dashboards(["--output", str(tmp_path / "new")]) == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        f"{dashboard.uid}.json" for dashboard in all_dashboards()
    }
    capsys.readouterr()
    assert dashboards(["--list"]) == 0
    assert "Conch / Overview and SLO" in capsys.readouterr().out
    assert dashboards(["--list", "--json"]) == 0
    assert [listed["uid"] for listed in json.loads(capsys.readouterr().out)] == [
        dashboard.uid for dashboard in all_dashboards()
    ]
    (tmp_path / "file").touch()
    assert dashboards(["--output", str(tmp_path / "file")]) == 1
    with pytest.raises(SystemExit):
        dashboards(["--configmaps", "--label", "x"])


@pytest.mark.parametrize("names", ["legacy", "4.7"])
def test_conch_check_finds_nothing_in_them(tmp_path: Path, names: str) -> None:
    assert dashboards(["--output", str(tmp_path), "--dcgm-names", names]) == 0
    assert not check_paths([tmp_path]).findings


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--list", "--namespace", "x"], "--namespace is for --configmaps only"),
        (["--output", "d", "--folder", "x"], "--folder is for --configmaps only"),
        (["--output", "d", "--json"], "--json is for --list only"),
        (["--configmaps", "--namespace", "A B"], "'A B' is not a valid namespace"),
        (["--configmaps", "--label", "a b=c"], "'a b=c' is not a valid label"),
    ],
)
def test_options_without_effect_are_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        dashboards(flags)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert dashboards(["--output", str(tmp_path / "file" / "d")]) == 1
    assert capsys.readouterr().err.startswith(f"conch dashboards: cannot write {tmp_path / 'file'}")
