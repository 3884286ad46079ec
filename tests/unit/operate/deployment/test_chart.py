"""Files of deploy/ that are written from others, and what the wheel's chart creates."""

from tools import deploy_files


def test_generated_files_are_up_to_date() -> None:
    assert [str(path) for path in deploy_files.outdated()] == [], "run: make deploy-files"
