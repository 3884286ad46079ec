"""Every model this server knows, and what state each of its versions is in.

Written by the lifecycle, read by every request. A version is replaced in one step, so that a request finds either the
old one or the new one and never neither.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from conch.core.served import Served
from conch.errors import InvalidRequest, NotFound


class VersionState(Enum):
    """States of a model version, by the names that the repository index shows."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"  # takes no new requests, finishes the old ones
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(slots=True)
class VersionRecord:
    """One version's state; `reason` says why it is not READY."""

    state: VersionState
    reason: str = ""


class Catalog:
    """Names and versions to served models."""

    def __init__(self) -> None:
        self._served: dict[str, dict[int, Served]] = {}
        self._newest: dict[str, Served] = {}
        self._records: dict[str, dict[int, VersionRecord]] = {}

    def __iter__(self) -> Iterator[Served]:
        for versions in self._served.values():
            yield from versions.values()

    def find(self, name: str, version: int | None) -> Served:
        """Return the version asked for, or the newest one. Raises NotFound with Triton's words."""
        if version is None:
            served = self._newest.get(name)
            if served is not None:
                return served
        else:
            served = self._served.get(name, {}).get(version)
            if served is not None:
                return served
        if name not in self._records:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if name not in self._newest:
            raise NotFound(f"Request for unknown model: '{name}' has no available versions")
        raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")

    def served(self, name: str) -> dict[int, Served]:
        """Return the versions of a model that take requests; none if it is unknown."""
        return dict(self._served.get(name, {}))

    def selected(self, name: str, version: int | None) -> list[Served]:
        """Return all versions, one model's, or one, for the statistics calls. Raises InvalidRequest as Triton does."""
        if not name:
            return list(self)
        versions = self._served.get(name)
        if not versions:
            raise InvalidRequest(f"requested model '{name}' is not available")
        if version is None:
            return list(versions.values())
        if version not in versions:
            raise InvalidRequest(f"requested model version is not available for model '{name}'")
        return [versions[version]]

    def records(self) -> Mapping[str, Mapping[int, VersionRecord]]:
        """Return the state of every version that was ever asked to load."""
        return self._records

    def note(self, name: str, version: int, state: VersionState, reason: str = "") -> None:
        """Write down a version's state without touching what is served."""
        self._records.setdefault(name, {})[version] = VersionRecord(state, reason)

    def publish(self, name: str, versions: Mapping[int, Served]) -> list[Served]:
        """Serve exactly these versions of a model from now on. Returns those that were served until now."""
        old = list(self._served.get(name, {}).values())
        if versions:
            ordered = dict(sorted(versions.items()))
            self._served[name] = ordered
            self._newest[name] = ordered[max(ordered)]
        else:
            self._served.pop(name, None)
            self._newest.pop(name, None)
        for version in versions:
            self.note(name, version, VersionState.READY)
        self._forget_answers(name, [served for served in old if served not in versions.values()])
        return old

    def _forget_answers(self, name: str, gone: Iterable[Served]) -> None:
        """Empty the caches of versions that are gone, and of the ensembles whose answers the model has a part in."""
        for served in gone:
            if served.cache is not None:
                served.cache.close()
        changed = {name}
        ensembles = [served for served in self if served.config.is_ensemble]
        while users := [one for one in ensembles if any(s.model_name in changed for s in one.config.ensemble_steps)]:
            ensembles = [one for one in ensembles if one not in users]
            changed |= {one.config.name for one in users}
            for one in users:
                if one.cache is not None:
                    one.cache.forget()

    def forget(self, name: str) -> None:
        """Drop what is known of a model that is gone from the repository."""
        self._records.pop(name, None)
