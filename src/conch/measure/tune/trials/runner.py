"""One trial: load a configuration, measure, read the statistics of the stages, record."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from conch.machine.memory import free_memory_share
from conch.measure.tune.knobs import LOAD, Document
from conch.measure.tune.outcome import stage_loads
from conch.measure.tune.repository_client import RepositoryClient, ServerRefusal, ServerUnreachable
from conch.measure.tune.space import Value
from conch.measure.tune.state.folder import Trial, TrialLog
from conch.measure.tune.trials.deployment import Deployment
from conch.measure.tune.trials.meter import TrialMeter, TrialReading

_MIN_FREE_MEMORY = 0.05  # share of a local machine's memory


class ServerGone(ConnectionError):
    """The server does not answer, and did not come back while the tuner waited."""


@dataclass(slots=True)
class TrialRunner:
    """Runs trials. `stages` are the composing models whose statistics are read, with their instance counts."""

    client: RepositoryClient
    deployment: Deployment
    meter: TrialMeter
    log: TrialLog
    keep_watch: Callable[[], None]
    wait_s: float
    stages: Sequence[str] = ()
    say: Callable[[str], None] = print
    reused: int = 0
    _unlogged: bool = False

    def run(self, settings: Mapping[str, Value], effort: float, purpose: str = "search") -> Trial:
        """Return the trial of an earlier run if there is one, else measure. A failure is a result.

        Raises ServerGone if the server does not come back.
        """
        if (earlier := self.log.earlier(settings, effort, purpose)) is not None:
            self.reused += 1
            return earlier
        started = time.monotonic()
        reading, stages = self._measured(settings, effort)
        trial = Trial(
            dict(settings),
            effort,
            reading.figures,
            reading.failure,
            reading.notes,
            stages,
            round(time.monotonic() - started, 3),
            purpose,
        )
        self._append(trial)
        return trial

    def _append(self, trial: Trial) -> None:
        """Keep the trial for a later run. A failure, as on a full disk, does not end this run."""
        try:
            self.log.append(trial)
        except OSError as error:
            if not self._unlogged:
                self.say(f"trials cannot be stored, an interrupted run would measure them again: {error}")
            self._unlogged = True
        else:
            self._unlogged = False

    def _measured(
        self, settings: Mapping[str, Value], effort: float
    ) -> tuple[TrialReading, dict[str, dict[str, float]]]:
        self.keep_watch()
        try:
            self.deployment.load(settings)
            if self.client.access.is_local and (free := free_memory_share()) < _MIN_FREE_MEMORY:
                self.deployment.load({})
                return TrialReading(failure=f"only {free:.0%} of the machine's memory is left"), {}
            before = self.client.statistics() if self.stages else {}
            started = time.monotonic()
            reading = self.meter.measure(settings[LOAD], effort)
            window_s = time.monotonic() - started
            after = self.client.statistics() if self.stages else {}
        except ServerRefusal as refusal:
            return TrialReading(failure=f"the server refused the configuration: {refusal}"), {}
        except ServerUnreachable as error:
            self.deployment.forget()
            if not self.client.wait_until_live(self.wait_s):
                raise ServerGone(str(error)) from error
            return TrialReading(failure=f"the server went away during the trial: {error}"), {}
        documents = self.deployment.documents(settings)
        counts = {name: instance_count(documents.get(name, {})) for name in self.stages}
        loads = stage_loads(before, after, counts, window_s)
        return reading, {
            load.model: {
                "queue_s": load.queue_s,
                "compute_s": load.compute_s,
                "busy_instances": load.busy_instances,
                "instances": load.instances,
                "requests": load.requests,
            }
            for load in loads
        }


def instance_count(document: Document) -> int:
    """Return the number of instances of a configuration."""
    return sum(int(group.get("count") or 1) for group in document.get("instance_group", [])) or 1
