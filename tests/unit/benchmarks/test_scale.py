"""The page about internet scale has the facts that its script has, and the command lines that it shows work."""

import shlex
from pathlib import Path

import pytest
from benchmarks.scale import FACTS, PAGE

from conch.operate.scaling.commands.command import autoscale


def test_the_page_shows_each_fact_with_its_source() -> None:
    text = PAGE.read_text()
    for fact in FACTS.values():
        assert f"| {fact.what} | {fact.value:,g} {fact.unit}".rstrip() + f" | {fact.source} |" in text


@pytest.mark.slow
def test_a_command_of_the_page_gives_its_numbers(tmp_path: Path) -> None:
    commands = [line for line in PAGE.read_text().splitlines() if line.startswith("conch autoscale simulate")]
    assert len(commands) == 3
    words = shlex.split(commands[1])[2:]
    assert autoscale([*words, f"--json={tmp_path / 'results.json'}", f"--output={tmp_path / 'winner.yaml'}"]) == 0
    assert (tmp_path / "winner.yaml").stat().st_size > 0
