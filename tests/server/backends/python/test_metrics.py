"""Custom metrics: what a model counts and what the backend tells."""

import asyncio
import math
import os
import signal
from pathlib import Path

import numpy as np

from conch.domain.exposition import Buckets
from conch.domain.tensor import unpack_bytes
from conch.server.backends.python.backend import PythonBackend
from conch.server.observability.metrics.custom import CustomMetrics, MetricSample
from tests.server.backends.python.running import TIMEOUT_S, Runner, plan, running, source, write_model

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
    by_name: dict[str, float] = {}
    for family in families:
        for point in family.points:
            if isinstance(point.value, Buckets):
                by_name |= {f"{family.name}_sum": point.value.total, f"{family.name}_count": point.value.counts[-1]}
            else:
                assert isinstance(point.value, float | int)
                by_name[family.name] = point.value
    return by_name


def sample(runner: Runner, family: str) -> MetricSample:
    (sample,) = [s for s in runner.backend.custom_metrics() if s.family == family]
    return sample


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


async def test_last_values_are_there_at_any_time(tmp_path: Path) -> None:
    """Right after a change, without any message of the process: also those of a family created a moment ago."""
    code = """
        import os
        import time
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                folder = requests[0].request_id()
                self.families = []
                for number in range(20):
                    family = pb_utils.MetricFamily(f"family_{number}", "Created now", pb_utils.MetricFamily.HISTOGRAM)
                    metric = family.Metric(buckets=[] if number % 2 else [1.0, 2.0])
                    for value in (0.5, 1.5, 2.5):
                        metric.observe(value)
                    self.families.append((family, metric))
                    open(os.path.join(folder, f"asked_{number}"), "w").close()
                    while not os.path.exists(os.path.join(folder, f"seen_{number}")):
                        time.sleep(0.0002)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1))])]
    """
    async with running(tmp_path, code) as runner:
        caller = runner.submit(id=str(tmp_path))
        for number in range(20):
            async with asyncio.timeout(TIMEOUT_S):
                while not (tmp_path / f"asked_{number}").exists():
                    await asyncio.sleep(0.0002)
            scraped = values(runner.backend)
            assert scraped[f"family_{number}_count"] == 3
            assert scraped[f"family_{number}_sum"] == 4.5
            (tmp_path / f"seen_{number}").touch()
        await caller.response()
        assert sample(runner, "family_1").buckets == ((math.inf, 3),)


LIMITS = """
    import gc
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.kept = []

        def execute(self, requests):
            what, _, number = requests[0].request_id().partition(" ")
            made, error = 0, ""
            try:
                for index in range(int(number)):
                    if what == "families":
                        family = pb_utils.MetricFamily(f"family_{index}", "One of many", pb_utils.MetricFamily.GAUGE)
                        self.kept.append((family, family.Metric()))
                    elif what == "empty":
                        self.kept.append(pb_utils.MetricFamily(f"e_{index}", "Empty", pb_utils.MetricFamily.GAUGE))
                    elif what == "large":
                        family = pb_utils.MetricFamily(f"large_{index}", "x" * 10_000, pb_utils.MetricFamily.GAUGE)
                        self.kept.append((family, family.Metric()))
                    elif what == "churn":
                        family = pb_utils.MetricFamily(f"churn", "Comes and goes", pb_utils.MetricFamily.GAUGE)
                        family.Metric({"number": str(index) * (index % 7)}).set(index)
                        del family
                    elif what == "drop":
                        self.kept.clear()
                    made += 1
            except pb_utils.TritonModelException as failure:
                error = str(failure)
            texts = np.array([str(made), error], dtype=np.object_)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", texts)])]
"""


async def test_families_and_series_of_a_process_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, LIMITS) as runner:

        async def made(what: str) -> tuple[int, str]:
            count, error = unpack_bytes((await runner.infer(id=what)).outputs[0].data)
            return int(count), error.decode()

        assert await made("families 30000") == (
            2000,
            (
                "Error when creating MetricFamily: Failed to process the request for model 'model_0_0', message: "
                "this instance has 2000 families already, which is the maximum"
            ),
        )
        assert len(values(runner.backend)) == 2000
        assert await made("drop 1") == (1, "")
        assert values(runner.backend) == {}


async def test_large_definitions_and_empty_families_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, LIMITS) as runner:

        async def made(what: str) -> tuple[int, str]:
            count, error = unpack_bytes((await runner.infer(id=what)).outputs[0].data)
            return int(count), error.decode()

        count, error = await made("large 2000")
        assert 100 < count < 2000
        assert error.endswith("the time series of this instance exceed 4 MiB")
        assert len(values(runner.backend)) == count
        assert (await made("empty 30000"))[1].endswith("has 2000 families already, which is the maximum")


async def test_series_that_come_and_go_leave_their_room(tmp_path: Path) -> None:
    async with running(tmp_path, LIMITS) as runner:
        response = await runner.infer(id="churn 20000")
        assert unpack_bytes(response.outputs[0].data) == [b"20000", b""]
        assert values(runner.backend) == {}


async def test_series_of_former_processes_are_bounded(tmp_path: Path) -> None:
    """A model whose process dies again and again, each time with other labels."""
    code = """
        import os
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                family = pb_utils.MetricFamily("calls", "How often", pb_utils.MetricFamily.COUNTER)
                self.kept = family, [family.Metric({"pid": str(os.getpid()), "n": str(n)}) for n in range(900)]

            def execute(self, requests):
                os._exit(1)
    """
    async with running(tmp_path, code) as runner:
        for _ in range(3):
            await runner.error()
            while not await runner.ready_change():
                pass
        assert len(runner.instance.metrics.timed_samples()) == 2000 + 900


async def test_a_process_that_the_model_forks_leaves_the_metrics_alone(tmp_path: Path) -> None:
    code = """
        import os
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.family = pb_utils.MetricFamily("calls", "How often", pb_utils.MetricFamily.COUNTER)
                self.calls = self.family.Metric()

            def execute(self, requests):
                self.calls.increment(1)
                pid = os.fork()
                if not pid:
                    self.calls.increment(100)
                    del self.calls, self.family
                    os._exit(0)
                os.waitpid(pid, 0)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1))])]
    """
    async with running(tmp_path, code) as runner:
        await runner.infer()
        assert values(runner.backend) == {"calls": 1.0}
