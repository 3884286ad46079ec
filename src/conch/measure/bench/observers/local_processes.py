"""Processes of this machine: CPU time and memory of a server that listens on a port, and the CPU time of others."""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns

from conch.base.process.process_stat import PROC, TICKS_PER_S, ProcessStat
from conch.measure.bench.measurement import Note, ServerFigures
from conch.measure.bench.observers.observer import Observed, ServerObserver, nearest

_LISTEN = "0A"
_KERNEL_THREADS = 2  # the process whose children they are
_MIN_FOREIGN_CORES = 0.1
_MIN_FOREIGN_SHARE = 0.01  # of the machine's CPUs
_MUCH_FOREIGN_SHARE = 0.1
_MAX_NAMES = 5
_MIN_NAMED = 0.1  # of what others used


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
            lines = (PROC / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    return next((pid for pid in _processes() if _has_socket(pid, inodes)), None)


class LocalProcesses(ServerObserver):
    """Reads /proc: the process tree of a server on this machine, and the CPU time of what is not part of the run."""

    def __init__(self, port: int | None) -> None:
        """`port` is where the server listens; None: it is on another machine."""
        self._port = port
        self._root: int | None = None
        self._looked = False
        self._samples: list[_Sample] = []
        self._before: dict[tuple[int, int], int] = {}  # ticks by process and the time of its start

    def sample(self) -> None:
        """Add up the trees. CPU time of descendants that have ended counts by their parents' sums."""
        if not self._looked and self._port is not None:
            self._looked = True
            self._root = listening_process(self._port)
        time_ns, busy_s = monotonic_ns(), _busy_s()
        stats = {pid: stat for pid in _processes() if (stat := ProcessStat.read(pid)) is not None}
        server = [stats[pid] for pid in _tree(self._root, stats)]
        own = _tree(os.getpid(), stats)
        known = {*own, *_tree(self._root, stats), *_tree(_KERNEL_THREADS, stats)}
        foreign: dict[str, float] = {}
        ticks = {(pid, stat.started): stat.own_ticks for pid, stat in stats.items()}
        for (pid, started), spent in ticks.items():
            grown = spent - self._before.get((pid, started), 0)
            if pid not in known and grown > 0 and self._before:
                name = f"{stats[pid].name} ({pid})"
                foreign[name] = foreign.get(name, 0.0) + grown / TICKS_PER_S
        self._before = ticks
        self._samples.append(
            _Sample(
                time_ns,
                sum(stat.cpu_s for stat in server) if server else None,
                sum(stat.resident_bytes for stat in server),
                foreign,
                busy_s,
                sum(stats[pid].cpu_s for pid in known if pid in stats),
            )
        )

    def observed(self, start_ns: int, end_ns: int) -> Observed:
        """Return CPU seconds per second, and the highest memory: pages shared by processes count for each."""
        if not self._samples:
            return Observed()
        times = [sample.time_ns for sample in self._samples]
        window = self._samples[nearest(times, start_ns) : nearest(times, end_ns) + 1]
        first, last = window[0], window[-1]
        seconds = (last.time_ns - first.time_ns) / 1e9
        notes = () if seconds <= 0 else self._foreign(window, seconds)
        if last.cpu_s is None or first.cpu_s is None:
            return Observed(notes=notes)
        cores = (last.cpu_s - first.cpu_s) / seconds if seconds > 0 else None
        memory = max(sample.memory_bytes for sample in window)
        figures = ServerFigures(cpu_cores=cores if cores is None or cores >= 0 else None, memory_bytes=memory)
        return Observed(figures, notes=notes)

    def gauges(self) -> dict[str, float]:
        if len(self._samples) < 2:
            return {}
        before, after = self._samples[-2:]
        if before.cpu_s is None or after.cpu_s is None:
            return {}
        seconds = max((after.time_ns - before.time_ns) / 1e9, 1e-3)
        return {"server CPU": max(after.cpu_s - before.cpu_s, 0.0) / seconds}

    def _foreign(self, window: "Sequence[_Sample]", seconds: float) -> tuple[Note, ...]:
        """Return a note on the CPU time of others, if it is much."""
        used = dict[str, float]()
        for sample in window[1:]:
            for name, spent in sample.foreign_s.items():
                used[name] = used.get(name, 0.0) + spent
        first, last = window[0], window[-1]
        total = sum(used.values())
        if first.busy_s is not None and last.busy_s is not None:  # others end between two samples, or are not in /proc
            total = max(total, last.busy_s - first.busy_s - (last.known_s - first.known_s))
        cores, cpus = total / seconds, os.cpu_count() or 1
        if cores < max(_MIN_FOREIGN_CORES, _MIN_FOREIGN_SHARE * cpus):
            return ()
        most = sorted(used.items(), key=lambda item: -item[1])[:_MAX_NAMES]
        named = [(name, spent) for name, spent in most if spent >= _MIN_NAMED * total]
        names = [f"{name} {spent / seconds:.2f}" for name, spent in named]
        unnamed = total - sum(spent for _, spent in named)
        if unnamed >= _MIN_NAMED * total:
            names.append(f"others {unnamed / seconds:.2f}")
        text = f"other processes used {cores:.2f} of the {cpus} CPUs of the client's machine: {', '.join(names)}"
        if self._port is not None and self._root is None:
            return (Note("foreign-load", "info", f"{text}; the server, whose process is unknown, may be among them"),)
        severity = "warning" if cores >= _MUCH_FOREIGN_SHARE * cpus else "info"
        return (Note("foreign-load", severity, text),)


@dataclass(frozen=True, slots=True)
class _Sample:
    """One reading of /proc. CPU times are seconds in total, but `foreign_s` since the sample before."""

    time_ns: int
    cpu_s: float | None  # of the server, None if its processes are unknown
    memory_bytes: int
    foreign_s: Mapping[str, float]  # by name and process
    busy_s: float | None  # of the machine
    known_s: float  # of the server, this process, its descendants, and the kernel's threads


def _busy_s() -> float | None:
    """Return how long the machine's CPUs have run processes and interrupts together."""
    try:
        columns = (PROC / "stat").read_text(encoding="ascii").partition("\n")[0].split()[1:]
        user, nice, system, _, _, irq, softirq = map(int, columns[:7])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / TICKS_PER_S


def _tree(root: int | None, stats: Mapping[int, ProcessStat]) -> list[int]:
    """Return a process and its descendants, of those that are in `stats`."""
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    tree = [root] if root is not None and root in stats else []
    for pid in tree:
        tree += children.get(pid, [])
    return tree


def _processes() -> list[int]:
    return [int(entry.name) for entry in os.scandir(PROC) if entry.name.isdecimal()]


def _has_socket(pid: int, inodes: set[str]) -> bool:
    try:
        entries = list((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return False
    for entry in entries:
        try:
            if str(entry.readlink()) in inodes:
                return True
        except OSError:
            continue
    return False
