"""Load profiles, verdict, plot and page."""

import pytest

from conch.base.errors import ConfigError
from conch.operate.fleet.load.load_generator import recent
from conch.operate.fleet.load.profile import LoadProfile, LoadStage, parse_profile
from conch.operate.fleet.report.files import document, to_page
from conch.operate.fleet.report.journal import FleetSample, Journal
from conch.operate.fleet.report.plot import PlotLine, PlotPanel, fleet_panels, to_svg
from conch.operate.fleet.report.verdict import judge


def samples(*ready: int, clients: int = 1) -> list[FleetSample]:
    return [FleetSample(at, each, each, each, 1.0, clients, 10.0, 0.1, 1.0 / each) for at, each in enumerate(ready)]


def test_a_profile_has_stages() -> None:
    profile = parse_profile("15s:1, 1m:10,0.5s:0")
    assert profile == LoadProfile([LoadStage(15, 1), LoadStage(60, 10), LoadStage(0.5, 0)])
    assert [profile.clients_at(each) for each in (0, 14.9, 15, 75, 100)] == [1, 1, 10, 0, 0]
    assert (profile.peak, profile.duration_s) == (10, 75.5)


@pytest.mark.parametrize("text", ["", "10", "10s", "10s:x", "0s:1", "10h:1", "10s:501"])
def test_other_profiles_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="not a valid load profile"):
        parse_profile(text)


def test_percentiles_of_recent_answers() -> None:
    found = recent([each / 100 for each in range(1, 101)], 5.0)
    assert (found.rate, found.p50_s, found.p99_s) == (20.0, 0.5, 0.99)
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


def test_a_line_has_gaps_where_the_value_is_unknown() -> None:
    panel = PlotPanel("x < y", [PlotLine("a", [1.0, 2.0, None, 3.0], "#000")], target=1.0)
    svg = to_svg([0, 1, 2, 3], [panel])
    assert svg.count("<polyline") == 2
    assert "x &lt; y" in svg


@pytest.mark.parametrize(("highest", "top"), [(0.3, 0.4), (1.0, 1.0), (4.2, 5.0), (9.0, 10.0), (1400.0, 2000.0)])
def test_axes_end_at_round_numbers(highest: float, top: float) -> None:
    assert PlotPanel("", [PlotLine("a", [highest], "#000")]).top == pytest.approx(top)


def test_the_page_needs_no_network_and_escapes_messages() -> None:
    journal = Journal(lambda: 1.0)
    journal.record("failed", "pod", "</script><b>")
    journal.samples += samples(1, 4, 1)
    svg = to_svg([0, 1, 2], fleet_panels(journal.samples, "ratio", 1.0))
    page = to_page("t", "n", document({}, journal, None), journal, [], svg)
    assert "<b>" not in page
    assert page.count("</script>") == 1
    assert "src=" not in page
