"""Certificates as runs make them, for tests of what shows them: seeded, with noise, and with everything filled in."""

from dataclasses import replace

import numpy as np

from conch.machine.environment import read_environment
from conch.measure.bench.measurement import (
    ClientHealth,
    Effect,
    Estimate,
    GpuFigures,
    Level,
    Measurement,
    Note,
    ServerFigures,
    TimeDistribution,
    TokenFigures,
)
from conch.measure.bench.report.certificate import AbComparison, Certificate, CertifiedTarget
from conch.measure.bench.report.scaling import find_saturation

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;\x1b[31m|`[x](javascript:1)`"


def estimate(value: float, share: float = 0.02) -> Estimate:
    return Estimate(value, value * (1 - share), value * (1 + share * 1.2))


def distribution(values: np.ndarray) -> TimeDistribution:
    """Return the distribution of times in seconds."""
    steps = np.ceil(np.log(values) / np.log(1.05)).astype(int)
    edges, counts = np.unique(steps, return_counts=True)
    percentiles = {
        name: estimate(float(np.percentile(values, float(name))), 0.01 if float(name) < 99 else 0.06)
        if len(values) * (100 - float(name)) >= 500
        else Estimate(float(np.percentile(values, float(name))))
        for name in ("50", "90", "95", "99", "99.9")
    }
    return TimeDistribution(
        count=len(values),
        mean=estimate(float(values.mean())),
        percentiles=percentiles,
        max=float(values.max()),
        histogram=tuple((float(1.05**edge), int(count)) for edge, count in zip(edges, counts, strict=True)),
    )


def measurement(users: int, *, requests: int = 4000, tokens: bool = False, seed: int = 1) -> Measurement:
    """Return a level of a server with six workers of 8 ms, or of a language model."""
    rng = np.random.default_rng(seed + users)
    service = 1.05 if tokens else 0.008
    busy = max(1.0, users / 6)
    values = service * busy * rng.lognormal(0, 0.15, requests) + rng.exponential(service / 8, requests)
    times = distribution(values)
    rate = users / times.mean.value
    window = requests / rate
    seconds = max(int(window) + 2, 12)
    warm = np.clip(np.arange(seconds) / 2, 0.2, 1)
    return Measurement(
        level=Level("concurrency", users, str(users)),
        started_at="2026-11-22T19:30:00Z",
        window_s=window,
        warm_up_s=2.0,
        requests=requests,
        outcomes={"ok": requests},
        errors=(),
        throughput=estimate(rate, 0.01),
        latency=times,
        service_latency=distribution(values * 0.995),
        tokens=_tokens(rng, requests, rate, service) if tokens else None,
        received_bytes=requests * 400,
        sent_bytes=requests * 602_112,
        server=ServerFigures(
            requests, service * (busy - 1), service, service / 9, service * 0.8, service / 11, min(users, 4)
        ),
        gpus=(
            GpuFigures(
                "NVIDIA A800-SXM4-40GB", "GPU-6fe85c78", min(0.95, users / 38), 57 + 6.4 * users, 900.0, 35 << 30
            ),
        )
        if tokens
        else (),
        client=ClientHealth(2, 0.31, 0.6, 2e-5, 4e-4, 0.003, 0, 0.0, 0.01, 0.0, 0.02),
        series={
            "throughput": tuple((rate * warm * rng.normal(1, 0.02, seconds)).tolist()),
            "p50": tuple((times.percentiles["50"].value / warm).tolist()),
            "p99": tuple((times.percentiles["99"].value / warm * rng.normal(1, 0.1, seconds)).tolist()),
            "errors": (0.0,) * seconds,
            "in_flight": (float(users),) * seconds,
        },
    )


def _tokens(rng: np.random.Generator, requests: int, rate: float, service: float) -> TokenFigures:
    return TokenFigures(
        source="usage",
        input_tokens=requests * 8,
        output_tokens=requests * 128,
        reasoning_tokens=None,
        input_rate=estimate(rate * 8),
        output_rate=estimate(rate * 128),
        first_token=distribution(service / 20 * rng.lognormal(0, 0.3, requests)),
        inter_token=distribution(service / 130 * rng.lognormal(0, 0.1, requests)),
    )


def certificate(*levels: int, tokens: bool = False, requests: int = 4000, seed: int = 1) -> Certificate:
    """Return a certificate of a run over levels of concurrency."""
    measured = tuple(measurement(users, tokens=tokens, requests=requests, seed=seed) for users in levels)
    return Certificate(
        created_at="2026-11-22T19:30:00Z",
        tool_version="0.1.0",
        command=("conch", "bench", "http://127.0.0.1:8000", "--concurrency", ",".join(map(str, levels))),
        target=CertifiedTarget(
            "http://127.0.0.1:8000", "http", "densenet_onnx", "1", "conch", "0.1.0", "sha256:8c5e1f"
        ),
        environment=read_environment(),
        measurements=measured,
        settings={"duration_s": 30.0, "requests": requests, "warm_up": "auto", "seed": 0, "expect": None},
        saturation=find_saturation(measured),
        notes=(Note("steal", "warning", "the hypervisor took 1 % of the CPU time"),),
        verdict="Comparable: steady, client at 31 % of a core.",
    )


def s0_certificate() -> Certificate:
    """Return a run as published for vLLM with Qwen2.5-3B on an A800: 1, 5 and 30 users, one request each."""
    published = {
        1: (1.11, 122.6, 115.4, 0.90, 1.108, 1.108, 1.108, 1.108, None),
        5: (1.04, 545.9, 511.3, 4.81, 1.036, 1.039, 1.039, 1.039, None),
        30: (1.30, 2901.4, 2718.7, 23.14, 1.283, 1.294, 1.295, 1.295, 0.79),
    }
    return replace(
        certificate(),
        measurements=tuple(_published(users, row) for users, row in published.items()),
        saturation=None,
        target=CertifiedTarget("http://127.0.0.1:8000", "openai", "Qwen2.5-3B-Instruct", server_name="vllm"),
    )


def _published(users: int, row: tuple[float | None, ...]) -> Measurement:
    wall, total, output, rate, p50, p95, p99, highest, gpu = (cell or 0.0 for cell in row)
    percentiles = {"50": p50, "90": p95, "95": p95, "99": p99, "99.9": highest}
    latency = TimeDistribution(
        users,
        Estimate(p50),
        {name: Estimate(value) for name, value in percentiles.items()},
        highest,
        ((highest, users),),
    )
    return Measurement(
        level=Level("concurrency", users, str(users)),
        started_at="2026-11-22T19:30:00Z",
        window_s=wall,
        warm_up_s=0.0,
        requests=users,
        outcomes={"ok": users},
        errors=(),
        throughput=Estimate(rate),
        latency=latency,
        tokens=TokenFigures(
            "usage", users * 8, users * 128, None, Estimate(total - output), Estimate(output), None, None
        ),
        gpus=(GpuFigures("NVIDIA A800-SXM4-40GB", "GPU-6fe85c78", gpu),) if gpu else (),
    )


def hostile_certificate() -> Certificate:
    """Return a certificate with markup and control characters in each text."""
    usual = certificate(1, 4, requests=200)
    first = replace(
        usual.measurements[0],
        level=Level("concurrency", 1, HOSTILE),
        errors=((HOSTILE, 3),),
        outcomes={"ok": 197, "server_error": 3},
        notes=(Note("few-samples", "warning", HOSTILE),),
    )
    return replace(
        usual,
        target=CertifiedTarget(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),
        measurements=(first, usual.measurements[1]),
        command=("conch", "bench", HOSTILE),
        settings={HOSTILE: HOSTILE},
        notes=(Note(HOSTILE, HOSTILE, HOSTILE),),
        verdict=HOSTILE,
        ab=AbComparison(
            usual.target, usual.measurements, (Effect(HOSTILE, HOSTILE, *(estimate(1.0),) * 3, HOSTILE),), HOSTILE
        ),
    )


def ab_certificate() -> Certificate:
    """Return a run that measured two servers in turn."""
    usual, other = certificate(1, 4, 16), certificate(1, 4, 16, seed=9)
    effects = tuple(
        Effect(
            quantity,
            level.level.label,
            estimate(value),
            estimate(value * factor),
            Estimate(factor - 1, factor - 1.02, factor - 0.98),
            verdict,
        )
        for level in usual.measurements
        for quantity, value, factor, verdict in (
            ("throughput", level.throughput.value, 1.07, "better"),
            ("p50", level.latency.percentiles["50"].value if level.latency else 0.0, 0.93, "better"),
            ("p99", level.latency.percentiles["99"].value if level.latency else 0.0, 1.01, "undecided"),
        )
    )
    baseline = replace(usual.target, url="http://127.0.0.1:9000", server_name="triton", server_version="2.50.0")
    return replace(usual, ab=AbComparison(baseline, other.measurements, effects, "B is 7 % ± 2 % faster than A."))
