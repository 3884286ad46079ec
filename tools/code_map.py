"""The code map of ARCHITECTURE.md: every package with its purpose and modules. `python -m tools.code_map` writes it."""

import ast
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- code map -->\n", "<!-- end of code map -->"


def rows(source: Path = ROOT / "src" / "conch") -> Iterator[tuple[str, str]]:
    """Yield the room of each package and its table row: folder, first line of its docstring, names of its modules."""
    for folder in sorted({path.parent for path in source.rglob("*.py")}):
        modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
        if modules:
            docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
            name = folder.relative_to(source.parent).as_posix()
            purpose = (docstring or "").partition("\n")[0]
            yield "/".join(name.split("/")[:2]), f"| `{name}` | {purpose} | {' · '.join(modules)} |"


def page() -> str:
    """Return ARCHITECTURE.md with the map of the present packages, a part for each room."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    parts = []
    for room, packages in groupby(rows(), key=itemgetter(0)):
        table = ("| package | purpose | modules |", "| --- | --- | --- |", *(row for _, row in packages))
        parts.append(f"### {room}\n\n" + "\n".join(table))
    text = "\n\n".join(parts)
    return f"{before}{begin}\n{text}\n\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
