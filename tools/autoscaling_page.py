"""The outputs on docs/autoscaling.md, of the commands above them. `python -m tools.autoscaling_page` writes them."""

import io
import os
import shlex
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path

from conch.operate.scaling.commands.command import autoscale

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "autoscaling.md"
_COMMAND = "$ conch autoscale simulate "


def output_of(command: str) -> str:
    """Return what a command prints, but for the object at its end."""
    stream = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(stream):
        status = autoscale(shlex.split(command)[2:])
    if status:
        raise RuntimeError(f"{command}: exit status {status}{os.linesep}{stream.getvalue()}")
    return stream.getvalue().partition("\n# ")[0].rstrip("\n") + "\n"


def page(text: str) -> str:
    """Return the page with the outputs of its commands."""
    lines, output, index = text.splitlines(keepends=True), list[str](), 0
    while index < len(lines):
        line = lines[index]
        output.append(line)
        index += 1
        if not line.startswith(_COMMAND):
            continue
        command = line[2:]
        while command.endswith("\\\n"):
            output.append(lines[index])
            command = command[:-2] + lines[index]
            index += 1
        output.append(output_of(command))
        while not lines[index].startswith(("```", "$ ")):
            index += 1
    return "".join(output)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
