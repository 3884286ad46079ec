"""Repositories with models of `crashing_model.py` in them."""

import shutil
from pathlib import Path

from tests.support.models import tensor, write_config


def write_crashing(root: Path, name: str, config: str = "max_batch_size: 1") -> None:
    """Write such a model: INPUT0 → OUTPUT0, and the process that executed it as PID."""
    folder = write_config(
        root,
        name,
        f'backend: "python" {config} input {tensor("INPUT0", "INT32", 1)} output {tensor("OUTPUT0", "INT32", 1)} '
        f"output {tensor('PID', 'INT32', 1)} output {tensor('LARGE', 'FP32', -1)}",
    )
    shutil.copy(Path(__file__).with_name("crashing_model.py"), folder / "1" / "model.py")
