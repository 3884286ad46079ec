"""The journal of trials: one JSON line each, so that an interrupted run continues where it was."""

import hashlib
import json
import os
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from conch.measure.tune.space import Value
from conch.measure.tune.state.folder import StateFolder


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement of one configuration under one load. `figures` is empty if it failed, with the cause."""

    settings: dict[str, Value]
    effort: float
    figures: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    notes: tuple[str, ...] = ()
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    """Composing model → queue_s, compute_s per request of the ensemble, executions."""
    duration_s: float = 0.0
    purpose: str = "search"  # or "final"


class TrialLog:
    """Appends trials and returns those of an earlier run with the same environment, each once, in order."""

    def __init__(self, folder: StateFolder, environment: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Assign; `environment` is all that makes measurements comparable, `fresh` ignores earlier ones."""
        self._path = folder.trials
        self._digest = digest(environment)
        self._earlier: defaultdict[str, deque[Trial]] = defaultdict(deque)
        self._fresh = fresh
        self.found = 0

    def read(self) -> None:
        """Read earlier trials. A last line that was cut off is ignored. Raises OSError."""
        if self._fresh or not self._path.exists():
            return
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                value = json.loads(line)
                if value.pop("environment") != self._digest:
                    continue
                trial = Trial(**_with_tuples(value))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue
            self._earlier[_key(trial.settings, trial.effort, trial.purpose)].append(trial)
            self.found += 1

    def earlier(self, settings: Mapping[str, Value], effort: float, purpose: str) -> Trial | None:
        """Return an earlier trial with these settings, once."""
        trials = self._earlier.get(_key(settings, effort, purpose))
        return trials.popleft() if trials else None

    def append(self, trial: Trial) -> None:
        """Write a trial durably. Raises OSError."""
        line = json.dumps({"environment": self._digest, **asdict(trial)}) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            if file.tell() and not _ends_with_newline(self._path):
                file.write("\n")
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def digest(value: Mapping[str, Any]) -> str:
    """Return a digest of JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()[:16]


def _ends_with_newline(path: Any) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return bool(file.read(1) == b"\n")


def _key(settings: Mapping[str, Value], effort: float, purpose: str) -> str:
    return json.dumps([sorted(settings.items(), key=lambda item: item[0]), effort, purpose], default=list)


def _with_tuples(value: dict[str, Any]) -> dict[str, Any]:
    settings = {key: tuple(each) if isinstance(each, list) else each for key, each in value["settings"].items()}
    return {**value, "settings": settings, "notes": tuple(value["notes"])}
