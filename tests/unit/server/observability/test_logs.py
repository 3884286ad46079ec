"""Lines of the log, and which of them are written."""

import errno
import io
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conch.base.errors import ConchError
from conch.base.logs import (
    MAX_MESSAGE_CHARACTERS,
    PLAIN,
    JsonFormatter,
    LineFormatter,
    LogSettings,
    PlainFormatter,
    ServerLogHandler,
    configure,
)

MOMENT = 1795224420.123456  # 2026-11-21 01:27:00 UTC


def record(message: str, *arguments: object, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("conch.server.server", level, "/x/server.py", 31, message, arguments, None)
    made.created, made.process = MOMENT, 4242
    made.__dict__.update(extra)
    return made


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the log of the test run as it was."""
    root, conch = logging.getLogger(), logging.getLogger("conch")
    before = (list(root.handlers), root.level, conch.level)
    yield
    for handler in [handler for handler in root.handlers if handler not in before[0]]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(before[1])
    conch.setLevel(before[2])


def test_a_line_is_tritons() -> None:
    line = LineFormatter().format(record("Started HTTP service at %s", "0.0.0.0:8000"))
    assert line == 'I1121 01:27:00.123456 4242 server.py:31] "Started HTTP service at 0.0.0.0:8000"'


def test_iso8601_puts_the_date_first() -> None:
    line = LineFormatter(iso8601=True).format(record("up", level=logging.WARNING))
    assert line == '2026-11-21T01:27:00Z W 4242 server.py:31] "up"'


@pytest.mark.parametrize(
    ("level", "letter"),
    [(logging.DEBUG, "I"), (logging.INFO, "I"), (logging.WARNING, "W"), (logging.ERROR, "E"), (logging.CRITICAL, "E")],
)
def test_each_level_has_tritons_letter(level: int, letter: str) -> None:
    assert LineFormatter().format(record("x", level=level))[0] == letter


def test_a_message_cannot_forge_a_second_line() -> None:
    line = LineFormatter().format(record('model "x"\nE1121 root] "broken"\x1b[31m'))
    assert line.endswith('] "model \\"x\\"\\nE1121 root] \\"broken\\"\\u001b[31m"')


def test_lines_for_persons_are_the_message_alone() -> None:
    line = PlainFormatter().format(record("no model\nforged:\x1b[31m %s", "x", instance="m_0", block="a\nb"))
    assert line == "conch run: [m_0] no model\n  forged:\N{REPLACEMENT CHARACTER}[31m x\n  a\n  b"


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()])
def test_a_long_message_is_shortened(formatter: logging.Formatter) -> None:
    """Clients choose parts of messages, such as names, and quoting one of 20 MB takes seconds."""
    long = "a" * (MAX_MESSAGE_CHARACTERS + 5)
    line = formatter.format(record("%s", long, fields={"model": long}))
    assert line.count(f"… ({len(long)} characters)") + line.count(f"\\u2026 ({len(long)} characters)") == 2
    assert len(line) < 2.1 * MAX_MESSAGE_CHARACTERS
    block = "a table of many models\n" * 1000
    assert formatter.format(record("models", block=block)).count("a table") == 1000


def test_an_end_of_line_is_not_part_of_the_message() -> None:
    assert LineFormatter().format(record("done\n")).endswith('] "done"')


def test_a_models_line_has_its_instance_and_source() -> None:
    line = LineFormatter().format(record("hello", instance="echo_0_0", source="model.py:12"))
    assert line.endswith(' model.py:12] "[echo_0_0] hello"')


def test_a_block_follows_indented() -> None:
    line = LineFormatter().format(record("models:", block="+-+\n|x|\n+-+"))
    assert line.split("\n")[1:] == ["  +-+", "  |x|", "  +-+"]


def test_a_traceback_follows_indented(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    try:
        raise ValueError("first\nE1121 00:00:00.0 1 x.py:1] forged")
    except ValueError:
        logging.getLogger("conch.test").exception("failed")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith('"failed"')
    assert lines[1] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in lines[1:])


def written(capsys: pytest.CaptureFixture[str], options: LogSettings) -> list[str]:
    """Configure, say one line of every level, return the messages that came out."""
    configure(options)
    logger = logging.getLogger("conch.test")
    for level, text in ((8, "very verbose"), (10, "verbose"), (20, "info"), (30, "warning"), (40, "error")):
        logger.log(level, text)
    return re.findall(r'"(.*)"', capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (LogSettings(), ["info", "warning", "error"]),
        (LogSettings(log_verbose_level=1), ["verbose", "info", "warning", "error"]),
        (LogSettings(log_verbose_level=3), ["very verbose", "verbose", "info", "warning", "error"]),
        (LogSettings(log_info=False), ["warning", "error"]),
        (LogSettings(log_warning=False), ["info", "error"]),
        (LogSettings(log_error=False), ["info", "warning"]),
        (LogSettings(log_info=False, log_warning=False), ["error"]),
        (LogSettings(log_info=False, log_verbose_level=1), ["verbose", "warning", "error"]),
        (LogSettings(log_info=False, log_warning=False, log_error=False), []),
    ],
    ids=str,
)
def test_each_level_is_switched_by_itself(
    capsys: pytest.CaptureFixture[str], options: LogSettings, messages: list[str]
) -> None:
    assert written(capsys, options) == messages


def test_a_disabled_level_costs_only_a_look_up() -> None:
    configure(LogSettings())
    assert not logging.getLogger("conch.server.core").isEnabledFor(logging.DEBUG)
    configure(LogSettings(log_info=False, log_warning=False, log_error=False))
    assert not logging.getLogger("conch.server.core").isEnabledFor(logging.CRITICAL)


def test_other_libraries_are_logged_from_warnings_up(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings(log_verbose_level=1))
    logging.getLogger("somebody.else").info("chatter")
    logging.getLogger("somebody.else").warning("trouble")
    said = capsys.readouterr().err
    assert "chatter" not in said
    assert "trouble" in said


def test_configure_replaces_the_previous_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    configure(LogSettings(log_format="ISO8601"))
    logging.getLogger("conch.test").info("once")
    said = capsys.readouterr().err
    assert said.count("once") == 1
    assert re.match(r"\d{4}-\d\d-\d\dT", said)


def test_levels_of_a_log_for_persons_can_be_changed() -> None:
    settings = LogSettings(log_info=False, log_format=PLAIN)
    settings.update({"log_info": True})
    assert (settings.log_info, settings.log_format) == (True, PLAIN)
    with pytest.raises(ConchError, match="invalid argument for --log_format, got: plain"):
        settings.update({"log_format": PLAIN})


def test_a_log_file_is_appended_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    configure(LogSettings(log_file=str(path)))
    logging.getLogger("conch.test").info("grüße")
    assert re.fullmatch(r'before\nI\d{4} .* test_logs.py:\d+\] "grüße"\n', path.read_text(encoding="utf-8"))
    assert capsys.readouterr().err == ""


class Disk(io.StringIO):
    """A file on a disk that may be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


def test_a_full_disk_is_reported_once_and_loses_only_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogSettings())
    (handler,) = (handler for handler in logging.getLogger().handlers if isinstance(handler, ServerLogHandler))
    disk = Disk()
    handler.setStream(disk)
    for number, full in enumerate([True, True, False, True]):
        disk.full = full
        logging.getLogger("conch.test").info("line %d", number)
    expected = "conch serve: cannot write the log, lines are lost: [Errno 28] No space left on device"
    assert capsys.readouterr().err.splitlines() == [expected] * 2
    assert re.findall('"(.*)"', disk.getvalue()) == ["line 2"]


def test_a_log_file_that_cannot_be_opened_leaves_the_log_as_it_was(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    configure(LogSettings())
    with pytest.raises(OSError, match="Is a directory"):
        configure(LogSettings(log_file=str(tmp_path)))
    logging.getLogger("conch.test").info("still here")
    assert "still here" in capsys.readouterr().err
