"""The remedy for a missing extra is a command that works for how Conch was installed."""

import shlex
from pathlib import Path

import pytest

from conch.base.extras import command_for, for_this_installation, install_command

ROOT = Path(__file__).parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
HASH = f"sha256={'0' * 64}"


def test_an_editable_installation_names_its_folder() -> None:
    # This one, as pip has recorded it.
    assert shlex.split(install_command("fil")) == ["pip", "install", "--editable", f"{ROOT}[fil]"]


# What pip 24 writes for each way to install.
@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ('{"dir_info": {}, "url": "file://FOLDER"}', "pip install 'FOLDER[fil]'"),
        (
            f'{{"archive_info": {{"hash": "{HASH}"}}, "url": "file://FOLDER/a.whl"}}',
            "pip install 'conch-server[fil] @ file://FOLDER/a.whl'",
        ),
        (
            f'{{"archive_info": {{"hash": "{HASH}"}}, "url": "https://example.com/a.whl"}}',
            "pip install 'conch-server[fil] @ https://example.com/a.whl'",
        ),
        (
            f'{{"url": "https://example.com/conch", "vcs_info": {{"commit_id": "{COMMIT}", "vcs": "git"}}}}',
            f"pip install 'conch-server[fil] @ git+https://example.com/conch@{COMMIT}'",
        ),
    ],
)
def test_each_other_source_is_named_again(origin: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "a.whl").touch()
    assert command_for(origin.replace("FOLDER", str(tmp_path)), "fil") == command.replace("FOLDER", str(tmp_path))


@pytest.mark.parametrize(
    "origin",
    ["", "{", "[]", "{}", '{"url": "file:///no/such/folder", "dir_info": {}}', '{"url": "x", "dir_info": null}'],
)
def test_otherwise_the_name_on_the_index_is_used(origin: str) -> None:
    assert command_for(origin, "fil") == "pip install 'conch-server[fil]'"


def test_a_folder_with_spaces_and_quotes_stays_one_argument(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    origin = f'{{"dir_info": {{}}, "url": "file://{str(folder).replace(" ", "%20")}"}}'
    assert shlex.split(command_for(origin, "fil")) == ["pip", "install", f"{folder}[fil]"]


def test_pytorch_names_the_index_without_cuda() -> None:
    assert install_command("pytorch").endswith("--extra-index-url https://download.pytorch.org/whl/cpu)")


def test_commands_inside_a_text_are_replaced() -> None:
    text = "Install the schemas: pip install 'conch-server[check]'"
    assert for_this_installation(text) == f"Install the schemas: {install_command('check')}"
