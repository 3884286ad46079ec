"""The real Triton 2.51 from the `nvidia-pytriton` wheel, in a separate virtual environment.

The wheel carries the `tritonserver` binary with its libraries, the Python backend and one stub per Python version.
PyTriton itself is not used: the binary is started straight on a model repository, as in NVIDIA's container.
`python -m benchmarks.harness.triton_install [DIRECTORY]` installs it, by default where benchmarks and tests look.
"""

import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.machine import CHECKOUT

REQUIREMENTS = (
    "nvidia-pytriton==0.7.0",
    # What the models of the works import. The stub of 2.51 was built against numpy 1 and returns empty tensors under
    # numpy 2, which later OpenCV wheels insist on.
    "numpy<2",
    "opencv-python-headless<4.12",
    "pillow",
    "onnxruntime",
)


@dataclass(frozen=True)
class TritonInstall:
    """Where one installed Triton keeps its parts; `directory` holds the environment and the arranged backends."""

    directory: Path

    @property
    def environment(self) -> Path:
        """The virtual environment whose packages the Python models see."""
        return self.directory / "triton-venv"

    @property
    def backends(self) -> Path:
        """The backend directory in the layout that the server expects: the stub beside the backend's library."""
        return self.directory / "triton-backends"

    @property
    def caches(self) -> Path:
        """The directory of the response caches."""
        return self.site_packages / "pytriton" / "tritonserver" / "caches"

    @property
    def binary(self) -> Path:
        """The server's executable."""
        return self.site_packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"

    @property
    def library_path(self) -> str:
        """The value of LD_LIBRARY_PATH: the wheel's libraries, then those of the interpreter that runs this harness.

        The second lets the stub load the same libpython that serves Conch's models, not whichever the system has.
        """
        wheel_libraries = self.site_packages / "nvidia_pytriton.libs"
        return f"{wheel_libraries}:{sysconfig.get_config_var('LIBDIR')}"

    @property
    def site_packages(self) -> Path:
        """Where pip puts the packages."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.environment / "lib" / version / "site-packages"

    def ensure(self) -> None:
        """Create or complete the installation; do nothing when it already stands with these requirements.

        Raises CalledProcessError when pip fails, FileNotFoundError when the wheel has no stub for this Python.
        """
        stamp = self.directory / "triton-requirements"
        wanted = "\n".join(REQUIREMENTS)
        if stamp.exists() and stamp.read_text() == wanted and self.binary.exists():
            return
        stamp.unlink(missing_ok=True)
        print(f"installing Triton 2.51 in {self.directory}", flush=True)
        venv.create(self.environment, clear=True, with_pip=True)
        pip = [str(self.environment / "bin" / "python"), "-m", "pip", "install"]
        subprocess.run([*pip, "--disable-pip-version-check", *REQUIREMENTS], check=True)
        self._arrange_backends()
        stamp.write_text(wanted)

    def _arrange_backends(self) -> None:
        carried = self.site_packages / "pytriton" / "tritonserver"
        shutil.rmtree(self.backends, ignore_errors=True)
        shutil.copytree(carried / "backends", self.backends, ignore=shutil.ignore_patterns("__pycache__"))
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = carried / "python_backend_stubs" / version / "triton_python_backend_stub"
        shutil.copy2(stub, self.backends / "python")


if __name__ == "__main__":
    TRITON = TritonInstall(Path(sys.argv[1] if len(sys.argv) > 1 else CHECKOUT / ".bench"))
    TRITON.ensure()
    print(f"Triton is installed: {TRITON.binary}")
