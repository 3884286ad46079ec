"""`conch serve`: options of the server, and exit status."""

import os
from pathlib import Path

import pytest

from conch.server.commands.serve import serve
from conch.server.options.server_options import ServerOptions


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CONCH_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServerOptions]:
    """Collect the options instead of serving; the server's exit status is 7."""
    collected: list[ServerOptions] = []

    def run(options: ServerOptions, *_: object) -> int:
        collected.append(options)
        return 7

    monkeypatch.setattr("conch.server.server.run", run)
    return collected


def test_flags_reach_the_server_as_written_and_its_status_the_shell(
    served: list[ServerOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCH_GRPC_PORT", "5001")
    arguments = ["--model-repository", str(tmp_path), "--http-port=5000", "--disable-auto-complete-config"]
    assert serve([*arguments, "--log-verbose", "2"]) == 7
    assert served == [
        ServerOptions(
            model_repository=(str(tmp_path),),
            http_port=5000,
            grpc_port=5001,
            disable_auto_complete_config=True,
            log_verbose=2,
        )
    ]


def test_every_mistake_is_a_line_and_the_status_is_2(
    served: list[ServerOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(["--http-prt=1", "stray", "-x"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "conch serve: unknown flag '--http-prt'; did you mean '--http-port'?",
        "conch serve: unexpected argument 'stray'; flags begin with two dashes",
        "conch serve: unexpected argument '-x'; flags begin with two dashes",
        "conch serve: --model-repository is missing: name the directory that holds the models",
        "conch serve --help lists all flags.",
    ]
    assert not served


def test_a_log_file_that_cannot_be_opened_is_a_start_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve([f"--model-repository={tmp_path}", f"--log-file={tmp_path}"]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("conch serve: cannot start: ")
    assert str(tmp_path) in errors


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_the_flags_and_serves_nothing(
    served: list[ServerOptions], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(["--http-port=1", flag]) == 0
    assert "--http-port=<port>" in capsys.readouterr().out
    assert not served


def test_a_missing_proc_of_the_machine_is_refused(
    served: list[ServerOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve([f"--model-repository={tmp_path}", f"--host-proc={tmp_path}/none"]) == 2
    expected = f"--host-proc: directory '{tmp_path}/none' does not exist; mount /proc of the machine"
    assert expected in capsys.readouterr().err
    assert serve([f"--model-repository={tmp_path}", "--host-proc=/proc"]) == 7
