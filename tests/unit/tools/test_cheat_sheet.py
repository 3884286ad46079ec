"""The cheat sheet is that of this code, and its queries have metrics that exist."""

import pytest
from tools.cheat_sheet import PAGE, QUESTIONS, page

from conch.domain.metrics.catalog import areas
from conch.operate.monitoring.promql import metric_names, parse


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "make docs"


@pytest.mark.parametrize("query", QUESTIONS.values())
def test_a_query_has_metrics_that_exist(query: str) -> None:
    known = {metric.name for metrics in areas().values() for metric in metrics}
    used = {name.removesuffix("_bucket") for name in metric_names(parse(query))}
    assert used
    assert used <= known
