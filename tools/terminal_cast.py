"""Records the terminal session of the README, docs/images/terminal.svg: python -m tools.terminal_cast

The commands really run, in a network namespace where port 8000 is free; a line appears as long after its command as it
was printed. Needs the extra `examples`, and permission for `unshare --net`. Run it where `pip install '.[examples]'`
has compiled Conch, as the README's readers have.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from tests.docs.run_page import raise_loopback

from conch.base.report.page import tag

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
# A command that ends with & stays until the last one.
COMMANDS = (
    'conch run examples/models/chat/1/model.gguf "What is Conch?" --temperature 0',
    "cat app.py",
    "conch run app.py &",
    """curl -s http://127.0.0.1:8000/v2/models/normalize/generate -d '{"x": [3, 4]}'""",
    "conch stop normalize",
)
_READY = "Ctrl-C stops"
_COLUMNS, _LINE, _LETTER, _MARGIN = 100, 18, 7.8, 14  # characters, and pixels of a line and a letter
_PAUSE_S, _LAST_S = 1.2, 6.0
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_STYLE = """text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d6deeb;white-space:pre}
.command{fill:#7fdbca}.screen{fill:#0b1e2d}"""


@dataclass
class Line:
    """A line of the terminal, and when it appears in the recording."""

    at_s: float
    text: str
    is_command: bool = False


def record(folder: Path) -> Iterator[Line]:
    """Run the commands in a folder and yield what they print."""
    servers: list[subprocess.Popen[bytes]] = []
    began = 0.5
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "dumb"}
    environment |= {"COLUMNS": str(_COLUMNS), "XDG_STATE_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    for command in COMMANDS:
        yield Line(began, f"$ {command}", is_command=True)
        keyboard, terminal = pty.openpty()
        started = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.removesuffix('&')}"],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
        )  # fmt: skip
        os.close(terminal)
        servers += [process] if command.endswith("&") else []
        last = 0.0
        for last, text in _lines(keyboard, started):
            if text.startswith(_READY):
                break
            for begin in range(0, max(len(text), 1), _COLUMNS):  # as terminals wrap
                yield Line(began + last, text[begin : begin + _COLUMNS])
        began += last + _PAUSE_S
    for server in servers:
        server.wait(30)


def _lines(keyboard: int, started: float) -> Iterator[tuple[float, str]]:
    """Yield the lines that a program prints, with the seconds since its start, until it ends."""
    rest = ""
    at = 0.0
    with suppress(OSError):  # the program has ended
        while chunk := os.read(keyboard, 1 << 16):
            rest += chunk.decode(errors="replace")
            at = time.monotonic() - started
            *whole, rest = rest.split("\n")
            for text in whole:
                yield at, _ESCAPE.sub("", text.rstrip().rpartition("\r")[2])
    if rest.strip():
        yield at, _ESCAPE.sub("", rest).rstrip()


def draw(lines: list[Line]) -> str:
    """Return the recording as a picture that begins again at its end. Without animation it shows all lines."""
    end = lines[-1].at_s + _LAST_S
    height = _LINE * len(lines) + 2 * _MARGIN
    width = _COLUMNS * _LETTER + 2 * _MARGIN
    texts = [
        tag(
            "text",
            line.text,
            tag(
                "animate",
                attributeName="opacity",
                values="0;0;1;1",
                keyTimes=f"0;{line.at_s / end:.4f};{line.at_s / end:.4f};1",
                dur=f"{end:.1f}s",
                repeatCount="indefinite",
            ),
            x=_MARGIN,
            y=_MARGIN + _LINE * (row + 1) - 5,
            class_="command" if line.is_command else None,
        )
        for row, line in enumerate(lines)
    ]
    screen = tag("rect", width=f"{width:.0f}", height=height, rx=8, class_="screen")
    label = f"A terminal: {'; '.join(COMMANDS)}"
    view, xmlns = f"0 0 {width:.0f} {height}", "http://www.w3.org/2000/svg"
    style = tag("style", Markup(_STYLE))
    return f"{tag('svg', style, screen, *texts, xmlns=xmlns, role='img', aria_label=label, viewBox=view)}\n"


def main() -> None:
    """Record in a new network namespace."""
    if sys.argv[1:] != ["inside"]:
        subprocess.run(["unshare", "--net", sys.executable, "-m", "tools.terminal_cast", "inside"], check=True)
        return
    raise_loopback()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")
        app = (ROOT / "examples" / "python_models" / "app.py").read_text("utf-8").partition("\n\n\nif __name__")[0]
        (folder / "app.py").write_text(f"{app}\n", "utf-8")
        PICTURE.write_text(draw(list(record(folder))), "utf-8")


if __name__ == "__main__":
    main()
