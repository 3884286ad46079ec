"""The `conch` command itself."""

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import conch

HEAVY = ("numpy", "grpc", "google.protobuf", "tritonclient", "onnxruntime", "uvloop", "httptools", "rich")


def conch_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "conch", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_version_is_the_packages() -> None:
    result = conch_command("--version")
    assert result.returncode == 0
    assert re.fullmatch(rf"conch {re.escape(conch.__version__)} \((not )?compiled[^()]*\)\n", result.stdout)


def test_help_names_the_commands() -> None:
    result = conch_command("--help")
    assert result.returncode == 0
    assert "serve" in result.stdout
    assert "usage: conch " in result.stdout


def test_help_groups_the_commands_by_task_in_80_columns_with_serve_first() -> None:
    text = conch_command("--help").stdout
    tasks = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert tasks[:2] == ["options:", "serve:"]
    assert len(tasks) > 4
    assert len(re.findall(r"^  [a-z0-9-]+  ", text, re.MULTILINE)) >= 22
    assert max(map(len, text.splitlines())) <= 80


def test_help_loads_nothing_that_it_does_not_need() -> None:
    script = (
        "import sys\n"
        "from conch.cli import main\n"
        "sys.argv = ['conch', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        f"    print('LOADED', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "LOADED []"


def test_the_server_loads_no_templates_for_itself() -> None:
    """Chat templates are rendered in other processes: here jinja2 would only take 3 MB."""
    script = "import sys, conch.server.server\nprint([name for name in sys.modules if name.startswith('jinja2')])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "[]\n"


def test_an_unknown_command_is_a_usage_error_with_a_suggestion() -> None:
    result = conch_command("sreve")
    assert result.returncode == 2
    assert "serve" in result.stderr


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("serv", "unknown command 'serv'; did you mean 'serve'?"),
        ("zzz", "unknown command 'zzz'. Known: "),
        ("repo lst", "unknown command 'lst'; did you mean 'list'?"),
        ("repo list --jsn .", "unrecognized arguments: --jsn; did you mean '--json'?"),
        ("client prompt", "unknown command 'prompt'; did you mean 'prompts'?"),
        ("engine plon", "unknown command 'plon'; did you mean 'plan'?"),
        ("engine plan x --dtype float8", "--dtype: unknown value 'float8'; did you mean"),
        ("bench --max-seconds=3", "unrecognized arguments: --max-seconds=3; see conch bench --help"),
        ("chat --modle=x", "did you mean '--model'?"),
        ("check --strikt .", "did you mean '--strict'?"),
        ("--model-repository=models", "the first argument must be a command: conch serve --model-repository=models"),
    ],
)
def test_misspelt_words_get_a_suggestion(line: str, suggestion: str) -> None:
    result = conch_command(*line.split())
    assert result.returncode == 2
    assert suggestion in result.stderr


@pytest.mark.parametrize("word", ["help", "--vers"])
def test_help_as_a_command_and_shortened_flags(word: str) -> None:
    assert conch_command(word).returncode == 0


INTERRUPTED_IMPORT = """
import signal, sys
from conch.cli import main

class CtrlC:
    def find_spec(self, name, *_):
        if name == "conch.clients.run.command":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
sys.argv = ["conch", "run", "model.onnx"]
main()
"""


def test_ctrl_c_during_the_imports_of_a_command_shows_no_traceback() -> None:
    result = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "conch run: interrupted\n")


@pytest.mark.parametrize("module", ["conch.cli", "conch.clients.run.command"])
def test_ctrl_c_during_the_imports_of_the_script_shows_no_traceback(module: str) -> None:
    script = INTERRUPTED_IMPORT.replace("from conch.cli import main\n", "import runpy\n")
    script = script.replace("main()", "runpy.run_module('conch', run_name='__main__')")
    script = script.replace("conch.clients.run.command", module)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


def test_the_installed_script_is_what_python_m_conch_runs() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["conch"] == "conch.__main__:main"
