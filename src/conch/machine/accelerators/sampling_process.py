"""The process that runs the collector of one vendor.

    python -m conch.machine.accelerators.sampling_process VENDOR INTERVAL_S

It writes one line for each sample to standard output: its kind and, after a blank, its content. `Sampler` is the
reader. A driver or tool that hangs, crashes or floods affects only this process.
"""

import os
import signal
import sys
from contextlib import suppress
from time import monotonic, sleep

from conch.base.process.prctl import die_with_parent
from conch.machine.accelerators.collectors import AcceleratorAbsent, Collector, CollectorError, create_collector

# Kinds of lines. A sample is its duration in seconds, a blank, and its JSON; an error or absence is a message.
STARTED, SAMPLE, ERROR, ABSENT = b"started", b"sample", b"error", b"absent"
# Errors in sequence after which the process exits, so that the collector restarts.
_MAX_ERRORS = 3


def main(vendor: str, interval_s: float) -> int:
    """Sample until killed. Returns 1 if the collector fails, 0 if the vendor is absent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of a terminal is the parent's
    die_with_parent()
    output = _private_output()
    try:
        collector = create_collector(vendor)
        collector.start()
    except AcceleratorAbsent as error:
        _write(output, ABSENT, str(error).encode())
        return 0
    except Exception as error:
        _write(output, ERROR, _text(error))
        return 1
    _write(output, STARTED, b"")
    try:
        return _sample_forever(collector, interval_s, output)
    finally:
        with suppress(Exception):
            collector.close()


def _sample_forever(collector: Collector, interval_s: float, output: int) -> int:
    errors = 0
    due = monotonic()
    while errors < _MAX_ERRORS:
        began = monotonic()
        try:
            content = collector.sample().to_json()
            _write(output, SAMPLE, b"%.6f %s" % (monotonic() - began, content))
            errors = 0
        except BrokenPipeError:
            return 0
        except Exception as error:
            _write(output, ERROR, _text(error))
            errors += 1
        due = max(due + interval_s, monotonic())
        sleep(max(due - monotonic(), 0.0))
    return 1


def _text(error: Exception) -> bytes:
    return (str(error) if isinstance(error, CollectorError) else repr(error)).encode()


def _write(output: int, kind: bytes, content: bytes) -> None:
    line = b"%s %s\n" % (kind, content.replace(b"\n", b" "))
    while line:
        line = line[os.write(output, line) :]


def _private_output() -> int:
    """Return a descriptor of standard output, and let what drivers and tools print go to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    return output


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
