"""Dashboards as JSON for Grafana 10 to 12, and as ConfigMaps. The only module that imports grafana_foundation_sdk.

The JSON has the schema of Grafana 10.1, which newer ones migrate when they load it.
"""

import json
from typing import Any, TypeAlias

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import heatmap, stat, timeseries
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from conch.domain.metrics.metric import UNITS
from conch.operate.monitoring.dashboards.catalog import DashboardPanel, GrafanaDashboard

PanelBuilder: TypeAlias = timeseries.Panel | stat.Panel | heatmap.Panel
_DATASOURCE = models.DataSourceRef("prometheus", "${datasource}")
_REF_IDS = "ABCDEFGH"
# Variables of all dashboards: name, label, query.
_TARGETS = (
    ("job", "Job", "label_values(up, job)"),
    ("instance", "Instance", 'label_values(up{job=~"$job"}, instance)'),
)
_ALL = ".*"
TAG = "conch"


def dashboard_json(dashboard: GrafanaDashboard) -> str:
    """Return a dashboard's JSON: the same text for the same dashboard."""
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(dashboard_object(dashboard)) + "\n"


def dashboard_object(dashboard: GrafanaDashboard) -> dict[str, Any]:
    """Return a dashboard as plain values."""
    builder = (
        builders.Dashboard(dashboard.title)
        .uid(dashboard.uid)
        .description(dashboard.description)
        .tags([TAG])
        .timezone("browser")
        .refresh("30s")
        .time(dashboard.period, "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_link_to_others())
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for name, label, query in (*_TARGETS, *dashboard.variables):
        builder.with_variable(_variable(name, label, query))
    for name, label, value in dashboard.constants:
        chosen = models.VariableOption(selected=True, text=value, value=value)
        builder.with_variable(builders.TextBoxVariable(name).label(label).default_value(value).current(chosen))
    number = 0
    for row in dashboard.rows:
        number += 1
        builder.with_row(builders.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            builder.with_panel(_panel(panel).id(number))
    plain: dict[str, Any] = json.loads(JSONEncoder().encode(builder.build()))
    return plain


def _link_to_others() -> builders.DashboardLink:
    link = builders.DashboardLink("Dashboards").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(True).include_vars(True).keep_time(True)


def _variable(name: str, label: str, query: str) -> builders.QueryVariable:
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(_DATASOURCE)
        .query({"query": query, "refId": f"{name}-variable"})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(_ALL)
        .current(everything)
    )


def _panel(panel: DashboardPanel) -> PanelBuilder:
    if panel.kind == "heatmap":
        return _heatmap(panel)
    builder: timeseries.Panel | stat.Panel
    if panel.kind == "number":
        builder = stat.Panel().graph_mode(common.BigValueGraphMode.AREA)
        calculated = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
        builder.reduce_options(calculated).color_scheme(_colors(panel))
    else:
        builder = _lines(panel)
    least, greatest = panel.bounds
    builder.unit(UNITS[panel.unit].grafana).min(least)
    if greatest is not None and panel.unit in ("ratio", "percent") and greatest in (1, 100):
        builder.max(greatest)
    if panel.steps:
        builder.thresholds(_thresholds(panel))
    _describe(builder, panel)
    return builder


def _lines(panel: DashboardPanel) -> timeseries.Panel:
    table = common_builders.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST)
    builder = (
        timeseries.Panel()
        .legend(table.placement(common.LegendPlacement.BOTTOM).show_legend(True))
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
        .line_width(1)
        .fill_opacity(30 if panel.stacked else 5)
        .show_points(common.VisibilityMode.NEVER)
    )
    if panel.stacked:
        builder.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if panel.steps:
        dashed = common_builders.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED)
        builder.thresholds_style(dashed)
    return builder


def _heatmap(panel: DashboardPanel) -> heatmap.Panel:
    values = UNITS[panel.unit].grafana
    builder = (
        heatmap.Panel()
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .cell_values(heatmap.CellValues().unit(values))
        .show_tooltip()
        .show_legend()
    )
    if panel.queries[0].is_of_buckets:
        builder.y_axis(heatmap.YAxisConfig().unit(UNITS[panel.bucket_unit].grafana))
    _describe(builder, panel)
    return builder


def _describe(builder: PanelBuilder, panel: DashboardPanel) -> None:
    """Set what all kinds of panels have."""
    builder.title(panel.title).description(panel.description).datasource(_DATASOURCE)
    builder.span(panel.width).height(panel.height)
    if panel.interval:
        builder.interval(panel.interval)
    for ref_id, query in zip(_REF_IDS, panel.queries, strict=False):
        target = Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref_id).range()
        if query.is_of_buckets:
            target.format(PromQueryFormat.HEATMAP)
        builder.with_target(target.datasource(_DATASOURCE))


def _thresholds(panel: DashboardPanel) -> builders.ThresholdsConfig:
    steps = [models.Threshold(None if index == 0 else value, color) for index, (value, color) in enumerate(panel.steps)]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _colors(panel: DashboardPanel) -> builders.FieldColor:
    mode = models.FieldColorModeId.THRESHOLDS if panel.steps else models.FieldColorModeId.FIXED
    color = builders.FieldColor().mode(mode)
    return color if panel.steps else color.fixed_color("blue")


# `kubectl apply` stores the whole object in an annotation, which may have 256 KiB; a ConfigMap may have 1 MiB.
MAX_BYTES = 256 * 1024
SIDECAR_LABEL = ("grafana_dashboard", "1")


def config_map(
    dashboard: GrafanaDashboard, namespace: str = "", label: tuple[str, str] = SIDECAR_LABEL, folder: str = ""
) -> dict[str, Any]:
    """Return the ConfigMap of a dashboard. Raises ValueError if it is too large for `kubectl apply`."""
    text = dashboard_json(dashboard)
    if len(text.encode()) > MAX_BYTES:
        raise ValueError(f"the dashboard {dashboard.uid} has more than {MAX_BYTES} bytes")
    metadata: dict[str, Any] = {"name": f"dashboard-{dashboard.uid}"}
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {"app.kubernetes.io/name": "conch", label[0]: label[1]}
    if folder:
        metadata["annotations"] = {"grafana_folder": folder}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {f"{dashboard.uid}.json": text}}
