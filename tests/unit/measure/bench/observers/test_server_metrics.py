from time import monotonic_ns

from conch.base.http.prometheus import ScrapeSettings
from conch.measure.bench.observers.gpu_metrics import gpu_figures, gpu_samples
from conch.measure.bench.observers.server_metrics import (
    ServerMetrics,
    figures_between,
    has_restarted,
    parse_exposition,
    queue_depth,
    totals_of,
)
from tests.measure.bench.targets.odd_servers import scripted

_TRITON = """\
# HELP nv_inference_request_success Successful inference requests.
# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="digits",version="1"}} {requests}
nv_inference_request_success{{model="other",version="1"}} 99999
nv_inference_count{{model="digits",version="1"}} {inferences}
nv_inference_exec_count{{model="digits",version="1"}} {executions}
nv_inference_queue_duration_us{{model="digits",version="1"}} {queue}
nv_inference_compute_input_duration_us{{model="digits",version="1"}} {input}
nv_inference_compute_infer_duration_us{{model="digits",version="1"}} {infer}
nv_inference_compute_output_duration_us{{model="digits",version="1"}} {output}
nv_inference_pending_request_count{{model="digits",version="1"}} 7
nv_cache_num_hits_per_model{{model="digits",version="1"}} {hits}
nv_cache_num_misses_per_model{{model="digits",version="1"}} {misses}
"""
_BEFORE = {
    "requests": 100,
    "inferences": 100,
    "executions": 50,
    "queue": 1000,
    "input": 10,
    "infer": 100,
    "output": 20,
    "hits": 0,
    "misses": 100,
}
_AFTER = {
    "requests": 300,
    "inferences": 900,
    "executions": 150,
    "queue": 401000,
    "input": 2010,
    "infer": 200100,
    "output": 4020,
    "hits": 50,
    "misses": 250,
}


def _triton(values: dict[str, int]) -> dict[str, float]:
    return totals_of(list(parse_exposition(_TRITON.format(**values))), "digits")


def test_figures_of_triton_are_per_request_of_the_window() -> None:
    figures = figures_between(_triton(_BEFORE), _triton(_AFTER))
    assert figures is not None
    assert figures.requests == 200
    assert figures.queue_s == 0.002
    assert figures.compute_input_s == 1e-5
    assert figures.compute_infer_s == 1e-3
    assert figures.compute_output_s == 2e-5
    assert figures.compute_s is not None
    assert abs(figures.compute_s - 1.03e-3) < 1e-9
    assert figures.batch_size == 8.0
    assert figures.cache_hit_ratio == 0.25
    assert queue_depth(_triton(_AFTER)) == 7


def test_a_response_cache_that_answers_is_named() -> None:
    pages = iter((_BEFORE, _AFTER))
    with scripted(lambda *_: (200, {}, _TRITON.format(**next(pages)).encode())) as address:
        metrics = ServerMetrics(ScrapeSettings(f"http://{address}/metrics"), "digits")
        start = monotonic_ns()
        metrics.sample()
        metrics.sample()
    (note,) = metrics.observed(start, monotonic_ns()).notes
    assert note.code == "response-cache"
    assert "answered 25 % of requests from its response cache" in note.message


def test_without_requests_times_are_unknown() -> None:
    figures = figures_between(_triton(_BEFORE), _triton(_BEFORE))
    assert figures is not None
    assert (figures.requests, figures.queue_s, figures.compute_s, figures.batch_size) == (0, None, None, None)


def test_a_counter_that_fell_is_a_restart() -> None:
    assert has_restarted(_triton(_AFTER), _triton(_BEFORE))
    assert figures_between(_triton(_AFTER), _triton(_BEFORE)) is None
    assert not has_restarted(_triton(_BEFORE), _triton(_AFTER))


def test_an_unloaded_model_is_a_restart() -> None:
    assert has_restarted(_triton(_BEFORE), {})


def test_figures_of_vllm() -> None:
    page = """\
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {stop}
vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} 2.0
vllm:request_queue_time_seconds_sum{{engine="0",model_name="m"}} {queue}
vllm:request_inference_time_seconds_sum{{engine="0",model_name="m"}} {infer}
vllm:num_requests_waiting{{engine="0",model_name="m"}} 3.0
"""
    before = totals_of(list(parse_exposition(page.format(stop=8.0, queue=1.0, infer=10.0))), "m")
    after = totals_of(list(parse_exposition(page.format(stop=18.0, queue=2.0, infer=30.0))), "m")
    figures = figures_between(before, after)
    assert figures is not None
    assert (figures.requests, figures.queue_s, figures.compute_s) == (10, 0.1, 2.0)
    assert queue_depth(after) == 3


def test_gpus_under_the_names_of_both_versions_of_dcgm() -> None:
    legacy = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="NVIDIA H100"} 50
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",modelName="NVIDIA H100"} 300
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",modelName="NVIDIA H100"} 1024
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",modelName="NVIDIA H100"} 5000000
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="NVIDIA H100",GPU_I_ID="3"} 1
"""
    current = """\
DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0",UUID="GPU-a",modelName="NVIDIA H100"} 1.0
DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL{gpu="0",UUID="GPU-a",modelName="NVIDIA H100"} 6000
"""
    samples = [gpu_samples(list(parse_exposition(page)), 0)["GPU-a"] for page in (legacy, current)]
    figures = gpu_figures("GPU-a", samples)
    assert figures.name == "GPU 0 NVIDIA H100"
    assert figures.utilization_ratio == 0.75
    assert figures.power_watts == 300
    assert figures.memory_used_bytes == 1 << 30
    assert figures.energy_joules == 1000


def test_labels_with_escapes_and_braces() -> None:
    (series,) = parse_exposition('m{a="x\\"}\\\\",b="\\n"} 1e3 1700000000000\n# comment\nbroken line\n')
    assert series.labels == {"a": 'x"}\\', "b": "\n"}
    assert series.value == 1000


def test_another_duration_of_the_load_is_a_restart() -> None:
    page = 'nv_model_load_duration_secs{{model="digits",version="1"}} {}\n'
    before, after = (totals_of(list(parse_exposition(page.format(value))), "digits") for value in (0.51, 0.49))
    assert has_restarted(before, after)
    assert not has_restarted(before, before)
