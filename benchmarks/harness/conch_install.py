"""The Conch of this checkout as users get it: a wheel, with its request path compiled, in a separate environment."""

import hashlib
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

EXTRAS = "examples,openvino,openvino-genai"


@dataclass(frozen=True)
class ConchInstall:
    """`checkout` is what is installed; `directory` holds the environment."""

    checkout: Path
    directory: Path

    @property
    def environment(self) -> Path:
        """The virtual environment."""
        return self.directory / "conch-venv"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.environment / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where pip puts the packages."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.environment / "lib" / version / "site-packages"

    def ensure(self) -> None:
        """Install the checkout as it is now; do nothing if that has been done. Takes a minute or two.

        Raises CalledProcessError when pip or the compiler fails.
        """
        stamp = self.directory / "conch-sources"
        wanted = self._fingerprint()
        if stamp.exists() and stamp.read_text() == wanted and self.python.exists():
            return
        known = stamp.exists()
        stamp.unlink(missing_ok=True)
        if not known:
            venv.create(self.environment, clear=True, with_pip=True)
        # pip builds and installs a folder again, whatever its version.
        self._pip(f"{self.checkout}[{EXTRAS}]")
        stamp.write_text(wanted)

    def _pip(self, *arguments: str) -> None:
        command = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
        subprocess.run(command, check=True, env={**os.environ, "CONCH_COMPILE": "must"})

    def _fingerprint(self) -> str:
        files = [self.checkout / "pyproject.toml", self.checkout / "hatch_build.py"]
        files += sorted((self.checkout / "src").rglob("*.py"))
        digest = hashlib.sha256(EXTRAS.encode())
        for file in files:
            digest.update(str(file.relative_to(self.checkout)).encode() + file.read_bytes())
        return digest.hexdigest()
