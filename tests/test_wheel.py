"""The wheel, as users get it, with the request path compiled: it passes the tests that ask a server from outside."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tools.compile_modules import compiled_modules

ROOT = Path(__file__).parent.parent
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")

HAS_COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is not None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler: wheels made here hold the sources alone")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, and with the packages of this one; this one without a compiler.

    `make test` runs the tests that ask a server from outside only here, on what users install. The wheel is made of the
    files that the build of the image gets.
    """
    if not HAS_COMPILER:
        return Path(sys.executable)
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", f"--wheel-dir={folder}"]
    context = _copied_context(folder / "context")
    _run(sys.executable, *build, str(context), CONCH_COMPILE="must", CONCH_COMPILE_LEVEL="0")
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    target = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", f"--target={target}"]
    _run(sys.executable, *install, str(wheel))
    # After its own folder, so that the wheel hides the sources which are installed here.
    (target / "packages.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin" / "python"


def _copied_context(folder: Path) -> Path:
    """Copy what .dockerignore lets through, but for wheels."""
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        name = line[1:]
        if not line.startswith("!") or name.endswith(".whl"):
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@needs_compiler
def test_the_request_path_is_compiled(python: Path) -> None:
    names = [module.removesuffix(".py").replace("/", ".") for module in compiled_modules(ROOT / "src")]
    assert "conch.domain.scheduling.batching" in names
    code = "import importlib, sys; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]), sep='\\n')"
    files = _run(str(python), "-c", code, *names, folder=Path("/")).splitlines()
    assert len(files) == len(names)
    assert [file for file in files if not file.endswith(SUFFIX)] == []


@needs_compiler
def test_the_wheel_carries_the_chart_of_conch_k8s(python: Path) -> None:
    code = "from conch.operate.deployment.chart import chart_folder; print(chart_folder())"
    folder = Path(_run(str(python), "-c", code, folder=Path("/")).strip())
    assert folder.is_relative_to(python.parents[1])
    source = ROOT / "deploy" / "helm" / "conch"
    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} == files
    assert len(list((folder / "files" / "dashboards").glob("*.json"))) == 8
    assert "kind: Deployment" in _run(str(python), "-m", "conch", "k8s", "render", "demo", folder=Path("/"))


@pytest.mark.timeout(1200)  # each of the hundreds of tests has its own limit
@pytest.mark.parametrize("folder", ["conformance", "robustness"])
def test_a_server_answers_clients_as_it_should(python: Path, folder: str) -> None:
    output = _run(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/server/{folder}")
    assert " passed" in output, output


def _run(*command: str, folder: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def test_the_wheel_carries_the_templates_of_conch_new(python: Path, tmp_path: Path) -> None:
    printed = _run(str(python), "-m", "conch", "new", "finder", "--from", "onnx", folder=tmp_path)
    assert "finder/client.py" in printed
    assert (tmp_path / "finder" / "models" / "finder" / "1" / "model.onnx").is_file()
