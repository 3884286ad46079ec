"""The help and reference page of flags."""

import io
import re
from itertools import pairwise

from rich.console import Console
from tools.flags_page import PAGE, reference

from conch.base.command_line.flags import Standing
from conch.server.commands.flag_help import print_help
from conch.server.options.server_options import FLAGS


def help_text() -> str:
    stream = io.StringIO()
    print_help(Console(file=stream, width=80, highlight=False))
    return stream.getvalue()


def test_help_has_every_flag() -> None:
    text = help_text()
    assert [flag.name for flag in FLAGS if f"--{flag.name}" not in text] == []


def test_a_flag_is_followed_by_its_meaning_and_default() -> None:
    lines = [line.strip() for line in help_text().splitlines()]
    pairs = set(pairwise(lines))
    assert ("--http-port=<port>", "Port to listen on; 0 for any free port. [default 8000]") in pairs
    meaning = "Directory of models, its s3, gs, as, oci or http URL, or a Python file."
    assert ("--model-repository=<path>", meaning) in pairs


def test_flags_without_effect_have_a_reason() -> None:
    text = " ".join(help_text().split())
    for flag in FLAGS:
        if flag.standing is not Standing.SUPPORTED:
            assert flag.reason[1:] in text, flag.name


def test_the_reference_page_is_current() -> None:
    expected = reference()
    assert PAGE.read_text(encoding="utf-8") == expected, "run `make docs`"


def test_the_reference_has_every_flag() -> None:
    listed = {name for row in reference().splitlines() for name in re.findall(r"`--([\w-]+)", row.split(" | ")[0])}
    assert {flag.name for flag in FLAGS} <= listed
