"""Load profiles, verdict, plot and page."""

from xml.etree import ElementTree as ET

import pytest

from conch.base.errors import ConfigError
from conch.base.report.chart import svg_file
from conch.operate.fleet.journal import FleetSample, Journal, judge
from conch.operate.fleet.load_generator import LoadProfile, LoadStage, parse_profile, recent
from conch.operate.fleet.report import document, fleet_charts, to_page


def samples(*ready: int, clients: int = 1) -> list[FleetSample]:
    return [
        FleetSample(at, count, count, count, 1.0, clients, 10.0, 0.1, 1.0 / count) for at, count in enumerate(ready)
    ]


def test_a_profile_has_stages() -> None:
    profile = parse_profile("15s:1, 1m:10,0.5s:0")
    assert profile == LoadProfile([LoadStage(15, 1), LoadStage(60, 10), LoadStage(0.5, 0)])
    assert [profile.clients_at(elapsed_s) for elapsed_s in (0, 14.9, 15, 75, 100)] == [1, 1, 10, 0, 0]
    assert (profile.peak, profile.duration_s) == (10, 75.5)


@pytest.mark.parametrize("text", ["", "10", "10s", "10s:x", "0s:1", "10h:1", "10s:501"])
def test_other_profiles_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="not a valid load profile"):
        parse_profile(text)


def test_percentiles_of_recent_answers() -> None:
    figures = recent([index / 100 for index in range(1, 101)], 5.0)
    assert (figures.rate, figures.p50_s, figures.p99_s) == (20.0, 0.5, 0.99)
    assert recent([], 5.0).p99_s is None


def test_the_verdict_is_the_path_of_the_replicas_and_the_lost_requests() -> None:
    verdict = judge(samples(1, 1, 3, 4, 4, 2, 1), (1, 4), sent=10, lost=0, errors={})
    assert verdict.path == [1, 3, 4, 2, 1]
    assert verdict.passed
    assert verdict.lines()[0] == "ready replicas: 1 → 3 → 4 → 2 → 1"


@pytest.mark.parametrize(
    ("ready", "sent", "lost", "line"),
    [
        ((1, 3, 1), 10, 0, "(expected: 1 → 4 → 1)"),
        ((1, 4, 2), 10, 0, "(expected: 1 → 4 → 1)"),
        ((1, 4, 1), 10, 1, "1 × reset"),
        ((1, 4, 1), 0, 0, "0 sent"),
    ],
)
def test_what_fails_is_named(ready: tuple[int, ...], sent: int, lost: int, line: str) -> None:
    verdict = judge(samples(*ready), (1, 4), sent=sent, lost=lost, errors={"reset": 1} if lost else {})
    assert not verdict.passed
    assert line in "\n".join(verdict.lines())


def test_a_file_of_charts_has_gaps_where_a_value_is_unknown() -> None:
    unknown = [FleetSample(at, 1, 1, 1, ratio) for at, ratio in enumerate([1.0, 2.0, None, 3.0])]
    svg = svg_file(fleet_charts(unknown, "x < y", 1.0))
    assert svg.count("<polyline") == 5  # desired, ready, two pieces of the ratio, clients
    assert "x &lt; y" in svg
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_page_needs_no_network_and_escapes_messages() -> None:
    journal = Journal(lambda: 1.0)
    journal.record("failed", "pod", "</script><b>")
    journal.samples += samples(1, 4, 1)
    drawn = fleet_charts(journal.samples, "ratio", 1.0)
    page = to_page("t", "n", document({}, journal, None), journal, [], drawn)
    assert "<b>" not in page
    assert page.count("</script>") == 1
    assert "src=" not in page
