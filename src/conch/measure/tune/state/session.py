"""The protection of models that a run changes: saved before the first change, restored after any end of the run."""

import os
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from conch.measure.tune.deployment import read_if_exists
from conch.measure.tune.repository_client import RepositoryClient, ServerUnreachable
from conch.measure.tune.state.folder import StateFolder
from conch.measure.tune.state.saved_state import SavedFile, SavedModel, SavedState, restore, save_models, saved_state
from conch.measure.tune.state.watchdog import Watchdog

_GONE = (
    "the server is gone: {}; when it is back, restore the model by: conch tune --restore (until then a process in the "
    "background tries that, for half an hour)"
)


class TuningInProgress(RuntimeError):
    """Another tuner, or its watchdog, has the model."""


class ModelSession:
    """Call `open`, `protect` before a change, `restore`, and `close`."""

    def __init__(self, client: RepositoryClient, folder: StateFolder, model: str, say: Callable[[str], None]) -> None:
        self._client = client
        self._folder = folder
        self._model = model
        self._say = say
        self._run = uuid.uuid4().hex[:12]
        self._watchdog = Watchdog(folder, self._run)
        self._saved: SavedState | None = None

    def open(self) -> None:
        """Acquire the lock; restore what a run that was killed has left.

        Raises TuningInProgress, ServerUnreachable, OSError, and ValueError for damaged state.
        """
        self._folder.create()
        if not self._folder.lock():
            raise TuningInProgress(f"another conch tune works on model '{self._model}'; see {self._folder.path}")
        if (left := saved_state(self._folder)) is not None:
            self._say(f"a run of {left.started_at} ended without restoring its models; restoring now")
            failures = restore(self._client, self._folder, left, self._say)
            if failures:
                raise RuntimeError("\n".join(failures))

    def protect(self, models: Sequence[str], files: Sequence[Path] = ()) -> None:
        """Save the state of models and files that are not saved yet, and start the watchdog. Raises OSError."""
        before = self._saved
        known_models: tuple[SavedModel, ...] = before.models if before else ()
        known_files: tuple[SavedFile, ...] = before.files if before else ()
        names = [name for name in models if name not in {model.name for model in known_models}]
        paths = [path for path in files if str(path) not in {file.path for file in known_files}]
        self._saved = SavedState(
            run=self._run,
            pid=os.getpid(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            access=self._client.access,
            model=self._model,
            models=(*known_models, *save_models(self._client, names)),
            files=(*known_files, *(SavedFile(str(path), read_if_exists(path)) for path in paths)),
        )
        self._saved.save(self._folder)
        if before is None:
            self._watchdog.start()

    def keep_watch(self) -> None:
        """Start another watchdog if the first one has died."""
        self._watchdog.keep_alive()

    def restore(self, wait_s: float) -> list[str]:
        """Put everything back, waiting for the server if it is gone. Returns what could not be restored and why."""
        if self._saved is None:
            return []
        try:
            failures = restore(self._client, self._folder, self._saved, self._say)
        except ServerUnreachable as error:
            self._say(f"{error}; waiting up to {wait_s:g} s for the server, to restore the model")
            if not self._client.wait_until_live(wait_s):
                return [_GONE.format(error)]
            return self.restore(0)
        except OSError as error:
            return [f"a file cannot be restored: {error}; the watchdog and 'conch tune --restore' try again"]
        if not failures:
            self._saved = None
        return failures

    def close(self) -> None:
        """End the watchdog, unless there is something left to restore, and release the lock."""
        self._watchdog.end(restored=self._saved is None)
        self._folder.unlock()
