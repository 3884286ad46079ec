"""What is loaded on the server during a run, and changes from one configuration to the next."""

import json
from collections.abc import Mapping
from pathlib import Path

from conch.base.files.atomic import replace_file
from conch.measure.tune.knobs import ENGINE_KEYS, Document, backend_of, with_settings
from conch.measure.tune.repository_client import RepositoryClient
from conch.measure.tune.space import Value

SEPARATOR = "/"
"""Between a composing model and a knob, as in "detector/instances". A model's name has none."""


def split_settings(model: str, settings: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Return the settings of each model: of `model` itself, and of composing models by their prefixes."""
    by_model: dict[str, dict[str, Value]] = {}
    for name, value in settings.items():
        stage, separator, knob = name.partition(SEPARATOR)
        owner, knob = (stage, knob) if separator else (model, name)
        by_model.setdefault(owner, {})[knob] = value
    return by_model


class Deployment:
    """Loads configurations: `base` has the one of each model before the first change.

    `engine_files` are the model.json files of engines, by model: their settings cannot be sent to a server.
    """

    def __init__(
        self,
        client: RepositoryClient,
        model: str,
        base: Mapping[str, Document],
        engine_files: Mapping[str, Path] | None = None,
    ) -> None:
        self._client = client
        self._model = model
        self._base = dict(base)
        self._loaded = dict(base)
        self._engine_files = dict(engine_files or {})
        self._engine_texts = {name: read_if_exists(path) for name, path in self._engine_files.items()}
        self._engine_loaded = dict(self._engine_texts)

    def documents(self, settings: Mapping[str, Value]) -> dict[str, Document]:
        """Return the configuration of each model with these settings."""
        owned = split_settings(self._model, settings)
        return {name: with_settings(base, owned.get(name, {})) for name, base in self._base.items()}

    def key(self, settings: Mapping[str, Value]) -> str:
        """Return a text that is equal for settings that lead to equal configurations."""
        return json.dumps([self.documents(settings), self._engine_settings(settings)], sort_keys=True)

    def load(self, settings: Mapping[str, Value]) -> bool:
        """Load what differs from what is loaded; return whether anything did.

        Raises ServerRefusal if a configuration does not work, ServerUnreachable.
        """
        changed = False
        engine_texts = self._engine_settings(settings)
        for name, document in self.documents(settings).items():
            text = engine_texts.get(name)
            if document == self._loaded[name] and text == self._engine_loaded.get(name):
                continue
            if text is not None and text != self._engine_loaded.get(name):
                replace_file(self._engine_files[name], text.encode(), 0o600)
                self._engine_loaded[name] = text
            self._client.load(name, document)
            self._loaded[name] = document
            changed = True
        return changed

    def engine_texts(self, settings: Mapping[str, Value]) -> dict[str, tuple[Path, str | None, str]]:
        """Return path, present text and new text of each model.json that the settings change, by model."""
        return {
            name: (self._engine_files[name], self._engine_texts[name], text)
            for name, text in self._engine_settings(settings).items()
            if text is not None and text != self._engine_texts[name]
        }

    def forget(self) -> None:
        """Load everything again next time: the server has restarted, or a load failed halfway."""
        self._loaded = {name: {} for name in self._base}

    def _engine_settings(self, settings: Mapping[str, Value]) -> dict[str, str | None]:
        """Return the text of each model.json."""
        owned = split_settings(self._model, settings)
        texts: dict[str, str | None] = {}
        for name, before in self._engine_texts.items():
            backend = backend_of(self._base[name])
            given = owned.get(name, {})
            chosen = {
                keys[backend]: given[knob]
                for knob, keys in ENGINE_KEYS.items()
                if backend in keys and given.get(knob) is not None
            }
            texts[name] = json.dumps({**json.loads(before or "{}"), **chosen}, indent=2) if chosen else before
        return texts


def read_if_exists(path: Path) -> str | None:
    """Return the text of a file, None if there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else None
