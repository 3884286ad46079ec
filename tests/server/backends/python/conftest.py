"""Folders and environments of confined models."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def directory() -> Iterator[Path]:
    """A model's folder that every user can reach, with a file beside it that is not the model's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "beside").write_text("secret")
        model = Path(folder) / "model"
        model.mkdir()
        yield model


@pytest.fixture(params=["forked", "own interpreter"])
def parameters(request: pytest.FixtureRequest) -> dict[str, str]:
    return {} if request.param == "forked" else {"EXECUTION_ENV_PATH": sys.prefix}
