# Compiled by mypyc in wheels.
"""Prompts before an engine: which it is given now, and which wait so that they do not delay the others.

An engine batches by itself and in the order in which it is given prompts, so it is given what it can use. Of long
prompts it has one that it has not begun to answer, so that many do not delay short ones. Where tenants share it, it has
few more sequences than it computes concurrently, and the rest waits in the fair order of the tenants. Otherwise short
prompts do not wait here.
"""

from typing import Final, Generic, TypeVar

from conch.domain.scheduling.fair_order import FairOrder
from conch.domain.scheduling.waiting import Waiting

W = TypeVar("W", bound=Waiting)

_MAX_AGE_NS: Final = 2_000_000_000
_HALF_WEIGHT: Final = 4
_MIN_LONG_TOKENS: Final = 1024


class PromptQueue(Generic[W]):
    """The prompts of one model. The `batch_size` of a request is the length of its prompt in tokens."""

    def __init__(self) -> None:
        self._short: FairOrder[W] = FairOrder()
        self._long: FairOrder[W] = FairOrder()
        self.long_tokens = _MIN_LONG_TOKENS  # longer prompts are long
        self._given: dict[W, None] = {}  # to the engine, which has not begun to answer them
        self._long_given = 0
        self.given_tokens = 0

    def __len__(self) -> int:
        return len(self._short) + len(self._long)

    def __repr__(self) -> str:
        return f"<PromptQueue {len(self._short)} short, {len(self._long)} long>"

    def set_context(self, tokens: int) -> None:
        """Derive what is long from the context of the model."""
        self.long_tokens = max(tokens // 8, _MIN_LONG_TOKENS)

    def passes(self, prompt: W, *, room: bool) -> bool:
        """Whether a new prompt need not wait. `room`: whether the engine may be given more sequences."""
        if not room or len(self._order_of(prompt)):
            return False
        return prompt.batch_size <= self.long_tokens or not self._long_given

    def add(self, prompt: W) -> None:
        """Queue a prompt."""
        self._order_of(prompt).add(prompt)

    def next(self) -> W | None:
        """Remove and return the prompt that the engine is given next, if there is room; None if all have to wait."""
        if self._long and not self._long_given:
            return self._long.take(1)[0]
        return self._short.take(1)[0] if self._short else None

    def give(self, prompt: W) -> None:
        """Record that the engine is given a prompt."""
        self._given[prompt] = None
        self.given_tokens += prompt.batch_size
        self._long_given += prompt.batch_size > self.long_tokens

    def done(self, prompt: W) -> None:
        """Record that the engine has begun to answer a prompt, or that it has ended. Later calls are no-ops."""
        if prompt in self._given:
            del self._given[prompt]
            self.given_tokens -= prompt.batch_size
            self._long_given -= prompt.batch_size > self.long_tokens
        else:
            self._order_of(prompt).remove(prompt)

    def waits(self, prompt: W) -> bool:
        """Whether the engine has not been given the prompt."""
        return self._order_of(prompt).has(prompt)

    def waiting(self) -> list[W]:
        """Return the prompts that wait, the short ones first."""
        return [*self._short, *self._long]

    def before(self, prompt: W) -> int:
        """Return the tokens of the prompts that are answered before a new one."""
        return self.given_tokens + self._order_of(prompt).before(prompt.tenant, prompt.weight)

    def evictable(self, tenant: str, weight: int, size: int = 1) -> W | None:
        """Return the prompt that makes room for one of a tenant with less than its share; None if there is none."""
        return self._short.evictable(tenant, weight, size) or self._long.evictable(tenant, weight, size)

    def _order_of(self, prompt: W) -> FairOrder[W]:
        return self._long if prompt.batch_size > self.long_tokens else self._short


class PromptRate:
    """How fast an engine begins to answer prompts, measured while some wait for that. Times are monotonic ns."""

    __slots__ = ("_begun", "_begun_tokens", "_busy_ns", "_measured", "_ns_per_token", "_seen", "_start_ns", "_waiting")

    def __init__(self) -> None:
        self._waiting = 0
        self._busy_ns = 0  # while prompts wait, less the time since when
        self._begun = 0
        self._begun_tokens = 0
        self._seen = (0, 0, 0)  # prompts, tokens and time as of the last measurement
        self._ns_per_token = 0.0
        self._start_ns = 0.0  # between two starts
        self._measured = 0

    def __repr__(self) -> str:
        return f"<PromptRate {self._ns_per_token / 1e3:.1f} µs a token>"

    def arrived(self, now: int) -> None:
        """Count a prompt."""
        if not self._waiting:
            self._busy_ns -= now
        self._waiting += 1

    def left(self, tokens: int, now: int) -> None:
        """Count a prompt of `tokens` that the engine has begun to answer; 0 for one that has ended before."""
        self._waiting -= 1
        if not self._waiting:
            self._busy_ns += now
        self._begun += tokens > 0
        self._begun_tokens += tokens

    def ns_per_token(self, now: int) -> float:
        """Return the recent time per token; 0 if that is not known, or was long ago."""
        begun, tokens, busy = self._seen
        count = self._begun - begun
        busy_ns = self._busy_ns + (now if self._waiting else 0)
        fresh = now - self._measured <= max(_MAX_AGE_NS, 4 * self._start_ns)
        if count:
            first = not self._measured
            mean, start_ns = (busy_ns - busy) / (self._begun_tokens - tokens), (busy_ns - busy) / count
            weight = count / (count + _HALF_WEIGHT) if fresh and not first else 1.0
            self._ns_per_token += (mean - self._ns_per_token) * weight
            self._start_ns, self._measured, fresh = start_ns, now, True
            self._seen = self._begun, self._begun_tokens, busy_ns
        return self._ns_per_token if fresh and self._measured else 0.0
