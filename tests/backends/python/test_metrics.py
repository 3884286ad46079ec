"""Custom metrics: what a model counts and what the backend tells."""

import asyncio
import math
import os
import signal
from pathlib import Path

import numpy as np

from conch.backends.python.backend import PythonBackend
from conch.observability.metrics.custom import CustomMetrics, MetricSample
from conch.observability.metrics.exposition import Buckets
from tests.backends.python.running import TIMEOUT_S, Runner, plan, running, source, write_model

METRICS = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.counters = pb_utils.MetricFamily("calls", "How often", pb_utils.MetricFamily.COUNTER)
            self.gauges = pb_utils.MetricFamily("depth", "How deep", pb_utils.MetricFamily.GAUGE)
            self.histograms = pb_utils.MetricFamily("size", "How large", pb_utils.MetricFamily.HISTOGRAM)
            self.calls = self.counters.Metric(labels={"kind": "all"})
            self.depth = self.gauges.Metric()
            self.size = self.histograms.Metric(labels={"unit": "B"}, buckets=[1, 10.0])

        def execute(self, requests):
            for request in requests:
                kind, _, value = request.request_id().partition(" ")
                if kind == "count":
                    self.calls.increment(float(value))
                elif kind == "set":
                    self.depth.set(float(value))
                elif kind == "add":
                    self.depth.increment(np.float32(value))
                elif kind == "observe":
                    self.size.observe(float(value))
                elif kind == "drop":
                    del self.depth
                elif kind == "again":
                    self.depth = self.gauges.Metric()
                elif kind == "forget":
                    del self.depth, self.gauges
                elif kind == "thread":
                    threading.Thread(target=self.depth.set, args=(float(value),)).start()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.calls.value()]))])]
"""

MISUSE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            family = pb_utils.MetricFamily
            counter = family("a", "A", family.COUNTER)
            gauge = family("b", "B", family.GAUGE)
            histogram = family("c", "C", family.HISTOGRAM)
            family("a", "A", family.COUNTER)
            attempts = [
                lambda: family("a", "A", family.GAUGE),
                lambda: family("1d", "D", family.GAUGE),
                lambda: counter.Metric().increment(-1),
                lambda: counter.Metric().set(1),
                lambda: counter.Metric().observe(1),
                lambda: counter.Metric(labels=["x"]),
                lambda: counter.Metric(buckets=[1]),
                lambda: gauge.Metric(buckets=[]),
                lambda: counter.Metric({"x": 1}),
                lambda: counter.Metric({"x y": "1"}),
                lambda: family("e", "E", family.GAUGE).Metric().set(1),
                lambda: histogram.Metric(),
                lambda: histogram.Metric(buckets=[2, 1]),
                lambda: histogram.Metric(buckets=[1, 2]).increment(1),
                lambda: histogram.Metric(buckets=[1, 2]).value(),
            ]
            refused = []
            for attempt in attempts:
                try:
                    attempt()
                    refused.append(False)
                except pb_utils.TritonModelException:
                    refused.append(True)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(refused))])]
"""


def values(backend: PythonBackend) -> dict[str, float]:
    """Return what a scrape would show, histograms by their sum."""
    families = CustomMetrics(reserved=()).families(backend.custom_metrics())[:-1]
    found: dict[str, float] = {}
    for family in families:
        for point in family.points:
            if isinstance(point.value, Buckets):
                found |= {f"{family.name}_sum": point.value.total, f"{family.name}_count": point.value.counts[-1]}
            else:
                assert isinstance(point.value, float | int)
                found[family.name] = point.value
    return found


def sample(runner: Runner, family: str) -> MetricSample:
    (found,) = [s for s in runner.backend.custom_metrics() if s.family == family]
    return found


async def test_values_are_there_with_the_answer(tmp_path: Path) -> None:
    async with running(tmp_path, METRICS) as runner:
        assert sample(runner, "calls") == MetricSample("calls", "How often", "counter", {"kind": "all"}, 0.0)
        response = await runner.infer(id="count 2.5")
        assert response.outputs[0].to_numpy().tolist() == [2.5]
        assert sample(runner, "calls").value == 2.5
        await runner.infer(id="set 7")
        await runner.infer(id="add -2")
        assert sample(runner, "depth") == MetricSample("depth", "How deep", "gauge", {}, 5.0)
        for value in ("0.5", "1", "5", "50"):
            await runner.infer(id=f"observe {value}")
        assert sample(runner, "size") == MetricSample(
            "size", "How large", "histogram", {"unit": "B"}, 56.5, ((1.0, 2), (10.0, 3), (math.inf, 4))
        )


