"""Keep the usage of devices by models up to date."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from conch.machine.accelerators.attribution.process_usage import AttributedProcess, ProcessIds, model_usage
from conch.machine.accelerators.base import VendorSample
from conch.machine.accelerators.families import ModelUsage

_log = logging.getLogger(__name__)


class ModelAttribution:
    """`usage` is that of the last samples. `processes` returns those of the server and its models."""

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
