"""Structures that the library keeps: the pipeline is replaced before they fill the memory."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHAT = Path(__file__).parents[4] / "examples" / "models" / "chat" / "1"
# The last ones are those before; one request without a structure is among them.
NUMBERS = [10_001, 10_002, 10_003, 10_004, 10_004, None, 10_001]


def test_the_pipeline_is_replaced_after_many_structures() -> None:
    pytest.importorskip("openvino_genai", reason="openvino-genai is not here: `make test` installs it")
    # In another process, because the library replaces signal handlers.
    ended = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert [json.loads(text) for text, number in zip(report["texts"], NUMBERS, strict=True) if number] == [
        number for number in NUMBERS if number
    ]
    assert 1 <= report["replaced"] <= 2  # the last one may be served before
    assert report["kept"] <= 2


def main() -> None:
    """Generate with two structures for each pipeline, and print what was generated."""
    from conch.server.backends.child.conch_child.engine.openvino_genai import driver as genai
    from conch.server.backends.child.conch_child.engine.openvino_genai import waiting

    waiting.MAX_STRUCTURES = 2
    lines: list[str] = []
    driver = genai.OpenVinoDriver(lambda _level, text: lines.append(text))
    driver.load({"directory": str(CHAT), "memory": {"free": 2**40, "promised": {}}})
    for key, number in enumerate(NUMBERS):
        structured = {} if number is None else {"structured": ("json", json.dumps({"const": number}))}
        driver.add(key, "say", {"max_tokens": 16, **structured}, "")
    texts = [""] * len(NUMBERS)
    unfinished = set(range(len(NUMBERS)))
    while unfinished:
        time.sleep((driver.wait_ms or 0) / 1000)
        for key, deltas, end in driver.step():
            texts[key] += "".join(delta[1] for delta in deltas)
            if end is not None:
                unfinished.remove(key)
    replaced = len([line for line in lines if line.startswith("replacing the pipeline")])
    print(json.dumps({"texts": texts, "replaced": replaced, "kept": len(driver._waiting._compiled)}))


if __name__ == "__main__":
    main()
