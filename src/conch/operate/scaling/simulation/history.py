"""What the replicas exposed at each second: counters and gauges of an average pod."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class History:
    """Values by second. Counters are those of a pod that has always run; `age_share` makes them those of pods alive."""

    served: list[float] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    executions: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    pods: list[int] = field(default_factory=list)
    age_share: list[float] = field(default_factory=list)

    def append(
        self,
        served: float,
        queue_s: float,
        first_token_s: float,
        compute_s: float,
        executions: float,
        busy_s: float,
        waiting: float,
        running: float,
        pods: int,
        age_share: float,
    ) -> None:
        """Add a second: increases of counters, gauges, pods that are scraped."""
        for counter, increase in (
            (self.served, served),
            (self.queue_s, queue_s),
            (self.first_token_s, first_token_s),
            (self.compute_s, compute_s),
            (self.executions, executions),
            (self.busy_s, busy_s),
        ):
            counter.append((counter[-1] if counter else 0.0) + increase)
        self.waiting.append(waiting)
        self.running.append(running)
        self.pods.append(pods)
        self.age_share.append(age_share)
