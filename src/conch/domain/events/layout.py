"""The layout of the event log: one table of its columns.

A row describes one thing (a request, a batch, a pause) and is written when that thing ends. What has not ended when the
log is read has a row, too, whose last times are 0. All times are nanoseconds of the server's monotonic clock, 0 if they
have not come; names are indices of the log's table of names, 0 for none.
"""

from typing import Final, NamedTuple

import numpy as np

# Of the file form. A reader accepts columns that it does not know, and fills those that are missing with zeros; the
# number changes only when that is not enough. In format 1 all names are texts.
FORMAT: Final = 2

TIME: Final = "time"
NAME: Final = "name"
NUMBER: Final = "number"  # identifies a row, or refers to one; 0 for none
CODE: Final = "code"  # an index of one of the tables of codes below
COUNT: Final = "count"

PROTOCOLS: Final = ("internal", "http", "grpc", "openai")
# "unfinished" is a request that had not ended when the log was read.
OUTCOMES: Final = ("unfinished", "ok", "error", "cancelled", "timeout", "rejected")
# Why a batch ran when it did and not earlier or larger: "single" without dynamic batching; "full" to its maximum;
# "preferred" size; "closed" by a request that does not fit or has another shape; "delay over"; "idle", because the
# model has no delay and an instance was idle; "sequence" for the slots of a sequence batcher;
# "deadline", because a request could not wait any longer.
WHY_NOW: Final = ("single", "full", "preferred", "closed", "delay over", "idle", "sequence", "deadline")
PAUSES: Final = ("gc 0", "gc 1", "gc 2", "stall")
# "stopped" and "continued": by a signal or a debugger.
INSTANCE_CHANGES: Final = ("up", "down", "stalled", "replaced", "stopped", "continued")
CHANGES: Final = ("load", "unload", "reload", "limits")


class Column(NamedTuple):
    """One column of a kind of row."""

    name: str
    type: str  # of numpy, in little-endian byte order
    meaning: str  # one of the constants above
    codes: tuple[str, ...] = ()


def _times(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "<i8", TIME) for name in names)


def _numbers(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "<i8", NUMBER) for name in names)


def _names(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "<u4", NAME) for name in names)


def _counts(type_: str, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, type_, COUNT) for name in names)


def _code(name: str, codes: tuple[str, ...]) -> Column:
    return Column(name, "<u1", CODE, codes)


_MODEL: Final = (*_names("model"), *_counts("<i8", "version"))

# The first time of a row is its beginning; the rows of a kind are in the order of their ends.
KINDS: Final[dict[str, tuple[Column, ...]]] = {
    # One for each request to a model version: of clients, of ensembles to their steps, of models (BLS), to engines.
    # `parent` is the number of the request on whose behalf it was made, `exchange` that of the client's call, `batch`
    # that of the batch which executed it. `correlation` is a hash of the sequence's id, 0 for none; `shape` is a text
    # such as "INPUT0 FP32 [1,16]". `deadline` is the client's.
    "requests": (
        *_numbers("number", "parent", "exchange", "batch"),
        *_MODEL,
        *_names("tenant", "reason", "shape"),
        _code("outcome", OUTCOMES),
        *_counts("<u1", "cache_hit"),
        *_counts("<u4", "priority", "batch_size", "prompt_tokens", "completion_tokens"),
        *_counts("<i8", "correlation", "input_bytes", "output_bytes"),
        *_times("received", "queued", "started", "input_done", "infer_done", "done", "first_token", "deadline"),
    ),
    # One for each execution. `members` are its requests and `size` the sum of their batch sizes; `waiting` requests
    # were left in the queue. `ahead`: it was sent to an instance that executed another. `cpu_ns` and `cpu_wait_ns` are
    # how long the executing thread or process ran, and was ready to run without a processor, 0 where that is unknown;
    # `switches` are its involuntary context switches. Where a framework in the server computes with several threads,
    # the longest wait of another one is added.
    "batches": (
        *_numbers("number"),
        *_MODEL,
        *_names("instance"),
        _code("why_now", WHY_NOW),
        *_counts("<u1", "ahead", "failed"),
        *_counts("<u4", "members", "size", "waiting", "switches"),
        *_times("formed", "started", "input_done", "infer_done", "released"),
        *_counts("<i8", "cpu_ns", "cpu_wait_ns"),
    ),
    # One for each call of a client for inference, by the frontends. `first_byte` of the call arrived, its head was
    # `received`, the body was complete and was decoded; the core `answered`, the response was encoded, and given to the
    # connection (`written`); `drained`: the client has taken most of it, where it was slower than the server. `status`
    # is HTTP's, or gRPC's. What has not happened is 0.
    "exchanges": (
        *_numbers("number", "request"),
        _code("protocol", PROTOCOLS),
        *_counts("<u2", "status"),
        *_times("first_byte", "received", "body_done", "decoded", "answered", "encoded", "written", "drained"),
        *_counts("<i8", "bytes_in", "bytes_out"),
    ),
    # One for each step of an engine that computes language models. `running` and `waiting` are sequences after it;
    # `prefill_tokens` are those of the prompts whose requests have ended and had their first token in this step,
    # `decode_tokens` what was generated. `cache_used` is in thousandths.
    "steps": (
        *_MODEL,
        *_times("started", "ended"),
        *_counts("<u4", "running", "waiting", "prefill_tokens", "decode_tokens", "preemptions"),
        *_counts("<u2", "cache_used"),
        *_counts("<i8", "cpu_ns", "cpu_wait_ns"),
    ),
    # Times in which the event loop did not run callbacks: collections of garbage, and stalls of any cause, of which
    # those are seen that a timer meets which is due every 25 ms.
    "pauses": (
        _code("kind", PAUSES),
        *_times("started", "ended"),
        *_counts("<i8", "cpu_ns", "cpu_wait_ns"),
    ),
    "instances": (
        *_times("time"),
        *_MODEL,
        *_names("instance"),
        _code("change", INSTANCE_CHANGES),
        *_counts("<u4", "pid"),
    ),
    # Times in which the rate limiter kept an idle instance of a model from a batch. `holder` is a model that had the
    # resources; none where another was first in turn.
    "holds": (
        *_times("started", "ended"),
        *_MODEL,
        *_names("instance", "holder"),
    ),
    # What operators or the repository changed; `detail` is an error, or the new limits.
    "changes": (
        *_times("started", "ended"),
        _code("change", CHANGES),
        *_MODEL,
        *_counts("<u1", "failed"),
        *_names("detail"),
    ),
    # Texts by which a request is found: its id, X-Request-Id, the id of its trace.
    "ids": (
        *_numbers("request"),
        *_names("text"),
    ),
}

DTYPES: Final[dict[str, np.dtype[np.void]]] = {
    kind: np.dtype([(column.name, column.type) for column in columns]) for kind, columns in KINDS.items()
}
