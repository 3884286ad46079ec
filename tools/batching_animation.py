"""Writes the animation of docs/batching.md, docs/images/batching.svg; `make docs` runs it.

Requests of one arrival pattern go through `decide`, the function that the server asks, with three configurations. What
is computed is made up: a batch takes `_FIRST_MS`, and `_NEXT_MS` more for each further request.
"""

from collections.abc import Iterator
from math import inf
from pathlib import Path

from markupsafe import Markup

from conch.base.report.page import tag
from conch.domain.scheduling.batching import BatchRules, Run, decide
from conch.domain.scheduling.waiting import Waiting

_PICTURE = Path(__file__).parent.parent / "docs" / "images" / "batching.svg"

_MS = 1_000_000
_FIRST_MS, _NEXT_MS = 3.0, 0.3
_ARRIVALS_MS = (0, 0.8, 1.4, 3.2, 4.0, 4.4, 4.8, 6.0, 6.6, 7.4, 9.0, 9.6, 10.0, 11.2, 12.4, 13.0)
_END_MS = 60
_MOVE_MS = 0.35  # of a square from place to place
_SECONDS = 20  # of one round
_MAX, _DELAY_MS = 4, 2.0
_LANES = (
    ("without dynamic_batching", BatchRules(1, frozenset(), 0, single=True)),
    ("dynamic_batching { }", BatchRules(_MAX, frozenset({_MAX}), 0, single=False, largest_preferred=_MAX)),
    (
        f"dynamic_batching {{ max_queue_delay_microseconds: {_DELAY_MS * 1000:.0f} }}",
        BatchRules(_MAX, frozenset({_MAX}), int(_DELAY_MS * _MS), single=False, largest_preferred=_MAX),
    ),
)
_WIDTH, _LANE, _SIZE, _GAP = 760, 124, 22, 4  # pixels
_QUEUE_X, _INSTANCE_X, _DONE_X, _Y = 500, 580, 736, 52
_STYLE = """text{font:17px system-ui,sans-serif;fill:#24292f}.request{fill:#0a8f82}.box{fill:none;stroke:#57606a}
.number{font-size:13px;fill:#fff;text-anchor:middle}@media(prefers-color-scheme:dark){text{fill:#e6edf3}
.box{stroke:#9198a1}.number{fill:#fff}}"""


class Request(Waiting):
    """A request: when it arrives, starts and ends (ns), and where it is meanwhile: (ns, x of its square)."""

    def __init__(self, number: int, queued: int) -> None:
        super().__init__(1)
        self.number = number
        self.queued = queued
        self.started = self.ended = self.batch = 0
        self.places: list[tuple[float, float]] = []


def simulate(rules: BatchRules) -> list[Request]:
    """Return the requests after their way through the queue of a model with one instance."""
    requests = [Request(number, int(at * _MS)) for number, at in enumerate(_ARRIVALS_MS, 1)]
    coming, waiting = list(requests), list[Request]()
    free_at, wake, batches = 0, inf, 0
    while coming or waiting:
        now = int(min(coming[0].queued if coming else inf, max(wake, free_at) if waiting else inf))
        while coming and coming[0].queued <= now:
            waiting.append(coming.pop(0))
        wake = inf if now >= free_at else free_at
        if now >= free_at:
            decision = decide(waiting, rules, now)
            if isinstance(decision, Run):
                batch, waiting = waiting[: decision.number], waiting[decision.number :]
                batches += 1
                free_at = wake = now + int((_FIRST_MS + _NEXT_MS * (len(batch) - 1)) * _MS)
                for slot, request in enumerate(batch):
                    request.started, request.ended, request.batch = now, free_at, batches
                    request.places.append((now, _INSTANCE_X + 8 + slot * (_SIZE + _GAP)))
            else:
                wake = decision.until
        for slot, request in enumerate(waiting):
            place = _QUEUE_X - slot * (_SIZE + _GAP)
            if not request.places or request.places[-1][1] != place:
                request.places.append((now, place))
    return requests


def draw() -> str:
    """Return the picture: a lane for each configuration, squares that move, and what came of it."""
    parts = [tag("style", Markup(_STYLE))]
    for lane, (name, rules) in enumerate(_LANES):
        requests = simulate(rules)
        latencies = [(request.ended - request.queued) / _MS for request in requests]
        batches, end = requests[-1].batch, max(request.ended for request in requests) / _MS
        told = f"{batches} executions, done after {end:.1f} ms, mean latency {sum(latencies) / len(latencies):.1f} ms"
        top = lane * _LANE
        parts += [
            tag("text", name, x=8, y=top + 20, font_weight="bold"),
            tag("text", told, x=8, y=top + _Y + 48),
            tag("text", "queue", x=8, y=top + _Y + 16),
            tag("text", "instance", x=_INSTANCE_X, y=top + _Y - 12),
            tag("rect", x=_INSTANCE_X, y=top + _Y - 6, width=8 + _MAX * (_SIZE + _GAP), height=34, rx=4, class_="box"),
            *(_square(request, top + _Y) for request in requests),
        ]
    height = _LANE * len(_LANES)
    view = f"0 0 {_WIDTH} {height}"
    xmlns = "http://www.w3.org/2000/svg"
    label = "Sixteen requests pass through a queue and an instance, with three configurations of the batcher"
    picture = tag("svg", *parts, xmlns=xmlns, role="img", aria_label=label, width=_WIDTH, height=height, viewBox=view)
    return f"{picture}\n"


def _square(request: Request, y: int) -> Markup:
    """Return a request as a square that moves from place to place."""
    frames = list(_frames(request))
    times = ";".join(f"{at / _END_MS:.5f}" for at, _, _ in frames)
    common = {"dur": f"{_SECONDS}s", "repeatCount": "indefinite", "keyTimes": times}
    moves = ";".join(f"{x:g} {y}" for _, x, _ in frames)
    return tag(
        "g",
        tag("rect", width=_SIZE, height=_SIZE, rx=3, class_="request"),
        tag("text", str(request.number), x=_SIZE // 2, y=15, class_="number"),
        tag("animateTransform", attributeName="transform", type="translate", values=moves, **common),
        tag("animate", attributeName="opacity", values=";".join(str(seen) for _, _, seen in frames), **common),
        opacity=0,
    )


def _frames(request: Request) -> Iterator[tuple[float, float, int]]:
    """Yield (ms, x, opacity) of a square, from 0 to the end, in order."""
    at, x = request.queued / _MS, float(request.places[0][1])
    entrance = max(at, 0.001)
    yield 0.0, x - 40, 0
    yield entrance, x - 40, 0
    at = entrance + _MOVE_MS
    yield at, x, 1
    for moment, place in request.places[1:]:
        begin = max(moment / _MS, at)
        yield begin, x, 1
        at, x = begin + _MOVE_MS, place
        yield at, x, 1
    end = max(request.ended / _MS, at)
    yield end, x, 1
    yield end + _MOVE_MS, _DONE_X, 0
    yield float(_END_MS), _DONE_X, 0


if __name__ == "__main__":
    _PICTURE.write_text(draw(), "utf-8")
