"""Match the processes that use a device with model instances and engines.

A driver reports process ids of its namespace, which is that of the machine. A server in a container with its own
namespace has other ids for the same processes: then `/proc` of the machine, mounted into the container, has both.
A process belongs to the model whose process it is or descends from: engines start workers.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conch.machine.accelerators.collectors import ProcessUsage, VendorSample
from conch.machine.accelerators.families import ModelUsage

OWN_PROC = Path("/proc")
# The inode of the first process id namespace, a constant of Linux (PROC_PID_INIT_INO).
_FIRST_NAMESPACE = 0xEFFFFFFC
_MAX_ANCESTORS = 64


@dataclass(frozen=True, slots=True)
class AttributedProcess:
    """A process of a model, with its id in the namespace of the server. The server's own has the instance "server"."""

    pid: int
    model: str
    version: str
    instance: str


class ProcessIds:
    """Translates the driver's process ids to ids of this process's namespace.

    `host_proc` is `/proc` of the machine. Without it, ids are translated only if the two namespaces are the same:
    an equal number in another namespace is another process.
    """

    def __init__(self, host_proc: Path | None = None, own_proc: Path = OWN_PROC) -> None:
        self._proc = host_proc or own_proc
        self._namespace = _namespace(own_proc / "self")
        self._is_host = host_proc is None and self._namespace == _FIRST_NAMESPACE
        self._is_mounted = host_proc is not None

    @property
    def usable(self) -> bool:
        """Whether ids can be translated."""
        return self._is_host or self._is_mounted

    def lineage(self, pid: int) -> Iterator[int]:
        """Yield the ids, in this namespace, of a process of the driver's and of its ancestors."""
        for _ in range(_MAX_ANCESTORS if self.usable else 0):
            status = _status(self._proc / str(pid))
            if not status:
                return
            if self._is_host:
                yield pid
            elif _namespace(self._proc / str(pid)) == self._namespace:
                yield int(status.get("NSpid", str(pid)).split()[-1])
            pid = int(status.get("PPid", "0"))
            if pid <= 0:
                return


def model_usage(
    samples: Iterable[VendorSample], models: Sequence[AttributedProcess], ids: ProcessIds
) -> list[ModelUsage]:
    """Return the usage of each device by each model's process with its descendants, summed."""
    by_pid = {model.pid: model for model in models}
    usages: dict[tuple[str, AttributedProcess], list[ProcessUsage]] = {}
    for sample in samples:
        for device in sample.devices:
            for process in device.processes:
                owner = _owner(process.pid, by_pid, ids)
                if owner is not None:
                    usages.setdefault((device.device.uuid, owner), []).append(process)
    return [
        ModelUsage(
            model.model,
            model.version,
            model.instance,
            uuid,
            _sum(process.memory_bytes for process in processes),
            _sum(process.utilization_ratio for process in processes),
        )
        for (uuid, model), processes in usages.items()
    ]


def server_process(pid: int, in_process: Iterable[tuple[str, str]]) -> AttributedProcess:
    """Return the entry of the server's process. `in_process` are models and versions that run in its threads.

    Their usage cannot be distinguished: with one model the process is that model's, with several it has no model.
    """
    models = set(in_process)
    model, version = models.pop() if len(models) == 1 else ("", "")
    return AttributedProcess(pid, model, version, "server")


def _owner(pid: int, by_pid: Mapping[int, AttributedProcess], ids: ProcessIds) -> AttributedProcess | None:
    return next((by_pid[ancestor] for ancestor in ids.lineage(pid) if ancestor in by_pid), None)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _status(process: Path) -> dict[str, str]:
    """Return the fields of a process's status, none if it has ended."""
    try:
        lines = (process / "status").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _namespace(process: Path) -> int:
    """Return the inode of a process's namespace of process ids, 0 if it has ended or may not be read."""
    try:
        return (process / "ns" / "pid").stat().st_ino
    except OSError:
        return 0


_log = logging.getLogger(__name__)


class ModelAttribution:
    """`usage` follows the last samples. `processes` returns the processes of the server and its models."""

    def __init__(
        self, processes: Callable[[], Sequence[AttributedProcess]], interval_s: float, host_proc: Path | None = None
    ) -> None:
        self.usage: list[ModelUsage] = []
        self._processes = processes
        self._interval_s = interval_s
        self._ids = ProcessIds(host_proc)
        self._reported = False

    async def run(self, samples: Callable[[], Sequence[VendorSample]]) -> None:
        """Attribute until cancelled; files of processes are read in a thread."""
        while True:
            try:
                present = samples()
                self._report(present)
                self.usage = await asyncio.to_thread(model_usage, present, self._processes(), self._ids)
            except Exception:
                self.usage = []
                _log.exception("accelerators could not be attributed to models")
            await asyncio.sleep(self._interval_s)

    def _report(self, samples: Sequence[VendorSample]) -> None:
        used = any(device.processes for sample in samples for device in sample.devices)
        if used and not self._ids.usable and not self._reported:
            self._reported = True
            _log.info(
                "accelerator metrics by model are not available: this container has a separate namespace of process "
                "ids; mount /proc of the machine and set --host-proc, or use hostPID"
            )
