import numpy as np
import pytest
from benchmarks.harness.load import LoadError, check_h2load, timed_load, wrk_load

WRK = """Running 1s test @ http://127.0.0.1:8000/v2/models/identity/infer
  1 threads and 16 connections
  Thread Stats   Avg      Max
    Latency     1.30ms   4.71ms
  12000 requests in 2.00s, 3.40MB read
Requests/sec:   6000.00

{"requests": 12000, "microseconds": 2000000, "median_us": 1290, "p99_us": 2210, "bad_status": %d, "broken": %d}
"""

H2LOAD = """starting benchmark...
finished in 1.00s, 3000.00 req/s, 1.20MB/s
requests: 3000 total, 3000 started, 3000 done, %d succeeded, %d failed, %d errored, %d timeout
status codes: 3000 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 1.20MB (1258291) total, 100.00KB (102400) headers (space savings 80.00%%), 300.00KB (%d) data
"""


def test_wrk_tells_requests_rate_and_latency_in_its_last_line() -> None:
    load = wrk_load(WRK % (0, 0))
    assert (load.requests, load.rate, load.median_us, load.p99_us) == (12000, 6000.0, 1290, 2210)


@pytest.mark.parametrize(("bad_status", "broken"), [(1, 0), (0, 1)])
def test_one_failed_http_request_makes_the_load_worthless(bad_status: int, broken: int) -> None:
    with pytest.raises(LoadError):
        wrk_load(WRK % (bad_status, broken))


@pytest.mark.parametrize("output", ["", "Running 1s test @ http://127.0.0.1:8000\n"])
def test_wrk_that_prints_no_figures_is_an_error(output: str) -> None:
    with pytest.raises(LoadError, match="no figures"):
        wrk_load(output)


def test_h2load_is_believed_when_every_byte_of_every_answer_came() -> None:
    check_h2load(H2LOAD % (3000, 0, 0, 0, 3000 * 102), requests=3000, answer_bytes=102)


@pytest.mark.parametrize("counts", [(2999, 1, 0, 0), (2999, 0, 1, 0), (2999, 0, 0, 1), (2999, 0, 0, 0)])
def test_h2load_is_not_believed_when_a_request_failed(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(LoadError, match="3000"):
        check_h2load(H2LOAD % (*counts, 3000 * 102), requests=3000, answer_bytes=102)


@pytest.mark.parametrize("received", [2999 * 102, 3000 * 102 - 1, 3000 * 102 + 1])
def test_a_grpc_error_among_the_answers_shows_by_its_missing_body(received: int) -> None:
    with pytest.raises(LoadError, match="where right ones have 306000"):
        check_h2load(H2LOAD % (3000, 0, 0, 0, received), requests=3000, answer_bytes=102)


def test_h2load_that_prints_no_figures_is_an_error() -> None:
    with pytest.raises(LoadError, match="no figures"):
        check_h2load("could not resolve host\n", requests=1, answer_bytes=1)


def test_the_rate_leaves_out_the_end_when_connections_run_out_of_requests() -> None:
    started = np.arange(10.0) * 100
    took = np.full(10, 100.0)
    took[9] = 100_000.0  # the straggler
    load = timed_load(started, took)
    assert load.requests == 10
    assert load.rate == pytest.approx(9 / 900e-6)
    assert load.median_us == 100


def test_the_rate_of_a_single_request_is_the_inverse_of_its_time() -> None:
    assert timed_load(np.array([5.0]), np.array([200.0])).rate == pytest.approx(5000)
