import json
import re
from dataclasses import replace
from io import StringIO

from rich.console import Console

from conch.measure.tune.outcome import (
    Finalist,
    Gain,
    StageLoad,
    TuneOutcome,
    best_compromises,
    knob_effects,
    pareto_front,
    to_json,
)
from conch.measure.tune.report import page, print_outcome
from conch.measure.tune.space import Dimension, Space
from conch.measure.tune.state.folder import Trial
from conch.measure.tune.wording import gain_text, verdict

SPACE = Space((Dimension("load", (1, 8)), Dimension("instances", (1, 2))))


def _trial(load: int, instances: int, throughput: float, p99: float) -> Trial:
    return Trial({"load": load, "instances": instances}, 1.0, {"throughput": throughput, "p99": p99})


# Instances double the throughput at 8 users only by 1.5 and at 1 user not at all.
TRIALS = (_trial(1, 1, 50, 0.02), _trial(1, 2, 50, 0.02), _trial(8, 1, 100, 0.08), _trial(8, 2, 150, 0.05))
OUTCOME = TuneOutcome(
    model="<detect>",
    server="conch 1",
    url="http://localhost:8000",
    goal="maximize throughput",
    started_at="2026-01-01T00:00:00+00:00",
    duration_s=12.0,
    space={dimension.name: dimension.values for dimension in SPACE.dimensions},
    space_size=SPACE.size,
    strategy="bayesian",
    trials=(*TRIALS, Trial({"load": 8, "instances": 4}, 1.0, failure="out of <memory>")),
    reused=0,
    finalists=(
        Finalist("current", {"load": 8}, TRIALS[2].figures, feasible=True),
        Finalist("A", {"load": 8, "instances": 2}, TRIALS[3].figures, feasible=True),
    ),
    gains=(Gain("A", 1.5, 1.4, 1.6, feasible=True),),
    winner="A",
    effects=knob_effects(SPACE, TRIALS, {"load": 1, "instances": 1}, ("throughput", "p99")),
    stages=(StageLoad("net", 10, 0.01, 0.02, 0.9, 1),),
    bottleneck="net",
    diffs={"m": "--- a\n+++ b\n-count: 1\n+count: 2\n"},
)


def test_effects_separate_knobs_that_were_changed_together() -> None:
    unbalanced = [TRIALS[0], TRIALS[2], TRIALS[3]]  # instances were raised under the high load only
    effects = {(effect.knob, effect.value): effect for effect in knob_effects(SPACE, unbalanced, {}, ("throughput",))}
    assert 1.35 < effects["instances", 2].ratios["throughput"] < 1.65
    assert 1.8 < effects["load", 8].ratios["throughput"] < 2.2


def test_terminal_and_page_have_the_same_compromises() -> None:
    """The finals of the current configuration, and repeated trials, count once: with their median."""
    finals = [Trial({"load": 8, "round": n}, 1.0, TRIALS[2].figures | {"p99": 0.001}, purpose="final") for n in (1,)]
    outcome = replace(OUTCOME, current={"load": 1, "instances": 1}, trials=(*OUTCOME.trials, *finals, TRIALS[2]))
    console = Console(file=StringIO(), width=100)
    print_outcome(outcome, console)
    printed = console.file.getvalue().partition("best compromises")[2].partition("trials measured")[0]  # type: ignore[attr-defined]
    drawn = page(outcome)
    assert len(re.findall(r"<circle[^>]*><title>[^<]*\n(?:best compromises|current configuration):", drawn)) >= 2
    front = best_compromises(outcome.trials, outcome.current)
    assert [trial.settings["load"] for trial in front] == [1, 8]
    assert "50/s" in printed
    assert "150/s" in printed
    assert "100/s" not in printed
    points = drawn.partition('<polyline class="line" points="')[2].partition('"')[0].split()
    assert len(points) == len(front)


def test_an_interval_of_too_few_rounds_is_not_printed() -> None:
    vague = Gain("A", 1.1, 0.003, 164.1, feasible=True)
    assert gain_text(vague) == "+10.0 % (too few rounds)"
    assert gain_text(Gain("A", 1.1, None, None, feasible=True)) == "+10.0 % (too few rounds)"
    assert gain_text(Gain("A", 1.1, 1.05, 1.15, feasible=True)) == "+10.0 % (+5.0 … +15.0)"
    undecided = replace(OUTCOME, winner=None, gains=(vague,))
    assert "too few rounds, --rounds sets more" in verdict(undecided)


def test_the_front_has_what_nothing_beats() -> None:
    assert pareto_front(TRIALS, "throughput", "p99") == [TRIALS[0], TRIALS[3]]


def test_the_verdict_names_the_gain_and_its_interval() -> None:
    text = "instances=2 is better than the current configuration by +50.0 % (+40.0 … +60.0)"
    assert verdict(OUTCOME) == text
    assert "no configuration is shown" in verdict(replace(OUTCOME, winner=None))
    assert "interrupted" in verdict(replace(OUTCOME, winner=None, ended="interrupted"))


def test_the_page_is_whole_and_escapes() -> None:
    text = page(OUTCOME)
    assert text.count("<circle") == len(TRIALS)
    assert "&lt;detect&gt;" in text
    assert "out of &lt;memory&gt;" in text
    assert "http://" not in text.replace("http://localhost:8000", "")
    assert '<rect x="50.00%" y="37"' in text  # of the heat map: two instances at the second load
    assert "<script" not in text


def test_json_has_the_fields() -> None:
    document = json.loads(to_json(OUTCOME))
    assert document["format"] == 1
    assert document["winner"] == "A"
    assert document["trials"][0]["figures"]["throughput"] == 50


def test_the_tables_fit_a_narrow_terminal() -> None:
    console = Console(width=40, record=True, file=StringIO())
    print_outcome(OUTCOME, console)
    text = console.export_text()
    assert "bottleneck: net" in text
    assert max(map(len, text.splitlines())) <= 40
