"""`conch bench compare`: effects, conditions, what cannot be compared, and the rate of false alarms."""

import json
from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pytest

from conch.measure.bench.command import write_certificate
from conch.measure.bench.compare import compare
from conch.measure.bench.measurement import Estimate, Level, Note
from conch.measure.bench.report.certificate import Certificate
from conch.measure.bench.report.comparison import (
    FALSE_ALARM_RATE,
    ConditionOutcome,
    compare_runs,
    decide,
    parse_condition,
    pooled,
)
from tests.measure.bench.report.samples import HOSTILE, ab_certificate, certificate, hostile_certificate, measurement


def slower(document: Certificate, factor: float) -> Certificate:
    """Return a certificate whose latencies are longer by a factor."""

    def scaled(figure: Estimate) -> Estimate:
        return Estimate(figure.value * factor, figure.low and figure.low * factor, figure.high and figure.high * factor)

    measurements = []
    for level in document.measurements:
        assert level.latency
        percentiles = {name: scaled(value) for name, value in level.latency.percentiles.items()}
        measurements.append(replace(level, latency=replace(level.latency, percentiles=percentiles)))
    return replace(document, measurements=tuple(measurements))


@pytest.fixture(scope="module")
def base() -> Certificate:
    return certificate(1, 5)


@pytest.fixture
def files(base: Certificate, tmp_path: Path) -> list[str]:
    write_certificate("json", base, tmp_path / "a.json")
    write_certificate("html", slower(base, 1.3), tmp_path / "b.html")
    return [str(tmp_path / "a.json"), str(tmp_path / "b.html")]


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("p99 > +5 %", 1),
        ("p99 > +60 %", 0),
        ("p99>+5%", 1),
        ("p99 > +5 % @ 5", 1),
        ("throughput < -3 %", 0),
        ("p50 > 1ms", 1),
        ("p50 > 1 s", 0),
        ("error_ratio > 1 %", 0),
        ("error_ratio > +0.5 %", 0),
        ("p99 < +60 %", 1),
    ],
)
def test_the_exit_status_follows_the_condition(files: list[str], condition: str, status: int, capsys) -> None:
    assert compare([*files, "--fail-if", condition]) == status
    out = capsys.readouterr().out
    assert condition.partition(" @")[0] in out
    assert "+30 %" in out


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("p99", "is not a condition such as"),
        ("p98 > +5 %", "unknown quantity 'p98'; known are throughput"),
        ("p99 > +5", "p99 needs the unit ns, us, ms or s"),
        ("throughput < 5 ms", "throughput needs the unit /s"),
        ("error_ratio > 5", "error_ratio needs the unit %"),
        ("p99 > +5 % @ 7", "p99 was not measured on both sides at level 7; levels of both: 1, 5"),
        ("ttft_p99 > +5 %", "ttft_p99 was not measured on both sides"),
    ],
)
def test_wrong_conditions_are_refused(files: list[str], condition: str, message: str, capsys) -> None:
    assert compare([*files, "--fail-if", condition]) == 2
    assert message in capsys.readouterr().err


def test_an_interval_that_contains_the_limit_decides_nothing(files: list[str], capsys) -> None:
    assert compare([*files, "--fail-if", "p99 > +30 %"]) == 0
    assert "undecided: p99 > +30 % at 1" in capsys.readouterr().out
    assert compare([*files, "--fail-if", "p99 > +30 %", "--undecided", "fail"]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: replace(run, target=replace(run.target, protocol="grpc")), "A used http, B grpc"),
        (lambda run: replace(run, measurements=run.measurements[:0]), "B has none"),
        (
            lambda run: replace(run, notes=(Note("client-bottleneck", "invalid", "the client was the bottleneck"),)),
            "B is not valid: the client was the bottleneck",
        ),
        (
            lambda run: replace(run, measurements=(replace(run.measurements[0], level=Level("rate", 1, "1")),)),
            "no level was measured in both: A has 1, 5, B has 1",
        ),
    ],
)
def test_runs_that_are_not_comparable_are_refused(base, change, message: str, tmp_path: Path, capsys) -> None:
    write_certificate("json", base, tmp_path / "a.json")
    write_certificate("json", change(base), tmp_path / "b.json")
    assert compare([str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--fail-if", "p99 > +5 %"]) == 2
    output = capsys.readouterr()
    assert message in output.out
    assert "not comparable; --anyway compares nevertheless" in output.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: replace(run, target=replace(run.target, config_digest="x")), "the model's configurations differ"),
        (lambda run: replace(run, target=replace(run.target, model="y")), "different models: densenet_onnx and y"),
        (lambda run: replace(run, environment=replace(run.environment, cpus=999)), "different environment, cpus:"),
        (lambda run: replace(run, measurements=run.measurements[:1]), "levels measured on one side only: 5"),
    ],
)
def test_what_questions_a_comparison_is_a_warning(base, change, message: str) -> None:
    comparison = compare_runs(base, change(base))
    assert comparison.obstacles == ()
    assert any(message in warning.message for warning in comparison.warnings)


