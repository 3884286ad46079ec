"""What the server starts for an engine: main.py <control fd> <instance name>."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
from pathlib import Path


def main() -> None:
    """Run one engine until the server says or shows that it is over."""
    here = Path(__file__).resolve().parent
    # At the end of the path, so that names in these folders hide none of the engine's.
    sys.path[:] = [*(path for path in sys.path if path != str(here)), str(here), str(here.parent / "python_child")]
    from conch_child import prctl

    prctl.die_with_parent()
    prctl.renounce_privileges()
    faulthandler.enable()
    control = int(sys.argv[1])
    os.set_inheritable(control, False)

    from conch_engine.service import serve

    serve(socket.socket(fileno=control))


if __name__ == "__main__":
    main()
