"""The example client's own part; what the server answers is tested where there is a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
from detect import annotate

from .conftest import EXAMPLES


def test_boxes_are_drawn_on_the_upright_picture(images: Path) -> None:
    defect = {"bbox": [100.0, 700.0, 200.0, 800.0], "confidence": 0.9, "class_id": 1, "class_name": "dent"}
    plain, drawn = (
        cv2.imdecode(np.frombuffer(annotate((images / "plate_rotated.jpg").read_bytes(), defects), np.uint8), 1)
        for defects in ([], [defect])
    )
    assert drawn.shape == (900, 540, 3)
    changed = np.abs(plain.astype(int) - drawn).max(axis=2) > 60
    assert changed[700:800, 95:105].any(axis=1).all(), "the left side of the box"
    assert not changed[:600].any()


def test_unreachable_server_is_said_and_fails(images: Path) -> None:
    client = EXAMPLES / "clients" / "detect.py"
    command = [sys.executable, client, images / "plate.jpg", "--url", "localhost:1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("detect at localhost:1: ")
    assert "Traceback" not in result.stderr
