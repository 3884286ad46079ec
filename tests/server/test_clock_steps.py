"""Steps of the wall clock on a real server: limits, deadlines, timeouts and idle times count by the monotonic clock.

A library that is loaded before libc adds the number of seconds in a file to the wall clock.
"""

import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.support.models import tensor, write_identity, write_python
from tests.support.server_process import ConchProcess

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
static long offset_s(void) {
    long seconds = 0;
    FILE *file = fopen(OFFSET, "r");
    if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
    return seconds;
}
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += offset_s();
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    if (at) *at = fine.tv_sec;
    return fine.tv_sec;
}
"""
DAY_S = 86_400
GATED = 'while not os.path.exists(os.path.join(pb_utils.get_model_dir(), "..", "go")): time.sleep(0.01)\n'
ANSWER = (
    "return pb_utils.InferenceResponse("
    '[pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())])'
)
BODY = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
LIMITS = "limits:\n  - {model: limited, requests_per_second: 1, enforced: true}\n"
TIMEOUT_S = 60


class Clock:
    def __init__(self, folder: Path) -> None:
        self._offset = folder / "offset"
        self._offset.write_text("0")
        self.preload = folder / "clock.so"
        source = folder / "clock.c"
        source.write_text(CLOCK)
        define = f'-DOFFSET="{self._offset}"'
        subprocess.run(["gcc", "-shared", "-fPIC", define, "-o", self.preload, source, "-ldl"], check=True)

    def step_to(self, seconds: int) -> None:
        """Set the difference to the true time."""
        changed = self._offset.with_suffix(".new")
        changed.write_text(str(seconds))
        changed.rename(self._offset)


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: apt-get install gcc")
    return Clock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module", params=[1, 2], ids="{} frontend processes".format)
def server(
    request: pytest.FixtureRequest, clock: Clock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("stepped")
    models = folder / "models"
    write_identity(models, "limited", "FP32", 1, batch=1)
    pair = f"max_batch_size: 1 input {tensor('INPUT0', 'FP32', 1)} output {tensor('OUTPUT0', 'FP32', 1)} "
    waits = "default_timeout_microseconds: 600000000 allow_timeout_override: true"
    write_python(models, "gated", f"{pair} dynamic_batching {{ default_queue_policy {{ {waits} }} }}", GATED + ANSWER)
    write_python(models, "counted", f"{pair} sequence_batching {{ max_sequence_idle_microseconds: 600000000 }}", ANSWER)
    (folder / "limits.yaml").write_text(LIMITS)
    flags = [f"--limits-file={folder / 'limits.yaml'}", f"--frontend-processes={request.param}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(clock.preload))
        process = ConchProcess(models, *flags, log=folder / "log")
        process.__enter__()
    try:
        yield process
    finally:
        clock.step_to(0)
        process.__exit__(None, None, None)


def ask(server: ConchProcess, model: str, **headers: str) -> int:
    """Return the status of an inference request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=TIMEOUT_S)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(BODY), headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def wall_clock(server: ConchProcess) -> float:
    """Return the server's wall clock, as of the last request of a model."""
    with triton.InferenceServerClient(server.grpc) as client:
        (model,) = client.get_inference_statistics("limited").model_stats
        return float(model.last_inference) / 1000


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < end, "not within the time allowed"
        time.sleep(0.02)


@pytest.mark.parametrize("step_s", [DAY_S, -DAY_S], ids=["forward", "back"])
def test_the_wall_clock_is_stepped(server: ConchProcess, clock: Clock, step_s: int) -> None:
    gate = Path(next(flag for flag in server.flags if "repository" in flag).partition("=")[2]) / "gated" / "go"
    gate.unlink(missing_ok=True)
    clock.step_to(0)
    value = triton.InferInput("INPUT0", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), np.float32))
    kept = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=TIMEOUT_S)
    kept.connect()
    opened = kept.sock
    with ThreadPoolExecutor(3) as pool, triton.InferenceServerClient(server.grpc) as client:
        client.infer("counted", [value], sequence_id=7, sequence_start=True)
        waiting = [pool.submit(ask, server, "gated", **{"X-Request-Deadline": "300s"}) for _ in range(2)]
        waiting.append(pool.submit(ask, server, "gated"))
        until(lambda: 'nv_inference_pending_request_count{model="gated",version="1"} 2' in server.metrics())
        until(lambda: ask(server, "limited") == 429)
        clock.step_to(step_s)
        until(lambda: ask(server, "limited") == 200)  # tokens of the bucket come as before
        assert abs(wall_clock(server) - time.time() - step_s) < DAY_S / 2  # the step was seen
        time.sleep(1.5)  # the timers that look once a second have looked
        assert not any(answer.done() for answer in waiting)
        client.infer("counted", [value], sequence_id=7, sequence_end=True)
        kept.request("GET", "/v2/health/ready")
        assert (kept.getresponse().status, kept.sock) == (200, opened)
        gate.touch()
        assert [answer.result() for answer in waiting] == [200] * 3
    kept.close()
