"""Limits for open files, of which every connection is one."""

import resource

# For models' files, the channels to their processes, listeners and logs.
_RESERVED = 256
# A listener with fewer is useless.
_MIN_CONNECTIONS = 16


def raise_file_limit() -> None:
    """Raise this process's soft limit to the hard limit: the usual soft limit of 1024 is too low for a server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_connections(configured: int) -> int:
    """Return how many connections a listener may hold, at most `configured`.

    There are two busy listeners. Clients beyond this number get an error, which also takes a descriptor.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return configured
    return min(configured, max((soft - _RESERVED) // 2, _MIN_CONNECTIONS))
