"""Incidents of real models, recorded and replayed on stand-ins: which batches are equal, and how far the P99 is off.

    python -m benchmarks.replays [--seconds 20] [--times 2] [--compare]

`--compare` also replays with durations drawn by batch size, as for a changed world. Models sleep for times of a
log-normal distribution; requests arrive by a Poisson process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from conch.base.process.local_server import local_server

_MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.random = np.random.default_rng(int(args["model_instance_name"][-1]))

    def execute(self, requests):
        time.sleep({ms} / 1000 * self.random.lognormal(0, 0.4))
        if self.name == "caller":
            for request in requests:
                inputs = [pb_utils.Tensor("IN", request.inputs()[0].as_numpy())]
                pb_utils.InferenceRequest(model_name="one", inputs=inputs, requested_output_names=["OUT"]).exec()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
_TENSORS = """input [{ name: "IN" data_type: TYPE_FP32 dims: [ 16 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] }]"""
_ENSEMBLE = f"""platform: "ensemble" max_batch_size: 8 {_TENSORS} ensemble_scheduling {{
step {{ model_name: "one" model_version: -1
  input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "between" }} }}
step {{ model_name: "two" model_version: -1
  input_map {{ key: "IN" value: "between" }} output_map {{ key: "OUT" value: "OUT" }} }} }}"""
# Computing time of an execution (ms), instances, dynamic batching.
_MODELS = {
    "one": (20, 1, ""),
    "two": (60, 2, "max_queue_delay_microseconds: 5000"),
    "preferring": (40, 2, "preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 20000"),
    "quick": (4, 1, ""),
    "caller": (20, 2, ""),
}
# Requests per second.
_RATES = {"one": 120, "two": 80, "preferring": 60, "quick": 300, "caller": 25, "pipeline": 50}


def main() -> None:
    """Record each model under load, replay it, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--compare", action="store_true")
    given = parser.parse_args()
    speeds = {"at recorded times": 1.0, **({"drawn by size": 1.0000001} if given.compare else {})}
    with tempfile.TemporaryDirectory() as name:
        bundles = _recorded(Path(name), given.seconds)
        print(f"{'model':12} {'replay':18} {'batches':>7} {'mean':>5} {'equal':>6} {'P50':>6} {'P99':>6} {'P99 ms':>7}")
        for model, path in bundles.items():
            for label, speed in speeds.items():
                for _ in range(given.times):
                    run = _conch("replay", path, "--on", "stand-in", "--model", model, "--speed", speed, "--json")
                    _print(model, label, json.loads(run)["models"][0])


def _recorded(folder: Path, seconds: int) -> dict[str, Path]:
    for model, (ms, count, batching) in _MODELS.items():
        (folder / "models" / model / "1").mkdir(parents=True)
        (folder / "models" / model / "1" / "model.py").write_text(_MODEL.format(ms=ms))
        (folder / "models" / model / "config.pbtxt").write_text(
            f'backend: "python" max_batch_size: 8 {_TENSORS} dynamic_batching {{ {batching} }} '
            f"instance_group [{{ count: {count} kind: KIND_CPU }}]"
        )
    (folder / "models" / "pipeline" / "1").mkdir(parents=True)
    (folder / "models" / "pipeline" / "config.pbtxt").write_text(_ENSEMBLE)
    bundles = {}
    with local_server(folder / "log", f"--model-repository={folder / 'models'}", "--event-log-bytes=100000000") as url:
        for model, rate in _RATES.items():
            _conch("bench", url, model, "--rate", rate, "--duration", f"{seconds}s", "--warm-up", "0s")
            bundles[model] = folder / f"{model}.conch.tar.zst"
            _conch("record", url, "-o", bundles[model], "--last", f"{seconds + 2}s")
    return bundles


def _conch(*arguments: object) -> str:
    command = [sys.executable, "-m", "conch", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _print(model: str, label: str, comparison: dict[str, Any]) -> None:
    recorded, replayed = comparison["recorded"], comparison["replayed"]
    errors = [replayed[key] / recorded[key] - 1 for key in ("p50_s", "p99_s")]
    equal = f"{comparison['equal_batches']:6.1%}" if recorded["batches"] else "     -"
    print(
        f"{model:12} {label:18} {recorded['batches']:7} {recorded['mean_batch'] or 0:5.2f} {equal} "
        f"{errors[0]:+6.1%} {errors[1]:+6.1%} {recorded['p99_s'] * 1000:7.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
