"""Programs that the fleet runs: found on PATH, else named with the Debian package that has them."""

import os
import shutil
from collections.abc import Iterable, Mapping

from conch.base.errors import ConfigError

# Program → Debian package.
PACKAGES = {"prometheus": "prometheus", "haproxy": "haproxy", "nginx": "nginx"}
# Debian has servers in /usr/sbin, which is not on every user's PATH.
_SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def find_programs(names: Iterable[str]) -> Mapping[str, str]:
    """Return the paths of programs. Raises ConfigError with the packages of all that are missing."""
    found = {name: shutil.which(name, path=_SEARCH) for name in names}
    if missing := [name for name, path in found.items() if path is None]:
        packages = " ".join(PACKAGES[name] for name in missing)
        raise ConfigError(
            f"{' and '.join(missing)} not found on PATH; on Debian and Ubuntu: apt-get install {packages}"
        )
    return {name: str(path) for name, path in found.items()}
