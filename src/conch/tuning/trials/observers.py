"""Observers for memory and GPUs during trials, if their sources are known."""

from conch.bench.observers.observer import ServerObserver
from conch.tuning.repository_client import ServerAccess
from conch.tuning.settings import TuneSettings


def trial_observers(access: ServerAccess, settings: TuneSettings) -> tuple[ServerObserver, ...]:
    """Return the observers."""
    del access, settings
    return ()
