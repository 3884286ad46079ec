"""Log lines of loads, in Triton's words."""

from collections.abc import Collection, Iterable, Mapping
from logging import getLogger
from time import monotonic

from conch.base.errors import ConchError
from conch.server.core.load_errors import code_name
from conch.server.repository.namespaces import ModelId

_log = getLogger(__name__)


class LoadLog:
    """The log lines of one load; its duration is measured from the construction."""

    def __init__(self, model: ModelId) -> None:
        self._model = model
        self._started = monotonic()

    def loading(self, versions: Iterable[int]) -> None:
        """Log that versions are being started."""
        for version in versions:
            _log.info("loading: %s:%d", self._model, version)

    def loaded(self, versions: Iterable[int], kept: Iterable[int]) -> None:
        """Log that versions are served, and which of them were kept unchanged."""
        unchanged = _joined(kept)
        _log.info(
            "successfully loaded '%s' version %s in %.3f s%s",
            self._model,
            _joined(versions),
            monotonic() - self._started,
            f"; version {unchanged} unchanged" if unchanged else "",
        )

    def rearranged(self, versions: Iterable[int]) -> None:
        """Log that the instances of versions were changed."""
        seconds = monotonic() - self._started
        _log.info("rearranged the instances of '%s' version %s in %.3f s", self._model, _joined(versions), seconds)

    def failed(self, failures: Mapping[int, ConchError], *, still_served: bool, stopped: Collection[int] = ()) -> None:
        """Log why versions could not be started, whether the previous ones stay in service, and which were stopped."""
        for version, error in sorted(failures.items()):
            _log.error("failed to load '%s' version %d: %s: %s", self._model, version, code_name(error), error.message)
        consequence = "; the previous versions stay in service" if still_served else ""
        if stopped:
            consequence = f"; version {_joined(stopped)} is not served either: fix or remove what failed"
        _log.info("failed to load '%s' after %.3f s%s", self._model, monotonic() - self._started, consequence)


def replaced(model: ModelId, served: Iterable[int], previous: Iterable[int]) -> None:
    """Log the end of a reload, after the lines of the previous versions that were unloaded."""
    _log.info("serving '%s' version %s; unloaded the previous version %s", model, _joined(served), _joined(previous))


def _joined(versions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(versions)))
