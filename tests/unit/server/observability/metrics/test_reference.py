"""The reference page is that of the catalogue, and the families of `/metrics` are in it."""

import re

from tools.metrics_page import PAGE, reference

from conch.domain.metrics.catalog import all_metrics
from conch.domain.metrics.metric import UNITS


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "`make docs` writes it"


def test_every_metric_has_a_row_and_is_well_formed() -> None:
    pattern = r"^\| (`[\w:]+`(?:, `\w+`)?) \| (counter|gauge|histogram|summary) \|"
    rows = re.findall(pattern, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    metrics = all_metrics()
    assert sorted((name, kind) for names, kind in rows for name in re.findall(r"[\w:]+", names)) == sorted(
        (metric.name, metric.kind) for metric in metrics.values()
    )
    for metric in metrics.values():
        assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", metric.name)
        assert metric.help.endswith("."), metric.name
        assert metric.unit in UNITS, metric.name
        assert not set(metric.labels) & set(metric.optional_labels), metric.name
        if metric.name.startswith("conch_"):
            assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
