"""Cost of sampling NVIDIA GPUs through a fake NVML: `python -m benchmarks.gpu_sampling [--gpus N …] [--samples N]`.

The library of the tests answers at once, so these are Conch's own costs; a real driver adds its own to the sampling
process. What the event loop of a server pays is the decoding of samples and the rendering of scrapes.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from tests.machine.accelerators.nvml import GPM, H100, VALUES, compile_library, gpu, machine_with

COLUMNS = {
    "sample": "ms in the sampling process",
    "encode": "ms to encode, there",
    "decode": "ms to decode, event loop",
    "scrape": "ms for a scrape, event loop",
    "bytes": "bytes of a sample",
    "series": "series of a scrape",
}


def bench(
    gpus: Annotated[list[int] | None, typer.Option(min=1, max=16, help="Number of GPUs; repeatable.")] = None,
    samples: Annotated[int, typer.Option(min=10, help="Samples of each number.")] = 300,
) -> None:
    """Print the medians of each step, and the CPU time that sampling every 2 s takes."""
    table = Table("GPUs", *COLUMNS.values(), "CPU at --metrics-interval-ms=2000")
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as name:
        library = compile_library(Path(name))
        for number in gpus or [1, 8]:
            lines = [gpu(H100.replace("bbbbbbbb", f"{index:08x}"), **VALUES, **GPM) for index in range(number)]
            environment = {**os.environ, **machine_with(library, Path(name), *lines)}
            command = [sys.executable, "-m", "benchmarks.gpu_sampling", "--measure", str(samples)]
            output = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
            figures = json.loads(output)
            share = (figures["sample"] + figures["encode"] + figures["decode"]) / 2000
            table.add_row(str(number), *(f"{figures[key]:.4g}" for key in COLUMNS), f"{share:.2%}")
    Console().print(table)


def measure(samples: int) -> dict[str, float]:
    """Return the medians, in milliseconds, of the steps of one sample and one scrape in this process."""
    from conch.domain.exposition import render
    from conch.machine.accelerators.collectors import sample_from_json
    from conch.machine.accelerators.families import sample_families
    from conch.machine.accelerators.nvidia_views import DcgmView
    from conch.machine.accelerators.vendors.nvidia import NvidiaCollector

    collector, view = NvidiaCollector(), DcgmView("legacy", "node")
    collector.start()
    collector.sample()
    latest = collector.sample()
    line = latest.to_json()

    def scrape() -> bytes:
        return render([*view.families([latest], {}), *sample_families([latest], {})])

    text = scrape().decode()
    figures = {
        "sample": _median_ms(collector.sample, samples),
        "encode": _median_ms(latest.to_json, samples),
        "decode": _median_ms(lambda: sample_from_json(line), samples),
        "scrape": _median_ms(scrape, samples),
        "bytes": float(len(line)),
        "series": float(sum(not line.startswith("#") for line in text.splitlines())),
    }
    collector.close()
    return figures


def _median_ms(call: Callable[[], object], times: int) -> float:
    durations = []
    for _ in range(times):
        began = perf_counter()
        call()
        durations.append(perf_counter() - began)
    return median(durations) * 1000


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(int(sys.argv[2]))))
    else:
        typer.run(bench)
