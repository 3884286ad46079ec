"""The closed list of causes to which each nanosecond of a request belongs."""

from types import MappingProxyType
from typing import Final, NamedTuple


class Cause(NamedTuple):
    """A cause: its name in tables, how a sentence says that time goes to it, and what helps.

    `{model}` is the model whose time it is.
    """

    label: str
    phrase: str
    remedy: str


CAUSES: Final = MappingProxyType(
    {
        "client_send": Cause(
            "client slow to send", "the client sending the request", "look at the client and the network"
        ),
        "serialisation": Cause(
            "serialisation", "decoding the request and encoding the answer", "binary tensors or shared memory cost less"
        ),
        "mates": Cause(
            "waiting for batch mates",
            'waiting for others to share a batch of "{model}"',
            "lower max_queue_delay_microseconds",
        ),
        "busy": Cause(
            "instance busy",
            'waiting until an instance of "{model}" is done with what it had begun',
            "add an instance, or shorten its batches",
        ),
        "ahead": Cause(
            "behind others in the queue",
            'requests ahead in the queue of "{model}"',
            "add instances, batch more, or limit the queue",
        ),
        "large": Cause(
            "behind a large request",
            'waiting behind an unusually large request to "{model}"',
            "limit the size of its inputs, or give large ones a model and instance apart",
        ),
        "sequence": Cause(
            "behind its sequence", 'earlier requests of its sequence, or a slot of "{model}"', "add sequence slots"
        ),
        "limiter": Cause(
            "rate limiter",
            'the rate limiter keeping idle instances of "{model}" from a batch',
            "raise --rate-limit-resource, or let instances need less",
        ),
        "down": Cause("all instances down", 'all instances of "{model}" being down', "its log says why they ended"),
        "loading": Cause("a model loading", "a model being loaded meanwhile", "load models before clients need them"),
        "loop": Cause("event loop busy", "the server's event loop being busy", "less work a request, or more servers"),
        "gc": Cause("garbage collection", "garbage collection in the server", "fewer objects that live long"),
        "cpu": Cause(
            "CPU taken by others",
            '"{model}" being ready to run without a processor',
            "reserve processors for the server, or let fewer executions run at once",
        ),
        "stopped": Cause("process stopped", 'the process of "{model}" being stopped', "continue the process"),
        "hung": Cause(
            "no progress",
            'the process of "{model}" making no progress',
            "find where it hangs; --hang-timeout-secs replaces such a process",
        ),
        "copy": Cause("copy", 'copying tensors to and from "{model}"', "smaller tensors or shared memory"),
        "compute": Cause(
            "compute as usual", 'the usual compute of "{model}" for that size', "a faster model or device helps"
        ),
        "own_large": Cause(
            "large inputs",
            '"{model}" computing inputs that are far larger than usual',
            "limit the size of its inputs, or give large ones a model and instance apart",
        ),
        "miss": Cause(
            "not in the cache", 'computing with "{model}" what its cache lacks', "warm the cache, or make it larger"
        ),
        "slow": Cause(
            "slower than usual",
            '"{model}" computing longer than usual for that size',
            "the model itself waits or works longer: look into it",
        ),
        "cache_wait": Cause(
            "waiting for KV cache", 'waiting for a place in the KV cache of "{model}"', "a larger KV cache"
        ),
        "prefill_others": Cause(
            "prefill of others", 'prompts of others in the steps of "{model}"', "chunked prefill, or shorter prompts"
        ),
        "prefill": Cause("prefill", 'prefill of its prompt by "{model}"', "a shorter prompt, or prefix cache"),
        "decode": Cause("decode", 'the steps of "{model}" that make tokens', "fewer tokens, or smaller batches"),
        "client_read": Cause(
            "client slow to read", "the client reading the answer", "look at the client and the network"
        ),
        "unrecorded": Cause("not recorded", "times that the event log lacks", "a larger event log"),
    }
)

NESTED: Final = "step"
"""Time of a request that a nested request of the critical path explains: an ensemble's step, a BLS call."""

WAITS: Final = frozenset({"mates", "busy", "ahead", "large", "sequence"})
"""Causes that other instances, batches or delays would change."""
