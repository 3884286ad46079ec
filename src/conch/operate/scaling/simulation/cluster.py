"""The replicas of a workload: wanted, starting, ready, never ready."""

from collections import deque
from dataclasses import dataclass, field

from conch.operate.scaling.autoscaler import Pod, PodPhase
from conch.operate.scaling.simulation.scenario import ColdStart

_CPU = {"cpu": 1.0, "memory": 1.0}


@dataclass(slots=True)
class _Starting:
    created_s: int
    ready_s: int
    count: int


@dataclass(slots=True)
class Cluster:
    """Counts of replicas. The initial ones are ready."""

    cold_start: ColdStart
    scrape_interval_s: int
    wanted: int
    ready: int = field(init=False)
    stuck: int = 0  # never become ready
    _will_stick: int = 0
    _starting: deque[_Starting] = field(default_factory=deque)
    _fresh: deque[tuple[int, int]] = field(default_factory=deque)  # ready since, count: not scraped twice yet

    def __post_init__(self) -> None:
        self.ready = self.wanted

    @property
    def starting(self) -> int:
        """Replicas that will become ready."""
        return sum(group.count for group in self._starting)

    def advance(self, now_s: int) -> int:
        """Make those ready whose time has come; return how many."""
        became = 0
        while self._starting and self._starting[0].ready_s <= now_s:
            became += self._starting.popleft().count
        if became:
            self.ready += became
            self._fresh.append((now_s, became))
        while self._fresh and self._fresh[0][0] + 2 * self.scrape_interval_s <= now_s:
            self._fresh.popleft()
        return became

    def scale(self, now_s: int, wanted: int) -> int:
        """Start or end replicas; return how many ready ones end. Those that are not ready end first."""
        change = wanted - self.wanted
        self.wanted = wanted
        if change > 0:
            self.start(now_s, change, self.cold_start.total_s)
            return 0
        left = -change
        ended = min(left, self.stuck)
        self.stuck -= ended
        left -= ended
        while left and self._starting:
            last = self._starting[-1]
            ended = min(left, last.count)
            last.count -= ended
            left -= ended
            if not last.count:
                self._starting.pop()
        self._end_ready(left)
        return left

    def start(self, now_s: int, count: int, after_s: int) -> None:
        """Start replicas that become ready after a time, unless they are to stick."""
        sticks = min(count, self._will_stick)
        self._will_stick -= sticks
        self.stuck += sticks
        if count - sticks:
            self._starting.append(_Starting(now_s, now_s + after_s, count - sticks))
            # Restarts without a pull are ready earlier than pods that were created before them.
            self._starting = deque(sorted(self._starting, key=lambda group: group.ready_s))

    def lose(self, now_s: int, count: int, after_s: int) -> int:
        """End ready replicas and start as many; return how many ended."""
        ended = min(count, self.ready)
        self._end_ready(ended)
        self.start(now_s, ended, after_s)
        return ended

    def stick(self, count: int) -> None:
        """Make the next replicas that start never ready."""
        self._will_stick += count

    def pods(self, now_s: int) -> list[Pod]:
        """Return the pods as the autoscaler sees them, alike ones as one. "ready" is the one with metrics."""
        fresh = min(sum(count for _, count in self._fresh), self.ready)
        pods = []
        if self.ready - fresh:
            pods.append(Pod("ready", requests=_CPU, count=self.ready - fresh))
        if fresh:
            pods.append(Pod("fresh", ready_since_s=float(self._fresh[0][0]), requests=_CPU, count=fresh))
        pulling = sum(group.count for group in self._starting if group.created_s + self.cold_start.pull_s > now_s)
        loading = self.starting - pulling
        if pulling:
            pods.append(Pod("pulling", PodPhase.PENDING, ready=False, requests=_CPU, count=pulling))
        if loading + self.stuck:
            started_s = float(now_s)
            pods.append(
                Pod(
                    "loading",
                    ready=False,
                    started_s=started_s,
                    ready_since_s=started_s,
                    requests=_CPU,
                    count=loading + self.stuck,
                )
            )
        return pods

    def _end_ready(self, count: int) -> None:
        self.ready -= count
        while count and self._fresh:
            since_s, fresh = self._fresh.pop()
            if fresh > count:
                self._fresh.append((since_s, fresh - count))
            count = max(count - fresh, 0)
