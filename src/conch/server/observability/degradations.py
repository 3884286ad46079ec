"""The degradations of one server: what is reported at start, at load and while it runs, and what --strict refuses.

Reasons, costs and cures are in `conch.domain.degradations`. The request path does not know this module: conditions
that develop are sampled every few seconds from the statistics.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from time import monotonic
from typing import TypeAlias

from conch.base.errors import ConfigError
from conch.domain.degradations import STRICT_ALL, Degradation, reasons
from conch.domain.exposition import Family, Point

SAMPLE_INTERVAL_S = 5.0
# How long a degradation is shown after an event that ends at once, such as the restart of a process.
EVENT_S = 600.0
_MAX_SHOWN = 40  # rows of the table at start
_WIDTH = 100

Report: TypeAlias = Callable[[str, str], None]  # (reason, detail); raises ConfigError where --strict refuses it
Probe: TypeAlias = Callable[[], str]  # the detail of a condition that holds now, "" if it does not

_log = logging.getLogger(__name__)


def log_degradation(reason: str, detail: str) -> None:
    """Log a degradation that is not collected: the `Report` of parts that are used without a server."""
    _log.warning("%s", detail, extra={"fields": {"degraded": reason}})


def refuses(strict: Collection[str], reason: str) -> bool:
    """Whether --strict, whose values are `strict`, refuses a reason."""
    return reasons()[reason].refusable and (STRICT_ALL in strict or reason in strict)


class LoadReport:
    """Collects what one load of a model reports, each detail once; a `Report`. May be called in other threads."""

    def __init__(self, model: str, strict: Collection[str] = (), known: Iterable[Degradation] = ()) -> None:
        self._model = model
        self._strict = strict
        self.degradations = list(known)

    def __call__(self, reason: str, detail: str) -> None:
        """Log and keep a degradation. Raises ConfigError with the cure if --strict refuses its reason."""
        degradation = Degradation(reason, detail, self._model)
        if refuses(self._strict, reason):
            raise ConfigError(f"{degradation} (refused by --strict, reason {reason})")
        if degradation not in self.degradations:
            self.degradations.append(degradation)
            log_degradation(reason, detail)


class Degradations:
    """All degradations of one server.

    `models` yields those of the served models now, `probes` has the conditions of the server that may come and go.
    """

    def __init__(
        self,
        strict: Collection[str] = (),
        models: Callable[[], Iterable[Degradation]] = tuple,
        probes: Mapping[str, Probe] | None = None,
    ) -> None:
        self._strict = strict
        self._models = models
        self._probes = dict(probes or {})
        self._start: list[Degradation] = []
        self._holding: dict[str, str] = {}  # reason of a probe → its detail
        self._events: dict[tuple[str, str], tuple[float, str]] = {}  # (reason, model) → end (monotonic s), detail

    def report(self, reason: str, detail: str) -> None:
        """Log and keep a degradation of the server that its start finds; `check_start` refuses it."""
        log_degradation(reason, detail)
        self._start.append(Degradation(reason, detail))

    def note(self, reason: str, detail: str, model: str = "") -> None:
        """Show an event for `EVENT_S`, and log it unless it is shown already."""
        if (reason, model) not in self._events:
            log_degradation(reason, detail)
        self._events[reason, model] = (monotonic() + EVENT_S, detail)

    def check_start(self) -> None:
        """Run the probes for the first time. Raises ConfigError, with the cures, for what --strict refuses."""
        self._holding = self._probed()
        here = [*self._start, *(Degradation(reason, detail) for reason, detail in self._holding.items())]
        refused = [degradation for degradation in here if refuses(self._strict, degradation.reason)]
        if refused:
            lines = "; ".join(f"{degradation} (reason {degradation.reason})" for degradation in refused)
            raise ConfigError(f"refused by --strict: {lines}")

    def sample(self) -> None:
        """Run the probes again, log what is new, and forget what is cured or over."""
        now = self._probed()
        for reason, detail in now.items():
            if reason not in self._holding:
                log_degradation(reason, detail)
        self._holding = now
        over = [key for key, (end, _) in self._events.items() if end <= monotonic()]
        for key in over:
            del self._events[key]

    async def run(self, watch: Callable[[], None]) -> None:
        """Sample until cancelled; `watch` samples the models."""
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            self.sample()
            watch()

    def current(self) -> list[Degradation]:
        """Return all degradations that hold now, in the order of the registry."""
        degradations = [*self._start, *(Degradation(reason, detail) for reason, detail in self._holding.items())]
        degradations += self._models()
        degradations += [Degradation(reason, detail, model) for (reason, model), (_, detail) in self._events.items()]
        order = {reason: number for number, reason in enumerate(reasons())}
        return sorted(dict.fromkeys(degradations), key=lambda degradation: order[degradation.reason])

    def families(self) -> Iterator[Family]:
        """Yield the metric: a series for each model and reason, at most models × reasons."""
        series = dict.fromkeys((degradation.model, degradation.reason) for degradation in self.current())
        yield Family.of(
            "conch_degraded",
            [Point(1, {**({"model": model} if model else {}), "reason": reason}) for model, reason in series],
        )

    def log_table(self) -> None:
        """Log what runs worse than asked, the most severe in the message and all of it in a table."""
        degradations = self.current()
        if degradations:
            rows = [
                {"reason": row.reason, "model": row.model, "detail": row.detail, "costs": reasons()[row.reason].costs,
                 "cure": reasons()[row.reason].cure}
                for row in degradations
            ]  # fmt: skip
            more = f" (and {len(degradations) - 1} more)" if len(degradations) > 1 else ""
            text = f"degraded: {degradations[0].detail}{more}"
            _log.info(text, extra={"block": table(degradations), "structured": {"degraded": rows}})

    def _probed(self) -> dict[str, str]:
        return {reason: detail for reason, probe in self._probes.items() if (detail := probe())}


def table(degradations: Sequence[Degradation]) -> str:
    """Return the degradations for the console: reason, detail and cure, wrapped at 100 columns."""
    lines: list[str] = []
    for row in degradations[:_MAX_SHOWN]:
        lines.append(f"{row.reason}{f' ({row.model})' if row.model else ''}")
        for text in (row.detail, reasons()[row.reason].costs, f"cure: {reasons()[row.reason].cure}"):
            lines += wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False,
                          break_on_hyphens=False)  # fmt: skip
    if len(degradations) > _MAX_SHOWN:
        lines.append(f"and {len(degradations) - _MAX_SHOWN} more, see conch_degraded in /metrics")
    return "\n".join(lines)
