"""A collector of an installed package, sampled in a separate process."""

import subprocess
import sys
from pathlib import Path

from conch.machine.accelerators.collectors import sample_from_json
from tests.docs.blocks import ROOT, blocks_of

PAGE = ROOT / "docs" / "observability" / "accelerators.md"


def test_the_collector_of_the_documentation_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (block,) = [block for block in blocks_of(PAGE) if block.language == "python"]
    (toml,) = [block for block in blocks_of(PAGE) if block.language == "toml"]
    name, _, place = toml.lines[1].partition(" = ")
    package = tmp_path / "site"
    info = package / "acme_conch-1.0.dist-info"
    info.mkdir(parents=True)
    (package / "acme_conch.py").write_text("\n".join(line for line in block.lines if not line.startswith("print")))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-conch\nVersion: 1.0\n")
    entry = place.strip().strip('"')
    (info / "entry_points.txt").write_text(f"[conch.accelerators]\n{name} = {entry}\n")
    script = (
        "import sys; from conch.machine.accelerators.collectors import create_collector, vendors\n"
        "assert 'acme' in vendors()\n"
        "collector = create_collector('acme'); collector.start(); print(collector.sample().to_json().decode())\n"
        "collector.close()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(package)},
        capture_output=True,
        check=True,
        timeout=120,
    )
    (device,) = sample_from_json(result.stdout).devices
    assert device.readings["utilization_ratio"] == 0.5
    assert "power_watts" in device.unsupported
