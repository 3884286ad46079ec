"""Many different structures: the processes that compile them are replaced, and neither memory nor disk fills."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

STRUCTURES = 200
WARM = 100  # structures after which memory is the usual one
CACHED = 32
COMPILED = 45  # by one process
MIB = 1 << 20


def test_many_structures_fill_neither_memory_nor_disk(tmp_path: Path) -> None:
    pytest.importorskip("openvino_genai", reason="openvino-genai is not here: `make test` installs it")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", __name__]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert report["invalid"] == STRUCTURES // 10
    assert report["replaced"] >= STRUCTURES // COMPILED - 1
    assert report["cached"] == CACHED
    assert report["waiting"] == 0
    assert report["files"] == []
    assert report["grown"] < 16 * MIB, report


def main() -> None:
    """Check structures one after the other, of which each tenth is invalid, and print what is left of them."""
    import psutil

    from conch.server.backends.child.conch_child.engine.openvino_genai import grammars

    grammars._MAX_COMPILED, grammars._MAX_CACHED = COMPILED, CACHED
    checker = grammars.GrammarChecker()
    own, invalid, processes, warm = psutil.Process(), 0, set(), 0
    for number in range(STRUCTURES):
        structure = ("json", json.dumps({"const": number})) if number % 10 else ("regex", f"[{number}")
        while (error := checker.check(structure, f"client {number}")) is None:
            time.sleep(0.002)
        invalid += bool(error)
        processes |= {child.pid for child in own.children()}
        if number == WARM:
            warm = own.memory_info().rss
    left = {
        "invalid": invalid,
        "replaced": len(processes) - 1,
        "cached": len(checker._results),
        "waiting": len(checker._pending) + len(checker._turns._waiting) + len(checker._turns._used_s),
        "files": [str(path) for path in Path(os.environ["TMPDIR"]).rglob("*")],
        "grown": own.memory_info().rss - warm,
    }
    print(json.dumps(left))


if __name__ == "__main__":
    main()
