"""Runs pytest, and failed tests once more alone: `python -m tools.run_tests` with pytest's arguments.

A test that fails beside others and passes alone is unsteady: its cause is most often the load of other tests. It is
named at the end, and the status is that of the second run, as in CPython's regrtest.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

# More failures than this have a cause other than the load.
MAX_REPEATED = 3


class _Failures:
    """Plugin of pytest that records what failed in a run."""

    def __init__(self) -> None:
        self.tests: dict[str, None] = {}  # node ids, in order
        self.complete = True  # whether each test was collected and ran
        self.options: list[str] = []  # arguments without the paths

    def pytest_configure(self, config: pytest.Config) -> None:
        paths = config.option.file_or_dir
        self.options = [str(argument) for argument in config.invocation_params.args if argument not in paths]
        self.complete = not config.getoption("maxfail")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.complete &= report.passed or report.skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests[report.nodeid] = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        self.complete &= not error


def _passes_alone(test: str, options: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", *options, "-n", "0", f"--junitxml={report}", test]
        if subprocess.run(command, check=False).returncode:
            return False
        return all(suite.get("skipped") == "0" for suite in ET.parse(report).iter("testsuite"))


def main(arguments: list[str]) -> int:
    """Return the status of pytest, or 0 if the few tests that failed all pass alone."""
    failures = _Failures()
    status = int(pytest.main(arguments, plugins=[failures]))
    if status != pytest.ExitCode.TESTS_FAILED or not failures.complete or not 0 < len(failures.tests) <= MAX_REPEATED:
        return status
    unsteady: list[str] = []
    failed: list[str] = []
    for test in failures.tests:
        print(f"\nrunning {test} again, alone", flush=True)
        (unsteady if _passes_alone(test, failures.options) else failed).append(test)
    for tests, problem in ((unsteady, "unsteady: failed beside others, passed alone"), (failed, "failed twice")):
        if tests:
            print(f"\n{len(tests)} {'test' if len(tests) == 1 else 'tests'} {problem}")
            print(*(f"    {test}" for test in tests), sep="\n", flush=True)
    return status if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
