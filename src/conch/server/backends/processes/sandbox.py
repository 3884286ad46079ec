"""Sandbox of models' processes: user, Landlock and resource limits, from `--backend-config=<backend>,user=…` etc.

The process applies the rules to itself before it imports the model; see `conch_child/ipc/sandbox.py`.
"""

import json
import os
import tempfile
import threading
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from conch.base.errors import ConfigError, ModelLoadError
from conch.base.files.confined import real_path
from conch.server.backends.base import ModelSource
from conch.server.backends.child.conch_child.ipc.sandbox import landlock_abi, user
from conch.server.backends.child.conch_child.ipc.wire import Message
from conch.server.backends.processes.launch import Connection, Launcher, Process
from conch.server.backends.processes.remove_tree import remove_tree

# Setting → the resource that it limits. A model's configuration may lower each limit by a parameter of the same name.
_MAX_DIGITS = 18  # of a limit
_LIMITS = {"memory-limit-bytes": "memory", "process-limit": "processes", "open-file-limit": "files"}
SETTINGS = ("user", "landlock", "landlock-read", "landlock-write", *_LIMITS)


class Confinable(Protocol):
    """A launcher whose processes can apply sandbox rules to themselves."""

    def confined(self, rules: str) -> Launcher:
        """Return a launcher of processes that apply these rules (JSON) before anything else."""


def confined(launcher: Launcher, source: ModelSource) -> Launcher:
    """Return a launcher of a model's processes that applies the sandbox settings of its backend.

    Without such settings that is `launcher` itself; otherwise `launcher` must be `Confinable`. Raises ConfigError for
    an invalid setting, ModelLoadError for one that this machine does not support or this user is not allowed.
    """
    chosen = {key: source.settings[key] for key in SETTINGS if key in source.settings}
    lowered = [key for key in _LIMITS if key in source.config.parameters]
    if not chosen and not lowered:
        return launcher
    where = f"--backend-config={source.config.backend}"
    rules: dict[str, Any] = {"limits": _limits(source, where), "landlock": _switch(chosen, where)}
    if "user" in chosen:
        rules |= _user(chosen["user"], where)
    elif "processes" in rules["limits"] and os.geteuid() == 0:
        raise ModelLoadError(f"{where},process-limit=<n> does not apply to root: it needs {where},user=<name>, too")
    if rules["landlock"] and not landlock_abi():
        raise ModelLoadError(
            f"{where},landlock=true needs Landlock, which this kernel does not have: it takes Linux 5.13 or newer with "
            "landlock among its security modules (lsm=)"
        )
    own = (source.directory, *source.linked)
    rules["read"] = [*(str(real_path(path)) for path in own), *_paths(chosen, "landlock-read", where)]
    rules["write"] = _paths(chosen, "landlock-write", where)
    return _Confined(launcher, rules)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Confined:
    """Launches processes that apply rules to themselves and have a separate folder for temporary files."""

    launcher: Confinable
    rules: Mapping[str, Any]

    async def launch(
        self, name: str, connection: Connection, shared: Sequence[int], first: Awaitable[Message]
    ) -> Process:
        """Start a process. Raises ModelLoadError."""
        try:
            folder = tempfile.mkdtemp(prefix="conch-sandbox-")
            if "uid" in self.rules:
                os.chown(folder, self.rules["uid"], self.rules["gid"])
        except OSError as error:
            raise ModelLoadError(f"cannot create a folder for temporary files of '{name}': {error}") from error
        rules = json.dumps({**self.rules, "temporary": folder})
        try:
            process = await self.launcher.confined(rules).launch(name, connection, shared, first)
        except BaseException:
            remove_tree(Path(folder))
            raise
        return _ConfinedProcess(process, Path(folder))


@dataclass(frozen=True, slots=True)
class _ConfinedProcess:
    process: Process
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> int:
        """Wait for its exit; its folder is removed in a thread, since it may hold any number of files."""
        status = self.process.wait()
        threading.Thread(target=remove_tree, args=(self.folder,), name="conch-sandbox-removal").start()
        return status


def _limits(source: ModelSource, where: str) -> dict[str, int]:
    limits: dict[str, int] = {}
    for key, resource in _LIMITS.items():
        origins = ((where, source.settings), (f"model '{source.config.name}': parameter", source.config.parameters))
        values = [_number(options[key], f"{origin},{key}") for origin, options in origins if key in options]
        if values:
            limits[resource] = min(values)
    return limits


def _number(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > _MAX_DIGITS or not int(text):
        raise ConfigError(f"{what}={text[:100]}: must be a positive whole number of up to {_MAX_DIGITS} digits")
    return int(text)


def _switch(chosen: Mapping[str, str], where: str) -> bool:
    value = chosen.get("landlock", "true" if "landlock-read" in chosen or "landlock-write" in chosen else "false")
    if value not in ("true", "false"):
        raise ConfigError(f"{where},landlock={value}: must be true or false")
    return value == "true"


def _user(text: str, where: str) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise ModelLoadError(
            f"{where},user={text}: only a server that runs as root can change the user of its children"
        )
    try:
        return user(text)
    except KeyError:
        raise ConfigError(f"{where},user={text}: unknown user or group") from None


def _paths(chosen: Mapping[str, str], key: str, where: str) -> list[str]:
    paths = [Path(text) for text in chosen.get(key, "").split(os.pathsep) if text]
    for path in paths:
        if not path.is_absolute() or not path.exists():
            raise ConfigError(f"{where},{key}={chosen[key]}: '{path}' must be an absolute path that exists")
    return [str(path) for path in paths]
