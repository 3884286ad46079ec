"""The `conch` command itself."""

import re
import subprocess
import sys

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


def test_help_loads_nothing_that_it_does_not_need() -> None:
    script = (
        "import sys\n"
        "from conch.cli.main import main\n"
        "sys.argv = ['conch', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        f"    print('LOADED', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "LOADED []"


def test_an_unknown_command_is_a_usage_error_with_a_suggestion() -> None:
    result = conch_command("sreve")
    assert result.returncode == 2
    assert "serve" in result.stderr
