import dataclasses
import re
from pathlib import Path

import pytest

from conch.domain.metrics.catalog import all_metrics
from conch.operate.monitoring.commands.drill_causes import (
    DRILL_NAME,
    can_be_scraped,
    live_exposition,
    live_name,
    sample_values,
)
from conch.operate.monitoring.rules.known_metrics import MetricTable
from conch.operate.monitoring.rules.rule import AlertingRule, InputSeries, Proof, counter, gauge
from conch.operate.monitoring.rules.shipped_alerts import rule_groups
from conch.operate.monitoring.rules.thresholds import Thresholds
from tests.unit.operate.monitoring.rules.test_proofs import run_proofs

TABLE = MetricTable(all_metrics())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", [1]),
        ("1x2", [1, 1, 1]),
        ("0+1.5x2 9", [0, 1.5, 3, 9]),
        ("5-1x1 _x2 _", [5, 4, None, None, None]),
        ("1e+09x1", [1e9, 1e9]),
        ("-2+3e-05x1", [-2, -1.99997]),
    ],
)
def test_the_notation_of_promtool_is_read(text: str, expected: list[float | None]) -> None:
    assert sample_values(text) == expected


def test_invalid_notation_is_refused() -> None:
    with pytest.raises(ValueError, match="'1y' is not a sequence of samples"):
        sample_values("1y")


def test_counters_grow_evenly_and_gauges_keep_their_values() -> None:
    labels = {"model": "m", "version": "1", "job": "conch", "instance": "a"}
    proof = Proof(
        "",
        (
            counter("nv_inference_request_success", labels, (2, 30)),
            gauge("conch_queue_depth", labels, (3, 15), (None, 15), (4, 15)),
        ),
        60,
        1,
    )
    name = 'nv_inference_request_success{model="conch-drill",version="1",drill="true"}'
    depth = 'conch_queue_depth{model="conch-drill",version="1",drill="true"}'
    assert live_exposition(proof, 7.5, TABLE) == f"{name} 15.0\n{depth} 3.0\n"
    assert live_exposition(proof, 22.5, TABLE) == f"{name} 45.0\n"
    assert live_exposition(proof, 150, TABLE) == f"{name} 300.0\n{depth} 4.0\n"


LIVE_ALERTS = [
    (alert, proof)
    for group in rule_groups(Thresholds())
    for alert in group.alerts
    for proof in alert.proofs
    if proof.fires and can_be_scraped(proof)
]


def names(alerts: list[tuple[AlertingRule, Proof]]) -> list[str]:
    return [f"{alert.name}-{proof.what}" for alert, proof in alerts]


@pytest.mark.parametrize(("alert", "proof"), LIVE_ALERTS, ids=names(LIVE_ALERTS))
def test_the_message_of_a_drill_names_it(alert: AlertingRule, proof: Proof) -> None:
    in_text = re.findall(r"\$labels\.(\w+)", alert.summary)
    assert any(f'{label}="{DRILL_NAME}"' in live_name(series) for label in in_text for series in proof.series)


@pytest.mark.slow
@pytest.mark.parametrize(("alert", "proof"), LIVE_ALERTS, ids=names(LIVE_ALERTS))
def test_series_of_a_drill_fire_the_alert(alert: AlertingRule, proof: Proof, tmp_path: Path) -> None:
    target = 'job="conch-drill",instance="127.0.0.1:9098"'
    live = [InputSeries(live_name(series).replace("}", f",{target}}}"), series.values) for series in proof.series]
    drilled = dataclasses.replace(alert, proofs=(dataclasses.replace(proof, series=tuple(live)),))
    assert run_proofs(drilled, Thresholds(), tmp_path) == ""


def test_the_state_of_a_target_cannot_be_exposed() -> None:
    assert not can_be_scraped(Proof("", (gauge("up", {"job": "a"}, (0, 60)),), 60, 1))
