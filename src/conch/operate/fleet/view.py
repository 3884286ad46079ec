"""What `conch fleet` prints while it runs: a live screen in a terminal, plain lines elsewhere."""

import sys
from time import monotonic
from typing import TYPE_CHECKING

from conch.operate.fleet.fleet import Fleet
from conch.operate.fleet.journal import FleetEvent, FleetSample

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_MAX_EVENTS = 8


def status_line(sample: FleetSample, targets: str) -> str:
    """Return a state in one line."""
    text = f"{sample.at_s:6.1f} s  replicas {sample.ready}/{sample.desired} ready  targets {targets}"
    if sample.clients or sample.answered:
        text += f"  clients {sample.clients}  {sample.rate or 0:.0f} answers/s"
        text += "" if sample.p99_s is None else f"  p99 {sample.p99_s:.2f} s"
        text += f"  failed {sample.failed}"
    return text


def event_line(event: FleetEvent) -> str:
    """Return an event in one line."""
    return f"{event.at_s:6.1f} s  {event.kind}: {event.subject}: {event.message}"


class FleetView:
    """Plain lines: events as they happen, and the state every five seconds."""

    period_s = 5.0

    def __init__(self) -> None:
        self._next = 0.0

    def event(self, event: FleetEvent) -> None:
        """Show an event."""
        print(event_line(event), flush=True)

    def refresh(self, fleet: Fleet) -> None:
        """Show the state, if it is time to."""
        if monotonic() >= self._next and fleet.journal.samples:
            self._next = monotonic() + self.period_s
            self.draw(fleet)

    def draw(self, fleet: Fleet) -> None:
        """Show the state now."""
        print(status_line(fleet.journal.samples[-1], fleet.autoscaler.targets_text), flush=True)

    def close(self) -> None:
        """Restore the terminal."""


class LiveFleetView(FleetView):
    """A screen with the pods, the autoscaler and the last events. rich is imported when it is first drawn."""

    period_s = 0.5

    def __init__(self) -> None:
        super().__init__()
        self._events: list[FleetEvent] = []
        self._live: Live | None = None

    def event(self, event: FleetEvent) -> None:
        self._events = [*self._events, event][-_MAX_EVENTS:]

    def draw(self, fleet: Fleet) -> None:
        if self._live is None:
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=True, vertical_overflow="crop")
            self._live.start()
        self._live.update(_screen(fleet, self._events), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _screen(fleet: Fleet, events: list[FleetEvent]) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    pods = Table("pod", "state", "ready", "pid", box=None, pad_edge=False)
    for replica in fleet.replica_set.replicas:
        pods.add_row(replica.name, replica.state.value, "yes" if replica.ready else "no", str(replica.pid))
    status = status_line(fleet.journal.samples[-1], fleet.autoscaler.targets_text)
    lines = [Text(event_line(event), "dim", no_wrap=True, overflow="ellipsis") for event in events]
    return Group(Text(status, "bold"), pods, *lines, Text("Ctrl-C ends the fleet", "dim"))


def fleet_view() -> FleetView:
    """Return the view that suits stdout."""
    return LiveFleetView() if sys.stdout.isatty() else FleetView()
