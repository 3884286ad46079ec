"""Descriptions of machines: GPUs by name, by the driver's name, and by figures."""

import pytest

from conch.measure.advise.machine import read_machine


@pytest.mark.parametrize(
    ("gpus", "memory_gb", "gbps", "tflops"),
    [
        ("1×A10G", 25.8, 600, 70),
        ("2×H100", 85.9, 3350, 989),
        ("1×NVIDIA H100 80GB HBM3", 80, 3350, 989),
        ("1×H100 80GB PCIe", 80, 2000, 756),
        ("1×H100 NVL 94GB", 94, 0, 0),
        ("1×A100 40GiB", 42.9, 1555, 312),
        ("1×NVIDIA A100-PCIE-40GB 40GiB", 42.9, 1555, 312),
        ("1×A100 80GB PCIe", 80, 1935, 312),
        ("1×A800 40GiB", 42.9, 1555, 312),
        ("1×Tesla V100-SXM2-32GB 32GiB", 34.4, 900, 125),
        ("1×B999 96GB", 96, 0, 0),
        ("1×B999 96GB 1600GB/s 500TFLOPS", 96, 1600, 500),
        ("1×L4 20GiB 250GB/s", 21.5, 250, 121),
    ],
)
def test_gpus(gpus: str, memory_gb: float, gbps: float, tflops: float) -> None:
    facts = read_machine(f"{gpus}, 8 cores, 64GiB").gpus
    assert facts is not None
    assert (facts.bandwidth / 1e9, facts.flops / 1e12) == (gbps, tflops)
    assert facts.memory / 1e9 == pytest.approx(memory_gb, abs=0.05)


def test_figures_have_their_source() -> None:
    sheet, stated = (read_machine(f"{gpus}, 8 cores, 64GiB").gpus for gpus in ("1×T4", "1×T4 300GB/s"))
    assert sheet is not None
    assert stated is not None
    assert (sheet.speeds_from, stated.speeds_from) == ("of the data sheet", "as stated")
