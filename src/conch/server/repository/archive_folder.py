"""A folder into which a platform has unpacked an archive of models, as roots of a repository."""

import re
from pathlib import Path

from conch.base.errors import ConfigError
from conch.domain.files.model_folder import is_model_name
from conch.server.repository.model_dir import ModelDirRoot
from conch.server.repository.model_kinds import is_model_folder
from conch.server.repository.model_location import Root
from conch.server.repository.roots import LocalRoot

_ENSEMBLE = re.compile(rb'platform\s*:\s*"ensemble"')
_MAX_CONFIG_BYTES = 1 << 20


def archive_roots(folder: Path, name: str) -> tuple[Root, ...]:
    """Return the roots with the archive's model under `name`, and with the models of an ensemble's steps. Does I/O.

    The folder is a model's folder or has one of a model, or of an ensemble and its steps. Raises ConfigError.
    """
    try:
        inner = [path for path in sorted(folder.iterdir()) if is_model_name(path.name) and is_model_folder(path)]
        ensembles = [path for path in inner if _is_ensemble(path / "config.pbtxt")]
    except OSError as error:
        raise ConfigError(f"'{folder}' cannot be read: {error.strerror}") from error
    if is_model_folder(folder) or not inner:
        return (ModelDirRoot(folder, name),)
    chosen = ensembles or inner
    if len(chosen) > 1:
        names = ", ".join(f"'{path.name}'" for path in chosen)
        raise ConfigError(f"'{folder}' has several models, of which one must be an ensemble of the others: {names}")
    main = ModelDirRoot(chosen[0], name)
    return (main, LocalRoot(folder)) if len(inner) > 1 else (main,)


def _is_ensemble(config: Path) -> bool:
    if not config.is_file():
        return False
    with config.open("rb") as file:
        return _ENSEMBLE.search(file.read(_MAX_CONFIG_BYTES)) is not None
