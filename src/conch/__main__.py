"""The scripts `conch` and `tritonserver`, and `python -m conch`."""

import signal

# Until a command runs, Ctrl-C ends the process without a traceback of its imports.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from conch.cli import main, tritonserver

__all__ = ["main", "tritonserver"]

if __name__ == "__main__":
    main()
