"""What the server and a model's process say to each other: the first item of every header and what follows it.

A *place* says where the bytes of a tensor are: at that offset of the sender's arena, or, if negative, at offset
`~place` of the frame's own payload; None for an output that is where the client wants it. *destinations* says where
that is: None, or a dict of `(file, device, inode, offset of the region in it, size of the region, offset in the region,
room there)` by names of outputs. *released* are offsets of blocks of the receiver's arena that it may use again.
*answer* is `(key, final, error, outputs, parameters)`, where `error` is None or `(code, text)`, `outputs` is None or
tuples `(name, datatype, shape, place, size)`, and `parameters` is None or a dict; `final` None means that the request
is to come again. *sample* is one custom metric,
`(number, family, description, kind, labels, value, buckets)`, or `(number,)` when it is gone.

*trace* is None for a request that nobody traces, else its W3C trace context as JSON, "" if it has none; *traced* is the
key of the request in whose trace a call is to appear, 0 for none.

A *call* is what a model asks of the server: another model's answer, or something of a model's life. Its key is the
model's, that of a request the server's.
"""

from __future__ import annotations

from typing import Any

# Server → model.
INITIALIZE = 1  # arguments of `initialize`, options                      → INITIALIZED
COMPLETE = 2  # options, document as JSON                                 → COMPLETED
# released, requests: (key, id, correlation id, flags, timeout, parameters, outputs, trace, inputs,
# destinations)                                                           → EXECUTED
EXECUTE = 3
CANCEL = 4  # key
RELEASE = 5  # released
TRIM = 6  # nothing: give memory that is not in use back
CHECK_READY = 7  # nothing                                                → READINESS
SET_LOG_LEVEL = 8  # level
FINALIZE = 9  # nothing; the process ends afterwards
CALL_ANSWERED = 10  # released, answer
CONTROLLED = 11  # key, None or (code, text), value

# Model → server.
INITIALIZED = 32  # error text or "", whether the model has `is_ready`
COMPLETED = 33  # error text or "", document as JSON
EXECUTED = 34  # released, answers, samples, when inputs were there, when `execute` was done (monotonic ns)
ANSWERED = 35  # released, answers, samples; outside or before the end of `execute`
READINESS = 36  # bool
LOG = 37  # level, file, line, text
SAMPLES = 38  # samples
BORN = 39  # process id, or 0 and an error text; the first message of a process that was forked
# released, key, keys of the requests it is for, whether `execute` waits for it, whether it may have many responses,
# (model, version, id, correlation id, flags, timeout, parameters, outputs, traced, inputs)          → CALL_ANSWERED*
CALL = 40
CANCEL_CALL = 41  # key
READ = 42  # key, weight (see `weight_of`) of the responses to that call which the model has read since the last time
CONTROL = 43  # key, LOAD, UNLOAD or ASK, name, argument, files: (path, place, size)                     → CONTROLLED

# What CONTROL asks for, and its argument.
LOAD = 1  # configuration as JSON, "" if it is to be read from the repository
UNLOAD = 2  # whether with its dependents
ASK = 3  # version as text, "" for the newest; the value of the answer is whether it is ready

# Levels of LOG, as the standard library numbers them; VERBOSE is its DEBUG.
ERROR, WARNING, INFO, VERBOSE = 40, 30, 20, 10


def weight_of(outputs: Any) -> int:
    """Return what the outputs of one response count for, in bytes, where responses that wait are bounded."""
    return _RESPONSE_WEIGHT + sum([int(output[4]) for output in outputs or ()])


_RESPONSE_WEIGHT = 1024
