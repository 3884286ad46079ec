"""Which tests run first, what is said at once about those that fail, and a temporary folder for each test process."""

import compileall
import ctypes
import faulthandler
import gc
import os
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# gRPC's handlers of forks abort a child now and then, before it executes the program that a test starts.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# Threads of OpenMP that spin beside other tests take ten times as much processor time to train a small model.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# An example takes long where the machine is busy, not only where the code is slow.
hypothesis.settings.register_profile("conch", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("conch")

# Modules that take longest, longest first: run in parallel, tests end when the last module does.
LONGEST_FIRST = (
    "test_wheel.py",
    "docs/test_code_blocks.py",
    "examples/test_observe.py",
    "operate/terraform/test_eks.py",
    "server/robustness/test_llm_slow_clients.py",
    "server/robustness/test_grpc_slow_clients.py",
    "operate/fleet/test_loop.py",
    "measure/tune/test_tune.py",
    "operate/load_balancing/test_real_proxies.py",
    "server/backends/pytorch/test_processes.py",
)

# The run ends, with the stacks of the process that hands out the tests, when it has not ended by itself. Each test has
# its own limit.
MAX_RUN_S = 3000


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        # Where PYTHONDONTWRITEBYTECODE is set, each server that a test starts would compile hundreds of modules.
        compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=2)
    if config.getoption("numprocesses", None):
        faulthandler.dump_traceback_later(MAX_RUN_S, exit=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without collections of garbage, of which modules and tests are none; they take a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()  # without them a collection takes no pause of a second
        gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:  # a run that ends early prints no summary
        print(f"\n{report.when} of {report.nodeid} failed after {report.duration:.0f} s", flush=True)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    print(f"\na test process died in {crashitem}", flush=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if error and process is not None:
        try:
            print(f"\n{node.gateway.id} ended with status {process.wait(60)}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"\n{node.gateway.id} closed its connection, and still runs", flush=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {Path(__file__).parent / module: number for number, module in enumerate(LONGEST_FIRST)}
    assert all(module.exists() for module in order), "LONGEST_FIRST names a file that does not exist"
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture(scope="session", autouse=True)
def default_signals() -> None:
    """Undo ignored signals, which servers inherit: SIGHUP under nohup, SIGINT in the background of a shell."""
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


class _SignalStack(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def _signal_state() -> tuple[object, ...]:
    libc = ctypes.CDLL(None)
    stack, action = _SignalStack(), ctypes.create_string_buffer(256)
    libc.sigaltstack(None, ctypes.byref(stack))
    libc.sigaction(signal.SIGSEGV, None, action)
    return stack.address, stack.size, action.raw[: ctypes.sizeof(ctypes.c_void_p)]


@pytest.fixture(scope="module", autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """Keep libraries out of the processes of tests that replace signal handlers or their stack.

    Helm's does the first (tests/support/helm_process.py). OpenVINO GenAI's does the second, after which a test that
    raised a signal died without a message (tests/server/backends/engines/ir_model.py).
    """
    before = _signal_state()
    yield
    assert _signal_state() == before, "a library has replaced the signal handlers or their stack"


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary folder that no other process uses, for tests that look for leftovers there."""
    tmp_path_factory.getbasetemp()  # where it always is, because pytest keeps it for a while
    with (
        tempfile.TemporaryDirectory(prefix="conch-tests-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        Path(folder).chmod(0o1777)  # some tests run as another user
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        yield
