"""`python -m conch.machine.accelerators.nvidia` prints the installed GPUs as JSON.

`discovery` runs it as a separate process, so that a driver that hangs or crashes affects only that process.
"""

import json
import sys
from dataclasses import asdict

from conch.machine.accelerators.nvidia.nvml import NvmlFault, installed_gpus


def main() -> None:
    """Print the installed GPUs; exit with status 1 and NVML's message if it fails."""
    try:
        print(json.dumps([asdict(gpu) for gpu in installed_gpus()]))
    except NvmlFault as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
