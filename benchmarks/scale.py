"""Writes docs/scale.md: what 1 million requests/s and 100,000 concurrent streams require.

`python -m benchmarks.scale` takes a minute. Each number of the page comes from a fact of `FACTS`, which names its
source, or from `conch autoscale simulate`, whose command lines the page shows.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import CHECKOUT

PAGE = CHECKOUT / "docs" / "scale.md"
_OWN = "[benchmarks](../benchmarks/README.md)"
_LARGE = "[Kubernetes](https://kubernetes.io/docs/setup/best-practices/cluster-large/)"
_PRICES = "[AWS](https://aws.amazon.com/ec2/pricing/on-demand/), us-west-2, Linux, list price of 2025"


@dataclass(frozen=True)
class Fact:
    """A number with its unit and where it comes from."""

    what: str
    value: float
    unit: str
    source: str


# By name, as the formulas below use them.
FACTS = {
    "request_cpu": Fact("CPU of the server for a small gRPC request", 48, "µs", _OWN),
    "detect_cpu": Fact("CPU of one image through the detection pipeline, JPEG to boxes", 25.4, "ms", _OWN),
    "detect_bytes": Fact("Size of such a JPEG", 56, "kB", "`examples/images/plate.jpg`"),
    "token_cpu": Fact("CPU of the server for one streamed token", 24, "µs", _OWN),
    "engine_cpu": Fact("CPU beside the engine's own for one token", 17, "µs", _OWN),
    "gpu_streams": Fact("Streams at once on one A800, Qwen2.5-3B", 30, "", "S0's table, vLLM"),
    "gpu_tokens": Fact("Tokens per second of these 30 streams", 2901, "/s", "S0's table, vLLM"),
    "model_series": Fact("Series of one model", 65, "", f"{_OWN}: 65,064 of 1,000 models"),
    "sample_bytes": Fact(
        "Bytes of a stored sample, at most",
        2,
        "B",
        "[Prometheus](https://prometheus.io/docs/prometheus/latest/storage/#operational-aspects)",
    ),
    "cluster_nodes": Fact("Nodes of a cluster, at most", 5000, "", _LARGE),
    "cluster_pods": Fact("Pods of a cluster, at most", 150000, "", _LARGE),
    "node_pods": Fact("Pods of a node, at most", 110, "", _LARGE),
    "slice_endpoints": Fact(
        "Endpoints of an EndpointSlice",
        100,
        "",
        "[Kubernetes](https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/)",
    ),
    "cpu_price": Fact("8 vCPUs for an hour (c7i.2xlarge)", 0.357, "USD", _PRICES),
    "gpu_price": Fact("One A10G GPU for an hour (g5.xlarge)", 1.006, "USD", _PRICES),
    "zone_price": Fact(
        "A GB between zones, both directions",
        0.02,
        "USD",
        "[AWS](https://aws.amazon.com/ec2/pricing/on-demand/#Data_Transfer)",
    ),
}
CELLS, ZONES = 20, 3
CORES = 8  # of a replica
WEIGHTS_GB, LINK_GB_S = 7.0, 1.25  # weights of an LLM in 4 bit to 16 bit, and a node's 10 Gbit/s


def _fact(name: str) -> float:
    return FACTS[name].value


def simulated(*options: str) -> tuple[str, dict[str, Any]]:
    """Run `conch autoscale simulate`; return its command line and its results."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        files = [f"--json={file}", f"--output={Path(folder) / 'winner.yaml'}"]
        command = [sys.executable, "-m", "conch", "autoscale", "simulate", *options]
        subprocess.run([*command, *files], check=True, capture_output=True, timeout=600)
        return f"conch autoscale simulate {' '.join(options)}", json.loads(file.read_text())


def _policies(results: Mapping[str, Any]) -> list[str]:
    rows = []
    for policy in results["policies"]:
        ready = policy["ready"]
        rows.append(
            f"| {policy['name']} | {100 * policy['miss_share']:.2f} % | {policy['replica_hours']:,.0f} | "
            f"{min(ready):,.0f}–{max(ready):,.0f} | {'yes' if policy['flapping'] else 'no'} |"
        )
    return ["| Policy | Missed | Replica-hours | Replicas | Flaps |", "|---|---:|---:|---:|---|", *rows]


