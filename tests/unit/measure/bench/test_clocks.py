"""Clock steps cannot change a measurement: durations come from the monotonic clock only."""

import ast
from pathlib import Path

import conch.measure.bench

_WALL_CLOCKS = {("time", "time"), ("time", "time_ns"), ("datetime", "today"), ("datetime", "utcnow")}
# Where a time of day is read, to be printed: when a run and its levels began.
_PRINTED = {"measure_level.py", "bench_run.py"}


def _calls(path: Path) -> list[tuple[str, str]]:
    calls = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            calls.append((node.value.id, node.attr))
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            calls += [("time", alias.name) for alias in node.names]
    return calls


def test_durations_never_come_from_a_clock_that_can_step() -> None:
    folder = Path(conch.measure.bench.__file__).parent
    for path in folder.rglob("*.py"):
        calls = _calls(path)
        assert not _WALL_CLOCKS & set(calls), path
        assert ("datetime", "now") not in calls or path.name in _PRINTED, path
