"""The model of `conch fleet demo`: a request takes a fixed time and hardly any CPU.

Its one instance sleeps, as one that waits for a GPU. So requests really queue, the ratio of queue to compute time grows
with the number of clients, and replicas on two cores lower it as replicas on separate machines would.
"""

from pathlib import Path

NAME = "steady"
_CONFIG = """# Takes requests one at a time: dynamic_batching would hide the queue.
name: "steady"
backend: "python"
max_batch_size: 0
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "seconds" value { string_value: "0.1" } }
"""
_MODEL = '''import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Returns its input after a fixed time."""

    def initialize(self, args):
        self.seconds = float(json.loads(args["model_config"])["parameters"]["seconds"]["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(self.seconds)
            values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", values)]))
        return responses
'''


def write_demo_repository(folder: Path) -> Path:
    """Write the model repository into a folder, and return it."""
    version = folder / NAME / "1"
    version.mkdir(parents=True, exist_ok=True)
    (folder / NAME / "config.pbtxt").write_text(_CONFIG)
    (version / "model.py").write_text(_MODEL)
    return folder
