"""Code blocks of the documentation, and what a comment before one of them says about running it.

    <!-- not run: needs an S3 bucket -->                 the block cannot be tried here, and why
    <!-- before: cp -r examples/models models -->        a command that prepares what the reader would have

Blocks of `console` run line by line (`$ ` begins a command, other lines are what it prints), those of `python` as a
script. Blocks of other languages are shown, not run.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = ("console", "python")
_COMMENT = re.compile(r"<!-- (not run|before): (.*?) -->")


@dataclass
class Command:
    """One command, with the lines that the page shows as its output."""

    text: str
    expected: list[str] = field(default_factory=list)


@dataclass
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    lines: list[str]
    before: list[str]
    not_run: str = ""

    @property
    def name(self) -> str:
        """`page:line`."""
        return f"{self.page}:{self.line}"

    def commands(self) -> list[Command]:
        """The commands of a console block; a backslash at the end of a line continues it, and so does a pipe."""
        commands: list[Command] = []
        continued = False
        for line in self.lines:
            if continued:
                commands[-1].text += f"\n{line}"
            elif line.startswith("$ "):
                commands.append(Command(line[2:]))
            elif commands:
                commands[-1].expected.append(line)
            continued = (continued or line.startswith("$ ")) and line.endswith(("\\", "|"))
        return commands


def blocks_of(path: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    blocks: list[Block] = []
    current: Block | None = None
    before: list[str] = []
    not_run = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if current is not None:
            if line.strip() == "```":
                blocks.append(current)
                current, before, not_run = None, [], ""
            else:
                current.lines.append(line)
        elif line.startswith("```"):
            current = Block(str(path.relative_to(ROOT)), number, line[3:].strip(), [], before, not_run)
        elif comment := _COMMENT.fullmatch(line.strip()):
            if comment[1] == "before":
                before.append(comment[2])
            else:
                not_run = comment[2]
    return blocks


def pages() -> list[Path]:
    """Every page that a user reads."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
    return [page for page in pages if any(block.language in RUN for block in blocks_of(page))]
