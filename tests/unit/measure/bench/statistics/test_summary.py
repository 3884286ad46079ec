import math

import numpy as np
import pytest

from conch.measure.bench.records import RequestOutcome, join_records
from conch.measure.bench.statistics.summary import summarize
from tests.unit.measure.bench.statistics.recorded import NO_CHUNKS, records_of, settings_of, stream


def test_figures_of_a_plain_run() -> None:
    rng = np.random.default_rng(1)
    at = np.arange(0, 60, 0.01)
    records = records_of(at, rng.exponential(0.02, len(at)))
    records["received_bytes"], records["sent_bytes"] = 10, 20
    result = summarize(records, NO_CHUNKS, settings_of(60, 10))
    assert (result.window_s, result.warm_up_s) == (50, 10)
    assert result.requests == pytest.approx(5000, abs=10)
    assert result.outcomes == {"ok": result.requests}
    assert result.throughput.value == pytest.approx(100, rel=0.01)
    assert result.throughput.low <= 100 <= result.throughput.high
    assert result.received_bytes == result.requests * 10
    assert result.sent_bytes == result.requests * 20
    latency = result.latency
    assert latency.count == 5000
    assert list(latency.percentiles) == ["50", "90", "95", "99", "99.9"]
    for key, truth in (("50", math.log(2)), ("99", math.log(100))):
        estimate = latency.percentiles[key]
        assert estimate.low <= 0.02 * truth <= estimate.high
        assert estimate.low <= estimate.value <= estimate.high
    assert latency.mean.low <= 0.02 <= latency.mean.high
    assert latency.max == pytest.approx(float((records["done_ns"] - records["intended_ns"])[1000:].max()) * 1e-9)
    assert sum(count for _, count in latency.histogram) == 5000
    assert [edge for edge, _ in latency.histogram] == sorted(edge for edge, _ in latency.histogram)
    assert len(result.series["p99"]) == 60
    assert sum(result.series["throughput"]) == pytest.approx(6000, abs=10)


def test_percentiles_asked_for_are_added() -> None:
    result = summarize(records_of(np.arange(100) / 10, 0.01), NO_CHUNKS, settings_of(10, percentiles=(75.0, 99.0)))
    assert list(result.latency.percentiles) == ["50", "75", "90", "95", "99", "99.9"]


def test_few_requests_have_no_interval() -> None:
    result = summarize(records_of([0.1, 0.2, 0.3], [0.01, 0.02, 0.03]), NO_CHUNKS, settings_of(1))
    assert result.latency.percentiles["50"].value == pytest.approx(0.02)
    assert result.latency.percentiles["99"].low is None
    assert result.throughput.low is None


def test_500_requests_have_no_interval_of_the_last_percentile() -> None:
    rng = np.random.default_rng(1)
    result = summarize(records_of(np.arange(500) / 10, rng.exponential(1, 500)), NO_CHUNKS, settings_of(50))
    assert result.latency.percentiles["99.9"].high is None
    assert result.latency.percentiles["90"].high is not None


def test_without_a_success_there_is_no_latency() -> None:
    records = records_of([0.1, 0.2], 0.05, [RequestOutcome.TIMEOUT, RequestOutcome.REJECTED])
    result = summarize(records, NO_CHUNKS, settings_of(1), {"HTTP status 503": 1, "timeout after 1 s": 1})
    assert result.latency is None
    assert result.throughput.value == 0
    assert result.outcomes == {"rejected": 1, "timeout": 1}
    assert result.errors == (("HTTP status 503", 1), ("timeout after 1 s", 1))
    assert result.series["errors"] == (2.0,)


def test_a_run_without_a_request_is_described() -> None:
    result = summarize(records_of([], []), NO_CHUNKS, settings_of(2, slo={"latency": 1.0}))
    assert (result.requests, result.latency, result.throughput.value) == (0, None, 0)
    assert result.goodput_ratio is None


def test_latency_counts_from_the_intended_time() -> None:
    result = summarize(records_of(np.arange(100) / 100, 0.5, lag_s=0.4), NO_CHUNKS, settings_of(2))
    assert result.latency.percentiles["50"].value == pytest.approx(0.5)
    assert result.service_latency.percentiles["50"].value == pytest.approx(0.1)


