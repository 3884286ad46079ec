"""The interface of views of a run."""

from abc import ABC, abstractmethod

from conch.measure.bench.measure_level import Progress
from conch.measure.bench.measurement import Measurement


class RunView(ABC):
    """Shows a run in progress. Called from the main thread, some times a second."""

    @abstractmethod
    def progress(self, progress: Progress) -> None:
        """Show the level that runs."""

    @abstractmethod
    def measured(self, measurement: Measurement) -> None:
        """Show a level that has ended."""

    @abstractmethod
    def end(self) -> None:
        """Restore the terminal."""


class QuietView(RunView):
    """Shows nothing."""

    def progress(self, progress: Progress) -> None:
        """Do nothing."""

    def measured(self, measurement: Measurement) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""