def test_a_run_of_two_servers_is_compared_by_itself(tmp_path: Path, capsys) -> None:
    write_certificate("json", ab_certificate(), tmp_path / "ab.json")
    assert compare([str(tmp_path / "ab.json"), "--fail-if", "throughput > +4.7 %"]) == 0  # three decisions
    assert compare([str(tmp_path / "ab.json"), "--fail-if", "throughput > +4 %"]) == 1
    capsys.readouterr()
    write_certificate("json", certificate(1), tmp_path / "one.json")
    assert compare([str(tmp_path / "one.json")]) == 2
    assert "name two certificates, or measure with --against URL" in capsys.readouterr().err


def test_json_has_effects_and_decisions(files: list[str], capsys) -> None:
    assert compare([*files, "--fail-if", "p99 > +5 %", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {decision["outcome"] for decision in document["decisions"]} == {"holds"}
    p99 = next(effect for effect in document["effects"] if effect["quantity"] == "p99")
    assert p99["change"]["value"] == pytest.approx(0.3)
    assert p99["verdict"] == "worse"


@pytest.mark.parametrize("form", ["text", "json", "github"])
def test_without_a_condition_it_says_that_nothing_was_judged(files: list[str], form: str, capsys) -> None:
    assert compare([*files, "--format", form]) == 0
    out = capsys.readouterr().out
    assert "Nothing was judged: no condition was given" in " ".join(out.split())
    if form == "json":
        assert json.loads(out)["judged"] is False
    assert compare([*files, "--format", form, "--fail-if", "p99 > +900 %"]) == 0
    assert "Nothing was judged" not in capsys.readouterr().out


def test_github_gets_annotations_and_a_summary(files: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert compare([*files, "--fail-if", "p99 > +5 %", "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error title=conch bench::p99 > +5 %25 at 1: +30 %25")
    assert "| FAIL | p99 &#62; +5 % | 1 | +30 %" in (tmp_path / "summary.md").read_text()


def test_hostile_names_stay_texts(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    write_certificate("json", hostile_certificate(), tmp_path / "x.json")
    for form in ("text", "github", "json"):
        compare([str(tmp_path / "x.json"), str(tmp_path / "x.json"), "--format", form])
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert form != "github" or HOSTILE[:9] not in out


def test_repeated_levels_count_by_how_they_differ() -> None:
    mean = pooled([Estimate(9.0, 8.99, 9.01), Estimate(11.0, 10.99, 11.01)])
    assert mean is not None
    assert mean.value == 10
    assert mean.low == pytest.approx(10 - 12.706, abs=0.01)


def percentile(values: np.ndarray, p: float) -> Estimate:
    """Return a percentile with the interval of order statistics."""
    ordered, count = np.sort(values), len(values)
    chances = np.cumsum([comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(count + 1)])
    low, high = int(np.searchsorted(chances, 0.025)), int(np.searchsorted(chances, 0.975)) + 1
    return Estimate(
        float(np.quantile(ordered, p)), float(ordered[max(low - 1, 0)]), float(ordered[min(high, count) - 1])
    )


@pytest.mark.slow
@pytest.mark.parametrize("levels", [1, 4])
def test_the_rate_of_false_alarms_is_as_stated(levels: int) -> None:
    """Pairs of runs of one server: the gate fails rarely even with a limit of 0 %."""
    rng = np.random.default_rng(5)
    pairs, requests = 400, 300
    usual = [replace(measurement(users, requests=50), series={}) for users in range(1, levels + 1)]
    run = certificate()

    def measured() -> Certificate:
        levels_measured = []
        for document in usual:
            assert document.latency
            values = rng.lognormal(0, 0.4, requests)
            percentiles = {"50": percentile(values, 0.5), "95": percentile(values, 0.95)}
            levels_measured.append(replace(document, latency=replace(document.latency, percentiles=percentiles)))
        return replace(run, measurements=tuple(levels_measured))

    conditions = [parse_condition("p50 > +0 %"), parse_condition("p95 > +0 %")]
    alarms = sum(
        any(
            decision.outcome is ConditionOutcome.HOLDS
            for decision in decide(conditions, compare_runs(measured(), measured()).effects)
        )
        for _ in range(pairs)
    )
    assert alarms / pairs <= FALSE_ALARM_RATE + 2.6 * (FALSE_ALARM_RATE / pairs) ** 0.5


def test_a_real_change_is_found(base: Certificate) -> None:
    effects = compare_runs(base, slower(base, 1.1)).effects
    assert {decision.outcome for decision in decide([parse_condition("p50 > +5 %")], effects)} == {
        ConditionOutcome.HOLDS
    }
