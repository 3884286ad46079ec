"""The code map of ARCHITECTURE.md: every package with its purpose and modules. `python -m tools.code_map` writes it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- code map -->\n", "<!-- end of code map -->"


def rows(source: Path = ROOT / "src" / "conch") -> Iterator[str]:
    """Yield a table row for each package: folder, first line of its docstring, names of its modules."""
    for folder in sorted({path.parent for path in source.rglob("*.py")}):
        modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) if modules else None
        if modules:
            name = folder.relative_to(source.parent).as_posix()
            purpose = (docstring or "").partition("\n")[0]
            yield f"| `{name}` | {purpose} | {' · '.join(modules)} |"


def page() -> str:
    """Return ARCHITECTURE.md with the map of the present packages."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    table = "\n".join(("| package | purpose | modules |", "| --- | --- | --- |", *rows()))
    return f"{before}{begin}\n{table}\n\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
