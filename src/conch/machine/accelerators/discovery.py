"""Discover the GPUs that this server can use; a driver that hangs or crashes cannot harm the server."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from logging import getLogger

from conch.machine.accelerators.gpu import Gpu, InstalledGpu
from conch.machine.accelerators.nvidia.driver import has_nvidia_driver
from conch.machine.accelerators.visible import visible_gpus

_log = getLogger(__name__)

# A driver takes a few seconds to start a GPU for its first user.
_TIMEOUT_S = 30.0


async def discover_gpus(min_capability: tuple[int, int]) -> list[Gpu]:
    """Return and log the GPUs that CUDA shows to this server and its processes.

    GPUs below `min_capability` are left out, with a warning. Without a driver the list is empty and nothing is logged.
    NVML runs in a separate process; if that fails, crashes or hangs, the list is empty and a warning is logged.
    """
    if not has_nvidia_driver():
        return []
    command = [sys.executable, "-m", "conch.machine.accelerators.nvidia"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, error = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
    except TimeoutError:
        process.kill()
        # Not awaited: a process that hangs in the driver exits only when the driver returns.
        _log.warning("NVML did not answer within %g s; models run without GPUs", _TIMEOUT_S)
        return []
    if process.returncode != 0:
        lines = error.decode(errors="replace").strip().splitlines()
        cause = lines[-1] if lines else f"its process exited with status {process.returncode}"
        _log.warning("NVML cannot list the GPUs of this machine: %s; models run without GPUs", cause)
        return []
    usable = []
    for gpu in visible_gpus([_installed(row) for row in json.loads(output)], os.environ):
        if gpu.compute_capability < min_capability:
            _log.warning("%s is not used: --min-supported-compute-capability is %d.%d", gpu, *min_capability)
        else:
            _log.info("%s", gpu)
            usable.append(gpu)
    return usable


def _installed(row: Mapping[str, object]) -> InstalledGpu:
    as_tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return InstalledGpu(**as_tuples)  # type: ignore[arg-type]
