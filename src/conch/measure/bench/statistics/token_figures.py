"""Figures of language models: time to first token, time per token, tokens per second.

Streams carry chunks, and a chunk may carry several tokens or none. Times between chunks are therefore divided by the
tokens of the chunk that ends them; those of chunks without a token count towards the next chunk. Tokens of the first
chunk belong to the time to first token. Chunks that arrive together, as proxies send them, are one chunk here: the time
between them is that of the client's reading, not of the server.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conch.base.durations import duration_text
from conch.measure.bench.measurement import Note, TokenFigures
from conch.measure.bench.records import Chunks, Records
from conch.measure.bench.statistics.selection import NS, RequestColumns, RunWindow
from conch.measure.bench.statistics.time_distribution import time_distribution
from conch.measure.bench.statistics.time_slices import rate_estimate

_TOGETHER_S = 20e-6  # no model is that quick; events of one segment, or of one TLS read, are
_GROUP_TOKENS = 1.5  # tokens, from which a note says so
_BUFFERED_SHARE = 0.5  # of the answers with several tokens


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of each request as far as known (-1: unknown), and where the numbers come from."""

    source: str
    output: NDArray[np.int64]
    input: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TimedTokens:
    """The chunks that carry tokens, in the order of requests, then of time."""

    request: NDArray[np.int64]
    """Row of the request in the records."""
    received_s: NDArray[np.float64]
    tokens: NDArray[np.float64]
    gap_s: NDArray[np.float64]
    """Time since the chunk before; NaN for the first one of a request."""


def has_tokens(records: Records, chunks: Chunks) -> bool:
    """Return whether answers are those of a language model: chunks with text, or counts of tokens."""
    return bool((records["output_tokens"] >= 0).any() or (len(chunks) and chunks["characters"].any()))


def count_tokens(
    records: Records,
    chunks: Chunks,
    rows: NDArray[np.int64],
    *,
    input_tokens: NDArray[np.int64] | None,
    tokens_per_character: float | None,
) -> TokenCounts:
    """Return counts of tokens: of the server's usage, else by a tokenizer, else one for each chunk with content.

    `rows` are the chunks of each request, from `chunk_rows`. `tokens_per_character` is of a tokenizer on texts of the
    run. If requests differ in what is known, `source` names the weakest source.
    """
    output = records["output_tokens"].astype(np.int64)
    received = records["input_tokens"].astype(np.int64)
    if input_tokens is not None:
        index = np.minimum(records["request"].astype(np.int64), len(input_tokens) - 1)
        received = np.where(received >= 0, received, input_tokens[index])
    missing = (output < 0) & (np.bincount(rows, minlength=len(records)) > 0)
    if not missing.any():
        return TokenCounts("usage", output, received)
    if tokens_per_character is not None:
        characters = np.bincount(rows, chunks["characters"], minlength=len(records))
        guessed = np.maximum(np.rint(characters * tokens_per_character), characters > 0).astype(np.int64)
        return TokenCounts("tokenizer", np.where(missing, guessed, output), received)
    given = np.bincount(rows, chunks["tokens"], minlength=len(records))
    filled = np.bincount(rows, chunks["characters"] > 0, minlength=len(records))
    counted = np.where(given > 0, given, filled).astype(np.int64)
    return TokenCounts("chunks", np.where(missing, counted, output), received)


def chunk_rows(records: Records, chunks: Chunks) -> NDArray[np.int64]:
    """Return the row of its request in `records` for each chunk. Raises ValueError if a chunk belongs to none."""
    having = np.flatnonzero(records["chunks_from"] >= 0)
    starts = records["chunks_from"][having].astype(np.int64)
    order = np.argsort(starts, kind="stable")
    bounds = np.append(starts[order], len(chunks))
    if (bounds[0] != 0 and len(chunks)) or (np.diff(bounds) < 0).any():
        raise ValueError(f"{len(chunks)} chunks do not fit the records; join parts with join_records")
    return np.repeat(having[order], np.diff(bounds)).astype(np.int64)


def time_tokens(
    records: Records, chunks: Chunks, rows: NDArray[np.int64], counts: TokenCounts, window: RunWindow
) -> TimedTokens:
    """Spread the tokens of each request over its chunks, and the time between chunks over their tokens.

    If the server says how many tokens a chunk has, that is it. Otherwise each chunk with text has one, and what the
    count of the request exceeds that by is spread by the length of the texts.
    """
    given = chunks["tokens"].astype(np.float64)
    characters = chunks["characters"].astype(np.float64)
    size = len(records)
    # A count in the last chunk only is the sum of the request, not the tokens of this chunk.
    said = np.bincount(rows, given > 0, minlength=size)
    filled = np.bincount(rows, characters > 0, minlength=size)
    given = np.where((2 * said >= filled)[rows], given, 0.0)
    given_sum = np.bincount(rows, given, minlength=size)
    carries = np.where(given_sum[rows] > 0, given > 0, characters > 0)
    rows, given, characters = rows[carries], given[carries], characters[carries]
    total = np.maximum(counts.output, 0).astype(np.float64)
    number = np.bincount(rows, minlength=size).astype(np.float64)
    text = np.bincount(rows, characters, minlength=size)
    known = np.where(counts.output >= 0, total, number)
    with np.errstate(invalid="ignore", divide="ignore"):
        surplus = np.maximum(known - number, 0.0)
        by_text = np.minimum(known / number, 1.0)[rows] + (surplus / text)[rows] * characters
        by_server = given * np.where(counts.output >= 0, known / given_sum, 1.0)[rows]
    tokens = np.where(given_sum[rows] > 0, by_server, by_text)
    received = (chunks["received_ns"][carries] - window.run_start_ns) * NS
    return _together(rows, received, np.nan_to_num(tokens))


