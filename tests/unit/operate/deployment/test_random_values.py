"""Random combinations of what cases and examples set: they are refused by name, or Kubernetes accepts the objects."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tools.chart_values import ChartValues
from tools.deploy_files import CHART

from conch.base.helm import merge_values
from conch.operate.deployment.chart import explain
from tests.support.custom_resources import KINDS
from tests.support.helm_process import HelmChart, HelmError
from tests.unit.operate.deployment.refused_values import REFUSED
from tests.unit.operate.deployment.test_schemas import VERSIONS, Schemas
from tests.unit.operate.deployment.value_sets import value_sets

MAX_SETTINGS = 12
SCHEMAS = Schemas(VERSIONS[-1])
SECTIONS = {key.path for key in ChartValues(CHART).keys if key.is_section}


def settings_of(values: dict[str, Any], place: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Each key of a document alone in its mappings. Mappings that Kubernetes defines stay whole."""
    alone: list[dict[str, Any]] = []
    for key, value in values.items():
        below = settings_of(value, (*place, key)) if (*place, key) in SECTIONS else [value]
        alone += [{key: setting} for setting in below]
    return alone


def hostile_settings() -> list[dict[str, Any]]:
    """Texts that YAML could take for something else, and large numbers, wherever texts and numbers are allowed."""
    documents: list[dict[str, Any]] = []
    for key in ChartValues(CHART).keys:
        kind = key.schema.get("type")
        texts = HOSTILE_TEXTS if kind == "string" and "pattern" not in key.schema else ()
        numbers = (1_000_000,) if key.schema.get("$ref", "").endswith("ount") else ()
        for value in (*texts, *numbers):
            document: Any = value
            for part in reversed(key.path):
                document = {part: document}
            documents.append(document)
    return documents


HOSTILE_TEXTS = ("on", "1e3", "a: b #c", "x'\"y", "0o17", "~", "{{ .Values }}", "é\nf")
ACCEPTED = [setting for values in value_sets().values() for setting in settings_of(values)]
ALL = [*ACCEPTED, *(setting for values, _ in REFUSED for setting in settings_of(values))]
# "on" and "y" are booleans in YAML unless they are quoted.
NAMES = st.sampled_from(("on", "no", "y", "n")) | st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


@pytest.mark.slow
@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    chosen=st.lists(st.sampled_from(ACCEPTED), max_size=MAX_SETTINGS)
    | st.lists(st.sampled_from([*ACCEPTED, *hostile_settings()]), max_size=MAX_SETTINGS)
    | st.lists(st.sampled_from(ALL), max_size=MAX_SETTINGS),
    name=NAMES,
    namespace=NAMES,
)
def test_any_values_are_refused_by_name_or_valid(
    chart: HelmChart, chosen: list[dict[str, Any]], name: str, namespace: str
) -> None:
    try:
        objects = chart.objects(merge_values(chosen), name, namespace)
    except HelmError as error:
        if not explain(str(error)).startswith("values: "):
            raise
        return
    metadata = [document["metadata"] for document in objects]
    assert {(part["labels"]["app"], part["namespace"]) for part in metadata} == {(name, namespace)}
    assert [error for document in objects if document["kind"] not in KINDS for error in SCHEMAS.errors(document)] == []
