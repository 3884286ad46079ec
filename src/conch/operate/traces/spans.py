"""Spans of recorded requests, the phases of which they consist, and why a request was slow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from conch.base.report.waterfall import PhaseMark, Segment, WaterfallRow, duration

# Phase → how it looks. `steps` is the time of an ensemble, `other` what no pair of timestamps explains.
MARKS = MappingProxyType(
    {
        "receive": PhaseMark("▸", ">", "cyan", 6),
        "queue": PhaseMark("░", ".", "yellow", 1),
        "input": PhaseMark("▒", "i", "blue", 0),
        "infer": PhaseMark("█", "#", "green", 2),
        "output": PhaseMark("▓", "o", "magenta", 3),
        "send": PhaseMark("◂", "<", "cyan", 6),
        "steps": PhaseMark("─", "-", "white", 4),
        "other": PhaseMark("·", "_", "bright_black", 7),
    }
)


@dataclass(slots=True)
class RecordedSpan:
    """The execution of one request by one model. `marks` are names and times (ns) of Triton's activities.

    The root of a request also has the marks of receiving it and of sending its responses.
    """

    id: str
    parent: str = ""
    model: str = ""
    version: str = ""
    request_id: str = ""
    trace_id: str = ""  # W3C, hexadecimal
    error: str = ""
    marks: list[tuple[str, int]] = field(default_factory=list)
    children: list["RecordedSpan"] = field(default_factory=list)

    @property
    def start(self) -> int:
        """The time of the first mark."""
        return min((at for name, at in self.marks if name not in _IGNORED), default=self.end)

    @property
    def end(self) -> int:
        """The time of the last mark."""
        return max((at for _, at in self.marks), default=0)

    @property
    def ns(self) -> int:
        """The duration."""
        return max(self.end - self.start, 0)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, "RecordedSpan"]]:
        """Yield this span and those below it, with their depths, parents first, siblings by time."""
        yield depth, self
        for child in sorted(self.children, key=lambda span: span.start):
            yield from child.walk(depth + 1)

    def segments(self) -> list[Segment]:
        """Return the phases in chronological order, without gaps."""
        known = sorted(self._known_segments(), key=lambda segment: (segment.start, segment.end))
        segments, at = list[Segment](), self.start
        for segment in known:
            if segment.start > at:
                segments.append(Segment("other", at, segment.start))
            start = max(segment.start, at)  # sending overlaps the execution of a decoupled model
            if segment.end > start:
                segments.append(Segment(segment.phase, start, segment.end))
                at = segment.end
        if self.end > at:
            segments.append(Segment("other", at, self.end))
        return segments

    def own_ns(self) -> list[tuple[str, int]]:
        """Return phases with their times, without the time in which children run."""
        busy = union([(child.start, child.end) for child in self.children])
        return [(segment.phase, segment.ns - overlap(segment, busy)) for segment in self.segments()]

    def _known_segments(self) -> Iterator[Segment]:
        times = dict(self.marks)
        done = times.get("REQUEST_END", self.end)
        for phase, begin, end in _PAIRS:
            if begin in times and end in times:
                yield Segment(phase, times[begin], times[end])
        if "QUEUE_START" in times and "COMPUTE_START" not in times:
            # An ensemble, else a request that was not executed: answered from the cache, or refused.
            yield Segment("steps" if self.children else "queue", times["QUEUE_START"], done)
        yield from self._sends()

    def _sends(self) -> Iterator[Segment]:
        """Yield one segment for each response."""
        begun = 0
        for name, at in sorted(self.marks, key=lambda mark: (mark[1], mark[0].endswith("_START"))):
            if name in ("HTTP_SEND_START", "GRPC_SEND_START"):
                begun = at
            elif name in ("HTTP_SEND_END", "GRPC_SEND_END") and begun:
                yield Segment("send", begun, at)
                begun = 0


_PAIRS: tuple[tuple[str, str, str], ...] = (
    ("receive", "HTTP_RECV_START", "HTTP_RECV_END"),
    ("queue", "QUEUE_START", "COMPUTE_START"),
    ("input", "COMPUTE_START", "COMPUTE_INPUT_END"),
    ("infer", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    ("output", "COMPUTE_OUTPUT_START", "COMPUTE_END"),
)
# Triton begins to wait for the next gRPC request at this time, which may be long before it is sent.
_IGNORED = ("GRPC_WAITREAD_START",)
_MAX_DEPTH = 100


def union(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return disjoint intervals, sorted, that cover the same times."""
    union = list[tuple[int, int]]()
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def overlap(segment: Segment, intervals: Sequence[tuple[int, int]]) -> int:
    """Return the nanoseconds of a segment that disjoint intervals cover."""
    return sum(max(min(segment.end, end) - max(segment.start, start), 0) for start, end in intervals)


def link(spans: Sequence[RecordedSpan]) -> list[RecordedSpan]:
    """Attach spans to their parents; return the roots.

    A span is also a root if its parent is not recorded or is below it, or if it is deeper than any real one.
    """
    known = {span.id: span for span in spans}
    parents = {span.id: span.parent for span in spans}
    roots = list[RecordedSpan]()
    for span in spans:
        above, seen = span.parent, {span.id}
        while above in parents and above not in seen and len(seen) < _MAX_DEPTH:
            seen.add(above)
            above = parents[above]
        if span.parent in known and above not in seen and len(seen) < _MAX_DEPTH:
            known[span.parent].children.append(span)
        else:
            roots.append(span)
    return roots


def rows(root: RecordedSpan) -> list[WaterfallRow]:
    """Return the request and all below it as rows of a waterfall."""
    return [
        WaterfallRow(
            span.model + (f":{span.version}" if span.version else ""),
            depth, span.start, span.end, span.segments(), span.error,
        )
        for depth, span in root.walk()
    ]  # fmt: skip


_MIN_SHARE = 0.1  # of a second cause
_MAX_CAUSES = 2

# Phase → what took the time, and what helps.
_CAUSES: dict[str, tuple[str, str]] = {
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

    phase: str
    span: RecordedSpan
    ns: int


def causes(root: RecordedSpan) -> list[SlowCause]:
    """Return the phases of all spans, the longest first."""
    causes = dict[tuple[str, str], SlowCause]()
    for _, span in root.walk():
        for phase, ns in span.own_ns():
            before = causes.get((span.id, phase))
            causes[span.id, phase] = SlowCause(phase, span, ns + (before.ns if before else 0))
    return sorted((cause for cause in causes.values() if cause.ns > 0), key=lambda cause: -cause.ns)


def reason(root: RecordedSpan) -> str:
    """Return such as `12.3 ms: 80 % the queue of "detector" (9.84 ms); more instances … help`."""
    some = causes(root)
    if not some:
        return "the trace has too few timestamps to explain the time"
    shown = [cause for cause in some[:_MAX_CAUSES] if cause is some[0] or cause.ns >= _MIN_SHARE * root.ns]
    text = ", ".join(f"{cause.ns / max(root.ns, 1):.0%} {_cause_text(cause)} ({duration(cause.ns)})" for cause in shown)
    return f"{duration(root.ns)}: {text}; {_CAUSES[shown[0].phase][1]}"


def _cause_text(cause: SlowCause) -> str:
    text = _CAUSES[cause.phase][0]
    return text if cause.phase in _CONNECTION else f'{text} "{cause.span.model}"'
