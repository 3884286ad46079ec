"""Validation of configuration options that make a framework read files, load libraries or start threads.

Frameworks trust their options: they open paths, load libraries, call addresses in the server's process. A model
repository may be untrusted, so its configurations are validated here first. The command line (`--backend-config`) is
not: the operator is trusted.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from conch.base.errors import ConfigError
from conch.base.files.confined import real_path
from conch.server.backends.base import ModelSource

FLAG = "--allow-native-extensions"
# No machine has more cores; a framework starts any number of threads.
MAX_THREADS = 1024

_WORDS = re.compile(r"[^a-z0-9]+")
_LIBRARIES = frozenset({"lib", "libs", "library", "libraries", "plugin", "plugins"})
_PATHS = frozenset({"path", "paths", "filepath", "file", "files", "filename", "folder", "dir", "directory"})
_BARE_NAMES = ("_prefix", "table_name")  # of files in a folder that another option gives
_ADDRESSES = re.compile(r".*(external_alloc|external_free|external_empty_cache|compute_stream|aux_streams)|context$")
_SWITCHES = ("", "0", "false", "1", "true")  # values of switches whose names contain such words


def library_path(source: ModelSource, filename: str, field: str) -> Path:
    """Return the path of a library that a configuration names.

    Raises ConfigError if the server does not allow such libraries, or if it is outside of the model's folder.
    """
    label = f"{field} '{filename}' of model '{source.config.name}'"
    path = _inside(source, filename, label)
    if not source.allow_native_extensions:
        raise ConfigError(
            f"{label} is native code, which the server would load into its own process; {FLAG}=true allows that for "
            "every model of the repository"
        )
    return path


def folder_path(source: ModelSource, name: str, field: str) -> str:
    """Return the path of a file or folder. Raises ConfigError if it is outside of the model's folder."""
    return str(_inside(source, name, f"{field} '{name}' of model '{source.config.name}'"))


def checked_session_entry(source: ModelSource, key: str, value: str) -> str:
    """Return the value of an onnxruntime session entry. Raises ConfigError for file names and too many threads."""
    words = set(_WORDS.split(key.lower()))
    if (words & (_PATHS | _LIBRARIES) and value.strip().lower() not in _SWITCHES) or "profiling" in words:
        raise ConfigError(
            f"parameter '{key}' of model '{source.config.name}' names files for onnxruntime to read or write, which a "
            "configuration may not"
        )
    if "threads" in words:
        thread_count(value, key, source.config.name)
    return value


def checked_accelerator(source: ModelSource, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of an execution accelerator with absolute paths.

    Raises ConfigError for a path outside of the model's folder, a library without the flag, and an address.
    """
    checked = dict(parameters)
    for key, value in parameters.items():
        words = set(_WORDS.split(key.lower()))
        label = f"parameter '{key}' of an execution accelerator of model '{source.config.name}'"
        if _ADDRESSES.match(key.lower()):
            raise ConfigError(f"{label} is an address in the server's memory, which a configuration may not set")
        if value.strip().lower() in _SWITCHES:
            continue
        if words & _LIBRARIES:
            paths = (library_path(source, library, f"parameter '{key}'") for library in value.split(";"))
            checked[key] = ";".join(map(str, paths))
        elif words & _PATHS or key.lower() == "load_config":
            checked[key] = folder_path(source, value, f"parameter '{key}'")
        elif key.lower().endswith(_BARE_NAMES) and value != os.path.basename(value):  # noqa: PTH119 - no path is meant
            raise ConfigError(f"{label} is '{value}'; it must be a file name without a folder")
        elif "threads" in words or "streams" in words:
            thread_count(value, key, source.config.name)
    return checked


def thread_count(text: str, key: str, model: str) -> str:
    """Return a number of threads or streams unchanged. Raises ConfigError if it exceeds MAX_THREADS.

    A text that is not a number is left to the framework.
    """
    digits = text.strip()
    if digits.isascii() and digits.isdecimal() and (len(digits) > len(str(MAX_THREADS)) or int(digits) > MAX_THREADS):
        raise ConfigError(f"parameter '{key}' of model '{model}' is {digits[:40]}; the maximum is {MAX_THREADS}")
    return text


def _inside(source: ModelSource, name: str, label: str) -> Path:
    folder = source.directory
    path = folder / name
    try:
        leads_out = "\0" in name or not real_path(path).is_relative_to(real_path(folder))
    except (OSError, RuntimeError, ValueError):
        leads_out = True
    if leads_out:
        raise ConfigError(f"{label} leads out of the model's folder")
    return real_path(path)
