"""Counter files of dcgm-exporter."""

from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.machine.accelerators.nvidia.counter_file import parse_counters, read_counter_file

# In the form of the file that dcgm-exporter ships.
TEXT = """\
# Format,,
# If line starts with a '#' it is considered a comment,,

# Clocks,,
DCGM_FI_DEV_SM_CLOCK,  gauge, Clock, of the SMs.
DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder.
  # DCGM_FI_DEV_MEM_CLOCK, gauge, Memory clock.
DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL, counter, Energy.
,,
DCGM_FI_DEV_FABRIC_HEALTH_MASK, gauge, Not in NVML.
DCGM_FI_DRIVER_VERSION, label, Driver.
DCGM_FI_DEV_SERIAL, label, Serial number.
"""


def test_fields_keep_type_and_help() -> None:
    read = parse_counters(TEXT, "counters.csv")
    assert [(each.metric.name, each.metric.kind, each.metric.help) for each in read.counters] == [
        ("DCGM_FI_DEV_SM_CLOCK", "gauge", "Clock, of the SMs."),
        ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder."),
        ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "counter", "Energy."),
    ]
    assert [each.metric.unit for each in read.counters] == ["megahertz", "percent", "joules"]


def test_fields_that_nvml_lacks_are_named() -> None:
    assert parse_counters(TEXT, "x").unavailable == ("DCGM_FI_DEV_FABRIC_HEALTH_MASK", "DCGM_FI_DEV_SERIAL")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("DCGM_FI_DEV_SM_CLOCK, gauge", "f, line 2: expected three columns, FIELD, type, help; got"),
        ("DCGM_FI_DEV_SM_CLOCK, timer, Clock.", "f, line 2: 'timer' is not a type of metrics"),
        ("nv_gpu_utilization, gauge, Utilization.", "f, line 2: 'nv_gpu_utilization' is not a field of DCGM"),
        ("DCGM_FI_DEV_SERIAL, label, Serial number.", "f names no field that NVML has a value for"),
    ],
)
def test_errors_name_the_line(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_counters(f"# comment\n{line}\n", "f")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the counter file .*none\.csv"):
        read_counter_file(tmp_path / "none.csv")
