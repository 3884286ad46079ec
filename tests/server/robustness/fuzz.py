"""Fuzzing of everything that reads what clients send: `python -m tests.server.robustness.fuzz --cases 1000000`.

Each target takes any bytes and returns the outcome in a word, or raises. Cases are made from a seed: right input
from generators, changed without understanding. What a case must not do, besides what its target says: take many turns
of the loop, leave a log line, a pending request or a connection behind, spoil what others ask afterwards. Memory is
looked at over the whole run.

`tests.server.robustness.guided` does the same with coverage deciding which input is worth changing further.
"""

import argparse
import gc
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from tests.server.robustness.fuzz_server import FuzzServer, fuzz_server, resident_bytes
from tests.server.robustness.grpc_targets import GRPC_TARGETS
from tests.server.robustness.http_targets import HTTP_TARGETS, check_alive
from tests.server.robustness.mutate import mutated

# The part of the cases that are left right, as a check of the generators.
_RIGHT = 0.1
_CLEAN_EVERY = 50


class Target(Protocol):
    """One way in. `words` are what mutations put into its input."""

    name: str
    words: Sequence[bytes]

    def __init__(self, place: FuzzServer) -> None: ...

    def example(self, random: Random) -> bytes:
        """Return right input."""

    async def check(self, data: bytes) -> str:
        """Try any input and return the outcome. Any exception is a finding."""


ALL_TARGETS: tuple[type[Target], ...] = (*HTTP_TARGETS, *GRPC_TARGETS)


@dataclass
class Report:
    """Outcomes of the cases of one target."""

    name: str
    cases: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, bytes] = field(default_factory=dict)  # traceback or text → the input that shows it

    def row(self) -> str:
        common = ", ".join(f"{outcome} {count}" for outcome, count in self.outcomes.most_common(6))
        return f"{self.name:22} {self.cases:9} {self.seconds:8.0f} s {len(self.findings):4}   {common}"


def case(target: Target, random: Random) -> bytes:
    """Make one input."""
    data = target.example(random)
    if random.random() < _RIGHT:
        return data
    return mutated(random, data, target.words, target.example(random))


async def run_case(place: FuzzServer, target: Target, data: bytes, report: Report) -> None:
    """Try one input and record the outcome."""
    began = time.perf_counter()
    try:
        report.outcomes[await target.check(data)] += 1
        if report.cases % _CLEAN_EVERY == 0:
            place.check_clean()
            await check_alive(place)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        report.findings.setdefault(f"{type(error).__name__} in {where.name}:{where.lineno}: {str(error)[:2000]}", data)
        place.forget()
    report.cases += 1
    report.seconds += time.perf_counter() - began


async def run(
    place: FuzzServer, targets: Sequence[Target], cases: int, seed: int, progress: bool = False
) -> list[Report]:
    """Try that many inputs on the targets in turn."""
    random = Random(seed)
    reports = [Report(target.name) for target in targets]
    shown = time.monotonic()
    for number in range(cases):
        index = number % len(targets)
        known = len(reports[index].findings)
        await run_case(place, targets[index], case(targets[index], random), reports[index])
        if progress and len(reports[index].findings) > known:
            print(f"{reports[index].name}: {list(reports[index].findings.items())[-1]}"[:3000], flush=True)
        if progress and time.monotonic() - shown > 10:
            shown = time.monotonic()
            findings = sum(len(report.findings) for report in reports)
            print(f"{number} cases, {findings} findings, {resident_bytes() >> 20} MiB", flush=True)
    place.check_clean()
    await check_alive(place)
    return reports


def chosen(place: FuzzServer, names: Sequence[str]) -> list[Target]:
    """Make the targets whose names contain one of `names`, all if there is none."""
    return [made(place) for made in ALL_TARGETS if not names or any(name in made.name for name in names)]


async def _blind(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as directory:
        async with fuzz_server(Path(directory)) as place:
            targets = chosen(place, arguments.target)
            # Whatever remembers is full after this.
            warm = await run(place, targets, min(arguments.cases // 20, 20_000), arguments.seed)
            before, objects = resident_bytes(), live_objects()
            reports = await run(place, targets, arguments.cases, arguments.seed + 1, progress=True)
            grown, more = resident_bytes() - before, live_objects() - objects
    print(f"\n{'target':22} {'cases':>9} {'time':>10} {'bad':>4}   outcomes")
    for report in reports:
        print(report.row())
    for report in [*warm, *reports]:
        for text, data in report.findings.items():
            print(f"\n{report.name}: {text[:500]}\n  input: {data!r}"[:3000])
    print(f"\nseed {arguments.seed}; memory grew by {grown / 2**20:.1f} MiB, objects by {more}")
    return 1 if any(report.findings for report in [*warm, *reports]) else 0


def live_objects() -> int:
    """Return how many objects there are that the collector knows."""
    gc.collect()
    return len(gc.get_objects())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.server.robustness.fuzz", description="Fuzz everything clients reach."
    )
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--target", action="append", default=[], help="part of a target's name; several are possible")
    return parser.parse_args()


def main() -> Any:
    import uvloop

    return uvloop.run(_blind(_arguments()))


if __name__ == "__main__":
    sys.exit(main())
