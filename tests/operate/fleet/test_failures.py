"""What goes wrong in a fleet: a metric that is missing, a replica that is never ready, drained or killed."""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.operate.fleet.process import FleetProcess, runs
from tests.support.models import write_config

RESPONSES = 50
CLIENTS = 4

# Ratio and a metric that no server has.
HPA = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: conch}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: conch}
  minReplicas: 1
  maxReplicas: 2
  metrics:
  - {type: Pods, pods: {metric: {name: triton:queue_compute:ratio}, target: {type: AverageValue, averageValue: 1000m}}}
  - {type: Pods, pods: {metric: {name: vllm:num_requests_waiting}, target: {type: AverageValue, averageValue: "5"}}}
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
"""
MODEL = """
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        while Path("{hold}").exists():
            time.sleep(0.1)

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = pb_utils.get_input_tensor_by_name(request, "COUNT")
            for number in range(int(count.as_numpy()[0])):
                time.sleep(0.1)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", count.as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that keeps new replicas from loading their model while it exists."""
    return tmp_path_factory.mktemp("hold") / "file"


@pytest.fixture(scope="module")
def fleet(hold: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    folder = tmp_path_factory.mktemp("fleet")
    model = write_config(
        folder / "models",
        "counter",
        'backend: "python" input { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } '
        'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } instance_group { count: 4 kind: KIND_CPU } '
        "model_transaction_policy { decoupled: true }",
    )
    (model / "1" / "model.py").write_text(MODEL.replace("{hold}", str(hold)))
    (folder / "hpa.yaml").write_text(HPA)
    flags = [f"--model-repository={folder / 'models'}", f"--hpa={folder / 'hpa.yaml'}", "--replicas=2", "--speed=20"]
    with FleetProcess("up", *flags, "--http-port=0", "--grpc-port=0", log=folder / "fleet.log") as running:
        running.until_ready(2)
        yield running
        pids = [pod["pid"] for pod in running.state()["pods"]]
        assert running.stop() == 0, running.text
        assert [pid for pid in pids if runs(pid)] == []


def stream(address: str, responses: int, on_response: Callable[[], None]) -> int:
    """Return how many responses one request over a stream gets. Raises InferenceServerException.

    The client is slow to read the end, as one that collects garbage: what it has not read must not be lost.
    """
    results: queue.Queue[Any] = queue.Queue()
    unread = iter(range(responses - 1, 0, -1))

    def read(result: Any, error: InferenceServerException | None) -> None:
        if next(unread, 0) == 1:
            time.sleep(1)
        results.put(error or result)

    with triton.InferenceServerClient(address, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as client:
        client.start_stream(read)
        tensor = triton.InferInput("COUNT", [1], "INT32")
        tensor.set_data_from_numpy(np.array([responses], np.int32))
        client.async_stream_infer("counter", [tensor], enable_empty_final_response=True)
        count = 0
        while True:
            result = results.get(timeout=60)
            if isinstance(result, InferenceServerException):
                raise result
            if result.get_response().parameters["triton_final_response"].bool_param:
                return count
            count += 1
            on_response()


class Streams:
    """Streams in threads: `begun` has those with a response, `counts` are responses, `errors` failures."""

    def __init__(self, address: str, responses: int, *, until: threading.Event | None = None) -> None:
        self.begun: set[int] = set()
        self.counts: list[int] = []
        self.errors: list[tuple[int, str]] = []
        self._arguments = (address, responses, until)
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> "Streams":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        address, responses, until = self._arguments
        while True:
            try:
                self.counts.append(stream(address, responses, lambda: self.begun.add(number)))
            except InferenceServerException as error:
                self.errors.append((number, str(error)))
                time.sleep(0.5)  # a request sent while the kernel still closes the replica's sockets is in flight there
            if until is None or until.is_set():
                return


def ratio(fleet: FleetProcess) -> str:
    """The first metric and its target, as `kubectl get hpa` shows them."""
    targets: str = fleet.state()["horizontalPodAutoscaler"]["targets"]
    return targets.partition(",")[0]


def test_a_missing_metric_is_unknown_and_nothing_scales_down(fleet: FleetProcess) -> None:
    fleet.until("the ratio is known", lambda: fleet.state()["horizontalPodAutoscaler"]["targets"] == "0/1, <unknown>/5")
    state = fleet.state()
    assert state["replicas"]["desired"] == 2
    [active] = [
        condition
        for condition in state["horizontalPodAutoscaler"]["conditions"]
        if condition["type"] == "ScalingActive"
    ]
    assert active["reason"] == "FailedGetPodsMetric"
    assert "the server could not find the metric vllm:num_requests_waiting for pods" in active["message"]
    path = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/pods/*/vllm:num_requests_waiting"
    assert fleet.get(path)[1]["code"] == 404


def test_a_crashed_prometheus_is_restarted_and_the_replicas_stay(fleet: FleetProcess) -> None:
    pid = fleet.state()["prometheus"]["pid"]
    os.kill(pid, signal.SIGKILL)
    fleet.until("the ratio is unknown", lambda: ratio(fleet) == "<unknown>/1")
    fleet.until("it is restarted", lambda: fleet.state()["prometheus"]["pid"] != pid)
    fleet.until("the ratio is known", lambda: ratio(fleet) == "0/1")
    assert fleet.state()["replicas"] == {"desired": 2, "current": 2, "ready": 2}


def test_streams_end_before_their_drained_replica_does(fleet: FleetProcess) -> None:
    pods = fleet.until_ready(2)["pods"]
    with Streams(fleet.proxy["grpc"], RESPONSES) as streams:
        fleet.until("all streams have begun", lambda: len(streams.begun) == CLIENTS)
        assert [fleet.evict(pod["name"]) for pod in pods] == [201, 201]
        fleet.until("both drain", lambda: "terminating" in {pod["state"] for pod in fleet.state()["pods"]})
        assert not streams.counts, "streams have ended before the drain"
    assert (streams.counts, streams.errors) == ([RESPONSES] * CLIENTS, [])
    names = {pod["name"] for pod in fleet.until_ready(2)["pods"]}
    assert names.isdisjoint(pod["name"] for pod in pods)
    assert all(f"ended: {pod['name']}: exit status 0" in fleet.text for pod in pods)


def test_a_replica_that_is_never_ready_gets_no_requests(fleet: FleetProcess, hold: Path) -> None:
    before = fleet.until_ready(2)
    hold.touch()
    try:
        fleet.evict(before["pods"][0]["name"])
        fleet.until(
            "the replacement listens",
            lambda: (
                [(pod["state"], pod["ready"]) for pod in fleet.state()["pods"]]
                == [("running", True), ("running", False)]
            ),
        )
        with Streams(fleet.proxy["grpc"], 2) as streams:
            pass
        assert streams.errors == []
        assert fleet.state()["replicas"] == {"desired": 2, "current": 2, "ready": 1}
    finally:
        hold.unlink()
    fleet.until_ready(2)


def test_a_killed_replica_is_replaced_and_fails_only_requests_in_flight(fleet: FleetProcess) -> None:
    pods = fleet.until_ready(2)["pods"]
    ended = threading.Event()
    with Streams(fleet.proxy["grpc"], 5, until=ended) as streams:
        try:
            fleet.until("streams run", lambda: len(streams.counts) > CLIENTS)
            os.kill(pods[0]["pid"], signal.SIGKILL)
            fleet.until("it is replaced", lambda: f"failed: {pods[0]['name']}: killed by signal 9" in fleet.text)
            names = {pod["name"] for pod in fleet.until_ready(2)["pods"]}
        finally:
            ended.set()
    assert pods[0]["name"] not in names
    failed = [number for number, _ in streams.errors]
    assert len(failed) == len(set(failed)), streams.errors  # a client has one request in flight
    assert set(streams.counts) == {5}
