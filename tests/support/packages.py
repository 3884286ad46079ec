"""Packages that the extra `dev`, which `make quick` installs, does not have."""

from importlib.util import find_spec

import pytest


def require(*packages: str) -> None:
    """Skip the test, or the module that is being imported, where a package is missing. Imports none."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: make setup installs it", allow_module_level=True)
