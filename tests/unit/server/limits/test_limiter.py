"""Which limits a request counts towards, and which refuse it."""

from collections.abc import Mapping

import pytest

from conch.base.errors import LimitExceeded
from conch.domain.limits import read_limits_text
from conch.server.limits.limiter import MAX_TENANTS, OTHER_TENANTS, WINDOW_NS, Bucket, Limiter, ModelMeters
from conch.server.limits.table import ALL, LimitTable

SECOND = WINDOW_NS


def limiter_of(*limits: str, **sources: str) -> Limiter:
    limiter = Limiter()
    text = "limits: [" + ",".join(limits) + "]"
    limiter.set_table(LimitTable({"file": read_limits_text(text, "file"), **_read(sources)}))
    return limiter


def _read(sources: Mapping[str, str]) -> dict[str, dict[object, int]]:
    return {name: read_limits_text(f"limits: [{text}]", name) for name, text in sources.items()}  # type: ignore[misc]


def admitted(limiter: Limiter, model: str, tenant: str = "", *, number: int = 1000, now: int = SECOND) -> int:
    """How many of a burst of requests are admitted."""
    meters = limiter.models_of(model, "1", {})
    return sum(limiter.meter(meters, tenant, now).admit(now) is None for _ in range(number))


def bucket(limiter: Limiter, *names: str) -> Bucket:
    (bucket,) = [bucket for bucket in limiter.buckets if (bucket.model, bucket.version, bucket.tenant) == names]
    return bucket


def test_limits_of_a_name_have_precedence_over_those_of_each() -> None:
    limiter = limiter_of(
        '{model: "*", requests_per_second: 10, enforced: true}',
        "{model: big, requests_per_second: 3, enforced: true}",
    )
    assert (admitted(limiter, "small"), admitted(limiter, "other"), admitted(limiter, "big")) == (10, 10, 3)


def test_limits_of_different_shapes_hold_together() -> None:
    limiter = limiter_of(
        "{requests_per_second: 30, enforced: true}",
        '{tenant: "*", requests_per_second: 12, enforced: true}',
        "{tenant: acme, requests_per_second: 20, enforced: true}",
        "{model: m, version: 1, tenant: acme, requests_per_second: 15, enforced: true}",
    )
    assert admitted(limiter, "m", "acme") == 15
    assert admitted(limiter, "n", "acme") == 5
    assert admitted(limiter, "n", "other") == 10


def test_requests_without_a_tenant_are_one_of_each() -> None:
    limiter = limiter_of('{model: m, tenant: "*", requests_per_second: 2, enforced: true}')
    assert (admitted(limiter, "m"), admitted(limiter, "m", "a"), admitted(limiter, "m", "b")) == (2, 2, 2)


def test_soft_limits_count_and_refuse_nothing() -> None:
    limiter = limiter_of("{model: m, requests_per_second: 8}", "{model: m, requests_per_second: 10, enforced: true}")
    assert admitted(limiter, "m", number=13) == 10
    model = bucket(limiter, "m", ALL, ALL)
    assert (model.exceeded_soft, model.exceeded_enforced) == (2, 3)
    assert bucket(limiter, "m", "1", "").requests.total == 10


def test_sources_have_precedence_and_lift_limits() -> None:
    file = "{model: m, requests_per_second: 5, enforced: true}"
    limiter = limiter_of(file, admin="{model: m, requests_per_second: 2, enforced: true}")
    assert admitted(limiter, "m") == 2
    limiter = limiter_of(file, admin="{model: m, requests_per_second: unlimited, enforced: true}")
    assert admitted(limiter, "m", number=50) == 50
    limiter = limiter_of(file, kubernetes="{model: m, requests_per_second: 4, enforced: true}")
    (limit,) = limiter.table.effective.values()
    assert (limit.per_second, limit.source, limit.overridden) == (4, "kubernetes", {"file": 5})


def test_a_change_holds_for_what_the_window_has_counted() -> None:
    limiter = limiter_of("{model: m, requests_per_second: 100, enforced: true}")
    assert admitted(limiter, "m", number=50) == 50
    limiter.set_table(
        LimitTable({"file": read_limits_text("limits: [{model: m, requests_per_second: 60, enforced: true}]", "")})
    )
    assert admitted(limiter, "m") == 10
    limiter.set_table(LimitTable())
    assert admitted(limiter, "m", number=500) == 500
    assert {bucket.model for bucket in limiter.buckets} == {"m"}


def test_a_limit_of_zero_refuses_everything() -> None:
    limiter = limiter_of("{tenant: bad, requests_per_second: 0, enforced: true}")
    refusal = limiter.meter(limiter.models_of("m", "1", {}), "bad", SECOND).admit(SECOND)
    assert isinstance(refusal, LimitExceeded)
    assert refusal.message == "the server, tenant 'bad', exceeds its limit of 0 requests per second"
    assert refusal.retry_after_s == 60
    assert admitted(limiter, "m", "good", number=9) == 9


