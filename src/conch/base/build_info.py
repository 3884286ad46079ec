"""The version of Conch, and whether its request path is compiled."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from conch import __version__

# A module of the request path; a build compiles all of them or none.
_COMPILED_MODULE = "tensor"


def is_compiled() -> bool:
    """Whether this installation has the request path as C extensions, see `hatch_build.py`."""
    package = Path(__file__).parents[1] / "domain"
    return any((package / f"{_COMPILED_MODULE}{suffix}").is_file() for suffix in EXTENSION_SUFFIXES)


def build_line() -> str:
    """Return version and kind of the build, for `conch --version` and the first line of the log."""
    kind = "compiled" if is_compiled() else "not compiled, slower: see docs/install.md"
    return f"{__version__} ({kind})"
