import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# What a test does. Beside others means in a process of pytest-xdist.
PASSES = "def test_passes(): pass"
FAILS = "def test_fails(): assert False"
UNSTEADY = "import os\ndef test_unsteady(): assert 'PYTEST_XDIST_WORKER' not in os.environ"
SKIPS_ALONE = """
import os, pytest
def test_skips():
    if 'PYTEST_XDIST_WORKER' not in os.environ:
        pytest.skip()
    assert False
"""
FAILS_IN_TEARDOWN = """
import os, pytest
@pytest.fixture
def resource():
    yield
    assert 'PYTEST_XDIST_WORKER' not in os.environ
def test_with_resource(resource): pass
"""
MANY = """
import os, pytest

pytestmark = pytest.mark.slow
@pytest.mark.parametrize('number', range(4))
def test_many(number): assert 'PYTEST_XDIST_WORKER' not in os.environ
"""
DIES = "import os\ndef test_dies():\n    if 'PYTEST_XDIST_WORKER' in os.environ: os._exit(1)"
DOES_NOT_IMPORT = "import missing_module"


def run(folder: Path, *arguments: str, **modules: str) -> tuple[int, str]:
    """Return the status and the output for a suite of these modules."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-loadscope-reorder --max-worker-restart=0\n")
    for name, source in modules.items():
        (folder / f"test_{name}.py").write_text(source)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    ended = subprocess.run(
        [sys.executable, "-m", "tools.run_tests", "-n", "1", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_tests_that_pass_run_once(tmp_path: Path) -> None:
    status, output = run(tmp_path, passes=PASSES)
    assert status == 0
    assert "again, alone" not in output


def test_a_test_that_passes_alone_is_named_as_unsteady(tmp_path: Path) -> None:
    status, output = run(tmp_path, passes=PASSES, unsteady=UNSTEADY, teardown=FAILS_IN_TEARDOWN)
    assert status == 0
    last = output.partition("2 tests unsteady: failed beside others, passed alone\n")[2].split()
    assert last == ["test_teardown.py::test_with_resource", "test_unsteady.py::test_unsteady"]


def test_a_test_that_fails_or_skips_alone_has_failed(tmp_path: Path) -> None:
    status, output = run(tmp_path, fails=FAILS, skips=SKIPS_ALONE, unsteady=UNSTEADY)
    assert status == 1
    assert "1 test unsteady: failed beside others, passed alone\n    test_unsteady.py::test_unsteady\n" in output
    assert "2 tests failed twice\n    test_fails.py::test_fails\n    test_skips.py::test_skips\n" in output


@pytest.mark.parametrize(
    ("modules", "arguments", "status"),
    [
        ({"many": MANY}, (), 1),
        ({"unsteady": UNSTEADY, "wrong": DOES_NOT_IMPORT}, (), 1),
        ({"unsteady": UNSTEADY, "dies": DIES}, (), 1),
        ({"fails": FAILS, "passes": PASSES}, ("-n", "0", "-x"), 1),
    ],
    ids=["too-many-failures", "collection-fails", "process-dies", "stops-at-the-first"],
)
def test_no_test_runs_again_when(
    modules: dict[str, str], arguments: tuple[str, ...], status: int, tmp_path: Path
) -> None:
    ended, output = run(tmp_path, *arguments, **modules)
    assert ended == status, output
    assert "again, alone" not in output


def test_options_hold_for_the_second_run_and_paths_do_not(tmp_path: Path) -> None:
    arguments = ("test_unsteady.py", "-k", "unsteady", "--junitxml=first.xml")
    status, output = run(tmp_path, *arguments, passes=PASSES, unsteady=UNSTEADY)
    assert status == 0
    assert output.count("collected 1 item") == 1, output
    assert 'failures="1"' in (tmp_path / "first.xml").read_text()
