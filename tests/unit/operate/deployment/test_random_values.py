"""Random combinations of what cases and examples set: Helm and Python accept the same, and make the same objects."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conch.base.errors import ConfigError
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.description import constraints, keys, plain_type
from conch.operate.deployment.values.read import merge, read_values
from tests.support.helm_process import HelmChart, HelmError
from tests.unit.operate.deployment.refused_values import REFUSED
from tests.unit.operate.deployment.test_chart import assert_equal
from tests.unit.operate.deployment.value_sets import value_sets

MAX_SETTINGS = 12


def settings_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Each key of a document that has no mapping below it, alone in its mappings."""
    found: list[dict[str, Any]] = []
    for key, value in values.items():
        below = settings_of(value) if isinstance(value, dict) and value else [value]
        found += [{key: each} for each in below]
    return found


def hostile_settings() -> list[dict[str, Any]]:
    """Texts that YAML could take for something else, and large numbers, wherever texts and numbers are allowed."""
    found: list[dict[str, Any]] = []
    for key in keys(DeploymentValues()):
        plain, limits = plain_type(key.annotation), constraints(key.annotation)
        texts = HOSTILE_TEXTS if plain is str and not any(each.pattern for each in limits) else ()
        numbers = (1_000_000,) if plain is int and not any(each.le or each.lt for each in limits) else ()
        for value in (*texts, *numbers):
            document: Any = value
            for part in reversed(key.path):
                document = {part: document}
            found.append(document)
    return found


HOSTILE_TEXTS = ("on", "1e3", "a: b #c", "x'\"y", "0o17", "~", "{{ .Values }}", "é\nf")
ACCEPTED = [each for values in value_sets().values() for each in settings_of(values)]
ALL = [*ACCEPTED, *(each for values, _ in REFUSED for each in settings_of(values))]
# "on" and "y" are booleans in YAML unless they are quoted.
NAMES = st.sampled_from(("on", "no", "y", "n")) | st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    chosen=st.lists(st.sampled_from(ACCEPTED), max_size=MAX_SETTINGS)
    | st.lists(st.sampled_from([*ACCEPTED, *hostile_settings()]), max_size=MAX_SETTINGS)
    | st.lists(st.sampled_from(ALL), max_size=MAX_SETTINGS),
    name=NAMES,
    namespace=NAMES,
)
def test_any_values_are_refused_or_rendered_alike(
    chart: HelmChart, chosen: list[dict[str, Any]], name: str, namespace: str
) -> None:
    values = merge(chosen)
    try:
        read_values(values)
    except ConfigError:
        try:
            chart.objects(values, name, namespace)
        except HelmError:
            return
        raise AssertionError("only Python refuses these values") from None
    assert_equal(chart, values, name, namespace)
