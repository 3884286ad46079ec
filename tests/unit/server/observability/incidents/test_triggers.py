"""What is an incident, from counters at given times."""

from conch.server.observability.incidents.triggers import Counts, Triggers


def reasons(triggers: Triggers, counts: Counts, now_s: float, model: str = "m/1") -> list[str]:
    return [incident.reason for incident in triggers.sample({model: counts}, now_s)]


def test_nothing_happens_on_a_quiet_server() -> None:
    triggers = Triggers(p99_ms=10, failures=50)
    for second in range(100):
        assert reasons(triggers, Counts(100 * second, second // 2, second, 0), second) == []


def test_a_p99_over_its_budget_is_one_incident_until_it_is_under_it_again() -> None:
    triggers = Triggers(p99_ms=10, failures=0)
    assert reasons(triggers, Counts(99, 2, 0, 0), 1) == []  # too few to judge
    incidents = triggers.sample({"m/1": Counts(200, 3, 0, 0)}, 2)
    assert [incident.detail for incident in incidents] == [
        "the P99 of model 'm/1' is over 10 ms: 3 of 200 requests in 30 s"
    ]
    assert reasons(triggers, Counts(300, 9, 0, 0), 3) == []
    assert reasons(triggers, Counts(9000, 9, 0, 0), 4) == []
    assert reasons(triggers, Counts(9100, 109, 0, 0), 5) == ["p99"]


def test_exactly_one_percent_is_within_the_budget() -> None:
    triggers = Triggers(p99_ms=10, failures=0)
    reasons(triggers, Counts(0, 0, 0, 0), 0)
    assert reasons(triggers, Counts(200, 2, 0, 0), 1) == []
    assert reasons(triggers, Counts(200, 3, 0, 0), 2) == ["p99"]


def test_a_burst_of_failures_is_of_ten_seconds() -> None:
    triggers = Triggers(p99_ms=0, failures=50)
    for second in range(60):
        assert reasons(triggers, Counts(0, 0, 4 * second, 0), second) == []
    assert reasons(triggers, Counts(0, 0, 4 * 59 + 40, 0), 60) == ["failures"]


def test_each_death_is_an_incident() -> None:
    triggers = Triggers(p99_ms=0, failures=0)
    by_second = [reasons(triggers, Counts(0, 0, 0, deaths), second) for second, deaths in enumerate([0, 0, 1, 3, 3])]
    assert by_second == [[], [], ["death"], ["death"], []]


def test_a_model_that_is_loaded_again_begins_from_its_new_counters() -> None:
    triggers = Triggers(p99_ms=10, failures=5)
    assert reasons(triggers, Counts(1000, 0, 4, 0), 0) == []
    assert reasons(triggers, Counts(10, 10, 4, 0), 1) == []
    assert triggers.sample({}, 2) == []
    assert reasons(triggers, Counts(10, 10, 6, 0), 3) == ["failures"]


def test_models_are_judged_alone() -> None:
    triggers = Triggers(p99_ms=0, failures=5)
    triggers.sample({"a": Counts(0, 0, 0, 0), "b": Counts(0, 0, 0, 0)}, 0)
    incidents = triggers.sample({"a": Counts(0, 0, 3, 0), "b": Counts(0, 0, 6, 0)}, 1)
    assert [incident.detail for incident in incidents] == ["6 requests for model 'b' failed in 10 s"]