def test_unfinished_requests_are_at_least_as_slow_as_seen() -> None:
    at = np.arange(0, 60, 0.1)
    stalled = at >= 30
    records = records_of(
        at, np.where(stalled, 60 - at, 0.01), np.where(stalled, RequestOutcome.UNFINISHED, RequestOutcome.OK)
    )
    result = summarize(records, NO_CHUNKS, settings_of(60))
    assert result.latency.percentiles["95"].value > 25
    assert result.outcomes["unfinished"] == 300
    assert result.throughput.value == pytest.approx(5, rel=0.01)


def test_young_unfinished_requests_do_not_make_a_server_look_fast() -> None:
    at = np.arange(0, 10, 0.1)
    is_young = at >= 8
    records = records_of(
        at, np.where(is_young, 10 - at, 2.0), np.where(is_young, RequestOutcome.UNFINISHED, RequestOutcome.OK)
    )
    result = summarize(records, NO_CHUNKS, settings_of(10))
    assert result.latency.percentiles["50"].value == pytest.approx(2.0)
    assert result.outcomes["unfinished"] == 20


def test_a_stall_at_the_end_of_an_open_loop_counts() -> None:
    at = np.arange(0, 10, 0.01)
    latency = np.where(at > 8, 12 - at, 0.01)
    result = summarize(records_of(at, latency), NO_CHUNKS, settings_of(10))
    assert result.latency.percentiles["90"].value > 2
    closed = summarize(records_of(at, latency), NO_CHUNKS, settings_of(10, is_open_loop=False))
    assert closed.latency.percentiles["90"].value == pytest.approx(0.01)


def test_goodput_counts_failures_as_missed() -> None:
    at = np.arange(0, 20, 0.1)
    outcome = np.where(np.arange(200) % 4 == 0, RequestOutcome.SERVER_ERROR, RequestOutcome.OK)
    latency = np.where(np.arange(200) % 4 == 1, 0.5, 0.01)
    result = summarize(records_of(at, latency, outcome), NO_CHUNKS, settings_of(20, slo={"latency": 0.1}))
    assert result.goodput.value == pytest.approx(5)
    assert result.goodput_ratio.value == pytest.approx(0.5)
    assert result.goodput_ratio.low < 0.5 < result.goodput_ratio.high
    with pytest.raises(ValueError, match="not a service level objective"):
        settings_of(20, slo={"tpot": 1})


def test_inter_token_latency_is_per_token() -> None:
    records = records_of([0.0], [1.0])
    chunks = stream(records, 0, [(0.1, 0, 4), (0.3, 0, 16), (0.4, 0, 0), (0.5, 0, 4)], 0)
    records["output_tokens"], records["input_tokens"], records["reasoning_tokens"] = 6, 7, 2
    tokens = summarize(records, chunks, settings_of(2)).tokens
    assert tokens.source == "usage"
    assert (tokens.input_tokens, tokens.output_tokens, tokens.reasoning_tokens) == (7, 6, 2)
    assert tokens.first_token.percentiles["50"].value == pytest.approx(0.1)
    # Three chunks with text share six tokens: 1 + 3 · 4/24, 1 + 3 · 16/24 and 1 + 3 · 4/24.
    assert tokens.inter_token.mean.value == pytest.approx(0.4 / 4.5)
    assert tokens.inter_token.percentiles["50"].value == pytest.approx(0.2 / 3)
    assert tokens.output_rate.value == pytest.approx(3)
    assert tokens.output_length.max == 6


def test_tokens_of_chunks_that_the_server_counts_are_taken() -> None:
    records = records_of([0.0], [1.0])
    chunks = stream(records, 0, [(0.1, 1, 4), (0.3, 4, 1)], 0)
    tokens = summarize(records, chunks, settings_of(2)).tokens
    assert tokens.source == "chunks"
    assert tokens.output_tokens == 5
    assert tokens.inter_token.percentiles["50"].value == pytest.approx(0.05)


@pytest.mark.parametrize("apart_s", [0.0, 5e-6], ids=["one read", "TLS records"])
def test_chunks_that_arrive_together_are_one(apart_s: float) -> None:
    """Four tokens every 100 ms are 25 ms a token, not 0 three times of four."""
    records = records_of([0.0], [1.0])
    parts = [(0.1 * (group + 1) + apart_s * at, 0, 4) for group in range(5) for at in range(4)]
    result = summarize(records, stream(records, 0, parts, 0), settings_of(2))
    times = result.tokens.inter_token
    assert times.percentiles["50"].value == pytest.approx(0.025)
    assert times.percentiles["99"].value == pytest.approx(0.025)
    assert result.tokens.output_tokens == 20
    (note,) = (note for note in result.notes if note.code == "grouped-tokens")
    assert "in groups of 4.0 on average, 100 ms apart" in note.message


