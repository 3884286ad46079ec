"""The same work in one process without a server: what no server can beat by much.

    python -m benchmarks.harness.alone detect 4 3

runs the detection pipeline from four threads for three seconds and prints its figures as one line of JSON. The threads
share the cores: as many onnxruntime threads a run as there are cores for each caller, which was the best of what was
tried (one caller: all cores; four callers on two cores: one each).
"""

import json
import os
import resource
import sys
import threading
from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from benchmarks.harness.machine import CHECKOUT
from benchmarks.harness.process_tree import proportional_set_bytes

EXAMPLES = CHECKOUT / "examples"
MODELS = EXAMPLES / "models"

Answer = Callable[[], object]
"""Does the work once."""


def densenet_image() -> npt.NDArray[np.float32]:
    """Return an input for the example model densenet_onnx."""
    return np.random.default_rng(11).random((1, 3, 224, 224), dtype=np.float32)


@cache
def densenet_scores() -> npt.NDArray[np.float32]:
    """Return what onnxruntime makes of `densenet_image`."""
    scores: npt.NDArray[np.float32] = densenet(threads=1)()[0]
    return scores


def densenet(threads: int) -> Callable[[], Any]:
    """Return one run of DenseNet-121."""
    session = _session("densenet_onnx", threads)
    image = densenet_image()
    return lambda: session.run(None, {"data_0": image})


def detect(threads: int) -> Callable[[], bytes]:
    """Return one run of the detection pipeline, from the bytes of a JPEG to those of the JSON."""
    sys.path += [str(MODELS / stage / "1") for stage in ("preprocess", "postprocess")]
    import cv2
    from detections import Thresholds, as_records
    from detections import detect as find
    from prepare import prepare

    cv2.setNumThreads(1)
    session = _session("detector", threads)
    file = (EXAMPLES / "images" / "plate.jpg").read_bytes()
    names = (MODELS / "postprocess" / "labels.txt").read_text().splitlines()
    thresholds = Thresholds(confidence=0.3, overlap=0.5, max_candidates=1000, max_detections=100)

    def answer() -> bytes:
        prepared = prepare([file], canvas=640, max_side=4000)
        rows = session.run(None, {"images": prepared["IMAGE"]})[0]
        cases = find(rows[0], prepared["LETTERBOX"][0], prepared["ORIGINAL_SHAPE"][0], thresholds)
        return json.dumps(as_records(cases, names), separators=(",", ":")).encode()

    return answer


WORKS: dict[str, Callable[[int], Answer]] = {"detect": detect, "densenet": densenet}


def measure(answer: Answer, callers: int, seconds: float) -> dict[str, float]:
    """Have `callers` threads do the work again and again, and return what load generators and servers tell together."""
    answer()
    took: list[float] = []
    began, cpu_began = perf_counter(), _cpu_seconds()

    def call() -> None:
        while (started := perf_counter()) < began + seconds:
            answer()
            took.append(perf_counter() - started)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "requests": len(took),
        "rate": len(took) / (perf_counter() - began),
        "median_us": float(np.percentile(took, 50)) * 1e6,
        "p99_us": float(np.percentile(took, 99)) * 1e6,
        "cpu_seconds": _cpu_seconds() - cpu_began,
        "memory_bytes": proportional_set_bytes(os.getpid()),
    }


def main() -> None:
    """Measure one work for the command line."""
    work, callers, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    threads = max(1, len(os.sched_getaffinity(0)) // callers)
    print(json.dumps(measure(WORKS[work](threads), callers, seconds)))


def _session(model: str, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    path = MODELS / model / "1" / "model.onnx"
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
