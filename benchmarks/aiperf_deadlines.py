"""A language model at several times its capacity, with deadlines for the first token, loaded by aiperf.

    python -m benchmarks.aiperf_deadlines [--times 3] [--rounds 2] [--seconds 30]

In turns, aiperf keeps the model busy without deadlines (the peak), and sends a Poisson process of requests with
deadlines. Goodput is what aiperf counts: answers per second whose first token came within the deadline. The model is
scripted and sleeps, so that aiperf, which takes 0.2 s of CPU time a stream, has a processor.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.load_tools_install import AIPERF, TOKENIZER, LoadToolsInstall
from benchmarks.harness.machine import CHECKOUT
from benchmarks.harness.peers import Conch, Server

_WORDS = 16  # of an answer
_PEAK_SECONDS = 15
_COUNTS = ("request_throughput", "goodput", "request_count", "error_request_count")


def main() -> None:
    """Measure, and print a row for each run of aiperf."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--times", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--deadline-ms", type=int, default=1000)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--running", type=int, default=2, help="sequences in a step")
    given = parser.parse_args()
    install, tools = ConchInstall(CHECKOUT, CHECKOUT / ".bench"), LoadToolsInstall(CHECKOUT / ".bench")
    install.ensure()
    tools.ensure([AIPERF])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models" / "llm" / "1").mkdir(parents=True)
        (folder / "models" / "llm" / "config.pbtxt").write_text('backend: "scripted"\n')
        script = {"reply": "word " * _WORDS, "step_ms": given.step_ms, "max_running": given.running}
        (folder / "models" / "llm" / "1" / "model.json").write_text(json.dumps(script))
        with Server(Conch(install), folder / "models", folder / "log") as server:
            aiperf = _Aiperf(tools, server.http_address, folder / "aiperf", given.deadline_ms)
            busy = ("--concurrency", str(2 * given.running), "--benchmark-duration", str(_PEAK_SECONDS))
            peak = aiperf.run("peak", *busy)
            for _ in range(given.rounds):
                overload = aiperf.run(
                    "overload", "--request-rate", f"{given.times * peak:.2f}", "--arrival-pattern", "poisson",
                    "--benchmark-duration", str(given.seconds),
                    "--header", f"X-Request-Deadline:60s; first-token={given.deadline_ms}ms",
                )  # fmt: skip
                before, peak = peak, aiperf.run("peak", *busy)
                print(f"goodput / peak: {overload / ((before + peak) / 2):.3f}", flush=True)


class _Aiperf:
    """Runs of aiperf against one model. Goodput counts first tokens within `deadline_ms`."""

    def __init__(self, tools: LoadToolsInstall, address: str, folder: Path, deadline_ms: int) -> None:
        self._environment = tools.environment(AIPERF)
        self._folder = folder
        self._command = [
            tools.program(AIPERF), "profile", "--model", "llm", "--url", f"http://{address}", "--endpoint-type",
            "completions", "--streaming", "--tokenizer", TOKENIZER, "--use-server-token-count",
            "--synthetic-input-tokens-mean", str(_WORDS), "--output-tokens-mean", str(_WORDS), "--ui", "none",
            "--goodput", f"time_to_first_token:{deadline_ms}", "--artifact-dir", str(folder),
        ]  # fmt: skip

    def run(self, label: str, *flags: str) -> float:
        """Print what aiperf measured; return its goodput, in requests per second."""
        subprocess.run([*self._command, *flags], env=self._environment, check=True, stdout=subprocess.DEVNULL)
        figures: dict[str, Any] = json.loads((self._folder / "profile_export_aiperf.json").read_bytes())
        counts = {name: (figures.get(name) or {}).get("avg") or 0 for name in _COUNTS}
        first = figures["time_to_first_token"]
        print(
            f"{label:9} answered {counts['request_count']:.0f} ({counts['request_throughput']:.2f}/s), in time "
            f"{counts['goodput']:.2f}/s, refused {counts['error_request_count']:.0f}; first token "
            f"P50 {first['p50']:.0f}, P99 {first['p99']:.0f}, longest {first['max']:.0f} ms",
            flush=True,
        )
        return float(counts["goodput"])


if __name__ == "__main__":
    main()
