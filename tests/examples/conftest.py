"""The example models' own modules, importable as their model.py files import them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

for folder in ("models/preprocess/1", "models/postprocess/1", "scripts", "clients"):
    sys.path.append(str(EXAMPLES / folder))


@pytest.fixture
def models() -> Path:
    """The example model repository."""
    return EXAMPLES / "models"


@pytest.fixture
def images() -> Path:
    """The sample images and their ground_truth.json."""
    return EXAMPLES / "images"
