"""File descriptors: every connection takes one, and so does all else that a server opens."""

import resource

# For models' files, the channels to their processes, listeners and logs.
_RESERVED = 256
# Without so many, a listener is of no use.
_LEAST = 16


def use_all_descriptors() -> None:
    """Raise this process's limit as far as it may itself: the customary one is meant for programs without clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def affordable_connections(most: int) -> int:
    """Return how many connections a listener may hold, at most `most`.

    There are two busy listeners. Beyond this number clients are still told so; without descriptors they could not be.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return min(most, max((soft - _RESERVED) // 2, _LEAST))
