"""A root that is one Python file with models: functions and classes that `conch.model` declares."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.text_format import MessageToString

from conch.base.errors import ConfigError, Unavailable
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.server.backends import child
from conch.server.repository.model_location import ModelLocation
from conch.server.repository.temporary_folders import TemporaryFolders
from conch.server.repository.watch import Fingerprint, stamps_of

_DESCRIBE = (
    "import sys; sys.path.append(sys.argv[1]); from conch_child.python.app.describe import main; main(sys.argv[2])"
)
_TIMEOUT_S = 600  # of an import, which may load large libraries
# In ASCII: a path may have bytes that UTF-8 cannot encode.
_MODEL_PY = """# Runs a model of {file!a}; written by Conch.
from conch_child.python.app.function_model import from_file


class TritonPythonModel:
    def __new__(cls):
        return from_file({file!a}, {name!a})()
"""


def is_python_app(path: Path) -> bool:
    """Whether this is a Python file that declares models, judged by its text."""
    if path.suffix != ".py" or not path.is_file():
        return False
    text = path.read_bytes()
    return b"conch" in text and b"TritonPythonModel" not in text


@dataclass(frozen=True, slots=True)
class _Imported:
    """What an import of a file gave: its models or the error, and the files whose change gives something else."""

    file: Path
    stamps: Fingerprint = ()
    configs: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    error: str = ""

    def models(self) -> dict[str, dict[str, Any]]:
        """Return the configurations by name. Raises ConfigError if the import failed."""
        if self.error:
            raise ConfigError(self.error)
        return dict(self.configs)


@cache
def _first_import(file: Path) -> _Imported:
    """Import a file for the first time: `conch run` looks at the models before it makes a server of them."""
    return _import(file)


def _import(file: Path) -> _Imported:
    started = time.time_ns()
    command = [sys.executable, "-c", _DESCRIBE, str(Path(child.__file__).parent), str(file)]
    try:
        environment = {**os.environ, "PYTHONIOENCODING": f"{sys.stderr.encoding}:backslashreplace"}
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            timeout=_TIMEOUT_S,
            start_new_session=True,  # Ctrl-C in the terminal is this process's, which then kills that one
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        answer = {"error": f"{file}: the import has not ended within {_TIMEOUT_S} s"}
    except ValueError:
        answer = {"error": f"{file}: the import ended the process, with status {done.returncode}"}
    # A file that was written meanwhile may have been read before: its stamp differs at the next look.
    stamps = tuple(
        (path, 0 if changed >= started else changed, size)
        for path, changed, size in stamps_of({str(file), *answer.get("files", ())})
    )
    return _Imported(file, stamps, answer.get("models", {}), answer.get("error", ""))


class PythonAppRoot:
    """A repository whose models are those of a Python file. They all change with each module beside it that it imports.

    The file is imported by other processes only: one that reads the declarations, and those of the instances.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folders = TemporaryFolders()
        self._imported: _Imported | None = None

    def __str__(self) -> str:
        return str(self._file)

    def names(self) -> list[str]:
        """Return the names of the models. Raises ConfigError if the first import failed."""
        return sorted(self._known())

    def scan(self) -> Mapping[str, Fingerprint]:
        """Return the fingerprints of the models, after another import if files have changed. Raises ConfigError."""
        imported = self._current()
        return dict.fromkeys(imported.models(), imported.stamps)

    def fingerprint(self, name: str) -> Fingerprint:
        """Return the fingerprint of a model, () if the file does not declare it. Raises ConfigError."""
        return self.scan().get(name, ())

    def check_reachable(self, name: str) -> None:
        """Do nothing: a local file has no cache."""

    def has(self, name: str) -> bool:
        """Whether the file declares a model of this name."""
        return name in self._known()

    def find(self, name: str) -> ModelLocation | None:
        """Return a new folder with the model's configuration and code. Raises ConfigError, Unavailable."""
        imported = self._current()
        document = imported.models().get(name)
        if document is None:
            return None
        try:
            config = MessageToString(ParseDict(document, ConfigMessage()))
        except ParseError as error:
            text = str(error).partition("\n")[0]  # then it lists all fields, in another spelling
            raise ConfigError(f"{self._file}: the configuration of model '{name}' is not valid: {text}") from None
        try:
            folder = self._folders.write(name, lambda folder: _write(folder, config, self._file, name))
        except OSError as error:
            raise Unavailable(f"load of '{name}': its folder cannot be written: {error}") from error
        return ModelLocation(folder, imported.stamps, temporary=True, linked=(self._file.parent,))

    def _known(self) -> Mapping[str, dict[str, Any]]:
        """Return the configurations by name; only the first call imports the file."""
        return self._current().models() if self._imported is None else self._imported.models()

    def _current(self) -> _Imported:
        """Return what the file declares now. Its methods raise ConfigError."""
        imported = self._imported or _first_import(self._file)
        if imported.stamps != stamps_of(path for path, *_ in imported.stamps):
            imported = _import(self._file)
        self._imported = imported
        return imported


def _write(folder: Path, config: str, file: Path, name: str) -> None:
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    (folder / "1").mkdir()
    (folder / "1" / "model.py").write_text(_MODEL_PY.format(file=str(file), name=name), encoding="ascii")
