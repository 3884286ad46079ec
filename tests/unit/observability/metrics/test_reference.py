"""The reference page names every family of `/metrics` with its type, and no other."""

import re
from pathlib import Path

from conch.observability.metrics.families import Metrics, RequestMemory
from conch.observability.metrics.loop_lag import LoopLag
from conch.observability.metrics.statistics import FIRST_RESPONSE_BOUNDS_MS, CacheStatistics, Histogram, ModelStatistics
from conch.observability.metrics.summaries import LatencySummaries
from conch.options.server_options import ServerOptions

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"


def test_the_page_lists_the_families_of_the_code() -> None:
    model = ModelStatistics("m", 1, cached=True)
    model.first_response = Histogram(FIRST_RESPONSE_BOUNDS_MS)
    model.summaries = LatencySummaries()
    options = ServerOptions(metrics_config=(("histogram_latencies", True), ("summary_latencies", True)))
    metrics = Metrics(
        statistics=lambda: [model],
        samples=list,
        options=options,
        cache=CacheStatistics(1024),
        request_memory=lambda: RequestMemory(1, 1, 1, 1),
        lag=LoopLag(),
    )
    families = metrics.collect()
    rows = re.findall(r"^\| `((?:nv_|vllm:|conch_)\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted((family.name, family.kind) for family in families)


def test_the_page_names_the_bounds_of_the_histogram() -> None:
    assert f"buckets {', '.join(map(str, FIRST_RESPONSE_BOUNDS_MS))}" in PAGE.read_text(encoding="utf-8")
