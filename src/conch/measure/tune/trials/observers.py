"""Observers of memory and GPUs during trials, where their sources are known."""

from urllib.parse import urlsplit

from conch.base.http.scrape import ScrapeSettings
from conch.measure.bench.observers.gpu_metrics import GpuMetrics
from conch.measure.bench.observers.local_processes import LocalProcesses
from conch.measure.bench.observers.observer import ServerObserver
from conch.measure.bench.observers.server_metrics import ServerMetrics
from conch.measure.tune.repository_client import ServerAccess
from conch.measure.tune.settings import TuneSettings

_DEFAULT_PORT = 80


def trial_observers(access: ServerAccess, settings: TuneSettings) -> tuple[ServerObserver, ...]:
    """Return an observer for each URL of metrics, and for the processes of a server on this machine."""
    found: list[ServerObserver] = []
    trial = settings.trial
    if trial.metrics_url is not None:
        found.append(ServerMetrics(ScrapeSettings(trial.metrics_url), settings.model, required=True))
    if trial.gpu_metrics_url is not None:
        found.append(GpuMetrics(ScrapeSettings(trial.gpu_metrics_url)))
    if access.is_local:
        found.append(LocalProcesses(urlsplit(access.url).port or _DEFAULT_PORT))
    return tuple(found)
