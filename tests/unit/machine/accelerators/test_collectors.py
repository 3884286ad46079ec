"""Samples cross a pipe unchanged, and become families."""

import pickle
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conch.domain.exposition import Family, render
from conch.domain.metrics.catalog import areas
from conch.machine.accelerators.collectors import (
    READINGS,
    CollectorError,
    CollectorStatus,
    DeviceIdentity,
    NativeValue,
    ProcessUsage,
    VendorSample,
    create_collector,
    device_sample,
    sample_from_json,
)
from conch.machine.accelerators.families import (
    ModelUsage,
    PodContainer,
    model_families,
    native_families,
    sample_families,
    status_families,
)

DEVICE = DeviceIdentity("acme", "0", "ACME-1", "Acme 9000", "0000:01:00.0", aliases=("acme0",))
SAMPLE = VendorSample(
    "acme",
    (
        device_sample(
            DEVICE,
            {"utilization_ratio": 0.5, "memory_used_bytes": 1 << 30, "power_watts": None},
            errors={"79": 1},
            native=(NativeValue("acme_util_percent", 50, {"card": "0"}),),
            processes=(ProcessUsage(42, 1024.0, None),),
            unsupported=("acme_fan",),
            attributes={"driver": "1.2"},
        ),
    ),
    (NativeValue("acme_driver_info", 1, {"version": "1.2"}),),
)


def test_a_sample_crosses_a_process_boundary() -> None:
    line = SAMPLE.to_json()
    assert b"\n" not in line
    assert sample_from_json(line) == SAMPLE
    assert sample_from_json(pickle.loads(pickle.dumps(line))) == SAMPLE


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"vendor": "x"}', b'{"vendor":"x","native":[],"devices":[3]}'])
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(CollectorError, match="malformed sample"):
        sample_from_json(line)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (b'"utilization_ratio":0.5', b'"utilization_ratio":"high"', "'high' is not a finite number"),
        (b'"utilization_ratio":0.5', b'"utilization_ratio":null', "None is not a finite number"),
        (b'"utilization_ratio":0.5', b'"utilisation":0.5', "unknown reading 'utilisation'; readings are utilization_"),
        (b'"acme_util_percent"', b'"acme util"', "'acme util' is not a valid name of a metric"),
        (b'"acme_util_percent"', b'"nv_gpu_utilization"', "the metric name 'nv_gpu_utilization' is reserved"),
        (b'"acme_util_percent"', b'"DCGM_FI_DEV_GPU_UTIL"', "is reserved"),
        (b'"card":"0"', b'"card":0', "0 is not text"),
        (b'"card":"0"', b'"__card":"0"', "'__card' is not a valid name of a label"),
        (b'"gauge"', b'"histogram"', "is a histogram"),
        (b'"uuid":"ACME-1"', b'"uuid":7', "7 is not text"),
        (b'"pid":42', b'"pid":"42"', "'42' is not a finite number"),
    ],
)
def test_a_sample_that_cannot_be_exposed_is_refused_with_the_reason(old: bytes, new: bytes, complaint: str) -> None:
    line = SAMPLE.to_json()
    assert old in line
    with pytest.raises(CollectorError, match=re.escape(complaint)):
        sample_from_json(line.replace(old, new))


def test_a_value_that_is_missing_is_unsupported() -> None:
    (device,) = SAMPLE.devices
    assert set(device.readings) == {"utilization_ratio", "memory_used_bytes"}
    assert set(device.unsupported) == (set(READINGS) - set(device.readings)) | {"acme_fan"}


def values(families: list[Family]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(render(families).decode())
        for sample in family.samples
    }


def test_a_shared_device_has_a_series_for_each_container() -> None:
    containers = {"ACME-1": [PodContainer("ml", "a", "server"), PodContainer("ml", "b", "server")]}
    by_series = values([*sample_families([SAMPLE], containers), *native_families([SAMPLE], containers, {})])
    labels = {"vendor": "acme", "device": "0", "uuid": "ACME-1", "name": "Acme 9000"}
    for pod in "ab":
        pod_labels = {"namespace": "ml", "pod": pod, "container": "server"}
        of_pod = frozenset((labels | pod_labels).items())
        assert by_series["conch_accelerator_utilization_ratio", of_pod] == 0.5
        assert by_series["acme_util_percent", frozenset({"card": "0", **pod_labels}.items())] == 50
    assert by_series["acme_driver_info", frozenset({("version", "1.2")})] == 1
    assert not any(name == "conch_accelerator_power_watts" for name, _ in by_series)


def test_families_have_the_labels_of_their_definitions() -> None:
    status = CollectorStatus("acme", True, 0.1, 2.0, {"power_watts": 3})
    usage = ModelUsage("m", "1", "m_0", "ACME-1", 10.0, 0.25)
    definitions = {metric.name: metric for metric in areas()["accelerators"]}
    families = [*sample_families([SAMPLE], {}), *status_families([status]), *model_families([usage])]
    for family in families:
        definition = definitions[family.name]
        assert (family.kind, family.help) == (definition.kind, definition.help)
        assert all(set(point.labels) == set(definition.labels) for point in family.points)
    assert {family.name for family in families} == set(definitions)


def test_an_unknown_vendor_is_refused_by_name() -> None:
    with pytest.raises(CollectorError, match="no collector for the accelerator vendor 'nvidai'"):
        create_collector("nvidai")
