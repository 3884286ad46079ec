"""Why a request was slow, in one line. Pure."""

from typing import NamedTuple

from conch.operate.traces.recorded_span import Phase, RecordedSpan

_MIN_SHARE = 0.1  # of a second cause
_MAX_CAUSES = 2

# Phase → what took the time, and what helps.
_CAUSES: dict[Phase, tuple[str, str]] = {
    "receive": ("receiving the request", "the client or the network is slow"),
    "queue": ("the queue of", "more instances, larger batches or a queue policy help"),
    "input": ("preparing the inputs of", "smaller inputs or shared memory help"),
    "infer": ("the execution of", "a faster model or device helps"),
    "output": ("preparing the outputs of", "smaller outputs or shared memory help"),
    "send": ("sending the response", "the client or the network is slow"),
    "steps": ("the time between the steps of", "the server is busy"),
    "other": ("the server, outside of models:", "the server is busy"),
}
# Phases of the connection, not of a model.
_CONNECTION = ("receive", "send")


class SlowCause(NamedTuple):
    """A phase of a span, without the time in which children run."""

    phase: Phase
    span: RecordedSpan
    ns: int


def causes(root: RecordedSpan) -> list[SlowCause]:
    """Return the phases of all spans, the longest first."""
    found = dict[tuple[str, Phase], SlowCause]()
    for _, span in root.walk():
        for phase, ns in span.own_ns():
            before = found.get((span.id, phase))
            found[span.id, phase] = SlowCause(phase, span, ns + (before.ns if before else 0))
    return sorted((each for each in found.values() if each.ns > 0), key=lambda each: -each.ns)


def reason(root: RecordedSpan) -> str:
    """Return such as `12.3 ms: 80 % the queue of "detector" (9.84 ms); more instances … help`."""
    some = causes(root)
    if not some:
        return "the trace has too few timestamps to explain the time"
    shown = [each for each in some[:_MAX_CAUSES] if each is some[0] or each.ns >= _MIN_SHARE * root.ns]
    text = ", ".join(f"{each.ns / max(root.ns, 1):.0%} {_name(each)} ({duration(each.ns)})" for each in shown)
    return f"{duration(root.ns)}: {text}; {_CAUSES[shown[0].phase][1]}"


def _name(cause: SlowCause) -> str:
    text = _CAUSES[cause.phase][0]
    return text if cause.phase in _CONNECTION else f'{text} "{cause.span.model}"'


def duration(ns: int) -> str:
    """Return a time with a unit and three digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"
