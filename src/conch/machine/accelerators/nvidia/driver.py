"""Presence of NVIDIA's driver, without calling it."""

import ctypes

LIBRARY = "libnvidia-ml.so.1"


def has_nvidia_driver() -> bool:
    """Return whether the driver's library is installed. Loading it starts nothing."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