def test_a_stream_that_comes_at_once_has_no_inter_token_latency() -> None:
    records = records_of([0.0, 0.5], [0.4, 0.4])
    first = stream(records, 0, [(0.4, 0, 4)] * 5, 0)
    second = stream(records, 1, [(0.4, 0, 4)] * 5, 5)
    result = summarize(records, np.concatenate((first, second)), settings_of(2))
    assert result.tokens.inter_token is None
    assert result.tokens.output_tokens == 10
    (note,) = (note for note in result.notes if note.code == "grouped-tokens")
    assert note.severity == "warning"
    assert "all tokens of 100 % of the answers came at once" in note.message


def test_single_tokens_have_no_note() -> None:
    records = records_of([0.0], [1.0])
    parts = [(0.1 * (at + 1), 0, 4) for at in range(5)]
    notes = summarize(records, stream(records, 0, parts, 0), settings_of(2)).notes
    assert not any(note.code == "grouped-tokens" for note in notes)


def test_a_sum_in_the_last_chunk_is_not_the_tokens_of_this_chunk() -> None:
    records = records_of([0.0], [1.0])
    chunks = stream(records, 0, [(0.1, 0, 4), (0.2, 0, 4), (0.3, 4, 8)], 0)
    records["output_tokens"] = 4
    tokens = summarize(records, chunks, settings_of(2)).tokens
    assert tokens.first_token.percentiles["50"].value == pytest.approx(0.1)
    assert tokens.inter_token.count > 0
    # 1.25, 1.25 and 1.5 tokens by the lengths of the texts.
    assert tokens.inter_token.mean.value == pytest.approx(0.2 / 2.75)


def test_different_prompts_and_cached_tokens_are_counted() -> None:
    records = records_of([0.0, 0.1, 0.2], [0.1, 0.1, 0.1])
    records["output_tokens"], records["input_tokens"], records["request"] = 2, 10, [0, 1, 2]
    unknown = summarize(records, NO_CHUNKS, settings_of(2)).tokens
    assert (unknown.distinct_prompts, unknown.cached_tokens) == (3, None)
    records["cached_tokens"] = [0, -1, 6]
    in_turn = summarize(records, NO_CHUNKS, settings_of(2, prompts=np.array([0, 1, 0]))).tokens
    assert (in_turn.distinct_prompts, in_turn.cached_tokens) == (2, 6)


def test_without_usage_a_tokenizer_or_chunks_count() -> None:
    records = records_of([0.0], [1.0])
    chunks = stream(records, 0, [(0.1, 0, 10), (0.3, 0, 10)], 0)
    by_chunks = summarize(records, chunks, settings_of(2)).tokens
    assert (by_chunks.source, by_chunks.output_tokens) == ("chunks", 2)
    by_tokenizer = summarize(records, chunks, settings_of(2, tokens_per_character=0.25)).tokens
    assert (by_tokenizer.source, by_tokenizer.output_tokens) == ("tokenizer", 5)
    prompts = np.array([9])
    assert summarize(records, chunks, settings_of(2, input_tokens=prompts)).tokens.input_tokens == 9


def test_slo_of_tokens() -> None:
    records = records_of([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    parts = [
        stream(records, 0, [(0.1, 0, 1), (0.2, 0, 1)], 0),
        stream(records, 1, [(0.5, 0, 1), (0.6, 0, 1)], 2),
        stream(records, 2, [(0.1, 0, 1), (0.9, 0, 1)], 4),
    ]
    result = summarize(records, np.concatenate(parts), settings_of(2, slo={"ttft": 0.2, "itl": 0.2}))
    assert result.goodput_ratio.value == pytest.approx(1 / 3)


def test_parts_of_a_run_are_joined() -> None:
    parts = []
    for at in (0.0, 1.0):
        records = records_of([at, at], [1.0, 1.0])
        parts.append((records, stream(records, 1, [(0.1, 0, 1), (0.2 + at, 0, 1)], 0)))
    records, chunks = join_records(parts)
    assert records["chunks_from"].tolist() == [-1, 0, -1, 2]
    tokens = summarize(records, chunks, settings_of(3)).tokens
    assert tokens.inter_token.max == pytest.approx(1.1)
    assert parts[1][0]["chunks_from"].tolist() == [-1, 0]
    with pytest.raises(ValueError, match="join_records"):
        summarize(parts[0][0][:1], chunks, settings_of(3))
