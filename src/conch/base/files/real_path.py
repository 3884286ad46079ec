"""Resolve symbolic links across `/proc/PID/root`, where another container of the pod shows its files.

KServe mounts a model image (modelcar) as a link to `/proc/PID/root/models`. `Path.resolve` follows the last part of
`/proc/PID/root` as the text that it prints, `/`, and so returns a path of this container.
"""

import errno
import re
from pathlib import Path

_PROCESS_ROOT = re.compile(r"/proc/(?:\d+|self|thread-self)/root")
_MAX_LINKS = 40  # Linux's own bound


def real_path(path: Path) -> Path:
    """Return the path without symbolic links, as the kernel opens it. Missing parts stay as they are.

    Raises RuntimeError for more links than Linux follows, OSError for a name too long, ValueError for a NUL.
    """
    rest = list(reversed(path.absolute().parts[1:]))
    done, links = "", 0
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        name = f"{done}/{part}"
        if _PROCESS_ROOT.fullmatch(name):
            done = name
            continue
        try:
            target = str(Path(name).readlink())
        except OSError as error:  # not a link, or missing
            if error.errno == errno.ENAMETOOLONG:
                raise
            done = name
            continue
        links += 1
        if links > _MAX_LINKS:
            raise RuntimeError(f"too many symbolic links: {path}")
        if target.startswith("/"):
            done = ""  # of this container, also below /proc/PID/root
        rest += reversed(target.split("/"))
    return Path(done or "/")
