"""The child's code runs in whatever interpreter a model brings, so it keeps to what Python 3.8 understands."""

import ast
from pathlib import Path

import pytest

from conch.server.backends import child

FILES = sorted(Path(child.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_syntax_is_old_enough(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_does_not_import_the_server(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module or "")
        assert not [name for name in names if name.partition(".")[0] == "conch"]
