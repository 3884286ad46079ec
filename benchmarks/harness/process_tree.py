"""What a server costs: processor time and memory of all its processes, read from /proc.

A server is started as the leader of a new session. Everything in that session, and every descendant, belongs to
it, so that children count whether or not their parent is still there.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessStat:
    """The fields of /proc/<pid>/stat that matter here (proc(5)), times in clock ticks."""

    pid: int
    parent: int
    session: int
    own_ticks: int
    reaped_children_ticks: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one stat line. The command name may hold blanks and brackets, so fields count from its last bracket."""
        pid = int(text[: text.index(" ")])
        fields = text[text.rindex(")") + 2 :].split()
        return cls(
            pid=pid,
            parent=int(fields[1]),
            session=int(fields[3]),
            own_ticks=int(fields[11]) + int(fields[12]),
            reaped_children_ticks=int(fields[13]) + int(fields[14]),
        )


@dataclass(frozen=True)
class ProcessTree:
    """All processes of the server whose session leader is `root`."""

    root: int

    def processes(self) -> list[ProcessStat]:
        """Return the living members, the root first; empty when the server is gone."""
        everyone = _all_processes()
        if self.root not in everyone:
            return []
        members = {self.root}
        # Process ids wrap around, so a child may be listed before its parent: repeat until nothing is added.
        while added := {
            stat.pid
            for stat in everyone.values()
            if stat.pid not in members and (stat.parent in members or stat.session == self.root)
        }:
            members |= added
        return [everyone[pid] for pid in sorted(members, key=lambda pid: (pid != self.root, pid))]

    def cpu_seconds(self) -> float:
        """Return user plus system time that the tree has used since its start, exited children included."""
        ticks = sum(stat.own_ticks + stat.reaped_children_ticks for stat in self.processes())
        return ticks / TICKS_PER_SECOND

    def proportional_set_bytes(self) -> int:
        """Return the memory of the tree, each shared page divided among those who map it (PSS)."""
        return sum(proportional_set_bytes(stat.pid) for stat in self.processes())


def _all_processes() -> dict[int, ProcessStat]:
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = ProcessStat.parse((entry / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended since the directory was listed
            stats[stat.pid] = stat
    return stats


def proportional_set_bytes(pid: int) -> int:
    """Return the memory of one process, each shared page divided among those who map it (PSS); 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
