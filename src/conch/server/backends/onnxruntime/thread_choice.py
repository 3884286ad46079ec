"""How many threads the runs of an ONNX model get, and how many runs share the cores: by a short measurement at load.

It depends on the model: threads that share short operators wait for each other most of the time, and concurrent runs
read large weights from memory several times. DenseNet-121 on two cores makes 40 inferences a second in one run with two
threads, and 62 in two runs with one thread each; a sentence encoder of a few layers takes 110 µs with one thread and
140 µs with two. The result is kept for the next load, in a file named after the model's digest and the machine.
"""

import json
import platform
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from logging import getLogger
from math import inf
from pathlib import Path
from threading import Lock
from time import monotonic_ns, perf_counter
from typing import Any, TypeAlias

from conch.base.files.atomic import replace_file
from conch.base.process.process_stat import CpuWait
from conch.base.process.running_servers import user_folder

_log = getLogger(__name__)

# A measurement ends with the round in which this time is over, or twice this time while others have the cores.
_BUDGET_S = 0.5
_MAX_ROUNDS = 10
# A model whose first run takes longer is not measured.
_MAX_RUN_S = 1.0
# The share of a run which its threads may wait for cores that others have.
_MAX_WAIT = 0.02
# Concurrent runs as short as the hand-over between threads gain nothing.
_MIN_LANE_S = 1e-3
# What is less than this factor better counts as equal; then fewer threads are chosen, or no lanes.
_MARGIN = 1.1
# Threads of a lane that are tried; each number needs another session.
_LANE_THREADS = (4, 1)

# Of the threads of one run, where it could not be measured.
_DEFAULT_SPEEDUP = 0.65
_TASKS = Path("/proc/self/task")
_CPU_MODEL = re.compile(r"^(?:model name|CPU implementer|CPU part)\s*:.*$", re.MULTILINE)

Arrangement: TypeAlias = tuple[int, int]
"""Concurrent runs, and the threads of each."""


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """Threads of a run that is alone, and what runs where several are wanted at once: `lanes`, 1 for no more."""

    alone: int
    lanes: int = 1
    lane_threads: int = 1
    break_even: int = 2  # concurrent requests from which on lanes pay
    patience: float = 1.0  # the share of a lone run which its threads may wait for cores before a lane is faster

    def __str__(self) -> str:
        together = (
            f"{self.lanes} concurrent runs with {self.lane_threads} each" if self.lanes > 1 else "one run at a time"
        )
        return f"{self.alone} thread{'s' * (self.alone > 1)} alone, {together}"


class ThreadChoices:
    """The choices of a server. Models are measured one after the other, from any thread."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` keeps the choices, by default below the user's cache."""
        self._folder = folder
        self._known: dict[str, ThreadChoice] = {}
        self._lock = Lock()

    def get(
        self, model: Path, identity: object, threads: int, open_run: Callable[[int], Callable[[], object]]
    ) -> ThreadChoice | None:
        """Return the choice for a model file, measured with `threads` cores unless it is known.

        `open_run` opens a session with that many threads and returns one run of it; what it raises is raised. None if
        the model is too slow. `identity` is what the choice depends on beside model and machine.
        """
        with self._lock:
            key = _key(model, identity, threads)
            choice = self._known.get(key) or self._read(key, threads)
            if choice is None:
                times = measure(open_run, threads)
                if times is None:
                    return None
                choice = choose(times, threads)
                _log.info("measured '%s': %s (%s)", model, choice, _text(times))
                if inf in times.values():  # measured again by the next load
                    return choice
                self._write(key, choice)
            self._known[key] = choice
            return choice

    def _read(self, key: str, threads: int) -> ThreadChoice | None:
        try:
            values = json.loads(self._file(key).read_text())
            choice = ThreadChoice(*(values[name] for name in ThreadChoice.__slots__))
            fits = 1 <= choice.alone <= threads and choice.lanes >= 1 <= choice.lane_threads and choice.break_even >= 1
            return (
                choice if fits and choice.lanes * choice.lane_threads <= threads and 0 <= choice.patience <= 1 else None
            )
        except (OSError, ValueError, TypeError, LookupError):
            return None

    def _write(self, key: str, choice: ThreadChoice) -> None:
        try:
            file = self._file(key)
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, json.dumps(asdict(choice)).encode())
        except OSError as error:
            _log.debug("the choice of threads is not kept: %s", error)

    def _file(self, key: str) -> Path:
        return (self._folder or user_folder("XDG_CACHE_HOME", ".cache") / "onnxruntime") / f"{key}.json"


