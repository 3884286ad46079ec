"""What pip and a package index contain: extras, files, links."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from conch import __version__
from conch.base.build_info import build_line, is_compiled

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*.py"))]


def test_extras_are_spelt_as_pip_normalizes_them() -> None:
    """pip 23.2 compares the name that is asked for with the one in the metadata without normalizing the latter."""
    assert [name for name in EXTRAS if re.sub(r"[-_.]+", "-", name).lower() != name] == []


def test_every_extra_that_is_named_exists() -> None:
    named = re.compile(r"(?:conch-server|'\.)\[([\w,-]+)\]")
    extras = {
        (extra, path.name) for path in TEXTS for match in named.findall(path.read_text()) for extra in match.split(",")
    }
    assert len(extras) > 10
    assert sorted((extra, where) for extra, where in extras if extra not in EXTRAS) == []


def test_the_page_on_installation_lists_every_extra() -> None:
    table = (ROOT / "docs" / "install.md").read_text().partition("## Extras")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)} == EXTRAS


def test_the_licence_is_part_of_the_package() -> None:
    assert PROJECT["license-files"] == ["LICENSE"]
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_links_of_the_readme_work_on_a_package_index() -> None:
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    text = (ROOT / "README.md").read_text()
    for rule in hook["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("https://")] == []
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures
    assert [target for target in pictures if not target.startswith("https://raw.githubusercontent.com/")] == []


@pytest.mark.parametrize("path", [path for path in TEXTS if path.suffix == ".md"], ids=lambda path: path.name)
def test_links_into_the_repository_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_the_version_says_which_build_this_is() -> None:
    done = subprocess.run([sys.executable, "-m", "conch", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"conch {build_line()}"
    assert build_line().startswith(f"{__version__} (")
    assert ("not compiled" in build_line()) is not is_compiled()
