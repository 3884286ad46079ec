"""How many clients send requests at which time: `15s:1,60s:10,20s:1`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from conch.base.errors import ConfigError

_STAGE = re.compile(r"(\d+(?:\.\d+)?)(s|m):(\d+)")
_MAX_CLIENTS = 500


@dataclass(frozen=True, slots=True)
class LoadStage:
    """A number of clients for a duration. Each sends a request when the answer to its previous one has come."""

    duration_s: float
    clients: int


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """Stages, one after another."""

    stages: Sequence[LoadStage]

    @property
    def duration_s(self) -> float:
        """The duration of all stages."""
        return sum(each.duration_s for each in self.stages)

    @property
    def peak(self) -> int:
        """The highest number of clients."""
        return max(each.clients for each in self.stages)

    def clients_at(self, elapsed_s: float) -> int:
        """Return the number of clients; after the end that of the last stage."""
        ends = accumulate(each.duration_s for each in self.stages)
        for stage, end in zip(self.stages, ends, strict=True):
            if elapsed_s < end:
                return stage.clients
        return self.stages[-1].clients


def parse_profile(text: str) -> LoadProfile:
    """Return the profile of a text. Raises ConfigError."""
    found = [_STAGE.fullmatch(each.strip()) for each in text.split(",")]
    stages = [LoadStage(float(each[1]) * (60 if each[2] == "m" else 1), int(each[3])) for each in found if each]
    if len(stages) < len(found) or any(not each.duration_s or each.clients > _MAX_CLIENTS for each in stages):
        raise ConfigError(
            f"'{text}' is not a valid load profile: stages of a duration and at most {_MAX_CLIENTS} clients, "
            "such as 15s:1,60s:10,20s:1"
        )
    return LoadProfile(stages)
