"""The interface of measuring: one load on the model that is being tuned."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from conch.measure.tune.space import Value


@dataclass(frozen=True, slots=True)
class TrialReading:
    """Figures by the names of `conch.measure.tune.objective.METRICS`; empty if no request succeeded, with the cause."""

    figures: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    notes: tuple[str, ...] = ()


class TrialMeter(ABC):
    """Puts a load on the model and measures it."""

    @abstractmethod
    def measure(self, load: Value, effort: float) -> TrialReading:
        """Measure under a load (concurrent users, or requests per second) for a share of the full window.

        Raises ServerUnreachable if the server is gone.
        """

    @abstractmethod
    def expected_s(self, effort: float) -> float:
        """Return how long a measurement takes."""