def test_retry_after_is_when_there_is_room() -> None:
    limiter = limiter_of("{model: m, requests_per_second: 5, enforced: true}")
    meter = limiter.meter(limiter.models_of("m", "1", {}), "", SECOND)
    assert admitted(limiter, "m", number=5) == 5
    refusal = meter.admit(SECOND + SECOND // 4)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(0.75, abs=0.03)
    assert meter.admit(SECOND + SECOND // 4 + round((refusal.retry_after_s or 0) * 1e9)) is None


def test_tokens_are_paid_for_after_the_fact() -> None:
    limiter = limiter_of("{model: llm, tokens_per_second: 100, enforced: true}", "{model: llm, tokens_per_second: 40}")
    meter = limiter.meter(limiter.models_of("llm", "1", {}), "", SECOND)
    assert meter.admit(SECOND) is None
    meter.add_tokens(500, SECOND)
    refusal = meter.admit(SECOND)
    assert refusal is not None
    assert (refusal.quantity, refusal.retry_after_s) == ("tokens", pytest.approx(4))
    assert "100 tokens per second" in refusal.message
    assert meter.admit(SECOND * 4) is not None
    assert meter.admit(SECOND * 5) is None
    model = bucket(limiter, "llm", ALL, ALL)
    assert model.exceeded_enforced == 2
    assert model.tokens is not None
    assert model.tokens.take_peak(SECOND * 5) == 500


def test_a_request_of_an_ensemble_counts_towards_its_stages() -> None:
    limiter = limiter_of("{model: stage, requests_per_second: 10, enforced: true}")
    meters = limiter.models_of("ensemble", "1", {("stage", "1"): 3, ("other", "2"): 1})
    results = [limiter.meter(meters, "t", SECOND).admit(SECOND) for _ in range(5)]
    assert [refusal is None for refusal in results] == [True, True, True, False, False]
    assert results[3] is not None
    assert "model 'stage' exceeds its limit of 10" in results[3].message
    assert bucket(limiter, "stage", "1", "t").requests.total == 9
    assert bucket(limiter, "other", "2", "t").requests.total == 3
    assert bucket(limiter, "ensemble", "1", "t").requests.total == 3
    assert admitted(limiter, "stage") == 1


def test_ten_thousand_tenants_share_a_bounded_table() -> None:
    limiter = limiter_of(
        '{tenant: "*", requests_per_second: 2, enforced: true}',
        "{tenant: named, requests_per_second: 7, enforced: true}",
    )
    meters: ModelMeters = limiter.models_of("m", "1", {})
    for number in range(10_000):
        limiter.meter(meters, f"tenant {number}", SECOND).admit(SECOND)
    assert limiter.tenants == MAX_TENANTS
    assert len(limiter.buckets) <= 2 * (MAX_TENANTS + 1)
    assert limiter.overflowed == 10_000 - MAX_TENANTS
    assert bucket(limiter, ALL, ALL, OTHER_TENANTS).requests.total == 2
    # A tenant that a limit names has its own.
    assert admitted(limiter, "m", "named") == 7
    # Tenants without requests make room.
    later = SECOND * 100
    limiter.meter(limiter.models_of("m", "1", {}), "new", later).admit(later)
    assert bucket(limiter, "m", "1", "new").requests.total == 1


def test_models_that_are_not_served_are_forgotten() -> None:
    limiter = limiter_of("{model: m, requests_per_second: 5}", "{requests_per_second: 9}")
    for model in ("m", "n"):
        admitted(limiter, model, number=1)
    limiter.keep_models(frozenset({("n", "1")}))
    assert {bucket.model for bucket in limiter.buckets} == {"n", ALL}


def test_a_call_of_a_model_counts_towards_the_limits_of_models_only() -> None:
    limiter = limiter_of(
        "{model: m, requests_per_second: 4, enforced: true}",
        '{tenant: "*", requests_per_second: 2, enforced: true}',
        "{tokens_per_second: 10, enforced: true}",
    )
    meter = limiter.meter(limiter.models_of("m", "1", {}), "t", SECOND, nested=True)
    assert [meter.admit(SECOND) is None for _ in range(5)] == [True] * 4 + [False]
    assert meter.tenant == "t"
    assert bucket(limiter, ALL, ALL, "t").requests.total == 0
    meter.add_tokens(100, SECOND)
    refusal = limiter.meter(limiter.models_of("other", "1", {}), "t", SECOND).admit(SECOND)
    assert refusal is not None
    assert refusal.quantity == "tokens"


def test_tokens_of_a_stage_count_towards_its_limits_and_the_ensembles() -> None:
    limiter = limiter_of(
        "{model: llm, tokens_per_second: 10, enforced: true}", "{model: outer, tokens_per_second: 1000, enforced: true}"
    )
    stages = {("inner", "1"): 1, ("llm", "1"): 2}
    meter = limiter.meter(limiter.models_of("outer", "1", stages), "t", SECOND)
    meter.stage("inner", "1").stage("llm", "1").add_tokens(20, SECOND)
    for model in ("llm", "outer"):
        tokens = bucket(limiter, model, ALL, ALL).tokens
        assert tokens is not None
        assert tokens.take_peak(SECOND) == 20


def test_weights_of_tenants() -> None:
    limiter = limiter_of(
        "{tenant: acme, weight: 3}",
        '{tenant: "*", weight: 2}',
        "{model: m, tenant: acme, weight: 5}",
        admin="{model: n, tenant: acme, weight: 7}",
    )

    def weight(model: str, tenant: str) -> int:
        return limiter.meter(limiter.models_of(model, "1", {("stage", "1"): 1}), tenant, SECOND).weight

    assert [weight(model, "acme") for model in ("m", "n", "other")] == [5, 7, 3]
    assert (weight("m", "else"), weight("m", "")) == (2, 2)
    meter = limiter.meter(limiter.models_of("m", "1", {("stage", "1"): 1}), "acme", SECOND)
    assert meter.stage("stage", "1").weight == 5
    assert admitted(limiter, "m", "acme") == 1000  # a weight is not a limit
    assert admitted(limiter_of("{model: m, requests_per_second: 5}"), "m", "acme") == 1000
