"""Environment variables of the processes of models and engines: an allowlist and a denylist."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

# Flags of the server, among them API keys.
_SERVER = "CONCH_*"
# Variables that programs need to run at all; an allowlist need not name them.
_BASIC = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_*", "NVIDIA_*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChildEnvironment:
    """Shell patterns of names. `deny` wins over `allow`; an empty `allow` passes everything except `CONCH_*`."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def variables(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a child; `environ` is this process's by default."""
        passed = {name: value for name, value in (environ or os.environ).items() if self._passes(name)}
        # So that printed lines appear in the log immediately.
        return {**passed, "PYTHONUNBUFFERED": "1"}

    def _passes(self, name: str) -> bool:
        if _matches(name, (_SERVER, *self.deny)):
            return False
        return not self.allow or _matches(name, self.allow) or _matches(name, _BASIC)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
