"""`conch new`: create a folder with a model, its configuration, a client and tests."""

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from conch.base.command_line.command_parser import CommandParser, LaidOutHelp, printing

# The names of the model in the templates, whose files are valid as they are.
_NAME, _CLASS = "my_model", "MyModel"
_VALID = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_FAILURE = 1
_EXAMPLES = """examples:
  conch new classifier --from pytorch     writes classifier/app.py, client.py, test_app.py, README.md
  conch new assistant --from llm          writes assistant/models/assistant/config.pbtxt, client.py, …
"""


def new(arguments: Sequence[str]) -> int:
    """Create a model's folder; return the exit status."""
    kinds = sorted(folder.name for folder in templates().iterdir() if not folder.name.startswith((".", "_")))
    parser = CommandParser(
        "conch new",
        description="Create a model: code, configuration, client and tests.",
        epilog=_EXAMPLES,
        formatter_class=LaidOutHelp,
    )
    parser.add_argument("name", metavar="NAME", help="name of the model, and of the folder to create")
    parser.add_argument("--from", dest="kind", choices=kinds, required=True, help=f"one of {', '.join(kinds)}")
    parser.add_quiet_flag()
    given = parser.parse_args(arguments)
    if not _VALID.fullmatch(given.name):
        similar = re.sub(r"\W", "_", given.name, flags=re.ASCII)
        hint = f"; did you mean '{similar}'?" if _VALID.fullmatch(similar) else ""
        parser.error(f"'{given.name}' is not valid: a name begins with a letter and has letters, digits and _{hint}")
    folder = Path(given.name)
    if folder.exists():
        print(f"conch new: '{folder}' exists; choose another name, or remove it", file=sys.stderr)
        return _FAILURE
    try:
        files = create(folder, given.kind)
    except OSError as error:
        print(f"conch new: '{folder}' cannot be written: {error.strerror}", file=sys.stderr)
        return _FAILURE
    with printing(given):
        for file in files:
            print(f"  {file}")
        print(f"Next: cd {folder}, and follow README.md")
    return 0


def create(folder: Path, kind: str) -> list[Path]:
    """Write the template of a kind into a new folder, whose name is the model's; return the files, sorted.

    Raises OSError; nothing remains then.
    """
    class_name = "".join(part[:1].upper() + part[1:] for part in folder.name.split("_"))
    try:
        shutil.copytree(templates() / kind, folder, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
        for path in sorted(folder.rglob(_NAME), reverse=True):
            path.rename(path.with_name(folder.name))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in files:
            if path.suffix != ".onnx":
                text = path.read_text(encoding="utf-8")
                path.write_text(text.replace(_NAME, folder.name).replace(_CLASS, class_name), encoding="utf-8")
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return files


def templates() -> Path:
    """Return the folder of the templates: in the wheel, or in the source tree."""
    packaged = Path(__file__).with_name("templates")
    return packaged if packaged.is_dir() else Path(__file__).parents[4] / "examples" / "new"
