"""What a bundle says of the server's environment: only what lists here allow, so that it has no secrets."""

import dataclasses
import os
from fnmatch import fnmatchcase
from typing import Any, Final

from conch.base.command_line.flags import Flag
from conch.machine.environment import read_environment
from conch.server.options.server_options import OWN_FLAGS, ServerOptions

# Variables that change how programs run, and hold no secrets.
_VARIABLES: Final = (
    "OMP_*", "MKL_*", "OPENBLAS_*", "KMP_*", "GOMP_*", "ORT_*", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES", "MALLOC_*", "LD_PRELOAD", "PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHONUNBUFFERED",
    "PYTHONHASHSEED", "TZ", "LANG", "LC_*", "TMPDIR", "CONCH_HTTP_THREAD_COUNT",
)  # fmt: skip


def facts(options: ServerOptions) -> dict[str, Any]:
    """Return machine, software, allowed variables, and options that are numbers, truth values or words of a list."""
    variables = {
        name: value[:1000]
        for name, value in sorted(os.environ.items())
        if any(fnmatchcase(name, pattern) for pattern in _VARIABLES)
    }
    shown = {flag.name: value for flag in OWN_FLAGS if (value := _shown(flag, options)) is not None}
    return {**dataclasses.asdict(read_environment()), "pid": os.getpid(), "variables": variables, "options": shown}


def _shown(flag: Flag, options: ServerOptions) -> object:
    """Return the value of an option that was changed, None for others; that of a text is only that it was given."""
    value = getattr(options, flag.attribute, flag.default)
    if value == flag.default:
        return None
    return value if isinstance(value, (bool, int, float)) and not flag.kind.secret else "[given]"
