"""Trace settings: what is in force, what may be changed, which requests are chosen."""

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conch.base.errors import InvalidRequest, Unsupported
from conch.server.observability.tracing.trace_settings import TraceSettings
from conch.server.options.trace import OPENTELEMETRY, TraceOptions

START = TraceOptions(levels=("TIMESTAMPS",), rate=2, count=-1, file="t.json")


def chosen(settings: TraceSettings, model: str, requests: int) -> list[int]:
    return [number for number in range(1, requests + 1) if settings.rules(model).sample()]


def test_one_of_every_rate_requests_is_traced_until_the_count_is_used_up() -> None:
    settings = TraceSettings(START)
    assert chosen(settings, "m", 7) == [2, 4, 6]
    settings.update("", {"trace_rate": ["3"], "trace_count": ["2"]})
    assert chosen(settings, "m", 12) == [3, 6]
    assert settings.document("", {})["trace_count"] == "0"
    assert not settings.on


def test_models_without_settings_share_one_count() -> None:
    settings = TraceSettings(START)
    settings.update("own", {"trace_rate": ["1"]})
    assert chosen(settings, "a", 1) == []
    assert chosen(settings, "b", 1) == [1]
    assert chosen(settings, "own", 3) == [1, 2, 3]


def test_models_inherit_global_settings() -> None:
    settings = TraceSettings(START)
    settings.update("m", {"trace_rate": ["7"]})
    settings.update("", {"log_frequency": ["5"], "trace_rate": ["9"]})
    assert settings.document("m", {}) == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "7",
        "trace_count": "-1",
        "log_frequency": "5",
        "trace_file": "t.json",
        "trace_mode": "triton",
    }
    settings.update("m", {"trace_rate": None})
    settings.update("", {"trace_rate": None})
    assert settings.document("m", {})["trace_rate"] == "2"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"trace_rate": ["x"]}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": ["1", "2"]}, "expect only 1 value for 'trace_rate'"),
        ({"trace_rate": ["0"]}, "Attempting to set invalid trace setting :sample rate must be non-zero"),
        ({"trace_rate": ["4294967296"]}, "out of range"),
        ({"trace_rate": ["9" * 5000]}, "out of range"),
        ({"trace_count": ["-2"]}, "Expecting value >= -1, got: -2"),
        ({"log_frequency": ["-1"]}, "out of range"),
        ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
    ],
)
@pytest.mark.parametrize("model", ["", "m"])
def test_invalid_changes_are_refused_as_a_whole(model: str, changes: dict[str, list[str]], text: str) -> None:
    settings = TraceSettings(START)
    before = settings.document(model, {})
    with pytest.raises(InvalidRequest) as caught:
        settings.update(model, {"trace_level": ["TENSORS"], **changes})
    assert text in str(caught.value)
    assert settings.document(model, {}) == before


def test_the_file_cannot_be_changed_and_tracing_needs_one() -> None:
    with pytest.raises(Unsupported, match="trace file location can not be updated through network protocol"):
        TraceSettings(START).update("", {"trace_file": ["x"]})
    settings = TraceSettings(TraceOptions())
    with pytest.raises(InvalidRequest, match="Attempting to set invalid trace setting :trace file name is not given"):
        settings.update("", {"trace_level": ["TIMESTAMPS"]})
    settings.update("", {"trace_rate": ["0"]})  # as long as it is off


def test_a_change_for_all_that_a_model_could_not_follow_is_refused() -> None:
    settings = TraceSettings(TraceOptions(file="t.json"))
    settings.update("m", {"trace_level": ["TIMESTAMPS"]})
    with pytest.raises(InvalidRequest):
        settings.update("", {"trace_rate": ["0"]})
    assert settings.document("", {})["trace_rate"] == "1000"


def test_a_sampled_caller_overrides_rate_and_count() -> None:
    settings = TraceSettings(TraceOptions(levels=("TIMESTAMPS",), rate=0, mode=OPENTELEMETRY))
    assert settings.on
    assert not settings.rules("m").sample()
    assert settings.rules("m").sample(forced=True)
    settings.update("", {"trace_rate": ["1"], "trace_count": ["0"]})
    assert not settings.rules("m").sample()
    assert settings.rules("m").sample(forced=True)
    with pytest.raises(InvalidRequest, match="hold no tensors"):
        settings.update("", {"trace_level": ["TENSORS"]})
    settings.update("", {"trace_level": ["OFF"]})
    assert not settings.rules("m").sample(forced=True)


# ---- against a plain model -------------------------------------------------------------------------------------------

MODELS = ("", "a", "b")


@dataclass
class Plain:
    """The same rules, written as simply as can be: dictionaries of what was set, and one counter for each."""

    given: dict[str, dict[str, int]] = field(default_factory=lambda: {model: {} for model in MODELS})
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODELS, 0))
    left: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODELS, -1))

    def value(self, model: str, name: str) -> int:
        start = {"trace_rate": START.rate, "trace_count": START.count}
        return self.given[model].get(name, self.given[""].get(name, start[name]))

    def update(self, model: str, name: str, value: int | None) -> None:
        if value is None:
            self.given[model].pop(name, None)
        else:
            self.given[model][name] = value
        if model == "":
            self.seen, self.left = (
                dict.fromkeys(MODELS, 0),
                {model: self.value(model, "trace_count") for model in MODELS},
            )
        else:  # it inherits what is left of the count of all
            self.seen[model], self.left[model] = 0, self.given[model].get("trace_count", self.left[""])

    def sample(self, model: str) -> bool:
        who = model if self.given[model] else ""
        self.seen[who] += 1
        if self.seen[who] % self.value(who, "trace_rate") or self.left[who] == 0:
            return False
        self.left[who] -= self.left[who] > 0
        return True


names = st.sampled_from(["trace_rate", "trace_count"])
updates = st.tuples(st.just("update"), st.sampled_from(MODELS), names, st.none() | st.integers(1, 4))
requests = st.tuples(st.just("sample"), st.sampled_from(MODELS[1:]), st.just(""), st.none())


@example(
    [
        ("update", "", "trace_count", 1),
        *[("sample", "a", "", None)] * 2,
        ("update", "a", "trace_rate", 1),
        ("sample", "a", "", None),
    ]
)
@given(st.lists(updates | requests, max_size=60))
def test_settings_match_a_simple_model(steps: list[tuple[str, str, str, int | None]]) -> None:
    settings, plain = TraceSettings(START), Plain()
    for what, model, name, value in steps:
        if what == "update":
            settings.update(model, {name: None if value is None else [str(value)]})
            plain.update(model, name, value)
        else:
            assert settings.rules(model).sample() == plain.sample(model)
        assert settings.document(model, {})["trace_rate"] == str(plain.value(model, "trace_rate"))
