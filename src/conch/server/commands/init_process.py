"""Process 1 of a container: starts the command in a child process, forwards signals to it and reaps orphans.

The kernel delivers no signal with a default action to process 1, so a second SIGTERM would not end a server that is
process 1 itself; and processes whose parent ended become children of process 1, which must wait for them.
"""

import os
import signal

_FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
)  # fmt: skip
_TITLE = b"conch: init"


def become_init() -> None:
    """Fork. Returns in the child; the parent, process 1, exits with the child's status.

    To be called before the first thread starts and before large imports.
    """
    handled = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    _hide_secrets()
    while True:
        received = signal.sigwaitinfo(handled)
        if received.si_signo != signal.SIGCHLD:
            # The terminal signals the whole process group, so the child has received its signals.
            if received.si_code <= 0:
                os.kill(child, received.si_signo)
        elif (status := _reap(child)) is not None:
            os._exit(status)


def _reap(child: int) -> int | None:
    """Wait for all processes that have ended. Returns the exit status of `child` if it is among them."""
    exit_status = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return exit_status
        if pid == 0:
            return exit_status
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            exit_status = code if code >= 0 else 128 - code


def _hide_secrets() -> None:
    """Overwrite arguments and environment, which may contain keys that models' processes must not read."""
    from conch.server.backends.child.conch_child.ipc import prctl
    from conch.server.commands.process_secrets import overwrite_command_line

    overwrite_command_line(_TITLE)
    prctl.set_dumpable(False)
