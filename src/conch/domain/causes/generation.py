"""Where the time of a generation goes, by the steps of its engine."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np

from conch.domain.causes.log_index import LogIndex
from conch.domain.causes.model_batches import LOOK_NS
from conch.domain.causes.parts import Interval, Table, TimePart, carve, joined
from conch.domain.events.layout import INSTANCE_CHANGES

_MIN_CACHE_USED: Final = 900  # ‰: a KV cache that is about full
_STALLED: Final = INSTANCE_CHANGES.index("stalled")
_BETWEEN: Final = "between"  # steps of an engine, until what was between them is known


class GenerationTimes:
    """The parts of generations."""

    def __init__(self, index: LogIndex) -> None:
        self._index = index

    def parts(self, row: Any, queued: int, done: int) -> list[TimePart]:
        """Return the parts of a generation by the steps of its engine."""
        name = self._index.name(row["model"])
        first_token = min(max(int(row["first_token"] or done), queued), done)
        steps = self._index.steps(row)
        started = self._prefill_start(row, steps, queued, first_token)
        parts, at = list[TimePart](), queued
        for step in steps[np.searchsorted(steps["ended"], queued) : np.searchsorted(steps["started"], done)]:
            low, high = max(int(step["started"]), at), min(int(step["ended"]), done)
            if high <= low:
                continue
            parts += [TimePart(_BETWEEN, at, low, name)] if low > at else []
            # What the engine's process waited for a processor counts at the end of the step.
            waited = min(max(int(step["cpu_wait_ns"]), 0), high - low)
            parts += self._of_step(row, step, name, low, high - waited, started, first_token)
            parts.append(TimePart("cpu", high - waited, high, name))
            at = high
        if not parts:
            parts = self._index.stages(row, [("", queued), ("prefill", first_token), ("decode", done)])
            return carve(parts, self._engine_stalls(row, steps, queued, done), "hung", ("prefill", "decode"))
        if done > at:
            parts.append(TimePart(_BETWEEN, at, done, name))
        parts = carve(parts, self._engine_stalls(row, steps, queued, done), "hung", {part.cause for part in parts})
        parts = self._index.waits_of_loop(parts, (_BETWEEN,))
        parts = carve(parts, [(queued, first_token)], "prefill", (_BETWEEN,))
        return joined(carve(parts, [(first_token, done)], "decode", (_BETWEEN,)))

    def _of_step(
        self, row: Any, step: Any, name: str, low: int, high: int, started: int, first_token: int
    ) -> Iterator[TimePart]:
        bounds = [low, *(time for time in (started, first_token) if low < time < high), high]
        for start, end in pairwise(bounds):
            tokens = int(step["prefill_tokens"])
            if start < started:
                full = int(step["cache_used"]) >= _MIN_CACHE_USED
                yield TimePart("cache_wait" if full else "prefill_others" if tokens else "decode", start, end, name)
                continue
            if start < first_token:
                share = min(int(row["prompt_tokens"]) / tokens, 1.0) if tokens else 1.0
                cut, own = start + round((end - start) * share), "prefill"
            else:
                usual = self._usual_step(row) if tokens else 0
                cut, own = (min(start + usual, end) if usual else end), "decode"
            yield TimePart(own, start, cut, name)
            if end > cut:
                yield TimePart("prefill_others", cut, end, name)

    def _prefill_start(self, row: Any, steps: Table, queued: int, first_token: int) -> int:
        """Return when the steps that read a prompt began: the last before the first token that have as many tokens."""
        missing, start = max(int(row["prompt_tokens"]), 1), first_token
        place = int(np.searchsorted(steps["started"], first_token))
        while place and missing > 0 and int(steps[place - 1]["ended"]) > queued:
            place -= 1
            if tokens := int(steps[place]["prefill_tokens"]):
                missing, start = missing - tokens, int(steps[place]["started"])
        return min(max(start, queued), first_token)

    def _engine_stalls(self, row: Any, steps: Table, start: int, end: int) -> list[Interval]:
        """Return when the engine of a generation made no progress: until it finished a step, or was replaced."""
        model, stalls = self._index.batches(row), list[Interval]()
        for number in model.instances:
            for since, until in model.stalls(number, _STALLED, start - LOOK_NS, end):
                later = steps["ended"][np.searchsorted(steps["ended"], since, "right") :]
                stalls.append((since, min(int(later[0]), until) if len(later) else until))
        return stalls

    def _usual_step(self, row: Any) -> int:
        steps = self._index.steps(row)
        plain = steps[steps["prefill_tokens"] == 0]
        return int(np.median(plain["ended"] - plain["started"])) if len(plain) else 0
