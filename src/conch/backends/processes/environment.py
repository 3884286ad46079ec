"""Which variables of the server's environment the processes of models and engines get."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

# The server's own flags, among them keys.
_OWN = "CONCH_*"
# What programs need to run at all; an allowlist need not name them.
_BASIC = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_*", "NVIDIA_*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChildEnvironment:
    """Shell patterns of names. `deny` wins over `allow`; without `allow`, all but Conch's own variables pass."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def variables(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a child, from that of this process unless another one is given."""
        passed = {name: value for name, value in (environ or os.environ).items() if self._passes(name)}
        # Lines appear in the log when they are printed, not when some buffer is full.
        return {**passed, "PYTHONUNBUFFERED": "1"}

    def _passes(self, name: str) -> bool:
        if _matches(name, (_OWN, *self.deny)):
            return False
        return not self.allow or _matches(name, self.allow) or _matches(name, _BASIC)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
