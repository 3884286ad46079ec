"""Model namespaces: find a model in several repositories.

With `--model-namespacing` every repository is a namespace, and several namespaces may contain the same model name.
Without it, all repositories together form the namespace "", in which every name is unique.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from conch.base.errors import ConfigError, NotFound
from conch.server.repository.model_location import Root
from conch.server.repository.override import Override
from conch.server.repository.store import ModelFiles, Repository
from conch.server.repository.watch import Fingerprint


class ModelId(NamedTuple):
    """A model: its namespace, which is the path of its repository or "", and its name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


class Repositories:
    """All models of the server's repositories, by `ModelId`.

    All methods except `check_reachable` do I/O; all except that and `ids` may wait for a network.
    """

    def __init__(self, repositories: Iterable[Repository]) -> None:
        self._by_namespace = {repository.namespace: repository for repository in repositories}

    @property
    def namespaced(self) -> bool:
        """Whether the repositories are namespaces."""
        return "" not in self._by_namespace

    def add(self, roots: Sequence[Root], namespace: str) -> None:
        """Add roots: to the only repository, or, where repositories are namespaces, as a further one."""
        if self.namespaced:
            any_repository = next(iter(self._by_namespace.values()))
            self._by_namespace = {**self._by_namespace, namespace: any_repository.of(roots, namespace)}
        else:
            self._by_namespace[""].add(roots)

    def remove(self, roots: Sequence[Root], namespace: str) -> None:
        """Remove roots that were added."""
        if self.namespaced:
            self._by_namespace = {key: value for key, value in self._by_namespace.items() if key != namespace}
        else:
            self._by_namespace[""].remove(roots)

    def ids(self) -> list[ModelId]:
        """Return all models, sorted. Raises ConfigError for a repository that cannot be read."""
        return sorted(
            ModelId(namespace, name)
            for namespace, repository in self._by_namespace.items()
            for name in repository.names()
        )

    def duplicates(self) -> frozenset[ModelId]:
        """Return the models that are in more than one repository of a namespace; unreadable ones count as empty."""
        models: set[ModelId] = set()
        for namespace, repository in self._by_namespace.items():
            with suppress(ConfigError):
                models.update(ModelId(namespace, name) for name in repository.duplicates())
        return frozenset(models)

    def named(self, name: str) -> list[ModelId]:
        """Return the models of a name. Raises NotFound if there is none, which is not checked without namespaces."""
        if not self.namespaced:
            return [ModelId("", name)]
        models = [
            ModelId(namespace, name) for namespace, repository in self._by_namespace.items() if repository.has(name)
        ]
        if not models:
            places = ", ".join(self._by_namespace)
            raise NotFound(f"model not found in any model repository ({places}){self.suggestion(name)}")
        return models

    def suggestion(self, name: str) -> str:
        """Return `; did you mean '…'?` or ""; see `Repository.suggestion`."""
        return next(filter(None, (repository.suggestion(name) for repository in self._by_namespace.values())), "")

    def step(self, name: str, namespace: str, own: str) -> ModelId:
        """Return the model that a step of an ensemble names.

        It is looked up in the step's `namespace` if it has one, else in the ensemble's `own` namespace, else in all of
        them, where the name must be unique. Raises NotFound, ConfigError.
        """
        if namespace:
            return ModelId(namespace, name)
        models = self.named(name)
        if ModelId(own, name) in models:
            return ModelId(own, name)
        if len(models) > 1:
            places = " and in ".join(model.namespace for model in models)
            raise ConfigError(f"model '{name}' is ambiguous: it is in {places}")
        return models[0]

    def snapshot(self) -> dict[ModelId, Fingerprint]:
        """Return the fingerprints of all models, for `watch.changes`; see `Repository.snapshot`."""
        return {
            ModelId(namespace, name): stamps
            for namespace, repository in self._by_namespace.items()
            for name, stamps in repository.snapshot().items()
        }

    def fingerprint(self, model: ModelId) -> Fingerprint:
        """Return the fingerprint of a model's files; see `Repository.fingerprint`."""
        return self._by_namespace[model.namespace].fingerprint(model.name)

    def check_reachable(self, model: ModelId) -> None:
        """Raise Unavailable if a model is known from the cache only; see `Repository.check_reachable`."""
        self._by_namespace[model.namespace].check_reachable(model.name)

    def read(self, model: ModelId, override: Override | None = None) -> ModelFiles:
        """Read the configuration of a model and list its versions; see `Repository.read`."""
        repository = self._by_namespace.get(model.namespace)
        if repository is None:
            known = ", ".join(f"'{namespace}'" for namespace in self._by_namespace)
            raise NotFound(f"there is no model repository '{model.namespace}'; there are {known}")
        return repository.read(model.name, override)
