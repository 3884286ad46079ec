"""Message types between the server and a model's process: the first item of each header, and what follows it.

A *place* is where the bytes of a tensor are: at that offset of the sender's arena, or, if negative, at offset `~place`
of the frame's payload, or, from `LENT` on, in a block of the receiver's arena that a process passes on, or, from `KEPT`
to `LENT`, with the server, which keeps it for the process; None for an output that was written to the client's shared
memory. *destinations* describes that memory: None, or a dict from output
names to `(file, device, inode, offset of the region in it, size of the region, offset in the region, room there)`.
*released* are offsets of blocks of the receiver's arena that it may reuse, and places of what it has lent or keeps.
*answer* is `(key, final, error, outputs, parameters)`, where `error` is None or `(code, text)`, `outputs` is None or
tuples `(name, datatype, shape, place, size)`, and `parameters` is None or a dict; `final` is None for a rescheduled
request. A model sends `(key, final, outputs)` for a response without error and parameters: what has no null is written
fastest.

*trace* is None for a request without a trace, else its W3C trace context as JSON, "" without one; *traced* is the key
of the request in whose trace a call appears, 0 for none.

A *call* is a model's request to the server (BLS): to infer with, load, unload or query another model. The model assigns
its key, the server that of a request.
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
TRIM = 6  # nothing; return unused memory to the system
CHECK_READY = 7  # nothing                                                → READINESS
SET_LOG_LEVEL = 8  # level
FINALIZE = 9  # nothing; the process then exits
CALL_ANSWERED = 10  # released, answer
CONTROLLED = 11  # key, None or (code, text), value
FETCHED = 12  # released, key, place, size

# Model → server.
INITIALIZED = 32  # error text or "", whether the model has `is_ready`
COMPLETED = 33  # error text or "", document as JSON
EXECUTED = 34  # released, answers, times when inputs were ready and `execute` ended (monotonic ns),
# CPU time, wait for a processor (ns) and involuntary switches of the thread, 0 where unknown
ANSWERED = 35  # released, answers, times when inputs of the last batch were ready and of sending (monotonic ns);
# outside or before the end of `execute`
READINESS = 36  # bool
LOG = 37  # level, file, line, text
BORN = 39  # process id, or 0 and an error text; the first message of a forked process
# released, key, keys of the requests it is for, whether `execute` waits for it, whether it may have many responses,
# (model, version, id, correlation id, flags, timeout, parameters, outputs, traced, inputs)          → CALL_ANSWERED*
CALL = 40
CANCEL_CALL = 41  # key
READ = 42  # key, weight (see `weight_of`) of that call's responses which the model has read since the last READ
FETCH = 44  # key, place of a tensor that the server keeps                                              → FETCHED
CONTROL = 43  # key, LOAD, UNLOAD or ASK, name, argument, files: (path, place, size)                     → CONTROLLED

# Operations of CONTROL, and their argument.
LOAD = 1  # configuration as JSON, "" to read it from the repository
UNLOAD = 2  # whether with its dependents
ASK = 3  # version as text, "" for the newest; the value in the reply is whether it is ready

# Levels of LOG, as the standard library numbers them; VERBOSE is its DEBUG.
ERROR, WARNING, INFO, VERBOSE = 40, 30, 20, 10


def weight_of(outputs: Any) -> int:
    """Return the bytes that one response's outputs count against the limit of unread responses."""
    return _RESPONSE_WEIGHT + sum([int(output[4]) for output in outputs or ()])


_RESPONSE_WEIGHT = 1024
