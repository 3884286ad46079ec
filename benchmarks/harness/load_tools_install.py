"""Tools of other projects, each in a virtual environment below .bench: load tools and Model Analyzer.

The C++ perf_analyzer comes in wheels of tritonclient; 2.47 is the last that runs with Debian 12's C library. It needs
two libraries that the wheel lacks: libb64, a Debian package that is unpacked without being installed, and libcudart.
"""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness.machine import CHECKOUT
from benchmarks.llm.model import write_checkpoint

PERF_ANALYZER, AIPERF, GUIDELLM = "perf_analyzer", "aiperf", "guidellm"
MODEL_ANALYZER = "model_analyzer"  # measures with perf_analyzer
LOAD_TOOLS = (PERF_ANALYZER, AIPERF, GUIDELLM)
_REQUIREMENTS = {
    PERF_ANALYZER: ("--no-deps", "tritonclient==2.47.0", "nvidia-cuda-runtime-cu12"),
    AIPERF: ("aiperf==0.13.0",),
    # The version of torch has a build for CPUs on the package index.
    GUIDELLM: ("guidellm==0.8.1", "torch==2.13.0"),
    MODEL_ANALYZER: ("triton-model-analyzer==1.58.0",),
}
_PROGRAMS = {MODEL_ANALYZER: "model-analyzer"}
_REVISION = "0" * 40
TOKENIZER = "conch/random"


@dataclass(frozen=True)
class LoadToolsInstall:
    """The tools' environments in a folder."""

    directory: Path

    def ensure(self, tools: Iterable[str] = LOAD_TOOLS) -> None:
        """Install those that are missing. Raises CalledProcessError when pip or apt-get fails."""
        for name in tools:
            requirements = _REQUIREMENTS[name]
            stamp = self._environment(name) / "requirements"
            if stamp.exists() and stamp.read_text() == " ".join(requirements):
                continue
            venv.create(self._environment(name), clear=True, with_pip=True)
            pip = [self._environment(name) / "bin" / "python", "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, "--disable-pip-version-check", *requirements], check=True)
            stamp.write_text(" ".join(requirements))
        if not self._libb64.exists():
            self._unpack_libb64()
        if not self.tokenizer.exists():
            self._write_tokenizer()

    def program(self, name: str) -> str:
        """Return the path of a tool's executable."""
        return str(self._environment(name) / "bin" / _PROGRAMS.get(name, name))

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the environment variables that a tool needs."""
        if name not in (PERF_ANALYZER, MODEL_ANALYZER):
            return {**os.environ, "HF_HOME": str(self.directory / "hugging-face"), "HF_HUB_OFFLINE": "1"}
        runtime = self._site_packages(PERF_ANALYZER) / "nvidia" / "cuda_runtime" / "lib"
        return {**os.environ, "LD_LIBRARY_PATH": f"{runtime}:{self._libb64}"}

    def size_bytes(self, name: str) -> int:
        """Return what a tool with all that it needs takes on disk, without pip."""
        files = (path for path in self._site_packages(name).rglob("*") if path.is_file() and not path.is_symlink())
        binary = Path(self.program(name))
        return sum(path.stat().st_size for path in files) + binary.stat().st_size

    @property
    def tokenizer(self) -> Path:
        """The folder of the benchmark model's tokenizer, as a cache of the Hugging Face Hub has it."""
        return self.directory / "hugging-face" / "hub" / "models--conch--random" / "snapshots" / _REVISION

    @property
    def _libb64(self) -> Path:
        return self.directory / "libb64" / "usr" / "lib" / "x86_64-linux-gnu"

    def _environment(self, name: str) -> Path:
        return self.directory / f"{name}-venv"

    def _site_packages(self, name: str) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self._environment(name) / "lib" / version / "site-packages"

    def _unpack_libb64(self) -> None:
        with TemporaryDirectory() as downloads:
            subprocess.run(["apt-get", "download", "--quiet", "libb64-0d"], cwd=downloads, check=True)
            (package,) = Path(downloads).glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", package, self.directory / "libb64"], check=True)

    def _write_tokenizer(self) -> None:
        with TemporaryDirectory() as scratch:
            checkpoint = Path(scratch) / "checkpoint"
            write_checkpoint(checkpoint)
            self.tokenizer.mkdir(parents=True)
            for file in checkpoint.glob("*.json"):
                shutil.copy(file, self.tokenizer)
        revision = self.tokenizer.parents[1] / "refs" / "main"
        revision.parent.mkdir(exist_ok=True)
        revision.write_text(_REVISION)


if __name__ == "__main__":
    LoadToolsInstall(CHECKOUT / ".bench").ensure()
