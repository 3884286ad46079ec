"""Fuzzing by coverage: `python -m tests.server.robustness.guided "infer body" -runs=200000 [libFuzzer's options]`.

Needs atheris (`pip install atheris`), which is not part of the development environment. What leads to lines not seen
before is kept and changed further; the input of the first rounds comes from the targets' own generators.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["conch.protocols", "conch.server.frontends", "conch.server.core"]):
    from tests.server.robustness.fuzz import Report, chosen, run_case
    from tests.server.robustness.fuzz_server import fuzz_server

_EXAMPLES = 300


def main(name: str, options: list[str]) -> None:
    """Hand one target to libFuzzer, which ends the process when it is done."""
    directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
    corpus = directory / "corpus"
    corpus.mkdir()
    loop = asyncio.new_event_loop()
    running = fuzz_server(directory / "models")
    place = loop.run_until_complete(running.__aenter__())
    (target,) = chosen(place, [name])
    random = Random(0)
    for number in range(_EXAMPLES):
        (corpus / str(number)).write_bytes(target.example(random))
    words = "\n".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in target.words)
    (directory / "words").write_text(words)
    report = Report(target.name)

    def run_one(data: bytes) -> None:
        known = len(report.findings)
        loop.run_until_complete(run_case(place, target, data, report))
        if len(report.findings) > known:
            print(list(report.findings.items())[-1], flush=True)
        if report.cases % 50_000 == 0:
            print(report.row(), flush=True)

    atheris.Setup(
        [sys.argv[0], str(corpus), f"-dict={directory / 'words'}", "-max_len=6000", "-timeout=20", *options], run_one
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