def _together(rows: NDArray[np.int64], received_s: NDArray[np.float64], tokens: NDArray[np.float64]) -> TimedTokens:
    """Join the chunks of a request that arrived together."""
    gap = time_since_previous(rows, received_s)
    begins = ~(gap < _TOGETHER_S)  # those without a gap, too
    starts = np.flatnonzero(begins)
    joined = np.add.reduceat(tokens, starts) if len(starts) else tokens
    rows, received_s = rows[starts], received_s[starts]
    return TimedTokens(rows, received_s, joined, time_since_previous(rows, received_s))


def time_since_previous(rows: NDArray[np.int64], received_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the time since the chunk before for each chunk; NaN for the first of a request."""
    gap = np.full(len(rows), np.nan)
    if len(rows) > 1:
        follows = rows[1:] == rows[:-1]
        gap[1:][follows] = np.diff(received_s)[follows]
    return gap


def mean_inter_token_s(tokens: TimedTokens, size: int) -> NDArray[np.float64]:
    """Return the mean time per token after the first chunk for each of `size` requests; NaN where there is none."""
    later = ~np.isnan(tokens.gap_s)
    spent = np.bincount(tokens.request[later], tokens.gap_s[later], minlength=size)
    number = np.bincount(tokens.request[later], tokens.tokens[later], minlength=size)
    mean: NDArray[np.float64] = np.divide(spent, number, out=np.full(size, np.nan), where=number > 0)
    return mean


def grouping_notes(tokens: TimedTokens, columns: RequestColumns) -> Iterator[Note]:
    """Yield notes on tokens that arrived together, whose ITL is a mean over each group."""
    timed = columns.timed[tokens.request] & (tokens.tokens > 0)
    if not timed.any():
        return
    size = len(columns.timed)
    groups = np.bincount(tokens.request[timed], minlength=size)
    number = np.bincount(tokens.request[timed], tokens.tokens[timed], minlength=size)
    several = number >= 2
    at_once = float(np.mean(groups[several] == 1)) if several.any() else 0.0
    if at_once >= _BUFFERED_SHARE:
        text = f"all tokens of {100 * at_once:.0f} % of the answers came at once: the server or a proxy buffers the"
        yield Note("grouped-tokens", "warning", f"{text} stream, so TTFT is the time of the whole answer")
        return
    gaps = tokens.gap_s[timed & ~np.isnan(tokens.gap_s)]
    mean = float(tokens.tokens[timed].sum() / groups.sum())
    if mean >= _GROUP_TOKENS and len(gaps):
        text = f"tokens came in groups of {mean:.1f} on average, {duration_text(float(np.median(gaps)))} apart (median)"
        yield Note("grouped-tokens", "info", f"{text}: ITL is this time divided by the tokens of a group")


def token_figures(
    records: Records,
    columns: RequestColumns,
    window: RunWindow,
    counts: TokenCounts,
    tokens: TimedTokens,
    percentiles: tuple[float, ...],
    prompts: NDArray[np.int64] | None = None,
) -> TokenFigures:
    """Describe tokens and their times in a window. `prompts` are numbers of prompts by index of the request."""
    start, end = window.seconds
    is_streamed = records["chunks_from"] >= 0
    first_s = (records["first_ns"] - window.run_start_ns) * NS
    streamed = columns.timed & is_streamed & (records["first_ns"] > 0)
    later = columns.timed[tokens.request] & ~np.isnan(tokens.gap_s) & (tokens.tokens > 0)
    weight = tokens.tokens[later]
    reasoning = records["reasoning_tokens"][columns.ended & columns.is_ok]
    counted = columns.ended & columns.is_ok
    cached = records["cached_tokens"][counted]
    sent = records["request"][counted]
    distinct = len(sent) if prompts is None else len(np.unique(prompts[np.minimum(sent, len(prompts) - 1)]))
    unary = ~is_streamed & columns.is_ok & (counts.output >= 0)
    output_times = np.concatenate((tokens.received_s, columns.done_s[unary]))
    output_tokens = np.concatenate((tokens.tokens, counts.output[unary].astype(np.float64)))
    read = columns.is_ok & (counts.input >= 0)
    read_at = np.where(is_streamed & (records["first_ns"] > 0), first_s, columns.done_s)[read]
    lengths = counts.output[counted & (counts.output >= 0)].astype(np.float64)
    return TokenFigures(
        source=counts.source,
        input_tokens=int(counts.input[counted & (counts.input >= 0)].sum()),
        output_tokens=int(lengths.sum()),
        reasoning_tokens=int(reasoning[reasoning >= 0].sum()) if (reasoning >= 0).any() else None,
        input_rate=rate_estimate(read_at, start, end, counts.input[read].astype(np.float64)),
        output_rate=rate_estimate(output_times, start, end, output_tokens),
        first_token=time_distribution(
            (first_s - columns.intended_s)[streamed], columns.done_s[streamed], (start, end), percentiles
        ),
        inter_token=time_distribution(
            tokens.gap_s[later] / weight,
            tokens.received_s[later],
            (start, end),
            percentiles,
            weight,
        ),
        output_length=time_distribution(
            lengths, columns.done_s[counted & (counts.output >= 0)], (start, end), percentiles
        ),
        cached_tokens=int(cached[cached >= 0].sum()) if (cached >= 0).any() else None,
        distinct_prompts=distinct,
    )