def measure(open_run: Callable[[int], Callable[[], object]], threads: int) -> dict[Arrangement, float] | None:
    """Return the shortest seconds of a round of each arrangement, without the time in which others had the cores.

    None if the first run takes too long. Where others had the cores in all rounds with several threads, their time is
    infinite.
    """
    runs = {threads: _Run(open_run, threads)}
    began = perf_counter()
    runs[threads].take()
    if perf_counter() - began > _MAX_RUN_S:
        return None
    runs |= {number: _Run(open_run, number) for number in _LANE_THREADS if number < threads}
    arrangements = [(1, threads), (1, 1), *((threads // number, number) for number in runs if number < threads)]
    times: dict[Arrangement, float] = {}
    with ThreadPoolExecutor(threads, thread_name_prefix="threads") as pool:
        for run in runs.values():
            run.take()  # allocates memory
        began = perf_counter()
        for _ in range(_MAX_ROUNDS):
            for arrangement in arrangements:
                number, lane_threads = arrangement
                taken = max(pool.map(lambda run: run.take(), [runs[lane_threads]] * number))
                times[arrangement] = min(taken, times.get(arrangement, taken))
            if perf_counter() - began > _BUDGET_S * (2 if inf in times.values() else 1):
                break
    return times


class _Run:
    """A run of a session, and the threads that it has beside the caller's."""

    def __init__(self, open_run: Callable[[int], Callable[[], object]], threads: int) -> None:
        others = set(_TASKS.iterdir())
        self._run = open_run(threads)
        self._workers = [task / "schedstat" for task in set(_TASKS.iterdir()) - others] if threads > 1 else []

    def take(self) -> float:
        """Run; return the seconds without a wait for a core, infinity if another thread has waited for one."""
        wait = CpuWait()
        waited, workers_waited = wait.total_ns() or 0, self._workers_waited()
        began = monotonic_ns()
        self._run()
        wall = monotonic_ns() - began
        taken = max(wall - (wait.total_ns() or 0) + waited, 1)
        wait.close()
        return taken / 1e9 if self._workers_waited() - workers_waited <= _MAX_WAIT * wall else inf

    def _workers_waited(self) -> int:
        with suppress(OSError):
            return sum(int(task.read_text().split()[1]) for task in self._workers)
        return 0


def choose(times: Mapping[Arrangement, float], threads: int) -> ThreadChoice:
    """Return the choice for the times that rounds of arrangements take, among them (1, `threads`) and (1, 1)."""
    single, whole = times[1, 1], times[1, threads]
    if whole == inf:
        whole = single if single < _MIN_LANE_S else single / (threads * _DEFAULT_SPEEDUP)
    alone, taken = (1, single) if single <= whole * _MARGIN else (threads, whole)
    best: Arrangement = (1, alone)
    rate = 1 / taken
    for (number, lane_threads), seconds in sorted(times.items(), key=lambda item: item[0]):
        if number > 1 and seconds >= _MIN_LANE_S and number / seconds >= rate * _MARGIN:
            best, rate = (number, lane_threads), number / seconds
    if best[0] == 1:
        return ThreadChoice(alone)
    lane = times[best]
    # A lone run that waits for a core for this share of its time takes as long as one in a lane, with fewer threads.
    patience = max(0.0, 1 - taken / lane)
    return ThreadChoice(alone, *best, break_even=max(2, -int(-lane // taken)), patience=patience)


def _key(model: Path, identity: object, threads: int) -> str:
    with model.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    try:
        machine = sorted(set(_CPU_MODEL.findall(Path("/proc/cpuinfo").read_text())))
    except OSError:
        machine = []
    parts: list[Any] = [digest, identity, threads, platform.machine(), machine]
    return sha256(json.dumps(parts, default=str).encode()).hexdigest()[:32]


def _text(times: Mapping[Arrangement, float]) -> str:
    return ", ".join(
        f"{runs} × {threads}: {'cores were busy' if seconds == inf else f'{seconds * 1e3:.3g} ms'}"
        for (runs, threads), seconds in times.items()
    )
