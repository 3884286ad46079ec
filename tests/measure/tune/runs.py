"""Runs of `conch tune` against a real server, and what they leave."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.server_process import ConchProcess

TIMEOUT_S = 120
_QUICK = ("--window", "0.2s", "--warm-up", "0.05s", "--rounds", "2", "--finalists", "1", "--concurrency", "2")

_MODEL = """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        import json
        if json.loads(args["model_config"])["max_batch_size"] == 3:
            raise ValueError("a batch of three brings bad luck")

    def execute(self, requests):
        found = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data)]))
        return found
"""
CONFIG = """\
# A model for tests.
backend: "{backend}"
max_batch_size: 8  # of rows
input [{{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }}]
output [{{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }}]
instance_group [{{ count: 1 kind: KIND_CPU }}]  # one
"""
_BLS = """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "IN")
            call = pb_utils.InferenceRequest(model_name="stage_b", requested_output_names=["OUT"], inputs=[data])
            found.append(pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(call.exec(), "OUT")]))
        return found
"""
_SLOW = _MODEL.replace("        found = []\n", "        import time\n        time.sleep(0.01)\n        found = []\n")
_ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 8
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }]
ensemble_scheduling { step [
  { model_name: "stage_a" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "x" } },
  { model_name: "stage_b" model_version: -1 input_map { key: "IN" value: "x" } output_map { key: "OUT" value: "OUT" } }
] }
"""


def write_repository(folder: Path) -> Path:
    """Write the models: identity and Python ones, an ensemble whose second stage is slow, a BLS model."""
    for name, backend, code in (
        ("echo", "identity", None),
        ("picky", "python", _MODEL),
        ("stage_a", "identity", None),
        ("stage_b", "python", _SLOW),
        ("calls", "python", _BLS),
    ):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG.format(backend=backend))
        if code is not None:
            (folder / name / "1" / "model.py").write_text(code)
    (folder / "pipeline" / "1").mkdir(parents=True)
    (folder / "pipeline" / "config.pbtxt").write_text(_ENSEMBLE)
    return folder


class TuneRun:
    """One process of `conch tune`; kill it by `kill`."""

    def __init__(self, conch: ConchProcess, state: Path, *arguments: str) -> None:
        self.log = state.parent / f"tune-{time.monotonic_ns()}.log"
        self.state = state
        command = [sys.executable, "-m", "conch", "tune", f"--url=http://{conch.http}", f"--state-dir={state}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *_QUICK, *arguments], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text()

    def wait(self) -> int:
        """Return its exit status."""
        return self.process.wait(TIMEOUT_S)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the tuner alone and wait for its end."""
        self.process.send_signal(how)
        self.process.wait(TIMEOUT_S)

    def watchdogs(self) -> list[int]:
        """Return the processes of watchdogs of this state directory."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    command = (entry / "cmdline").read_bytes().decode()
                except OSError:
                    continue
                if "conch.measure.tune.state.watchdog" in command and str(self.state) in command:
                    pids.append(int(entry.name))
        return pids

    def kill_watchdogs(self) -> None:
        """Kill the watchdogs."""
        for pid in self.watchdogs():
            os.kill(pid, signal.SIGKILL)
        until(lambda: not self.watchdogs())


def config(conch: ConchProcess, model: str) -> dict[str, Any]:
    """Return the configuration that is served."""
    with urllib.request.urlopen(f"http://{conch.http}/v2/models/{model}/config", timeout=30) as response:
        document: dict[str, Any] = json.load(response)
    return document


def post(conch: ConchProcess, path: str, body: object) -> None:
    """Send a request to the repository API."""
    request = urllib.request.Request(f"http://{conch.http}{path}", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30):
        pass


def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition does not hold"
        time.sleep(0.02)
