"""Scripts that stand in for vendors' tools on PATH."""

import sys
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"


class ToolFolder:
    """A folder on PATH. Scripts are Python: `arguments` are the tool's, `recorded(name)` prints recorded output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, program: str, body: str) -> Path:
        path = self.folder / program
        head = (
            f"#!{sys.executable}\nimport json, os, sys, time\nfrom pathlib import Path\narguments = sys.argv[1:]\n"
            f"def recorded(name):\n    sys.stdout.write((Path({str(RECORDED)!r}) / name).read_text())\n"
        )
        path.write_text(head + body)
        path.chmod(0o755)
        return path
