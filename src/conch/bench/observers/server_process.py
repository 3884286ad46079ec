"""CPU time and memory of a server on this machine: the process that listens on the port, and its descendants."""

import os
import socket
from pathlib import Path
from time import monotonic_ns

from conch.bench.measurement import ServerFigures
from conch.bench.observers.observer import Gauges, Observed, ServerObserver, nearest

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LISTEN = "0A"
_PROC = Path("/proc")
# Fields of /proc/PID/stat after the name in parentheses, from 0: ppid, utime and stime, cutime and cstime, rss.
_PPID, _CPU, _RSS = 1, slice(11, 15), 21


def is_local(host: str) -> bool:
    """Return whether an address of the host belongs to this machine: whether a socket can be bound to it."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind((address[0], 0, *address[2:]))
            except OSError:
                continue
            return True
    return False


def listening_process(port: int) -> int | None:
    """Return a process that listens on the TCP port, None if there is none or it belongs to another user."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (_PROC / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    return next((pid for pid in _processes() if _has_socket(pid, inodes)), None)


def process_tree(root: int) -> list[int]:
    """Return a process and its descendants that live."""
    children: dict[int, list[int]] = {}
    for pid in _processes():
        if (stat := _stat(pid)) is not None:
            children.setdefault(int(stat[_PPID]), []).append(pid)
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree


class ServerProcess(ServerObserver):
    """Reads /proc of the process tree that listens on a port of this machine."""

    def __init__(self, port: int) -> None:
        """Assign."""
        self._port = port
        self._root: int | None = None
        self._looked = False
        self._samples: list[tuple[int, float, int]] = []  # time, CPU seconds, bytes

    def sample(self) -> None:
        """Add up the tree. CPU time of descendants that have ended counts by their parents' sums."""
        if not self._looked:
            self._looked = True
            self._root = listening_process(self._port)
        if self._root is None:
            return
        time_ns, cpu, memory = monotonic_ns(), 0.0, 0
        stats = [stat for pid in process_tree(self._root) if (stat := _stat(pid)) is not None]
        for stat in stats:
            cpu += sum(int(ticks) for ticks in stat[_CPU]) / _TICKS_PER_S
            memory += int(stat[_RSS]) * _PAGE_BYTES
        if stats:
            self._samples.append((time_ns, cpu, memory))

    def observed(self, start_ns: int, end_ns: int) -> Observed:
        """Return CPU seconds per second, and the highest memory: pages shared by processes count for each."""
        if not self._samples:
            return Observed()
        times = [sample[0] for sample in self._samples]
        first, last = nearest(times, start_ns), nearest(times, end_ns)
        seconds = (times[last] - times[first]) / 1e9
        cores = (self._samples[last][1] - self._samples[first][1]) / seconds if seconds > 0 else None
        memory = max(sample[2] for sample in self._samples[first : last + 1])
        return Observed(ServerFigures(cpu_cores=cores if cores is None or cores >= 0 else None, memory_bytes=memory))

    def gauges(self) -> Gauges:
        """Return the CPU use of the last interval."""
        if len(self._samples) < 2:
            return Gauges()
        before, after = self._samples[-2:]
        seconds = max((after[0] - before[0]) / 1e9, 1e-3)
        return Gauges({"server CPU": max(after[1] - before[1], 0.0) / seconds})


def _processes() -> list[int]:
    return [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdecimal()]


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on, None if the process has ended."""
    try:
        return (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _has_socket(pid: int, inodes: set[str]) -> bool:
    try:
        entries = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return False
    for entry in entries:
        try:
            if str(entry.readlink()) in inodes:
                return True
        except OSError:
            continue
    return False