def _hours(results: Mapping[str, Any], policy: str) -> float:
    return float(next(result["replica_hours"] for result in results["policies"] if result["name"] == policy))


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    return [
        "| Part | Number | From |",
        "|---|---:|---|",
        *(f"| {what} | {value} | {how} |" for what, value, how in rows),
    ]


def page() -> str:
    """Return the text of the page. Runs the simulations."""
    peak = 1_000_000
    cell_peak = peak // CELLS
    capacity = CORES / (_fact("detect_cpu") / 1000)
    day, cell = simulated(
        f"--traffic=diurnal:{0.4 * cell_peak:g}:{cell_peak:g}",
        f"--service-time={_fact('detect_cpu')}ms",
        f"--instances={CORES}",
        "--cold-start=40s",
        "--slo=latency:200ms",
        "--policy=fixed",
        "--policy=utilization",
        "--policy=predict",
        "--policy=ratio",
        "--policy=counter",
    )
    winner = cell["winner"]
    replicas = max(next(policy["ready"] for policy in cell["policies"] if policy["name"] == winner))
    lost, outage = simulated(
        f"--traffic=diurnal:{0.4 * cell_peak:g}:{cell_peak:g}",
        f"--service-time={_fact('detect_cpu')}ms",
        f"--instances={CORES}",
        "--cold-start=40s",
        "--slo=latency:200ms",
        f"--policy={winner}",
        f"--fault=kill:20h:{ceil(replicas / ZONES):.0f}",
    )
    streams, tokens = 100_000, 200
    rate = _fact("gpu_tokens") / _fact("gpu_streams")
    seconds = tokens / rate
    arrivals = streams / seconds
    chat, language = simulated(
        f"--traffic=diurnal:{0.4 * arrivals / CELLS:.0f}:{arrivals / CELLS:.0f}",
        f"--llm=500/{tokens}",
        f"--slots={_fact('gpu_streams'):.0f}",
        f"--decode-rate={rate:.0f}",
        "--cold-start=120s",
        "--slo=ttft:2s",
        "--policy=fixed",
        "--policy=kv",
        "--policy=utilization",
    )
    best = language["winner"]
    gpus = max(next(policy["ready"] for policy in language["policies"] if policy["name"] == best)) * CELLS
    all_replicas = replicas * CELLS
    slices = ceil(replicas / _fact("slice_endpoints"))
    weights_gb = gpus / 10 * WEIGHTS_GB
    gigabytes = peak * _fact("detect_bytes") / 1e6  # per second
    series = all_replicas * 5 * _fact("model_series")  # the ensemble and its four models
    samples = series / 15
    crossing = gigabytes * 86400 * (ZONES - 1) / ZONES * _fact("zone_price")
    cpu_hours = _hours(cell, winner) * CELLS
    gpu_hours = _hours(language, best) * CELLS
    lines = [
        "# Internet scale",
        "",
        "<!-- Written by benchmarks/scale.py; do not edit. -->",
        "",
        f"What {peak:,} requests per second and {streams:,} concurrent streams require: numbers from simulations,",
        "measurements and published limits, no experience. Nothing of this size was run. `python -m benchmarks.scale`",
        "writes this page.",
        "",
        "## Facts",
        "",
        "| Fact | Value | Source |",
        "|---|---:|---|",
        *(f"| {fact.what} | {fact.value:,g} {fact.unit}".rstrip() + f" | {fact.source} |" for fact in FACTS.values()),
        "",
        f"## {peak:,} images per second",
        "",
        f"A replica has {CORES} cores and answers {capacity:,.0f} images/s. One of {CELLS} cells, over a day:",
        "",
        "```text",
        day,
        "```",
        "",
        *_policies(cell),
        "",
        f"`{winner}` has the fewest replica-hours of those that meet the objective of 99 %. All cells together:",
        "",
        *_table(
            [
                ("Replicas at the peak", f"{all_replicas:,.0f}", f"{CELLS} cells of {replicas:,.0f}"),
                ("Cores", f"{all_replicas * CORES:,.0f}", f"{CORES} a replica"),
                (
                    "Cores for Conch itself",
                    f"{peak * _fact('request_cpu') / 1e6:,.0f}",
                    "small gRPC requests; the rest is decoding and the model",
                ),
                ("Traffic in", f"{gigabytes:,.0f} GB/s", f"{_fact('detect_bytes'):.0f} kB an image"),
                ("Front doors", f"{ceil(gigabytes / 2.5):,.0f}", "proxies with 25 Gbit/s, filled to 80 %"),
                ("EndpointSlices of a cell", f"{slices:,.0f}", "100 endpoints each"),
                ("Series", f"{series:,.0f}", "five models a replica"),
                ("Samples", f"{samples:,.0f}/s", "one scrape in 15 s"),
                ("Stored samples a day", f"{samples * 86400 * _fact('sample_bytes') / 1e9:,.0f} GB", "2 bytes each"),
                ("Compute a day", f"{cpu_hours * _fact('cpu_price'):,.0f} USD", f"{cpu_hours:,.0f} replica-hours"),
            ]
        ),
        "",
        "### Cells and zones",
        "",
        f"One cluster has at most {_fact('cluster_nodes'):,.0f} nodes, and these are {all_replicas:,.0f} replicas",
        "of a node each. It would also be a single fault. A cell is a cluster with its own front doors,",
        f"Prometheus and autoscaler; a mistake in one costs {100 / CELLS:.0f} %. Front doors prefer replicas of their",
        f"zone: at random, {ZONES - 1} of {ZONES} requests would cross zones, for {crossing:,.0f} USD a day.",
        "",
        f"When one of {ZONES} zones is lost at the peak, the cell has two thirds of its replicas until others start:",
        "",
        "```text",
        lost,
        "```",
        "",
        *_policies(outage),
        "",
        f"## {streams:,} concurrent streams",
        "",
        f"At {rate:.0f} tokens/s a stream, {tokens} tokens take {seconds:.1f} s, so {arrivals:,.0f} conversations",
        f"begin each second. One of {CELLS} cells, a replica being one GPU:",
        "",
        "```text",
        chat,
        "```",
        "",
        *_policies(language),
        "",
        *_table(
            [
                ("GPUs at the peak", f"{gpus:,.0f}", f"`{best}`, all cells"),
                ("Tokens", f"{streams * rate / 1e6:,.1f} M/s", f"{rate:.0f} a stream"),
                (
                    "Cores for streaming",
                    f"{streams * rate * (_fact('token_cpu') + _fact('engine_cpu')) / 1e6:,.0f}",
                    f"{_fact('token_cpu'):.0f} + {_fact('engine_cpu'):.0f} µs a token, beside the GPUs",
                ),
                ("GPU-hours a day", f"{gpu_hours:,.0f}", "simulated"),
                ("Compute a day", f"{gpu_hours * _fact('gpu_price'):,.0f} USD", "priced as A10G, which is smaller"),
            ]
        ),
        "",
        "Front doors hash the prompt's prefix or the session, with bounded load: a conversation that moves to another",
        "replica computes its prefix again ([load-balancing.md](load-balancing.md)).",
        "",
        "### Weights",
        "",
        f"A new replica of a model of {WEIGHTS_GB:g} GB reads it in {WEIGHTS_GB / LINK_GB_S:.1f} s at 10 Gbit/s.",
        f"When {gpus / 10:,.0f} replicas (a tenth) start at once, they read {weights_gb / 1000:,.1f} TB. A registry",
        f"that sends 100 GB/s needs {weights_gb / 100:,.0f} s for it; a cache in each zone or on each node takes",
        "it off that path. Images with one layer for each model are pulled once a node",
        "([oci-models.md](oci-models.md)).",
        "",
        "## Limits of this page",
        "",
        "* The simulation is a fluid model with a correction for random arrivals; its assumptions and its error are in",
        "  [autoscaling.md](autoscaling.md). Bursts shorter than a second and failures that spread are not in it.",
        "* CPU times were measured on two shared cores. Larger machines have other caches and frequencies.",
        "* GPU figures are of one table of one source. `conch bench` on the real GPU replaces them.",
        "* Prices are list prices, without discounts for commitments.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