async def test_a_change_outside_of_execute_is_sent_too(tmp_path: Path) -> None:
    async with running(tmp_path, METRICS) as runner:
        await runner.infer(id="thread 9")
        async with asyncio.timeout(TIMEOUT_S):
            while sample(runner, "depth").value != 9:
                await asyncio.sleep(0.01)


async def test_a_metric_lives_as_long_as_its_family(tmp_path: Path) -> None:
    async with running(tmp_path, METRICS) as runner:
        for what in ("set 5", "drop"):
            await runner.infer(id=what)
        assert sample(runner, "depth").value == 5
        for what in ("again", "add 1"):
            await runner.infer(id=what)
        assert sample(runner, "depth").value == 6
        await runner.infer(id="forget")
        assert [s.family for s in runner.backend.custom_metrics() if s.family == "depth"] == []


async def test_counters_survive_a_restart_and_gauges_do_not(tmp_path: Path) -> None:
    async with running(tmp_path, METRICS) as runner:
        for what in ("count 2", "set 5", "observe 3"):
            await runner.infer(id=what)
        for _ in range(2):
            os.kill(runner.pid, signal.SIGKILL)
            while not await runner.ready_change():
                pass
        for what in ("count 1", "observe 4"):
            await runner.infer(id=what)
        (calls,) = [
            family for family in CustomMetrics(()).families(runner.backend.custom_metrics()) if family.name == "calls"
        ]
        assert [point.value for point in calls.points] == [3]
        assert sample(runner, "depth").value == 0
        sums = [s for s in runner.backend.custom_metrics() if s.family == "size"]
        assert sum(s.value for s in sums) == 7
        assert sum(s.buckets[-1][1] for s in sums) == 2


async def test_instances_add_up_and_vanish(tmp_path: Path) -> None:
    write_model(tmp_path, METRICS)
    backend = PythonBackend()
    runners = [Runner(backend, backend.instance(plan(source(tmp_path), f"model_0_{i}"))) for i in range(2)]
    try:
        for runner in runners:
            await runner.instance.start()
        for number, runner in enumerate(runners, 1):
            await runner.infer(id=f"count {number}")
            await runner.infer(id=f"set {number}")
        await runners[0].infer(id="set 8")
        families = {family.name: family for family in CustomMetrics(()).families(backend.custom_metrics())}
        assert [point.value for point in families["calls"].points] == [3]
        assert [point.value for point in families["depth"].points] == [8]
    finally:
        for runner in runners:
            await runner.instance.stop()
        await backend.stop()
    assert backend.custom_metrics() == []


async def test_misuse_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, MISUSE) as runner:
        response = await runner.infer()
    assert np.all(response.outputs[0].to_numpy())


async def test_equal_labels_are_one_metric(tmp_path: Path) -> None:
    code = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                kind = pb_utils.MetricFamily.COUNTER
                first = pb_utils.MetricFamily("same", "the first description", kind)
                second = pb_utils.MetricFamily("same", "another description", kind)
                one, other, third = first.Metric({"a": "1"}), second.Metric({"a": "1"}), first.Metric({"a": "2"})
                one.increment(2)
                other.increment(3)
                values = [one.value(), other.value(), third.value()]
                del first
                try:
                    one.increment(1)
                except pb_utils.TritonModelException as error:
                    self.error = str(error)
                values += [other.value(), "MetricFamily' has been deleted" in self.error]
                self.kept = second, other
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(values))])]
    """
    async with running(tmp_path, code) as runner:
        response = await runner.infer()
        assert response.outputs[0].to_numpy().tolist() == [5, 5, 0, 5, 1]
        (sample,) = [sample for sample in runner.backend.custom_metrics() if sample.labels == {"a": "1"}]
        assert (sample.value, sample.description) == (5, "the first description")


async def test_a_change_is_visible_before_the_answer(tmp_path: Path) -> None:
    code = """
        import os
        import time
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.gate = os.path.join(args["model_repository"], "seen")
                self.family = pb_utils.MetricFamily("calls", "How often", pb_utils.MetricFamily.COUNTER)
                self.calls = self.family.Metric()

            def execute(self, requests):
                for _ in range(3):
                    self.calls.increment(1)
                while not os.path.exists(self.gate):
                    time.sleep(0.001)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1))])]
    """
    async with running(tmp_path, code) as runner:
        caller = runner.submit()
        async with asyncio.timeout(TIMEOUT_S):
            while values(runner.backend) != {"calls": 3.0}:
                await asyncio.sleep(0.001)
        (tmp_path / "seen").touch()
        await caller.response()
