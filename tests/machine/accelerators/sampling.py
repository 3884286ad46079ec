"""Samples of NVIDIA GPUs, as the sampling process writes them."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from conch.machine.accelerators.collectors import DeviceSample, VendorSample, sample_from_json

TIMEOUT_S = 60


class Samples:
    """The lines of a process."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def line(self) -> tuple[str, bytes]:
        """The kind and the content of the next line; empty at the end."""
        assert self.process.stdout is not None
        kind, _, content = self.process.stdout.readline().rstrip().partition(b" ")
        return kind.decode(), content

    def next(self) -> VendorSample:
        kind, content = self.line()
        if kind == "started":
            kind, content = self.line()
        assert kind == "sample", (kind, content)
        return sample_from_json(content.partition(b" ")[2])


@contextmanager
def sampling(environment: Mapping[str, str], interval_s: float = 0.05, vendor: str = "nvidia") -> Iterator[Samples]:
    command = [sys.executable, "-m", "conch.machine.accelerators.sampling_process", vendor, str(interval_s)]
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        yield Samples(process)
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def native(device: DeviceSample) -> dict[str, float]:
    """The values of a device under the names of DCGM 4.7."""
    return {value.name: value.value for value in device.native}
