"""Completion in real shells, and the examples in the help of each command, which its parser accepts."""

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from argparse import _SubParsersAction
from pathlib import Path

import pytest
from tools.commands_page import PAGE, page

from conch.base.command_line.command_table import commands
from conch.clients.completion import parser_of, script
from conch.server.options.parser import parse

BASH = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_shtab_conch conch "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""
CASES = [
    (["doc"], ["doctor"]),
    (["top", "--int"], ["--interval"]),
    (["completion", ""], ["bash", "zsh", "fish"]),
    (["serve", "--model-control-mode", ""], ["none", "poll", "explicit"]),
    (["repo", "pu"], ["pull"]),
]


def written(shell: str, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text(script(shell))
    return path


def needs(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_words_are_completed(shell: str, tmp_path: Path) -> None:
    needs(shell)
    file = written(shell, tmp_path, "conch")
    for words, expected in CASES:
        line = shlex.join(["conch", *words[:-1]]) + " " + words[-1]
        command = ["bash", "-c", BASH, "bash", str(file), "conch", *words]
        if shell == "fish":
            command = ["fish", "--no-config", "-c", f"source {file}; complete -C {shlex.quote(line)}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
        completions = [line.partition("\t")[0].strip() for line in done.stdout.splitlines() if line.strip()]
        assert sorted(completions) == sorted(expected), line


def test_zsh_completes_at_the_tab_key(tmp_path: Path) -> None:
    needs("zsh")
    written("zsh", tmp_path, "_conch")
    process, terminal = pty.fork()
    if not process:
        environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(tmp_path)}
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
    try:
        os.write(terminal, f"fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D; print rea''dy\n".encode())
        until(terminal, rb"\nready")
        os.write(terminal, b"conch doc\t")
        until(terminal, rb"conch doctor ")
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(terminal)


def until(terminal: int, pattern: bytes) -> None:
    """Read until the pattern is on the terminal; the limit of a test's time ends it otherwise."""
    text = b""
    while not re.search(pattern, text):
        text += os.read(terminal, 65536)


def test_the_page_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def help_of(name: str) -> str:
    if name in ("serve", "health"):
        command = [sys.executable, "-m", "conch", name, "--help"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return parser_of(name).format_help()


@pytest.mark.parametrize("name", commands())
def test_help_has_two_examples(name: str) -> None:
    assert len(re.findall(rf"^ *conch {name}\b", help_of(name), re.MULTILINE)) >= 2
    assert commands()[name].statuses.startswith("0 ")


@pytest.mark.parametrize("name", commands())
def test_help_fits_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wide = [line for line in help_of(name).splitlines() if len(line) > 80]
    for action in parser_of(name)._actions:
        if isinstance(action, _SubParsersAction):
            pages = (parser.format_help() for parser in action.choices.values())
            wide += [line for page in pages for line in page.splitlines() if len(line) > 80]
    assert wide == []


QUIET = {"pull", "stop", "rm", "new", "doctor", "bench"}


def test_commands_that_act_have_quiet_and_those_that_list_json() -> None:
    options = {name: set(parser_of(name)._option_string_actions) for name in commands()}
    assert {name for name, flags in options.items() if "--quiet" in flags} >= QUIET
    lists = {"ps", "ls", "show", "doctor", "top", "check", "advise", "dashboards", "drill", "bench", "tune"}
    assert lists <= {name for name, flags in options.items() if "--json" in flags}


@pytest.mark.parametrize("name", commands())
def test_examples_of_the_table_are_accepted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    for example in commands()[name].examples:
        words = shlex.split(example.partition(" > ")[0])
        assert words[:2] == ["conch", name]
        assert len(f"  {example}") <= 80, example
        if name == "serve":
            assert parse(words[2:], {}).model_repository == ("models",)
        else:
            passed_on = words.index("--") if "--" in words else len(words)  # to the program that conch launch starts
            parser_of(name).parse_args(words[2:passed_on])
