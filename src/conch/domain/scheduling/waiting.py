# Compiled by mypyc in wheels.
"""What the scheduling decisions read of a request: the base of the server's requests and of simulated ones."""

from enum import Enum


class State(Enum):
    """Where an admitted request stands."""

    QUEUED = "queued"  # admitted, not yet given to an instance
    EXECUTING = "executing"  # by an instance, or by the steps of an ensemble
    DONE = "done"  # settled; nothing changes any more


class Waiting:
    """An admitted request. Times are monotonic nanoseconds.

    A class and no Protocol, whose attributes compiled code would look up by name.
    """

    __slots__ = (
        "admitted",
        "ahead",
        "batch_size",
        "expires",
        "group_key",
        "level",
        "queued",
        "starts_by",
        "state",
        "tenant",
        "weight",
    )

    def __init__(self, batch_size: int) -> None:
        self.state = State.QUEUED
        self.level = 0  # priority level; 1 is the most urgent, 0 where the model has none
        self.expires = 0  # when its queue policy acts; 0: never
        self.starts_by = 0  # when it is too late to execute it, by its deadline; 0: never
        self.admitted = False  # whether it is part of an admitted request, so that it must not be evicted
        self.tenant = ""  # "" for none
        self.weight = 1  # of the tenant
        self.ahead = False  # whether it waits behind another batch of an instance
        self.queued = 0  # when it was admitted
        self.batch_size = batch_size
        self.group_key: object = None  # requests with equal keys may share a batch
